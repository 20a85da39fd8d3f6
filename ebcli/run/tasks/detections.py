"""Detection: the subjects are the objects that a detector finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor

from ebcli.errors import ImageError
from ebcli.models import Detection, DetectionScores, detections
from ebcli.models.keywords import DETECTION
from ebcli.nouns.explanation import Subject, rectangle
from ebcli.nouns.input_spec import Placement
from ebcli.run.tasks.task import Asked, Task, register

_FARTHEST = 0.5  # one minus the overlap, of a detection that is still the same one


def subjects(found: Sequence[Detection], asked: Asked) -> list[Subject]:
    """The detections of an image, best first; the one nearest to ``--box``, if there is one.

    Raises:
        ImageError: the box that is asked for is outside the image.
    """
    box, (width, height) = asked.maps.box, asked.size
    if asked.network.classes is not None:
        possible = {*asked.network.possible}
        found = [one for one in found if one.label in possible]
    if box is not None:
        left, top, across, down = box
        if left >= width or top >= height or left + across <= 0 or top + down <= 0:
            numbers = ",".join(f"{value:g}" for value in box)
            raise ImageError(f"the box {numbers} is outside the image of {width} x {height} pixels")
        found = sorted(found, key=_distance_to(box))[:1]
    return [
        asked.subject(one.label, one.score, where=(one.anchor,), box=one.box, outlines=[rectangle(one.box)])
        for one in found[: asked.maps.top_k]
    ]


def _run(inputs: Tensor, asked: Sequence[Asked]) -> list[list[Detection]]:
    """The detections of each image, with boxes in pixels of the image."""
    net, maps = asked[0].network.loaded.net, asked[0].maps
    found = detections(net, inputs, maps.score if maps.box is None else 0)
    if isinstance(net, DetectionScores):
        return found
    height, width = inputs.shape[-2:]
    return [
        [replace(one, box=_in_image(one.box, (width, height), about)) for one in of_image]
        for of_image, about in zip(found, asked, strict=True)
    ]


def _in_image(box: Sequence[float], size: Sequence[int], asked: Asked) -> tuple[float, float, float, float]:
    """A box (left, top, right, bottom) in pixels of the network's input of a size (width, height), in the image."""
    (left, top, right, bottom), (width, height) = asked.place, asked.size
    across, down = (right - left) / size[0], (bottom - top) / size[1]
    x0, x1 = (min(max(left + x * across, 0), width) for x in box[::2])
    y0, y1 = (min(max(top + y * down, 0), height) for y in box[1::2])
    return x0, y0, x1, y1


def _place(asked: Asked) -> Placement:
    """The rectangle that the network sees; of torchvision's detectors, the image and its padding."""
    net, (width, height) = asked.network.loaded.net, asked.size
    if not isinstance(net, DetectionScores):
        return asked.network.loaded.transforms.place(asked.size)
    below, beyond = net.extent(height, width)
    return Placement(0, 0, beyond, below)


def _distance_to(box: tuple[float, float, float, float]) -> Callable[[Detection], tuple[float, float]]:
    """How far a detection is from a box (left, top, width, height): one minus the overlap, then between centers."""
    left, top, right, bottom = box[0], box[1], box[0] + box[2], box[1] + box[3]

    def distance(one: Detection) -> tuple[float, float]:
        x0, y0, x1, y1 = one.box
        both = max(0.0, min(x1, right) - max(x0, left)) * max(0.0, min(y1, bottom) - max(y0, top))
        either = (x1 - x0) * (y1 - y0) + (right - left) * (bottom - top) - both
        return 1 - both / either, abs(x0 + x1 - left - right) + abs(y0 + y1 - top - bottom)

    return distance


def _score(found: Sequence[Detection], subject: Subject) -> float:
    """The best score of a detection of that class at that place; 0 if there is none."""
    assert subject.box is not None
    left, top, right, bottom = subject.box
    distance = _distance_to((left, top, right - left, bottom - top))
    there = [one.score for one in found if one.label == subject.index and distance(one)[0] <= _FARTHEST]
    return max(there, default=0.0)


register(
    DETECTION,
    # the joint rule was better on trained detectors, see docs/evidence.md
    Task(subjects, "detectors", frozenset({"box", "score", "prove"}), run=_run, place=_place, joint=True, score=_score),
)
