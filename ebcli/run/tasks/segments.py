"""Segmentation: the subjects are the classes that an image is segmented into, or those at some pixels."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ebcli.datatypes.arrays import DoubleArray, FloatArray
from ebcli.datatypes.explanation import Box, Subject
from ebcli.errors import ImageError, sides
from ebcli.files.images import read_mask
from ebcli.models.keywords import SEGMENTATION
from ebcli.run.network_description import NetworkDescription
from ebcli.run.tasks.task import ImageRequest, Task, register

_LEAST_SHARE = 0.01  # of the pixels: smaller segments are often noise
_BACKGROUND = ("__background__", "background")
Mask = NDArray[np.bool_]


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
        mask = _mask(maps.where, labels.shape, request)
        return [_subject(request, index, score, mask) for index, score in _best(values[mask], request)]
    shares = np.bincount(labels.ravel(), minlength=values.shape[-1]) / labels.size
    minimum = maps.above
    if minimum is None:
        minimum = 0.0 if request.network.classes else _LEAST_SHARE
    chosen = [index for index in _foreground(request.network) if shares[index] > minimum]
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
    return request.subject(index, float(score), where=mask, outlines=_polygons(mask, request.place))


def _mask(place: tuple[int, int] | Box | Path, shape: tuple[int, int], request: ImageRequest) -> Mask:
    """The pixels (H, W) of the network's output that a pixel or a mask of the image asks for."""
    region = request.place
    if isinstance(place, Path):
        mask = read_mask(place, request.size, region, shape)
        if not mask.any():
            problem = f"the mask '{place}' has no bright pixels"
            raise ImageError(f"{problem} in the part of the image that the network sees")
        return mask
    x, y = place[:2]
    width, height = request.size
    if not (0 <= x < width and 0 <= y < height):
        raise ImageError(f"the pixel {x},{y} is outside the image of {sides(request.size)} pixels")
    region_width, region_height = region.size
    row = int((y + 0.5 - region.top) / region_height * shape[0])
    column = int((x + 0.5 - region.left) / region_width * shape[1])
    if not (0 <= row < shape[0] and 0 <= column < shape[1]):
        raise ImageError(f"the pixel {x},{y} is outside what the network sees of the image")
    mask = np.zeros(shape, bool)
    mask[row, column] = True
    return mask


def _polygons(mask: Mask, region: Box) -> list[DoubleArray]:
    """The outlines of a mask (H, W), in pixels of the image."""
    from contourpy import contour_generator

    values = np.pad(mask.astype(float), 1)
    cell = np.divide(region.size, mask.shape[::-1])
    corner = region[:2] - cell / 2
    return [corner + cell * np.asarray(line) for line in contour_generator(z=values).lines(0.5)]


def _score(scores: Tensor, subject: Subject) -> float:
    """The mean probability of the class in its segment."""
    mask = torch.from_numpy(subject.where).to(scores.device)
    return float(scores[mask].mean(0)[subject.index])


_OPTIONS = "above", "where", "sufficiency"
register(SEGMENTATION, Task(_subjects, "segmentation networks", options=_OPTIONS, score=_score))
