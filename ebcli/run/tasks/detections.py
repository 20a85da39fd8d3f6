"""Detection: the subjects are the objects that a detector finds."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from ebcli.datatypes.explanation import Box, Subject
from ebcli.errors import ImageError
from ebcli.models import Detection, DetectionScores, detections
from ebcli.models.keywords import DETECTION
from ebcli.run.tasks.task import ImageRequest, Task, register

_FARTHEST = 0.5  # one minus the overlap, of a detection that is still the same one


def subjects(objects: Sequence[Detection], request: ImageRequest) -> list[Subject]:
    """The detections of an image, best first; the one nearest to the box of ``--where``, if there is one.

    Raises:
        ImageError: the box that is asked for is outside the image.
    """
    box = request.maps.where
    if request.network.classes is not None:
        possible = {*request.network.possible}
        objects = [detection for detection in objects if detection.label in possible]
    if isinstance(box, Box):
        width, height = request.size
        if not box.intersection(Box(0, 0, width, height)).area:
            numbers = ",".join(f"{value:g}" for value in box.xywh)
            raise ImageError(f"the box {numbers} is outside the image of {width} x {height} pixels")
        objects = sorted(objects, key=lambda detection: _distance(detection.box, box))[:1]
    return [
        request.subject(
            detection.label,
            detection.score,
            where=(detection.anchor,),
            box=detection.box,
            outlines=[detection.box.outline],
        )
        for detection in objects[: request.maps.top_k]
    ]


def _run(inputs: Tensor, requests: Sequence[ImageRequest]) -> list[list[Detection]]:
    """The detections of each image, with boxes in pixels of the image."""
    net = requests[0].network.loaded.net
    maps = requests[0].maps
    objects = detections(net, inputs, maps.score if maps.where is None else 0)
    if isinstance(net, DetectionScores):
        return objects
    height, width = inputs.shape[-2:]
    in_images = []
    for image_objects, request in zip(objects, requests, strict=True):
        boxes = [_in_image(detection.box, (width, height), request) for detection in image_objects]
        in_images.append([replace(item, box=box) for item, box in zip(image_objects, boxes, strict=True)])
    return in_images


def _in_image(box: Box, size: tuple[int, int], request: ImageRequest) -> Box:
    """A box in pixels of the network's input of a size (width, height), in the image."""
    left, top, right, bottom = request.place
    in_image = box.rescale(size, (right - left, bottom - top)).shift(left, top)
    return Box(*(min(max(edge, 0), limit) for edge, limit in zip(in_image, request.size * 2, strict=True)))


def _place(request: ImageRequest) -> Box:
    """The rectangle that the network sees; of torchvision's detectors, the image and its padding."""
    net = request.network.loaded.net
    if not isinstance(net, DetectionScores):
        return request.network.loaded.transforms.place(request.size)
    width, height = request.size
    height_covered, width_covered = net.extent(height, width)
    return Box(0, 0, width_covered, height_covered)


def _distance(first: Box, other: Box) -> tuple[float, float]:
    """How far two boxes are from each other: one minus the overlap, then between centers."""
    x = abs((first.left + first.right) - (other.left + other.right))
    y = abs((first.top + first.bottom) - (other.top + other.bottom))
    return 1 - first.overlap(other), x + y


def _score(objects: Sequence[Detection], subject: Subject) -> float:
    """The best score of a detection of that class at that place; 0 if there is none."""
    assert subject.box is not None
    box = subject.box
    scores = [
        detection.score
        for detection in objects
        if detection.label == subject.index and _distance(detection.box, box)[0] <= _FARTHEST
    ]
    return max(scores, default=0.0)


_OPTIONS = frozenset({"box", "score", "sufficiency"})
_TASK = Task(subjects, "detectors", options=_OPTIONS, run=_run, place=_place, score=_score)
# the joint rule was better on trained detectors, see docs/evidence.md
register(DETECTION, replace(_TASK, joint=True))
