"""Properties of all networks of torchvision, and which of them lose probability and why.

By default, a few networks of different kinds, and with ``.ci/check release`` one of each family; all others are marked
slow, and run by hand before a release.
"""

import pytest
import torch
import zoo
from torchvision.ops.misc import SqueezeExcitation

from ebcli.models import default_layer, layers

# One network of each family, the smallest, and narrow ones of some (see zoo.py); the other ones are marked slow
SMALLEST = {
    *("alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "efficientnet_lite0"),
    *("googlenet", "inception_v3", "mnasnet0_5", "mobilenet_v2", "mobilenet_v3_small", "regnet_x_400mf"),
    *("regnet_y_400mf", "resnet18", "shufflenet_v2_x0_5", "squeezenet1_1", "swin_t", "vgg11_bn", "vit_b_32"),
    *("r3d_18", "swin3d_t"),
    *("deeplabv3_mobilenet_v3_large", "fcn_resnet50", "lraspp_mobilenet_v3_large"),
}

# Of these, the ones of different kinds are tested by default
FEW = {"efficientnet_lite0", "mobilenet_v3_small", "resnet18", "squeezenet1_1", "swin_t", "vit_b_32"}
FEW |= {"lraspp_mobilenet_v3_large", "ssdlite320_mobilenet_v3_large"}
FEW |= {"timm/vit_tiny_patch16_224", "timm/convnextv2_atto", "hf/swin"}

# Grids of maps for small inputs if the layer is not of stride 16, as default layers are
GRIDS = {
    "alexnet": (3, 3),
    "squeezenet1_0": (3, 3),
    "squeezenet1_1": (3, 3),
    "inception_v3": (4, 4),
    **dict.fromkeys(["vit_b_32", "vit_l_32", "vit_l_16", "vit_b_16", "vit_h_14"], (4, 4)),
    "s3d": (4, 14, 14),
    **dict.fromkeys(["r3d_18", "r2plus1d_18"], (4, 8, 8)),
    "mc3_18": (8, 8, 8),
    **dict.fromkeys(["swin3d_t", "swin3d_s", "swin3d_b"], (4, 16, 16)),
    **dict.fromkeys(["mvit_v1_b", "mvit_v2_s"], (8, 56, 56)),
    **{name: (8, 8) for name in zoo.SEGMENTATION if "resnet" in name},  # dilated, not strided
    "lraspp_mobilenet_v3_large": (8, 8),
}

# In these networks, units have enough inputs for some to explain the response, whatever the biases. The others lose
# probability: at depthwise and narrow grouped convolutions, whose units have few inputs (MobileNet and networks built
# from its blocks, ShuffleNet, ResNeXt; ConvNeXt if the image is smaller than the kernel); at the class token, which is
# a parameter (ViT, MViT); at tokens that pad a small image to whole windows (Swin).
WHOLE = (
    "alexnet",
    "densenet",
    "googlenet",
    "inception",
    "regnet",
    "resnet",
    "squeezenet",
    "vgg",
    "wide_resnet",
)
WHOLE += ("fcn_resnet", "deeplabv3_resnet", "r3d", "mc3", "r2plus1d", "s3d")

# Whose every layer is tested by default; that of the others of SMALLEST, and of MaxViT, is slow
EVERY_LAYER = ("resnet18", "squeezenet1_1", "mobilenet_v3_small")

# More whose default layer is found with a release
ALSO_FOUND = {"vgg16", "vgg16_bn", "vit_b_16", "squeezenet1_0", "maxvit_t", "swin_v2_t"}


def each(names, default):
    """Of those that are tested by default a few, the rest with a release; the others are marked slow."""
    marks = {name: "release" if name in default else "slow" for name in names if name not in {*default} & FEW}
    known = (
        pytest.param(one, marks=getattr(pytest.mark, marks[one])) if one in marks else one for one in names
    )
    return pytest.mark.parametrize("name", list(known))


every_network = each([*zoo.CLASSIFIERS, *zoo.VIDEO, *zoo.SEGMENTATION], SMALLEST)


def state_of(net):
    """Everything that a pass could change in a network."""
    tensors = [*net.parameters(), *net.buffers()]
    return (
        [(tensor.requires_grad, tensor.grad, tensor._version, tensor.data_ptr()) for tensor in tensors],
        [(module.training, sorted(vars(module))) for module in net.modules()],
        [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in net.modules()],
        [len(module._backward_hooks) + len(module._backward_pre_hooks) for module in net.modules()],
    )


@every_network
def test_marginal(name):
    specimen = zoo.small(name)
    plain = specimen.forward()
    specimen.net.train()  # the pass itself uses evaluation mode
    before = state_of(specimen.net)
    extent = tuple(specimen.inputs.shape[2:])
    stride = 4 if name.startswith(("convnext", "swin_")) else 16
    grid = GRIDS.get(name, tuple(side // stride for side in extent))
    for result, shape in zip(specimen.excite([specimen.layer, None]), (grid, extent), strict=True):
        assert torch.equal(result.logits, plain)
        assert result.relevance.isfinite().all()
        assert (result.relevance >= 0).all()
        assert 0.1 < result.mass.item() <= 1 + 1e-4
        if name.startswith(WHOLE):
            assert result.mass.item() == pytest.approx(1, abs=1e-4)
        assert result.maps.shape == (1, *shape)
        # the class token's share is not part of the map
        assert result.maps.sum().item() <= result.mass.item() + 1e-4
    assert result.maps.sum().item() == pytest.approx(result.mass.item(), rel=1e-4)
    assert state_of(specimen.net) == before


@pytest.mark.one_in(2)
@every_network
def test_mass_is_one_without_shifts(name):
    """If no constant is added to the signal, every active unit has an input that explains it."""
    specimen = zoo.small(name, shifts=False)
    assert specimen.excite(None).mass.item() == pytest.approx(1, abs=1e-4)
    # Class and dual both keep all probability, so their difference sums to 0; float32 is too coarse for this
    result = specimen.double().excite(specimen.layer, contrastive=True)
    positive = result.relevance.clamp(min=0).sum().item()
    assert positive > 1e-8
    assert abs(result.relevance.sum().item()) <= 1e-4 * positive


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["convnext_tiny", "swin_t"])
def test_mass_is_one_if_the_image_fills_kernels_and_windows(name):
    specimen = zoo.small(name, side=224)
    assert specimen.excite(None).mass.item() == pytest.approx(1, abs=1e-4)


def test_vision_transformers_lose_probability_to_the_class_token():
    specimen = zoo.small("vit_b_32")
    assert specimen.excite(specimen.layer).mass.item() == pytest.approx(1, abs=1e-4)  # includes the token
    assert specimen.excite("encoder.layers.encoder_layer_0").mass.item() == pytest.approx(1, abs=1e-4)
    at_tokens = specimen.excite("encoder.dropout").relevance  # (1, 1 + 16, 96), the class token first
    assert at_tokens.sum().item() == pytest.approx(1, abs=1e-4)
    assert specimen.excite("conv_proj").mass.item() == pytest.approx(at_tokens[:, 1:].sum().item(), abs=1e-4)
    assert at_tokens[:, 0].sum() > 0.01


@each(sorted(({*zoo.CLASSIFIERS} & SMALLEST) | {"maxvit_t"}), EVERY_LAYER)
def test_every_listed_layer(name):
    """Every listed layer has a map, and none is inside a squeeze-excitation."""
    specimen = zoo.small(name)
    loaded = zoo.as_loaded(specimen)
    gates = tuple(
        f"{path}." for path, module in specimen.net.named_modules() if isinstance(module, SqueezeExcitation)
    )
    offered = layers(loaded)
    for layer, result in zip(offered, specimen.excite([layer.name for layer in offered]), strict=True):
        assert result.relevance.shape == (1, *layer.shape)
        assert (result.relevance >= 0).all()
        assert 0.01 < result.mass.item() <= 1 + 1e-4
        if layer.stride is not None:
            assert result.maps.shape[1] == round(specimen.inputs.shape[-1] / layer.stride)
    assert len(offered) > 10
    assert not any(layer.name.startswith(gates) for layer in offered)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["mc3_18", "swin3d_t", "fcn_resnet50", "lraspp_mobilenet_v3_large"])
def test_default_layer_of_other_tasks_is_the_tested_one(name):
    assert default_layer(zoo.shapes_only(name)) == zoo.LAYERS[name] == zoo.documented()[name]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.release if name in SMALLEST | ALSO_FOUND else pytest.mark.slow)
        for name in zoo.CLASSIFIERS
    ],
)
def test_default_layer_is_the_documented_one(name):
    """A layer of stride 16 or so; the tests of the layers say which it is by the networks' definitions."""
    loaded, cells = zoo.shapes_only(name), []
    layer = default_layer(loaded)
    assert layer == zoo.documented()[name]
    loaded.net.get_submodule(layer).register_forward_hook(lambda *called: cells.append(called[2].shape[1:]))
    loaded.net(torch.zeros(1, 3, *loaded.transforms.size, device="meta"))
    ((first, *others),) = cells
    if name.startswith("vit_"):
        assert first == 1 + (loaded.transforms.size[0] // int(name[-2:])) ** 2
    elif name.startswith(("swin", "convnext")):
        assert loaded.transforms.size[0] / (others[0] if name.startswith("convnext") else first) == 4
    else:
        assert 14 <= loaded.transforms.size[0] / others[0] <= 20
