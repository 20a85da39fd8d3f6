"""Maps of detections, of segmented regions and of clips, each of a letter with a known place, and their scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.ops import box_iou

import ebcli
from ebcli.eb.arguments import Where
from ebcli.heads import single_tensor
from ebcli.models.keywords import DETECTION, SEGMENTATION
from ebcli.models.keywords import VIDEO as VIDEO_TASK
from ebcli.run import tasks  # noqa: F401 - registers them
from ebcli.run.tasks.task import REGISTRY

from .dense_networks import DETECTORS, VIDEO, as_detector
from .dense_training import normalized
from .methods import JOINT, STEPWISE, rule_of, slopes_at
from .pictures import SIDE
from .scenes import FRAMES, clips, inside, scenes

LAYERS: dict[str, tuple[str, ...]] = {
    "SSDlite": (
        *(f"backbone.features.0.{i}" for i in (0, 3, 6)),
        "backbone.features.0",
        "backbone.features.1",
    ),
    **dict.fromkeys(
        ("FCOS", "RetinaNet", "FasterRCNN"),
        (
            *(f"backbone.body.layer{i}" for i in (1, 2, 3, 4)),
            *(f"backbone.fpn.layer_blocks.{i}" for i in (0, 1, 2)),
        ),
    ),
    "YOLO": tuple(f"model.{i}" for i in (0, 1, 2, 3, 4, 6, 9, 10)),
    "DETR": (
        *(f"model.backbone.model.{name}" for name in ("embeddings", "encoder.stages.0", "encoder.stages.1")),
        "model.input_projection",
    ),
    "LRASPP": tuple(f"backbone.{i}" for i in (0, 2, 3, 6, 9)),
    **dict.fromkeys(("FCN", "DeepLabV3"), tuple(f"backbone.layer{i}" for i in (1, 2, 3))),
    **dict.fromkeys(VIDEO, ("stem", *(f"layer{i}" for i in (1, 2, 3, 4)))),
}

# The deepest layer of the backbone that all probability passes through; for clips, one of stride 4
DEFAULT = {
    "SSDlite": "backbone.features.0",
    **dict.fromkeys(("FCOS", "RetinaNet", "FasterRCNN"), "backbone.body.layer2"),
    "YOLO": "model.2",
    "DETR": "model.backbone.model.embeddings",
    "LRASPP": "backbone.3",
    **dict.fromkeys(("FCN", "DeepLabV3"), "backbone.layer3"),
    **dict.fromkeys(VIDEO, "layer2"),
}

EXCITATION = ("contrastive", STEPWISE, JOINT, "against the other", "marginal")


@dataclass(frozen=True)
class Question:
    """A letter that a network found, and where it is.

    Attributes:
        net: images (1, 3, ...) to scores (1, num_classes, ...).
        inputs: (1, 3, H, W), or (1, 3, T, H, W).
        target: the letter's class.
        other: the other letter's class.
        where: the anchor, or the mask (H, W), that is asked about; None for clips.
        half: (H, W) or (T, H, W), which pixels are in the letter's half of the scene, or of the clip's frames.
        place: the same for the letter's pixels; in clips for its box, which moves.
        joint: the rule that the command takes for the task; None if the network decides.
    """

    net: nn.Module
    inputs: Tensor
    target: int
    other: int
    where: Where | None
    half: Tensor
    place: Tensor
    joint: bool | None


def task_of(name: str) -> str:
    """The command's name of a network's task."""
    return DETECTION if name in DETECTORS else VIDEO_TASK if name in VIDEO else SEGMENTATION


def questions(name: str, net: nn.Module, count: int, seed: int = 2) -> Iterator[Question]:
    """Two questions for each picture in which the network finds both letters."""
    generator, joint = torch.Generator().manual_seed(seed), REGISTRY[task_of(name)].joint
    if name in VIDEO:
        yield from _clip_questions(net, count, generator, joint)
        return
    drawn = scenes(count, generator)
    dense = as_detector(net) if name in DETECTORS else net
    left = (torch.arange(SIDE) < SIDE // 2).expand(SIDE, SIDE)
    for image, labels, boxes, mask in zip(
        drawn.images, drawn.labels.tolist(), drawn.boxes, drawn.masks, strict=True
    ):
        found: list[Where | None]
        if name in DETECTORS:
            inputs, found = image[None], _anchors(dense, image[None], labels, boxes)
        else:
            inputs = normalized(image)[None]
            with torch.inference_mode():
                predicted = net(inputs)["out"][0].argmax(0)
            regions = [predicted == label for label in labels]
            found = [region if region.sum() > 20 else None for region in regions]
        if None not in found:
            for k, half in enumerate((left, ~left)):
                yield Question(
                    dense, inputs, labels[k], labels[1 - k], found[k], half, mask == labels[k], joint
                )


def _anchors(net: nn.Module, images: Tensor, labels: Sequence[int], boxes: Tensor) -> list[Where | None]:
    """For each letter, the anchor of its best detection; None if it was not found."""
    (found,) = ebcli.detections(net, images, score=0.5)
    anchors: list[Where | None] = []
    for label, box in zip(labels, boxes, strict=True):
        own = [
            detection
            for detection in found
            if detection.label == label and box_iou(torch.tensor([detection.box]), box[None]) >= 0.5
        ]
        anchors.append((own[0].anchor,) if own else None)
    return anchors


def _clip_questions(
    net: nn.Module, count: int, generator: torch.Generator, joint: bool | None
) -> Iterator[Question]:
    drawn = clips(count, generator)
    with torch.inference_mode():
        likeliest = net(drawn.images).topk(2).indices
    early = (torch.arange(FRAMES) < FRAMES // 2)[:, None, None].expand(FRAMES, SIDE, SIDE)
    for i, labels in enumerate(drawn.labels.tolist()):
        if set(labels) == set(likeliest[i].tolist()):
            for k, half in enumerate((early, ~early)):
                place = inside(drawn.boxes[i, k])
                yield Question(net, drawn.images[i][None], labels[k], labels[1 - k], None, half, place, joint)


def maps(
    question: Question, layers: Sequence[str | None], excitation: Sequence[str] = EXCITATION
) -> dict[str, dict[str | None, Tensor]]:
    """The map (h, w) or (t, h, w) of each method at each layer: forms of Excitation Backprop, and two others."""
    options: dict[str, dict[str, Any]] = {
        "contrastive": {"contrastive": True, "joint": question.joint},
        STEPWISE: {"contrastive": True, "joint": False},
        JOINT: {"contrastive": True, "joint": True},
        "against the other": {"against": question.other, "joint": question.joint},
        "marginal": {"joint": question.joint},
    }
    found: dict[str, dict[str | None, Tensor]] = {}
    for form in excitation:
        results = ebcli.excitation_backprop(
            question.net,
            question.inputs,
            question.target,
            list(layers),
            where=question.where,
            **options[form],
        )
        found[form] = {result.layer: result.maps[0] for result in results}
    asked = _Asked(question)
    named = [layer and f"net.{layer}" for layer in layers]
    reached, by_class = slopes_at(
        asked, question.inputs, torch.zeros(1, 1, dtype=torch.long), named, nullcontext()
    )
    for layer, name in zip(layers, named, strict=True):
        activation, slope = reached[name][0], by_class[name][0][0]
        mean = slope.flatten(1).mean(1).reshape(-1, *(1 for _ in slope.shape[1:]))
        found.setdefault("Grad-CAM", {})[layer] = (activation * mean).sum(0)
        found.setdefault("gradient x activation", {})[layer] = (activation * slope).sum(0)
    return found


def rules(question: Question, layers: Sequence[str | None]) -> dict[str | None, str]:
    """The rule of the command's maps at each layer."""
    results = ebcli.excitation_backprop(
        question.net,
        question.inputs,
        question.target,
        list(layers),
        where=question.where,
        joint=question.joint,
    )
    return {result.layer: rule_of(result) for result in results}


