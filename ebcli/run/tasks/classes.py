"""Classification, of images and of videos: the subjects are classes."""

import math
from dataclasses import replace

from torch import Tensor

from ebcli.datatypes.explanation import Subject
from ebcli.models.keywords import CLASSIFICATION, SOFTMAX, VIDEO
from ebcli.run.tasks.task import ImageRequest, Task, register

_UNLIKELY = 0.01  # probability; with more than 100 classes, that of a class chosen at random
_WIDTH_ABOVE = 4  # classes at a time if images have different numbers of them


def subjects(scores: Tensor, request: ImageRequest) -> list[Subject]:
    """The classes that are asked for, given the scores (num_classes,) of all; those to contrast with are never chosen.

    With labels, these are the true class, if it is known, and the most likely one.
    """
    network = request.network
    against = network.against or []
    scores = scores.cpu()
    ranks = scores.clone()
    ranks[against] = -math.inf
    if request.labeled:
        pair = dict.fromkeys((request.label, int(ranks.argmax())))
        chosen = [index for index in pair if index is not None and index not in against]
    elif network.classes is not None:
        chosen = [*dict.fromkeys(max(group, key=ranks.__getitem__) for group in network.classes)]
    elif request.maps.above is not None:
        count = int((ranks > request.maps.above).sum())
        chosen = ranks.argsort(descending=True)[:count].tolist()
    else:
        chosen = ranks.topk(width(request)).indices.tolist()
    minimum = -math.inf
    if network.loaded.scores == SOFTMAX:
        minimum = min(_UNLIKELY, 1 / network.loaded.num_classes)
    chosen_scores = zip(chosen, scores[chosen].tolist(), strict=True)
    return [request.subject(index, score, is_unlikely=score < minimum) for index, score in chosen_scores]


def width(request: ImageRequest) -> int:
    """The number of classes at a time, the same for every image of a run, so that maps do not depend on others."""
    if request.labeled:
        return 2
    if request.network.classes is not None:
        return len(request.network.classes)
    count = request.network.loaded.num_classes - len(request.network.against or ())
    return min(request.maps.max_classes if request.maps.above is None else _WIDTH_ABOVE, count)


def _score(scores: Tensor, subject: Subject) -> float:
    """The probability of the class."""
    return float(scores[subject.index])


_OPTIONS = frozenset({"above", "at", "labels", "compare_with", "sufficiency"})
_IMAGES = Task(subjects, "classifiers", options=_OPTIONS, width=width, in_batches=True, score=_score)
register(CLASSIFICATION, _IMAGES)
# the joint rule was better on trained networks, see docs/evidence.md
_CLIPS = replace(_IMAGES, networks="networks for video", options=frozenset({"above", "labels"}), in_batches=False)
register(VIDEO, replace(_CLIPS, joint=True))
