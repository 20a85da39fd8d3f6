"""Networks with random weights that exercise every rule, for tests and for docs/networks/models.csv.

Freshly initialized networks are too simple: batch norms that change nothing, layer scales of 1e-6, classifiers and
class tokens of zeros. :func:`enliven` gives every parameter an effect.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._device import DeviceContext
from torchvision import models
from torchvision.models import SwinTransformer, VisionTransformer, detection, segmentation, vgg, video
from torchvision.models.convnext import CNBlockConfig, ConvNeXt

import ebcli
from ebcli.datatypes.input_spec import InputSpec
from ebcli.models import LoadedModel, default_layer

CLASSIFIERS = ebcli.model_names()
VIDEO = models.list_models(module=video)
SEGMENTATION = models.list_models(module=segmentation)
DETECTORS = models.list_models(module=detection)

# The default layers of other networks than classifiers
LAYERS = {
    **dict.fromkeys(["r3d_18", "mc3_18", "r2plus1d_18"], "layer2"),
    "s3d": "features.12",
    "mvit_v1_b": "pos_encoding",
    "mvit_v2_s": "pos_encoding",
    **dict.fromkeys(["swin3d_t", "swin3d_s", "swin3d_b"], "patch_embed"),
    **{name: "backbone.layer4" for name in SEGMENTATION if "resnet" in name},
    "deeplabv3_mobilenet_v3_large": "backbone.16",
    "lraspp_mobilenet_v3_large": "backbone.4",  # the head also reads this layer
    # the deepest layers of the backbone that all probability passes through
    **{name: "backbone.body.layer1" for name in DETECTORS if "rcnn_resnet50" in name},
    **{name: "backbone.body.layer2" for name in DETECTORS if name.startswith(("fcos", "retinanet"))},
    "fasterrcnn_mobilenet_v3_large_fpn": "backbone.body.12",
    "fasterrcnn_mobilenet_v3_large_320_fpn": "backbone.body.12",
    "ssd300_vgg16": "backbone.features",
    "ssdlite320_mobilenet_v3_large": "backbone.features.0",
}


def narrow_vgg11_bn() -> nn.Module:
    """With fully connected layers of 128 units."""
    with torch.device("meta"):  # its own ones have 120 million weights
        net = vgg.VGG(vgg.make_layers(vgg.cfgs["A"], batch_norm=True), init_weights=False)
    net.features = vgg.make_layers(vgg.cfgs["A"], batch_norm=True)
    for place, layer in ((0, nn.Linear(25088, 128)), (3, nn.Linear(128, 128)), (6, nn.Linear(128, 1000))):
        net.classifier[place] = layer
    return net


# Of these, ``small`` has as many layers as torchvision, but fewer channels, as they would take most of the time
_NARROW: dict[str, Callable[[], nn.Module]] = {
    "vit_b_32": lambda: VisionTransformer(128, 32, 12, num_heads=4, hidden_dim=96, mlp_dim=192),
    "swin_t": lambda: SwinTransformer([4, 4], 24, [2, 2, 6, 2], [1, 2, 4, 8], [7, 7]),
    "convnext_tiny": lambda: ConvNeXt(
        [
            CNBlockConfig(24, 48, 3),
            CNBlockConfig(48, 96, 3),
            CNBlockConfig(96, 192, 9),
            CNBlockConfig(192, None, 3),
        ]
    ),
    "vgg11_bn": narrow_vgg11_bn,
    "swin3d_t": lambda: video.SwinTransformer3d([2, 4, 4], 24, [2, 2, 6, 2], [1, 2, 4, 8], [8, 7, 7]),
}

_NORMS = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm)
_WEIGHTED = (nn.Linear, nn.modules.conv._ConvNd)
_PLACES = ("class_token", "class_pos", "pos_embedding", "spatial_pos", "temporal_pos")
_PLACES += ("cls_token", "dist_token", "reg_token", "pos_embed")  # timm
_PLACES += ("distillation_token", "register_tokens", "position_embeddings")  # Hugging Face
_SCALES = (
    "layer_scale",
    "gamma",
    "gamma_1",
    "gamma_2",
    "lambda1",
    "lambda_1",
    "lambda_2",
    "layer_scale_parameter",
)
SHIFT = 0.1  # of biases, in standard deviations of what they are added to


@dataclass(frozen=True)
class Specimen:
    """A network with an input and a layer to explain.

    Attributes:
        net: in evaluation mode, :func:`enliven`-ed.
        inputs: (B, 3, H, W) or (B, 3, T, H, W), noise.
        layer: the default layer.
        where: the pixel to explain in a segmentation, or the anchor of a detector; otherwise None.
        target: the class of a detection; None for the most likely one.
    """

    name: str
    net: nn.Module
    inputs: Tensor
    layer: str
    where: tuple[int, ...] | None = None
    target: int | None = None

    def excite(self, layer: Any, **options: Any) -> Any:
        """Excitation Backprop from the most likely class, in a segmentation from that of the pixel `where`.

        As in :func:`ebcli.excitation_backprop`, one layer has one result, and a list of layers a tuple of results.
        """

        def winner(logits: Tensor) -> Tensor:
            if self.target is not None:
                return torch.tensor([self.target])
            return (logits if self.where is None else logits[(..., *self.where)]).argmax(1)

        return ebcli.excitation_backprop(self.net, self.inputs, winner, layer, where=self.where, **options)

    def forward(self) -> Tensor:
        """The plain network's output for the inputs.

        Without autograd, PyTorch would use another implementation of multi-head attention, which rounds differently.
        """
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            with torch.no_grad():
                output = self.net(self.inputs)
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)
        while not isinstance(output, Tensor):
            output = next(iter(output.values() if isinstance(output, dict) else output))
        return output

    def double(self) -> Specimen:
        return replace(self, net=self.net.double(), inputs=self.inputs.double())


def full(name: str, *, shifts: bool = True) -> Specimen:
    """A network of torchvision with an image of 224 x 224 pixels or a clip, its usual input size; detectors: small."""
    if name in VIDEO:
        frames = 8 if name.startswith("swin3d") else 16
        return specimen_of(name, _build(name), (1, 3, frames, *_clip(name)), shifts=shifts)
    if name in SEGMENTATION:
        return specimen_of(name, _build(name, weights_backbone=None), (1, 3, 224, 224), shifts=shifts)
    if name in DETECTORS:
        net, images = detector(name, shifts=shifts)
        found = ebcli.detections(net, images, score=0.0)[0][0]
        return Specimen(name, net, images, LAYERS[name], (found.anchor,), found.label)
    return _classifier(
        name, 256 if name.startswith("swin_v2") else 224, shifts=shifts
    )  # 8 windows of 32 pixels


def small(
    name: str, *, batch: int = 1, shifts: bool = True, layer: str | None = None, side: int | None = None
) -> Specimen:
    """The same network, or a narrow one, with the smallest input it accepts.

    Args:
        layer: another one than the documented default layer of a classifier.
        side: of the input of a classifier in pixels, if it is another.
    """
    if name in VIDEO:
        side = 32 if name.endswith("_18") else 64
        shape = (batch, 3, *((16, 224, 224) if name.startswith(("mvit", "s3d")) else (8, side, side)))
        net = _seeded(_NARROW[name]) if name in _NARROW else _build(name)
        return specimen_of(name, net, shape, shifts=shifts)
    if name in SEGMENTATION:
        return specimen_of(name, _build(name, weights_backbone=None), (batch, 3, 64, 64), shifts=shifts)
    layer = documented()[name] if layer is None else layer  # to find it takes a while
    return _classifier(name, side or side_of(name), batch=batch, shifts=shifts, layer=layer, narrow=True)


def detector(name: str, *, shifts: bool = True) -> tuple[ebcli.DetectionScores, Tensor]:
    """A detector of torchvision that detects five objects at any score in a small image, and noise of that size."""
    options: dict[str, Any] = {} if name.startswith("ssd") else {"min_size": 96, "max_size": 128}
    if "rcnn" in name:
        options |= {"rpn_post_nms_top_n_test": 30, "box_score_thresh": 0.0, "box_detections_per_img": 5}
    else:
        options |= {"score_thresh": 0.0, "detections_per_img": 5}
    net = _build(name, weights_backbone=None, **options)
    scores = ebcli.DetectionScores(net)
    images = torch.rand(1, 3, 96, 128, generator=torch.Generator().manual_seed(1))
    enliven(scores, images, shifts=shifts)
    return scores, images


def _classifier(
    name: str, side: int, *, batch: int = 1, shifts: bool, layer: str | None = None, narrow: bool = False
) -> Specimen:
    if name in _NARROW and narrow:
        net = _seeded(_NARROW[name])
    elif name.startswith("vit_"):  # which have one position embedding per token
        net = _build(name, image_size=side)
    else:
        net = ebcli.load_model(name, weights="none").net
    layer = default_layer(shapes_only(name)) if layer is None else layer
    return specimen_of(name, net, (batch, 3, side, side), layer=layer, shifts=shifts)


@cache
def documented() -> dict[str, str]:
    """The default layers in docs/networks/models.csv."""
    with (
        Path(__file__)
        .parents[2]
        .joinpath("docs/networks/models.csv")
        .open(encoding="utf-8", newline="") as file
    ):
        return {row["network"]: row["default_layer"] for row in csv.DictReader(file)}


def side_of(name: str) -> int:
    """Side of a small input for a classifier, in pixels."""
    if name.startswith("vit_"):
        return 4 * int(name[-2:])
    return {"inception_v3": 96, "maxvit_t": 224}.get(name, 64)


def shapes_only(name: str) -> LoadedModel:
    """A classifier on the meta device, which has shapes but no data."""
    with _Weightless("meta"):
        return ebcli.load_model(name, weights="none", device="meta")


class _Weightless(DeviceContext):
    """The context ``torch.device("meta")``, except where RegNets compute their channels with tensors."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if sys._getframe(1).f_code.co_name == "from_init_params":
            return func(*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)


