"""Maps that know nothing of the network, which any method must beat."""

import torch
from torch import Tensor

from ebcli.methods.call import MethodCall, MethodMaps
from ebcli.methods.table import CHANCE, PICTURE, Method


def center_blob(height: int, width: int) -> Tensor:
    """A map (height, width) of 1 at the center, which falls to 0 at the corners."""
    y, x = (torch.linspace(-1, 1, side) for side in (height, width))
    return 1 - torch.hypot(y[:, None], x) / 2**0.5


def _center(call: MethodCall) -> list[MethodMaps]:
    *_, height, width = call.picture.shape
    return [MethodMaps(layer=None, maps=center_blob(height, width).expand(*_subjects(call), -1, -1))]


def _random(call: MethodCall) -> list[MethodMaps]:
    """Uniform noise from 0 to 1; the caller seeds PyTorch's generator."""
    return [MethodMaps(layer=None, maps=torch.rand(*_subjects(call), *call.picture.shape[-2:]))]


def _subjects(call: MethodCall) -> tuple[int, int]:
    """The numbers of images and of subjects."""
    with torch.no_grad():
        priors = call.priors(call.output_of(call.picture))
    return priors.shape[0], priors.shape[1]


CHANCE_METHODS = {
    name: Method(
        name=name, words=name, function=function, source="no network", place=PICTURE, knows_class=False
    )
    for name, function in zip(CHANCE, (_random, _center), strict=True)
}
