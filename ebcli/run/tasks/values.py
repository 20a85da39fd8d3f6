"""Values: the subjects are the numbers that a network returns, for the image or for each of its pixels."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from ebcli.datatypes.arrays import DoubleArray, FloatArray
from ebcli.datatypes.explanation import Subject
from ebcli.models.keywords import VALUE_MAPS, VALUES
from ebcli.run.masks import Mask, mask_at, polygons
from ebcli.run.tasks.task import ImageRequest, Task, register

_MOST = 20  # outputs that are explained if none is asked for


def _subjects(values: Tensor, request: ImageRequest) -> list[Subject]:
    """The outputs that are asked for, given the values (K,) of all."""
    numbers = values.tolist()
    chosen = _chosen(numbers, request)
    return [request.subject(index, numbers[index], is_value=True) for index in chosen]


def _subjects_of_maps(values: Tensor, request: ImageRequest) -> list[Subject]:
    """The outputs that are asked for, at the pixels of ``--where`` or at all.

    Args:
        values: (H, W, K).
        request: what is asked.

    Raises:
        ImageError: the pixel is outside the image, or what the network sees of it; or the mask cannot be read.
    """
    maps = values.float().cpu().numpy()
    place = request.maps.where
    height, width, _ = maps.shape
    mask = np.ones((height, width), bool)
    outlines: Sequence[DoubleArray] = ()
    if place is not None:
        mask = mask_at(place, (height, width), request.size, request.place)
        outlines = polygons(mask, request.place)
    means = maps[mask].mean(0).tolist()
    subjects = []
    for index in _chosen(means, request):
        weights = _weights(maps[..., index], mask)
        subjects.append(request.subject(index, means[index], where=weights, outlines=outlines, is_value=True))
    return subjects


def _weights(values: FloatArray, mask: Mask) -> FloatArray:
    """What probability of the mean of values (H, W) in a mask each pixel gets, up to a factor, by Equation 4.

    These are the values with the sign of the mean.
    """
    weights = np.where(mask, values * np.sign(values[mask].mean()), 0).clip(0)
    if weights.any():
        return weights
    return mask.astype(np.float32)


def _chosen(values: Sequence[float], request: ImageRequest) -> list[int]:
    """The outputs that are asked for; else all, or the largest ones if there are many."""
    network = request.network
    if network.classes is not None:
        return [*dict.fromkeys(max(group, key=values.__getitem__) for group in network.classes)]
    against = network.against or ()
    possible = [index for index in range(len(values)) if index not in against]
    count = _width(request)
    if len(possible) <= count:
        return possible
    return sorted(possible, key=values.__getitem__, reverse=True)[:count]


def _width(request: ImageRequest) -> int:
    """The number of outputs that are explained, the same for every image of a run."""
    network = request.network
    if network.classes is not None:
        return len(network.classes)
    count = request.model.num_classes - len(network.against or ())
    return min(request.maps.top_k or _MOST, count)


register(VALUES, Task(_subjects, "networks that return numbers", width=_width, in_batches=True))
_MAPS = Task(_subjects_of_maps, "networks that return maps of values", options=("where",))
register(VALUE_MAPS, _MAPS)