class _Asked(nn.Module):
    """The score (1, 1) that is asked about."""

    def __init__(self, question: Question) -> None:
        super().__init__()
        self.net, self.question = question.net, question

    def forward(self, images: Tensor) -> Tensor:
        scores = single_tensor(self.net(images), "the output")[:, self.question.target]
        where = self.question.where
        if isinstance(where, tuple):
            scores = scores[(..., *where)]
        elif where is not None:
            scores = (scores * where).sum((1, 2)) / where.sum()
        return scores[:, None]


@dataclass(frozen=True)
class Share:
    """Where the positive part of a map is; 0 for a blank map.

    Attributes:
        half: its share in the letter's half.
        place: its share in the cells that the letter touches.
        hit: whether the maximum is in one of these cells.
        chance: these cells' share of all cells.
    """

    half: float
    place: float
    hit: float
    chance: float


def share(found: Tensor, question: Question) -> Share:
    """The shares of a map (h, w) or (t, h, w)."""
    pool = F.adaptive_max_pool2d if found.ndim == 2 else F.adaptive_max_pool3d
    half, place = (
        pool(each[None].float(), tuple(found.shape))[0] for each in (question.half, question.place)
    )
    positive = found.nan_to_num().clamp(min=0)
    total = float(positive.sum())
    if total <= 0:
        return Share(0, 0, 0, float(place.mean()))
    in_half, in_place = (float((positive * each).sum()) / total for each in (half, place))
    return Share(in_half, in_place, float(place.flatten()[found.argmax()]), float(place.mean()))
