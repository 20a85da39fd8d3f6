"""Classification, of images and of videos: the subjects are classes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import Tensor

from ebcli.datatypes.explanation import Box, Subject, WindowScore
from ebcli.datatypes.windows import WindowSpec
from ebcli.models import LoadedModel
from ebcli.models.keywords import CLASSIFICATION, SOFTMAX, VIDEO
from ebcli.run.maps import Tiles, in_sequence
from ebcli.run.plan_parts import PHOTO
from ebcli.run.tasks.task import ImageRequest, Pieces, Task, register

if TYPE_CHECKING:
    from ebcli.run.reading import NetworkInput

_UNLIKELY = 0.01  # probability; with more than 100 classes, that of a class chosen at random
_WIDTH_ABOVE = 4  # classes at a time if images have different numbers of them
_WIDTH_OF_WINDOWS = 9  # likewise; a photo of one object has about as many
_OF_PHOTO = 20  # classes that are compared, of a photo and of each window
_OF_WINDOW = 3


def subjects(scores: Tensor, request: ImageRequest) -> list[Subject]:
    """The classes that are asked for, given the scores (num_classes,) of all; those to contrast with are never chosen.

    With labels, these are the true class, if it is known, and the most likely one; none if only wrong predictions are
    explained, and this is not known to be one.
    """
    model = request.model
    scores = scores.cpu()
    chosen = _chosen(scores, request)
    minimum = -math.inf
    if model.scores == SOFTMAX:
        minimum = min(_UNLIKELY, 1 / model.num_classes)
    chosen_scores = zip(chosen, scores[chosen].tolist(), strict=True)
    found = []
    for index, score in chosen_scores:
        windows = _windows(index, request)
        highest = max([score, *(window.score for window in windows)])
        is_unlikely = highest < minimum
        found.append(
            request.subject(index, score, is_unlikely=is_unlikely, is_value=model.has_values, windows=windows)
        )
    return found


def _chosen(scores: Tensor, request: ImageRequest) -> list[int]:
    """The classes that are asked for, best first or in the order of the options."""
    network = request.network
    against = network.against or []
    ranks = scores.clone()
    ranks[against] = -math.inf
    if request.maps.only is not None and request.label in (None, int(scores.argmax())):
        return []
    if request.labeled:
        pair = dict.fromkeys((request.label, int(ranks.argmax())))
        return [index for index in pair if index is not None and index not in against]
    if network.classes is not None:
        return [*dict.fromkeys(max(group, key=ranks.__getitem__) for group in network.classes)]
    if request.maps.above is not None:
        count = int((ranks > request.maps.above).sum())
        return ranks.argsort(descending=True)[:count].tolist()
    if request.window_scores is not None:
        return _candidates(ranks, request.window_scores, against)
    return ranks.topk(width(request)).indices.tolist()


def _windows(index: int, request: ImageRequest) -> tuple[WindowScore, ...]:
    """The scores of a class in the windows of the image, if they choose the classes."""
    if request.window_scores is None:
        return ()
    corners = WindowSpec.from_spec(request.model.transforms).corners(request.size)
    scores = request.window_scores[:, index].tolist()
    return tuple(WindowScore(Box(*box), score) for box, score in zip(corners, scores, strict=True))


def _candidates(ranks: Tensor, window_scores: Tensor, against: list[int]) -> list[int]:
    """The likeliest classes of each window, and that of the whole image, or all of a few classes.

    The best is the one with the highest score in the image or any window.

    Args:
        ranks: the scores (num_classes,) of the image; of classes to contrast with, -inf.
        window_scores: those of its windows, (9, num_classes).
        against: the classes to contrast with.
    """
    window_ranks = window_scores.clone()
    window_ranks[:, against] = -math.inf
    if len(ranks) - len(against) <= _OF_PHOTO:
        likeliest = {*range(len(ranks))} - {*against}
    else:
        likeliest = {int(ranks.argmax()), *window_ranks.topk(_OF_WINDOW).indices.flatten().tolist()}
    highest = ranks.maximum(window_ranks.amax(0))
    return sorted(likeliest, key=lambda index: (-highest[index].item(), index))


def width(request: ImageRequest) -> int:
    """The number of classes at a time, the same for every image of a run, so that maps do not depend on others."""
    if request.labeled:
        return 2
    if request.network.classes is not None:
        return len(request.network.classes)
    count = request.model.num_classes - len(request.network.against or ())
    maximum = request.maps.max_classes
    if request.maps.above is not None:
        maximum = _WIDTH_ABOVE
    elif request.maps.candidates == PHOTO:
        maximum = _OF_PHOTO
    elif request.maps.candidates is not None:
        maximum = _WIDTH_OF_WINDOWS
    return min(maximum, count)


def _score(scores: Tensor, subject: Subject) -> float:
    """The probability of the class."""
    return float(scores[subject.index])


def _tiles(model: LoadedModel, image: NetworkInput) -> Pieces | None:
    """The tiles of a photo, if it needs some; other inputs belong to the photo as a whole."""
    if model.inputs is not None:
        return None
    tiles = Tiles.if_needed(model.transforms, image.pixels.shape)
    return tiles and Pieces("tile", tiles.cut(image.pixels), tiles.join)


def _clips(_model: LoadedModel, image: NetworkInput) -> Pieces:
    return Pieces("clip", [*image.pixels], in_sequence)


_OPTIONS = "above", "labels"
_IMAGE_OPTIONS = *_OPTIONS, "at", "sufficiency"
_IMAGES = Task(
    subjects, "classifiers", options=_IMAGE_OPTIONS, width=width, pieces=_tiles, in_batches=True, score=_score
)
register(CLASSIFICATION, _IMAGES)
# the joint rule was better on trained networks, see docs/evidence.md
_VIDEOS = Task(subjects, "networks for video", options=_OPTIONS, width=width, pieces=_clips, joint=True)
register(VIDEO, _VIDEOS)
