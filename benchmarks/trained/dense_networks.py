"""Small detectors, segmentation networks and video classifiers, made of torchvision's and Ultralytics' own classes."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import nn
from torchvision.models._utils import IntermediateLayerGetter
from torchvision.models.detection import FCOS, FasterRCNN, RetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator, DefaultBoxGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.fcos import FCOSHead
from torchvision.models.detection.retinanet import RetinaNetHead
from torchvision.models.detection.ssd import SSD
from torchvision.models.detection.ssdlite import SSDLiteFeatureExtractorMobileNet, SSDLiteHead
from torchvision.models.mobilenetv3 import MobileNetV3
from torchvision.models.resnet import BasicBlock, ResNet
from torchvision.models.segmentation import FCN, LRASPP, DeepLabV3
from torchvision.models.segmentation.deeplabv3 import DeepLabHead
from torchvision.models.segmentation.fcn import FCNHead
from torchvision.models.video.resnet import BasicBlock as VideoBlock
from torchvision.models.video.resnet import Conv3DNoTemporal, Conv3DSimple, VideoResNet
from torchvision.ops import MultiScaleRoIAlign

import ebcli
from ebcli.models.detection import YoloOutput, is_detector

from .dense_queries import detr
from .networks import FAMILIES
from .pictures import LETTERS, SIDE
from .scenes import CLASSES

WIDTHS = (16, 32, 64, 96)
CLIP_WIDTHS = (16, 32, 48, 64)
PYRAMID = 32  # channels
_PIXELS = {"image_mean": [0.45] * 3, "image_std": [0.25] * 3}


def _resnet() -> ResNet:
    """A ResNet of four blocks at strides 2, 4, 8 and 16."""
    net = ResNet(BasicBlock, [1, 1, 1, 1])
    net.inplanes = WIDTHS[0]
    net.conv1, net.bn1 = nn.Conv2d(3, WIDTHS[0], 3, 2, 1, bias=False), nn.BatchNorm2d(WIDTHS[0])
    net.maxpool, net.fc = nn.Identity(), nn.Identity()
    for i, width in enumerate(WIDTHS):
        setattr(net, f"layer{i + 1}", net._make_layer(BasicBlock, width, 1, stride=1 if i == 0 else 2))
    return net


def _pyramid() -> BackboneWithFPN:
    """Strides 4, 8, 16 and, by max pooling, 32."""
    names = {f"layer{i}": str(i - 2) for i in (2, 3, 4)}
    return BackboneWithFPN(_resnet(), names, list(WIDTHS[1:]), PYRAMID)


def _mobilenet() -> nn.Sequential:
    net = FAMILIES["MobileNetV3"].build(len(LETTERS))
    assert isinstance(net, MobileNetV3)
    return net.features


def ssdlite() -> nn.Module:
    """Reads the expansion of the last block of stride 8, the last layer of stride 16, and four more."""
    norm = partial(nn.BatchNorm2d, eps=0.001, momentum=0.03)
    backbone = SSDLiteFeatureExtractorMobileNet(_mobilenet(), 7, norm, width_mult=0.125)
    anchors = DefaultBoxGenerator([[2]] * 6, min_ratio=0.3, max_ratio=0.95)
    channels = [144, 384, 64, 32, 32, 16]
    head = SSDLiteHead(channels, anchors.num_anchors_per_location(), CLASSES, norm)
    return SSD(backbone, anchors, (SIDE, SIDE), CLASSES, head=head, score_thresh=0.05, **_PIXELS)


def fcos() -> nn.Module:
    anchors = AnchorGenerator(((4,), (8,), (16,), (32,)), ((1.0,),) * 4)
    head = FCOSHead(PYRAMID, 1, CLASSES, num_convs=2)
    return FCOS(
        _pyramid(), CLASSES, SIDE, SIDE, anchor_generator=anchors, head=head, score_thresh=0.05, **_PIXELS
    )


def retinanet() -> nn.Module:
    anchors = AnchorGenerator(((16,), (24,), (32,), (48,)), ((1.0,),) * 4)
    head = RetinaNetHead(PYRAMID, 1, CLASSES, norm_layer=partial(nn.GroupNorm, 8))
    return RetinaNet(_pyramid(), CLASSES, SIDE, SIDE, anchor_generator=anchors, head=head, **_PIXELS)


def faster_rcnn() -> nn.Module:
    anchors = AnchorGenerator(((16,), (24,), (32,), (48,)), ((1.0,),) * 4)
    return FasterRCNN(
        _pyramid(),
        min_size=SIDE,
        max_size=SIDE,
        rpn_anchor_generator=anchors,
        rpn_pre_nms_top_n_train=100,
        rpn_post_nms_top_n_train=50,
        rpn_post_nms_top_n_test=50,
        rpn_batch_size_per_image=32,
        box_roi_pool=MultiScaleRoIAlign(["0", "1", "2"], 5, 2),
        box_head=TwoMLPHead(PYRAMID * 25, 64),
        box_predictor=FastRCNNPredictor(64, CLASSES),
        box_batch_size_per_image=24,
        **_PIXELS,
    )


def yolo() -> nn.Module:
    """YOLO11 with at most 24 channels. Its loss reads its ``args``."""
    net: Any = ebcli.load_model("ultralytics/yolo11n.yaml").net
    cfg = importlib.import_module("ultralytics.cfg")  # which load_model has imported, as it has side effects
    shape = {
        "scales": {"t": (0.5, 0.125, 192)},
        "scale": "t",
        "reg_max": 4,
    }  # distances of boxes up to 3 cells
    small = type(net)({**net.yaml, **shape}, nc=CLASSES, verbose=False)
    small.args = cfg.get_cfg()
    small.register_forward_hook(YoloOutput(CLASSES, has_objectness=False, is_transposed=False))
    return small


def as_detector(net: nn.Module) -> nn.Module:
    """A detector that returns the logits of its candidates."""
    return ebcli.DetectionScores(net) if is_detector(net) else net


def lraspp() -> nn.Module:
    backbone = IntermediateLayerGetter(_mobilenet(), {"3": "low", "9": "high"})
    return LRASPP(backbone, 24, 384, CLASSES, inter_channels=64)


def _segmentation_backbone() -> nn.Module:
    """The ResNet up to stride 8."""
    return IntermediateLayerGetter(_resnet(), {"layer3": "out"})


def fcn() -> nn.Module:
    return FCN(_segmentation_backbone(), FCNHead(WIDTHS[2], CLASSES))


def deeplab() -> nn.Module:
    return DeepLabV3(_segmentation_backbone(), DeepLabHead(WIDTHS[2], CLASSES, [2, 4]))


class _Stem(nn.Sequential):
    """The stem of r3d_18, with fewer channels."""

    def __init__(self) -> None:
        convolution = nn.Conv3d(3, CLIP_WIDTHS[0], (3, 7, 7), (1, 2, 2), (1, 3, 3), bias=False)
        super().__init__(convolution, nn.BatchNorm3d(CLIP_WIDTHS[0]), nn.ReLU(inplace=True))


def _video(makers: Sequence[type[nn.Module]]) -> nn.Module:
    """One block for each kind of convolution; those without time keep the number of frames."""
    net = VideoResNet(VideoBlock, makers, [1, 1, 1, 1], _Stem, len(LETTERS))
    net.inplanes = CLIP_WIDTHS[0]
    for i, (make, width) in enumerate(zip(makers, CLIP_WIDTHS, strict=True)):
        stride = 1 if i == 0 else 2
        setattr(net, f"layer{i + 1}", net._make_layer(VideoBlock, make, width, 1, stride))
    net.fc = nn.Linear(CLIP_WIDTHS[-1], len(LETTERS))
    return net


DETECTORS: dict[str, Callable[[], nn.Module]] = {
    "SSDlite": ssdlite,
    "FCOS": fcos,
    "RetinaNet": retinanet,
    "FasterRCNN": faster_rcnn,
    "YOLO": yolo,
    "DETR": detr,
}
SEGMENTATION: dict[str, Callable[[], nn.Module]] = {"LRASPP": lraspp, "FCN": fcn, "DeepLabV3": deeplab}
VIDEO: dict[str, Callable[[], nn.Module]] = {
    "MC3": lambda: _video([Conv3DSimple] + [Conv3DNoTemporal] * 3),
    "R3D": lambda: _video([Conv3DSimple] * 4),
}
