"""A small DETR of transformers, as the command loads it, and its loss."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.ops import box_convert, generalized_box_iou

from ebcli.models.sources.huggingface_heads import DETECTORS, make_plain

from .pictures import SIDE
from .scenes import CLASSES

QUERIES = 8
_WIDTH = 64  # channels
_BOX, _OVERLAP, _NOTHING = 5.0, 2.0, 0.2  # weights in the loss, of which the first two are those of DETR


def detr() -> nn.Module:
    """One block of stride 4 and two of stride 8 of a ConvNeXt, one encoder and two decoder layers."""
    backbone = transformers.ConvNextConfig(
        patch_size=4,
        num_stages=2,
        hidden_sizes=[32, _WIDTH],
        depths=[1, 2],
        out_features=["stage2"],
        image_size=SIDE,
    )
    layers = {
        f"{part}_{name}": value
        for part in ("encoder", "decoder")
        for name, value in {"ffn_dim": 2 * _WIDTH, "attention_heads": 4}.items()
    }
    config = transformers.DetrConfig(
        use_timm_backbone=False,
        backbone_config=backbone,
        d_model=_WIDTH,
        encoder_layers=1,
        decoder_layers=2,
        num_queries=QUERIES,
        num_labels=CLASSES,
        dropout=0.0,
        **layers,
    )
    net = make_plain(transformers.DetrForObjectDetection(config), DETECTORS)
    net.register_forward_pre_hook(lambda _net, images: ((images[0] - 0.45) / 0.25,))
    return net


def query_loss(net: Any, images: Tensor, boxes: Tensor, labels: Tensor) -> Tensor:
    """The loss of DETR for two objects in each image: each is matched to one query.

    Args:
        net: a DETR.
        images: (B, 3, H, W), from 0 to 1.
        boxes: (B, 2, 4), left, top, right and bottom in pixels.
        labels: (B, 2).
    """
    output = net.forward((images - 0.45) / 0.25)  # without the hooks, for its gradients
    logits, found = output.logits, output.pred_boxes  # (B, queries, ...)
    wanted = box_convert(boxes / SIDE, "xyxy", "cxcywh")
    with torch.no_grad():
        overlaps = [
            generalized_box_iou(*(box_convert(each, "cxcywh", "xyxy") for each in pair))
            for pair in zip(found, wanted, strict=True)
        ]
        distances = (found[:, :, None] - wanted[:, None]).abs().sum(-1)
        classes = logits.softmax(-1).gather(2, labels[:, None].expand(-1, QUERIES, -1))
        cost = _BOX * distances - classes - _OVERLAP * torch.stack(overlaps)  # (B, queries, 2)
        pairs = (
            cost[:, :, None, 0] + cost[:, None, :, 1] + 1e6 * torch.eye(QUERIES)
        )  # two objects, two queries
        best = pairs.flatten(1).argmin(1)
        match = torch.stack([best // QUERIES, best % QUERIES], 1)
    own = found.gather(1, match[..., None].expand(-1, -1, 4))
    corners = [box_convert(each, "cxcywh", "xyxy").flatten(0, 1) for each in (own, wanted)]
    expected = torch.full(logits.shape[:2], CLASSES).scatter(1, match, labels)
    weights = torch.ones(CLASSES + 1).index_fill(0, torch.tensor(CLASSES), _NOTHING)
    overlap = 1 - generalized_box_iou(*corners).diagonal().mean()
    distance = (own - wanted).abs().sum(-1).mean()
    return (
        F.cross_entropy(logits.flatten(0, 1), expected.flatten(), weights)
        + _BOX * distance
        + _OVERLAP * overlap
    )
