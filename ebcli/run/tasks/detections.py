"""Detection: the subjects are the objects that a detector finds."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from ebcli.datatypes.explanation import Box, Subject
from ebcli.errors import ImageError
from ebcli.models import Detection, DetectionScores, detections
from ebcli.models.keywords import DETECTION
from ebcli.run.tasks.task import Asked, Task, register

_FARTHEST = 0.5  # one minus the overlap, of a detection that is still the same one


def subjects(found: Sequence[Detection], asked: Asked) -> list[Subject]:
    """The detections of an image, best first; the one nearest to the box of ``--where``, if there is one.

    Raises:
        ImageError: the box that is asked for is outside the image.
    """
    box, (width, height) = asked.maps.where, asked.size
    if asked.network.classes is not None:
        possible = {*asked.network.possible}
        found = [one for one in found if one.label in possible]
    if isinstance(box, Box):
        if not box.intersection(Box(0, 0, width, height)).area:
            numbers = ",".join(f"{value:g}" for value in box.xywh)
            raise ImageError(f"the box {numbers} is outside the image of {width} x {height} pixels")
        found = sorted(found, key=lambda one: _distance(one.box, box))[:1]
    return [
        asked.subject(one.label, one.score, where=(one.anchor,), box=one.box, outlines=[one.box.outline])
        for one in found[: asked.maps.top_k]
    ]


def _run(inputs: Tensor, asked: Sequence[Asked]) -> list[list[Detection]]:
    """The detections of each image, with boxes in pixels of the image."""
    net, maps = asked[0].network.loaded.net, asked[0].maps
    found = detections(net, inputs, maps.score if maps.where is None else 0)
    if isinstance(net, DetectionScores):
        return found
    height, width = inputs.shape[-2:]
    return [
        [replace(one, box=_in_image(one.box, (width, height), about)) for one in of_image]
        for of_image, about in zip(found, asked, strict=True)
    ]


def _in_image(box: Box, size: tuple[int, int], asked: Asked) -> Box:
    """A box in pixels of the network's input of a size (width, height), in the image."""
    (left, top, right, bottom), (width, height) = asked.place, asked.size
    moved = box.rescale(size, (right - left, bottom - top)).shift(left, top)
    return Box(*(min(max(edge, 0), most) for edge, most in zip(moved, (width, height) * 2, strict=True)))


def _place(asked: Asked) -> Box:
    """The rectangle that the network sees; of torchvision's detectors, the image and its padding."""
    net, (width, height) = asked.network.loaded.net, asked.size
    if not isinstance(net, DetectionScores):
        return asked.network.loaded.transforms.place(asked.size)
    below, beyond = net.extent(height, width)
    return Box(0, 0, beyond, below)


def _distance(one: Box, other: Box) -> tuple[float, float]:
    """How far two boxes are from each other: one minus the overlap, then between centers."""
    centers = [(box.left + box.right, box.top + box.bottom) for box in (one, other)]
    return 1 - one.overlap(other), sum(abs(a - b) for a, b in zip(*centers, strict=True))


def _score(found: Sequence[Detection], subject: Subject) -> float:
    """The best score of a detection of that class at that place; 0 if there is none."""
    assert subject.box is not None
    box = subject.box
    there = [one.score for one in found if one.label == subject.index and _distance(one.box, box)[0] <= _FARTHEST]
    return max(there, default=0.0)


_OPTIONS = frozenset({"box", "score", "sufficiency"})
# the joint rule was better on trained detectors, see docs/evidence.md
register(DETECTION, Task(subjects, "detectors", options=_OPTIONS, run=_run, place=_place, joint=True, score=_score))
