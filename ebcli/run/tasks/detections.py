"""Detection: the subjects are the objects that a detector finds."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from ebcli.datatypes.explanation import Box, Size, Subject
from ebcli.errors import ImageError, sides
from ebcli.models import Detection, DetectionScores, detections
from ebcli.models.keywords import DETECTION
from ebcli.run.tasks.task import ImageRequest, Requests, Task, register

_FARTHEST = 0.5  # one minus the overlap, of a detection that is still the same one


def _subjects(objects: Sequence[Detection], request: ImageRequest) -> list[Subject]:
    """The detections of an image, best first; the one nearest to the box of ``--where``, if there is one.

    Raises:
        ImageError: the box that is asked for is outside the image.
    """
    place = request.maps.where
    if request.network.classes is not None:
        possible = {*request.network.possible}
        objects = [detection for detection in objects if detection.label in possible]
    if isinstance(place, Box):
        if not place.share_of(request.size):
            numbers = ",".join(f"{value:g}" for value in place.xywh)
            raise ImageError(f"the box {numbers} is outside the image of {sides(request.size)} pixels")
        objects = sorted(objects, key=lambda detection: _distance(detection.box, place))[:1]
    subjects = []
    for detection in objects[: request.maps.top_k]:
        box = detection.box
        fields = {"where": (detection.anchor,), "box": box, "outlines": [box.outline]}
        subjects.append(request.subject(detection.label, detection.score, **fields))
    return subjects


def _run(inputs: Tensor, requests: Requests) -> list[list[Detection]]:
    """The detections of each image, with boxes in pixels of the image."""
    net = requests[0].model.net
    maps = requests[0].maps
    objects = detections(net, inputs, maps.score if maps.where is None else 0)
    if isinstance(net, DetectionScores):
        return objects
    height, width = inputs.shape[-2:]
    for image_objects, request in zip(objects, requests, strict=True):
        image_objects[:] = [_in_image(detection, (width, height), request) for detection in image_objects]
    return objects


def _in_image(detection: Detection, size: Size, request: ImageRequest) -> Detection:
    """A detection whose box is in pixels of the network's input of a size (width, height), in those of the image."""
    place = request.place
    box = detection.box.rescale(size, place.size).shift(place.left, place.top)
    inside = np.clip(box, 0, request.size * 2)
    return replace(detection, box=Box(*inside.tolist()))


def _place(request: ImageRequest) -> Box:
    """The rectangle that the network sees; of torchvision's detectors, the image and its padding."""
    net = request.model.net
    if not isinstance(net, DetectionScores):
        return request.crop
    height, width = net.extent(*request.size[::-1])
    return Box(0, 0, width, height)


def _distance(first: Box, other: Box) -> tuple[float, float]:
    """How far two boxes are from each other: one minus the overlap, then between centers."""
    x = abs((first.left + first.right) - (other.left + other.right))
    y = abs((first.top + first.bottom) - (other.top + other.bottom))
    return 1 - first.overlap(other), x + y


def _score(objects: Sequence[Detection], subject: Subject) -> float:
    """The best score of a detection of that class at that place; 0 if there is none."""
    assert subject.box is not None
    box = subject.box
    score = 0.0
    for detection in objects:
        distance, _ = _distance(detection.box, box)
        if detection.label == subject.index and distance <= _FARTHEST:
            score = max(score, detection.score)
    return score


_OPTIONS = "where X,Y,W,H", "score", "sufficiency"
# the joint rule was better on trained detectors, see docs/evidence.md
_TASK = Task(_subjects, "detectors", options=_OPTIONS, run=_run, place=_place, joint=True, score=_score)
register(DETECTION, _TASK)