def as_loaded(specimen: Specimen) -> LoadedModel:
    """The network as a ``LoadedModel``, for listing its layers."""
    height, width = specimen.inputs.shape[-2:]
    return LoadedModel(
        specimen.name,
        specimen.net,
        transforms=InputSpec((height, width)),
        categories=None,
        weights="none",
        num_classes=1000,
    )


def enliven(net: nn.Module, inputs: Tensor, *, shifts: bool = True, seed: int = 0) -> nn.Module:
    """Fill a network with reproducible random parameters and put it in evaluation mode.

    Norm scales and layer scales have both signs; batch norms have roughly the statistics of `inputs`; parameters that
    torchvision initializes with zeros (classifiers, class tokens, position embeddings) are random. Shifts are all
    parameters that add a constant: biases, shifts and means of batch norms, class tokens, position embeddings.

    Args:
        net: the network, changed in place.
        inputs: input of the forward pass that scales biases and gathers statistics.
        shifts: False sets every shift to zero, so that no neuron is active through its bias alone.
        seed: random seed.
    """
    net.eval()
    generator = torch.Generator().manual_seed(seed)
    handles = []
    with torch.no_grad():
        for module in net.modules():
            for name, parameter in module.named_parameters(recurse=False):
                _fill(module, name, parameter, generator, shifts)
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                handles.append(module.register_forward_pre_hook(_gather(generator, shifts)))
            elif shifts and isinstance(module, _WEIGHTED):
                handles.append(module.register_forward_hook(_lift(generator)))
        net(inputs)
    for handle in handles:
        handle.remove()
    return net


