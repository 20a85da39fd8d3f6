"""Listing layers and choosing the default layer."""

import math
from itertools import pairwise

import pytest
import torch
import torchvision
import zoo
from test_zoo import each
from torch import nn
from torch.nn import functional as F

from ebcli.datatypes.input_spec import InputSpec
from ebcli.errors import ConfigurationError, LayerError
from ebcli.models import (
    Layer,
    LoadedModel,
    default_layer,
    layer_per_resolution,
    layers,
    load_model,
    resolve_layer,
)


def shapes_only(name: str) -> LoadedModel:
    with torch.device("meta"):
        return load_model(name, weights="none", device="meta")


def wrapped(net: nn.Module, crop: int = 32) -> LoadedModel:
    return LoadedModel(
        "own", net, transforms=InputSpec((crop, crop)), categories=None, weights="none", num_classes=2
    )


def listed(loaded: LoadedModel, size: int | tuple[int, int] | None = None) -> dict[str, Layer]:
    return {layer.name: layer for layer in layers(loaded, size)}


@pytest.mark.release
@pytest.mark.parametrize(
    ("model", "expected"),
    [
        # the tables of the networks' papers
        ("vgg16", {"features.23": ((512, 14, 14), 16), "classifier.6": ((1000,), None)}),
        ("resnet50", {"layer3": ((1024, 14, 14), 16), "avgpool": ((2048, 1, 1), None)}),
        ("alexnet", {"features.12": ((256, 6, 6), 224 / 6)}),
        (
            "vit_b_16",
            {
                "conv_proj": ((768, 14, 14), 16),
                "encoder.layers.encoder_layer_0": ((197, 768), 16),
                "heads": ((1000,), None),
            },
        ),
        ("swin_t", {"features.0": ((56, 56, 96), 4), "features.7": ((7, 7, 768), 32)}),
    ],
)
def test_shapes_and_strides_match_the_papers(model, expected):
    found = listed(shapes_only(model))
    for layer, (shape, stride) in expected.items():
        assert found[layer].shape == shape
        assert found[layer].stride == (None if stride is None else pytest.approx(stride))


def test_types_are_class_names_and_blocks_follow_their_modules():
    found = listed(shapes_only("resnet18"))
    assert found["layer1.0.conv1"].type == "Conv2d"
    assert found["layer1.0"].type == "BasicBlock"
    order = list(found)
    assert (
        order.index("conv1") < order.index("layer1.0.conv1") < order.index("layer1.0") < order.index("layer1")
    )
    assert order[-1] == "fc"


def test_modules_inside_a_squeeze_excitation_are_not_listed():
    loaded = load_model("mobilenet_v3_small", weights="none")
    offered = {layer.name for layer in layers(loaded)}
    block = {name.removeprefix("features.4.") for name in offered if name.startswith("features.4.")}
    assert {
        "block.1",
        "block.2",
        "block.3",
    } <= block  # the depthwise layer, the gate as a whole, the last layer
    assert not any(name.startswith("block.2.") for name in block)


def test_modules_are_listed_in_execution_order_but_not_those_inside_a_custom_gate():
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last, self.conv = nn.Conv2d(4, 2, 3), nn.Conv2d(3, 4, 3)
            self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(4, 4, 1), nn.Sigmoid())

        def forward(self, x):
            x = self.conv(x).relu()
            return self.last(x * self.gate(x)).mean((2, 3))

    assert list(listed(wrapped(Gated()))) == ["conv", "last"]


