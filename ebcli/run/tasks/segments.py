"""Segmentation: the subjects are the classes that an image is segmented into, or those at some pixels."""

import warnings

import numpy as np
import torch
from torch import Tensor

from ebcli.datatypes.arrays import FloatArray
from ebcli.datatypes.explanation import Subject
from ebcli.models.keywords import SEGMENTATION
from ebcli.run.masks import Mask, mask_at, polygons
from ebcli.run.network_description import NetworkDescription
from ebcli.run.tasks.task import ImageRequest, Task, register

_LEAST_SHARE = 0.01  # of the pixels: smaller segments are often noise
_BACKGROUND = ("__background__", "background")


def _subjects(scores: Tensor, request: ImageRequest) -> list[Subject]:
    """The classes that cover enough pixels, largest first, without the background; or that at ``--where``.

    Args:
        scores: (H, W, num_classes).
        request: what is asked.

    Raises:
        ImageError: the pixel is outside the image, or what the network sees of it; or the mask cannot be read.
    """
    values = scores.float().cpu().numpy()
    labels = values.argmax(-1)
    maps = request.maps
    if maps.where is not None:
        mask = mask_at(maps.where, labels.shape, request.size, request.place)
        return [_subject(request, index, score, mask) for index, score in _best(values[mask], request)]
    shares = np.bincount(labels.ravel(), minlength=values.shape[-1]) / labels.size
    minimum = maps.above
    if minimum is None:
        minimum = 0.0 if request.network.classes else _LEAST_SHARE
    chosen = [index for index in _foreground(request.network) if shares[index] > minimum]
    if 0 in chosen and not (request.network.classes or request.network.loaded.categories):
        advice = "if it is the background, class names that call it 'background' (--class-names) leave it out"
        warnings.warn(f"class 0 is explained like the others: {advice}", stacklevel=2)
    chosen.sort(key=shares.__getitem__, reverse=True)
    subjects = []
    for index in chosen[: maps.top_k]:
        subjects.append(_subject(request, index, shares[index], labels == index))
    return subjects


def _best(scores: FloatArray, request: ImageRequest) -> list[tuple[int, float]]:
    """The classes that some pixels with scores (N, num_classes) are explained for, and their mean probabilities."""
    means = scores.mean(0)
    groups = request.network.classes
    if groups is None:
        counts = np.bincount(scores.argmax(-1))
        groups = [(int(counts.argmax()),)]
    best = [max(group, key=means.__getitem__) for group in groups]
    return [(index, means[index]) for index in best]


def _foreground(network: NetworkDescription) -> list[int]:
    """The classes that can be explained, in order; without the background, unless it is chosen."""
    classes = sorted({*network.possible})
    names = network.loaded.categories
    if network.classes or names is None:
        return classes
    return [index for index in classes if names[index] not in _BACKGROUND]


def _subject(request: ImageRequest, index: int, score: float, mask: Mask) -> Subject:
    return request.subject(index, float(score), where=mask, outlines=polygons(mask, request.place))


def _score(scores: Tensor, subject: Subject) -> float:
    """The mean probability of the class in its segment."""
    mask = torch.from_numpy(subject.where).to(scores.device)
    return float(scores[mask].mean(0)[subject.index])


_OPTIONS = "above", "where", "sufficiency"
register(SEGMENTATION, Task(_subjects, "segmentation networks", options=_OPTIONS, score=_score))
