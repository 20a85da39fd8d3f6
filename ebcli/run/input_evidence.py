"""How the evidence of a network with several inputs is divided among them, and among the columns of tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from ebcli.datatypes.arrays import AnyArray
from ebcli.datatypes.explanation import PictureMap
from ebcli.datatypes.input_spec import InputSpec
from ebcli.eb import ExcitationResult, excitation_backprop
from ebcli.errors import ImageError, LayerError
from ebcli.models import LoadedModel
from ebcli.models.several_inputs import SeveralInputs

Fields = dict[str, Any]  # of a map
Targets = Tensor | Callable[[Tensor], Tensor]


class InputMaps(NamedTuple):
    """What reached an input.

    Attributes:
        marginal: step by step, of which the mass is the input's share.
        shown: the map by the chosen method, step by step.
    """

    marginal: ExcitationResult
    shown: ExcitationResult


def fields_of_inputs(
    model: LoadedModel, image: Tensor, targets: Targets, options: Fields, count: int
) -> list[Fields]:
    """The shares of the inputs, the columns of tables, and the maps of other pictures, for each subject of an image.

    All of them are computed step by step, so that they can be compared.

    Args:
        model: the network.
        image: the picture, (1, C, H, W).
        targets: the subjects, (1, K, ...).
        options: how maps are computed, as for `excitation_backprop`.
        count: the number of subjects.
    """
    inputs = model.inputs
    assert inputs is not None  # of networks with several inputs
    by_name = {}
    for name in inputs.names:
        with suppress(LayerError):  # whole numbers, and what the output does not depend on
            by_name[name] = _maps_at(model, inputs, name, image, targets, options)
    fields = []
    for k in range(count):
        shares = {}
        columns = {}
        pictures = []
        for name, maps in by_name.items():
            assert maps.marginal.mass is not None
            shares[name] = float(maps.marginal.mass[0, k])
            relevance = maps.shown.relevance[0, k].float().cpu()
            if name == inputs.picture:
                continue
            if relevance.ndim == 1:
                columns[name] = _ranked(relevance.tolist(), _column_names(inputs, name, len(relevance)))
            elif relevance.ndim == image.ndim - 1 == 3:
                pixels = display_pixels(inputs.others[name][0], model.transforms)
                pictures.append(PictureMap(name, relevance.sum(0).numpy(), pixels, shares[name]))
        fields.append({"inputs": shares, "columns": columns, "pictures": tuple(pictures)})
    return fields


def _maps_at(
    model: LoadedModel, inputs: SeveralInputs, name: str, image: Tensor, targets: Targets, options: Fields
) -> InputMaps:
    """The maps at an input. Raises LayerError if no probability reaches it."""
    call = inputs.call(image)
    layer = inputs.layer_of(name)
    shared = {**options, "joint": False}
    marginal = excitation_backprop(
        model.net, call, targets, layer, **{**shared, "contrastive": False, "against": None}
    )
    if not options["contrastive"] and options["against"] is None:
        return InputMaps(marginal, marginal)
    return InputMaps(marginal, excitation_backprop(model.net, call, targets, layer, **shared))


def _column_names(inputs: SeveralInputs, name: str, count: int) -> Sequence[str]:
    """The names of a table's columns: their numbers, from 0, if they have none."""
    names = inputs.columns.get(name)
    if names is None:
        return [*map(str, range(count))]
    if len(names) != count:
        raise ImageError(f"there are {len(names)} names of columns, but {name} has {count} columns")
    return names


def _ranked(values: Sequence[float], names: Sequence[str]) -> dict[str, float]:
    """Values by name, the largest first."""
    pairs = zip(names, values, strict=True)
    return dict(sorted(pairs, key=lambda pair: pair[1], reverse=True))


def display_pixels(tensor: Tensor, spec: InputSpec) -> AnyArray:
    """Colors (H, W, 3) of a picture (C, H, W) that a network gets: preprocessing is undone, or the range stretched."""
    values = tensor.detach().float().cpu().numpy()
    values = np.moveaxis(values, 0, -1)
    if len(spec.mean) in (1, values.shape[-1]):
        values = values * np.array(spec.std, np.float32) + np.array(spec.mean, np.float32)
    if values.shape[-1] != 3:
        values = values[..., :1].repeat(3, -1)
    low, high = values.min(), values.max()
    if low < -_TOLERANCE or high > 1 + _TOLERANCE:  # no colors
        values = (values - low) / max(high - low, np.finfo(np.float32).tiny)
    pixels: AnyArray = (255 * values).clip(0, 255).round().astype(np.uint8)
    return pixels


_TOLERANCE = 0.02  # of rounding, and of resampling that overshoots