def test_the_default_layer_of_a_transformer_is_what_its_first_block_reads():
    class Tokens(nn.Module):
        def __init__(self, halving: bool, named: bool = False) -> None:
            super().__init__()
            self.first = nn.Dropout() if named else None
            self.stem, self.head = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 2)
            self.stack = nn.ModuleList(
                nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(4)
            )
            self.halving = halving

        def forward(self, x):
            x = self.stem(x).flatten(2).transpose(1, 2)  # (B, 64, 8)
            x = x if self.first is None else self.first(x)
            for number, block in enumerate(self.stack):
                x = block(x)
                if self.halving and number == 1:
                    x = x.unflatten(1, (4, 2, 4, 2)).mean((2, 4)).flatten(1, 2)  # (B, 16, 8)
            return self.head(x.mean(1))

    assert default_layer(wrapped(Tokens(halving=False, named=True))) == "first"
    assert default_layer(wrapped(Tokens(halving=False))) == "stack.0"  # no module returns them
    assert default_layer(wrapped(Tokens(halving=True))) == "stem"  # two resolutions: the finer one, outermost


@pytest.mark.parametrize(
    ("has_class_token", "has_shortcut", "layer"),
    [(True, True, "joined"), (False, True, "joined"), (False, False, "patches")],
)
def test_patches_are_no_blocks(has_class_token, has_shortcut, layer):
    """A Sequential that cuts and embeds patches comes before the blocks, which may be in lists of their parts."""

    class Patches(nn.Module):
        def forward(self, x):
            return F.unfold(x, 4, stride=4).mT

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.read = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x):
            return self.read(x, x, x, need_weights=False)[0]

    class Transformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches = nn.Sequential(Patches(), nn.LayerNorm(48), nn.Linear(48, 8), nn.LayerNorm(8))
            self.token = nn.Parameter(torch.randn(1, 1, 8))
            self.joined = nn.Identity()
            self.stack = nn.ModuleList(
                nn.ModuleList([Attention(), nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))])
                for _ in range(2)
            )
            self.head = nn.Linear(8, 2)

        def forward(self, x):
            x = self.patches(x)
            if has_class_token:
                x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
            x = self.joined(x) if has_shortcut else x
            for attention, mlp in self.stack:
                x = attention(x) + x
                x = mlp(x) + x
            return self.head(x.mean(1))

    assert default_layer(wrapped(Transformer())) == layer


def test_modules_called_twice_or_never_or_without_a_single_tensor_are_not_listed():
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.relu, self.unused = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(3, 3, 1)
            self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
            self.table = nn.Linear(2, 4)

        def forward(self, x):
            x = self.relu(self.relu(self.conv(x)))
            x = x.flatten(2).transpose(1, 2)
            grid = self.table(torch.zeros(1, 30, 30, 2))  # the same for every image
            return self.attention(x, x, x)[0] + grid.flatten(1, 2)

    assert list(listed(wrapped(Mixed()))) == ["conv"]