def _fill(module: nn.Module, name: str, parameter: Tensor, generator: torch.Generator, shifts: bool) -> None:
    if name.endswith("bias") or name in _PLACES:
        parameter.normal_(0, SHIFT, generator=generator) if shifts else parameter.zero_()
    elif name in _SCALES or (isinstance(module, _NORMS) and name == "weight"):
        signs = torch.rand(parameter.shape, generator=generator) < 0.25
        parameter.uniform_(0.5, 1.5, generator=generator).mul_(1 - 2 * signs.to(parameter))
    elif not parameter.any():
        parameter.normal_(0, parameter.shape[-1] ** -0.5, generator=generator)


def _gather(generator: torch.Generator, shifts: bool) -> Callable[..., None]:
    """A hook that sets a batch norm's statistics to roughly those of its input."""

    def hook(module: nn.modules.batchnorm._BatchNorm, args: tuple[Tensor]) -> None:
        axes = [axis for axis in range(args[0].ndim) if axis != 1]
        mean, square = args[0].mean(axes), args[0].square().mean(axes)
        assert module.running_mean is not None and module.running_var is not None
        if shifts:
            noise = torch.randn(mean.shape, generator=generator)
            module.running_mean.copy_(mean + SHIFT * square.sqrt() * noise)
            square = (square - mean.square()).clamp(min=square.mean() / 100)  # one cell has no variance
        else:
            module.running_mean.zero_()
        module.running_var.copy_(square * (0.5 + 1.5 * torch.rand(mean.shape, generator=generator)))

    return hook


def _lift(generator: torch.Generator) -> Callable[..., None]:
    """A hook that gives a layer biases in proportion to its output."""

    def hook(module: nn.Module, _args: Any, output: Tensor) -> None:
        if isinstance(module.bias, Tensor):
            noise = torch.randn(module.bias.shape, generator=generator)
            module.bias.copy_(SHIFT * output.square().mean().sqrt() * noise)

    return hook


def _clip(name: str) -> tuple[int, int]:
    """Height and width of a video classifier's frames."""
    return (112, 112) if "18" in name else (224, 224)


def specimen_of(
    name: str, net: nn.Module, shape: tuple[int, ...], *, layer: str | None = None, shifts: bool = True
) -> Specimen:
    """Enliven a network with noise of a given shape, which becomes the specimen's input."""
    inputs = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    enliven(net, inputs, shifts=shifts)
    where = (shape[-2] // 2, shape[-1] // 3) if name in SEGMENTATION else None
    return Specimen(name, net, inputs, LAYERS[name] if layer is None else layer, where)


def _build(name: str, **options: Any) -> nn.Module:
    return _seeded(partial(models.get_model, name, weights=None, **options))


def _seeded(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return build().eval()
