"""Small networks of torchvision's families, made of its own classes, and how each of them is trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import nn
from torchvision.models.convnext import CNBlockConfig, ConvNeXt
from torchvision.models.densenet import DenseNet
from torchvision.models.efficientnet import EfficientNet, MBConvConfig
from torchvision.models.maxvit import MaxVit
from torchvision.models.mobilenetv3 import InvertedResidualConfig, MobileNetV3
from torchvision.models.resnet import Bottleneck, ResNet
from torchvision.models.swin_transformer import SwinTransformer
from torchvision.models.vgg import VGG, make_layers
from torchvision.models.vision_transformer import VisionTransformer

from .pictures import SIDE


@dataclass(frozen=True)
class Family:
    """A family of networks.

    Attributes:
        build: num_classes -> network.
        layers: names of the layers to read, from the first to the last; the input comes on top of them.
        steps: of training, in a first round.
        rate: the learning rate at its highest.
        attends: whether it is a transformer.
    """

    build: Callable[[int], nn.Module]
    layers: tuple[str, ...]
    steps: int = 400
    rate: float = 2e-3
    attends: bool = False


def _vgg(num_classes: int) -> nn.Module:
    features = make_layers([16, 16, "M", 32, 32, "M", 64, 64, "M", 96, 96, "M"], batch_norm=True)
    net = VGG(features, num_classes)
    net.avgpool = nn.AdaptiveAvgPool2d(2)
    net.classifier = nn.Sequential(
        nn.Linear(96 * 4, 128), nn.ReLU(True), nn.Dropout(0.2), nn.Linear(128, num_classes)
    )
    return net


class _ThinBottleneck(Bottleneck):
    """A bottleneck block that has no more outputs than inputs."""

    expansion = 1


def _resnet(num_classes: int) -> nn.Module:
    net = ResNet(_ThinBottleneck, [1, 1, 1, 1], num_classes, width_per_group=32)
    net.maxpool = nn.Identity()
    return net


def _densenet(num_classes: int) -> nn.Module:
    net = DenseNet(
        growth_rate=12, block_config=(3, 3, 3), num_init_features=24, bn_size=2, num_classes=num_classes
    )
    net.features.pool0 = nn.Identity()
    return net


def _mobilenet(num_classes: int) -> nn.Module:
    config = partial(InvertedResidualConfig, dilation=1, width_mult=1.0)
    settings = [
        config(16, 3, 16, 16, True, "RE", 1),
        config(16, 3, 48, 24, False, "RE", 2),
        config(24, 3, 72, 24, False, "RE", 1),
        config(24, 5, 72, 40, True, "HS", 2),
        config(40, 5, 120, 40, True, "HS", 1),
        config(40, 5, 120, 48, True, "HS", 1),
        config(48, 5, 144, 64, True, "HS", 2),
        config(64, 5, 192, 64, True, "HS", 1),
    ]
    return MobileNetV3(settings, last_channel=128, num_classes=num_classes, norm_layer=nn.BatchNorm2d)


def _efficientnet(num_classes: int) -> nn.Module:
    settings = [
        MBConvConfig(1, 3, 1, 32, 16, 1),
        MBConvConfig(4, 3, 2, 16, 24, 2),
        MBConvConfig(4, 5, 2, 24, 40, 2),
        MBConvConfig(4, 3, 2, 40, 64, 2),
    ]
    return EfficientNet(settings, dropout=0.1, num_classes=num_classes, last_channel=192)


def _convnext(num_classes: int) -> nn.Module:
    settings = [CNBlockConfig(32, 64, 2), CNBlockConfig(64, 96, 2), CNBlockConfig(96, None, 2)]
    return ConvNeXt(settings, num_classes=num_classes, layer_scale=0.1)


def _swin(num_classes: int) -> nn.Module:
    return SwinTransformer(
        [4, 4], 32, [2, 2, 2], [2, 4, 8], [4, 4], stochastic_depth_prob=0.0, num_classes=num_classes
    )


def _maxvit(num_classes: int) -> nn.Module:
    return MaxVit(
        (SIDE, SIDE), 16, 4, [24, 48, 64], [1, 1, 1], 8, 0.0, nn.BatchNorm2d, num_classes=num_classes
    )


def _vit(num_classes: int) -> nn.Module:
    return VisionTransformer(SIDE, 8, 6, 4, 96, 192, num_classes=num_classes)


FAMILIES = {
    "VGG": Family(_vgg, ("features.6", "features.13", "features.20", "features.27")),
    "ResNet": Family(_resnet, ("relu", "layer1", "layer2", "layer3", "layer4")),
    "DenseNet": Family(
        _densenet, ("features.relu0", "features.denseblock1", "features.denseblock2", "features.norm5")
    ),
    "MobileNetV3": Family(_mobilenet, ("features.0", "features.2", "features.5", "features.6", "features.9")),
    "EfficientNet": Family(
        _efficientnet, ("features.0", "features.2", "features.3", "features.4", "features.5")
    ),
    "ConvNeXt": Family(_convnext, ("features.0", "features.1", "features.3", "features.5"), 600, 3e-3),
    "Swin": Family(_swin, ("features.0", "features.1", "features.3", "features.5"), 700, attends=True),
    "MaxViT": Family(_maxvit, ("stem", "blocks.0", "blocks.1", "blocks.2"), attends=True),
    "ViT": Family(
        _vit,
        ("encoder.dropout", *(f"encoder.layers.encoder_layer_{i}" for i in (0, 1, 2, 3, 4))),
        2000,
        1e-3,
        attends=True,
    ),
}
