"""Segmentation: the subjects are the classes that an image is segmented into, or those at some pixels."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ebcli.datatypes.explanation import Box, Subject
from ebcli.errors import ImageError
from ebcli.files.images import read_mask
from ebcli.models.keywords import SEGMENTATION
from ebcli.run.network_description import NetworkDescription
from ebcli.run.tasks.task import ImageRequest, Task, register

_LEAST_SHARE = 0.01  # of the pixels: smaller segments are often noise
_BACKGROUND = ("__background__", "background")
Mask = NDArray[np.bool_]


def subjects(scores: Tensor, request: ImageRequest) -> list[Subject]:
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
    groups = request.network.classes
    if maps.where is not None:
        mask = _mask(maps.where, labels.shape, request)
        means = values[mask].mean(0)
        most_frequent = int(np.bincount(labels[mask]).argmax())
        chosen = [max(group, key=means.__getitem__) for group in groups or [(most_frequent,)]]
        return [_subject(request, index, means[index], mask) for index in chosen]
    shares = np.bincount(labels.ravel(), minlength=values.shape[-1]) / labels.size
    minimum = maps.above
    if minimum is None:
        minimum = 0.0 if groups else _LEAST_SHARE
    possible = _foreground(request.network)
    order = np.argsort(-shares, kind="stable").tolist()
    chosen = [index for index in order if index in possible and shares[index] > minimum]
    return [_subject(request, index, shares[index], labels == index) for index in chosen[: maps.top_k]]


def _foreground(network: NetworkDescription) -> set[int]:
    """The classes that can be explained; without the background, unless it is chosen."""
    classes = {*network.possible}
    if not network.classes:
        names = network.loaded.categories or ()
        classes -= {index for index, name in enumerate(names) if name in _BACKGROUND}
    return classes


def _subject(request: ImageRequest, index: int, score: float, mask: Mask) -> Subject:
    return request.subject(index, float(score), where=mask, outlines=_polygons(mask, request.place))


def _mask(place: tuple[int, int] | Box | Path, shape: tuple[int, int], request: ImageRequest) -> Mask:
    """The pixels (H, W) of the network's output that a pixel or a mask of the image asks for."""
    region = request.place
    if isinstance(place, Path):
        mask = read_mask(place, request.size, region, shape)
        if not mask.any():
            raise ImageError(f"the mask '{place}' has no bright pixels in the part of the image that the network sees")
        return mask
    x, y = place[:2]
    width, height = request.size
    if not (0 <= x < width and 0 <= y < height):
        raise ImageError(f"the pixel {x},{y} is outside the image of {width} x {height} pixels")
    row = int((y + 0.5 - region.top) / (region.bottom - region.top) * shape[0])
    column = int((x + 0.5 - region.left) / (region.right - region.left) * shape[1])
    if not (0 <= row < shape[0] and 0 <= column < shape[1]):
        raise ImageError(f"the pixel {x},{y} is outside what the network sees of the image")
    mask = np.zeros(shape, bool)
    mask[row, column] = True
    return mask


def _polygons(mask: Mask, region: Box) -> list[NDArray[np.float64]]:
    """The outlines of a mask (H, W), in pixels of the image."""
    from contourpy import contour_generator

    values = np.pad(mask.astype(np.float64), 1)
    height, width = mask.shape
    columns = (np.arange(-1, width + 1) + 0.5) / width * (region.right - region.left) + region.left
    rows = (np.arange(-1, height + 1) + 0.5) / height * (region.bottom - region.top) + region.top
    return [np.asarray(line) for line in contour_generator(columns, rows, values).lines(0.5)]


def _score(scores: Tensor, subject: Subject) -> float:
    """The mean probability of the class in its segment."""
    return float(scores[torch.from_numpy(subject.where).to(scores.device)].mean(0)[subject.index])


_OPTIONS = frozenset({"above", "where", "sufficiency"})
register(SEGMENTATION, Task(subjects, "segmentation networks", options=_OPTIONS, score=_score))