@pytest.mark.parametrize(
    ("shape", "stride"),
    [
        ((8, 24, 40), 4),  # channels first
        ((24, 40, 8), 4),  # channels last
        ((24 * 40, 8), 4),  # tokens
        ((24 * 40 + 1, 8), 4),  # and a class token
        ((8, 23, 39), 96 / 23),  # unpadded
        ((8, 24, 24), None),
        ((8, 1, 1), None),
        ((11, 8), None),
        ((2, 3, 24, 40), 4),  # channels in groups
    ],
)
def test_layouts_of_a_rectangular_image(shape, stride):
    def lay_out(x):
        """Cells of the image, in the places where they are in a layer of this shape."""
        if len(shape) == 2:
            rows = 24 if shape[0] >= 24 * 40 else 1
            tokens = F.adaptive_avg_pool2d(x[:, :1], (rows, shape[0] // rows)).flatten(2).mT
            others = x.new_zeros(len(x), shape[0] - tokens.shape[1], 1)
            return torch.cat([others, tokens], 1).expand(-1, -1, shape[1])
        is_last = shape[-1] == 8
        cells = F.adaptive_avg_pool2d(x[:, :1], shape[:2] if is_last else shape[-2:])
        if is_last:
            return cells.permute(0, 2, 3, 1).expand(-1, *shape)
        return cells.reshape(len(x), *[1] * (len(shape) - 2), *shape[-2:]).expand(-1, *shape)

    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.probe = nn.Linear(1, 1)
            self.layout = nn.Module()
            self.layout.forward = lay_out

        def forward(self, x):
            return self.layout(x)

    found = listed(wrapped(Fixed()), (96, 160))["layout"]
    assert found.shape == shape
    assert found.stride == (None if stride is None else pytest.approx(stride))


def test_windows_stacked_along_the_batch_have_no_stride():
    class Windows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.in_windows = nn.Conv2d(3, 4, 2, 2), nn.Conv2d(4, 4, 1)

        def forward(self, x):
            x = self.stem(x)  # (B, 4, 16, 16), then four windows of 8 x 8 an image
            windows = x.unflatten(3, (2, 8)).unflatten(2, (2, 8)).permute(0, 2, 4, 1, 3, 5)
            return self.in_windows(windows.flatten(0, 2)).sum()

    found = listed(wrapped(Windows()))
    assert found["stem"].stride == 2
    assert found["in_windows"].shape == (4, 8, 8)
    assert found["in_windows"].stride is None


def test_listing_leaves_the_network_unchanged():
    loaded = load_model()
    loaded.net.train()
    loaded.net.features[3].eval()
    flags = [module.training for module in loaded.net.modules()]
    before = {key: value.clone() for key, value in loaded.net.state_dict().items()}
    layers(loaded, 64)
    with pytest.raises(ConfigurationError, match="0 x 0"):
        layers(loaded, 0)
    assert [module.training for module in loaded.net.modules()] == flags
    assert not any(module._forward_hooks for module in loaded.net.modules())
    for key, value in loaded.net.state_dict().items():
        torch.testing.assert_close(value, before[key], rtol=0, atol=0)


def test_an_unsuitable_size_is_reported_in_one_sentence():
    with pytest.raises(
        ConfigurationError, match="vit_b_16 does not accept images of 100 x 100 pixels"
    ) as caught:
        layers(shapes_only("vit_b_16"), 100)
    assert "\n" not in str(caught.value)


RELEASE = pytest.mark.release  # one of each way to choose is enough for now


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("model", "layer"),
    [
        ("vgg16", "features.23"),  # pool4 in the paper
        ("resnet18", "layer3"),
        pytest.param("vit_b_16", "encoder.dropout", marks=RELEASE),
        # the ends of the stages with about 14 x 14 cells, by the networks' definitions
        ("efficientnet_lite0", "features.11"),
        pytest.param("alexnet", "features.11", marks=RELEASE),
        pytest.param("densenet121", "features.denseblock3", marks=RELEASE),
        pytest.param("inception_v3", "Mixed_6e", marks=RELEASE),
        pytest.param("maxvit_t", "blocks.2", marks=RELEASE),
        pytest.param("mobilenet_v3_small", "features.8", marks=RELEASE),
        pytest.param("shufflenet_v2_x0_5", "stage3", marks=RELEASE),
        ("squeezenet1_0", "features"),
        pytest.param("regnet_y_400mf", "trunk_output.block3", marks=RELEASE),
        # before the blocks that mix distant cells
        ("convnext_tiny", "features.0"),
        ("swin_t", "features.0"),
    ],
)
def test_the_default_layer_is_the_one_of_the_networks_definition(model, layer):
    assert default_layer(zoo.shapes_only(model)) == layer


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("model", "layer"),
    [
        ("timm/convnext_atto", "stem"),
        ("timm/swin_tiny_patch4_window7_224", "patch_embed"),
        ("timm/vit_tiny_patch16_224", "norm_pre"),
    ],
)
def test_the_default_layer_is_before_the_blocks_that_mix_distant_cells(model, layer):
    assert default_layer(load_model(model, weights="none")) == layer


@pytest.mark.parametrize(("side", "stride"), [(32, 2), (64, 4), (128, 8), (224, 16), (512, 16)])
def test_the_default_layer_has_cells_enough(side, stride):
    net = nn.Sequential(
        *[nn.Conv2d(3 if not i else 4, 4, 3, 2, 1) for i in range(6)], nn.AdaptiveAvgPool2d(1)
    )
    net = nn.Sequential(*net, nn.Flatten(), nn.Linear(4, 2))
    found = {layer.name: layer for layer in layers(net, side)}[default_layer(net, side)]
    assert found.stride == stride
    assert found.shape[1] >= 9


def test_pixels_that_are_only_moved_or_rescaled_are_no_default():
    class Blocks(nn.Module):
        def __init__(self):
            super().__init__()
            self.cut, self.scale = nn.PixelUnshuffle(4), nn.BatchNorm2d(48)
            self.parts = nn.ModuleDict({"embed": nn.Conv2d(48, 4, 1)})
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            x = self.parts["embed"](self.scale(self.cut(x)))
            return self.head(x.relu().mean((2, 3)))

    assert default_layer(wrapped(Blocks())) == "parts.embed"


def test_networks_with_coarser_layers_use_the_finest():
    net = nn.Sequential(nn.Conv2d(3, 4, 32, 32), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 2))
    assert default_layer(wrapped(net, crop=128)) == "0"


def test_the_default_layer_is_below_the_classifier():
    # In a fully convolutional network, the classifier's output has a spatial layout too
    net = nn.Sequential(
        nn.Conv2d(3, 4, 8, 8), nn.ReLU(), nn.Conv2d(4, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
    )
    assert default_layer(wrapped(net)) == "1"


def test_a_network_without_spatial_layers_has_no_default():
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 7), nn.Linear(7, 2))
    with pytest.raises(LayerError, match="no layer with a spatial layout"):
        default_layer(wrapped(net))


@each(
    ["vgg16", "resnet18", "inception_v3", "vit_b_16", "densenet121", "efficientnet_b0"],
    ["vgg16", "resnet18", "inception_v3", "vit_b_16"],
)
def test_one_layer_per_resolution_includes_the_default(name):
    loaded = shapes_only(name)
    chosen, found = layer_per_resolution(loaded), listed(loaded)
    strides = [found[layer].stride for layer in chosen]
    assert default_layer(loaded) in chosen
    for coarse, fine in pairwise(strides):
        assert 1.5 < coarse / fine < 2.6
    # No layer is much coarser or finer than the chosen ones
    others = [layer.stride for layer in found.values() if layer.stride is not None]
    assert max(others) / strides[0] < 1.5
    assert strides[-1] / min(others) < 1.5


def test_a_wrong_layer_name_suggests_the_closest():
    loaded = shapes_only("vgg16")
    assert resolve_layer(loaded, "features.23") == "features.23"
    with pytest.raises(LayerError, match=r"'features\.23'"):
        resolve_layer(loaded, "feature.23")
    with pytest.raises(LayerError, match="first modules are features"):
        resolve_layer(loaded, "")


def test_a_network_without_preprocessing_takes_images_of_224_pixels():
    net = torchvision.models.resnet18(num_classes=2).eval()
    found = {layer.name: layer for layer in layers(net)}
    assert found["conv1"].shape == (64, 112, 112)
    assert default_layer(net) == default_layer(net, 224)


@pytest.mark.parametrize(("size", "shape"), [(64, (4, 16, 16)), ((32, 64), (4, 8, 16))])
def test_the_input_size_of_a_network(size, shape):
    # flattened for one input size only
    net = nn.Sequential(nn.Conv2d(3, 4, 4, 4), nn.ReLU(), nn.Flatten(), nn.Linear(math.prod(shape), 2))
    assert layers(net, size)[0].shape == shape
    assert default_layer(net, size) == "1"
    for refused in (layers, default_layer):
        with pytest.raises(ConfigurationError, match="Sequential does not accept images of 224 x 224 pixels"):
            refused(net)
