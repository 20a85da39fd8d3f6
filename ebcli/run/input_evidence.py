"""How the evidence of a network with several inputs is divided among them, and among the columns of tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from torch import Tensor

from ebcli.datatypes.arrays import AnyArray
from ebcli.datatypes.explanation import PictureMap
from ebcli.datatypes.input_spec import InputSpec
from ebcli.eb import ExcitationResult, excitation_backprop
from ebcli.errors import ImageError, LayerError
from ebcli.files.media.medium import DisplayFrame
from ebcli.models import LoadedModel
from ebcli.models.keywords import OF_INPUT
from ebcli.models.several_inputs import SeveralInputs
from ebcli.run.reading import NetworkInput

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
    by_name = _maps_at(model, inputs.names, image, targets, options)
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


def frame_at(model: LoadedModel, layer: str, image: NetworkInput, frame: DisplayFrame) -> DisplayFrame | None:
    """What the map at a layer is drawn over: the frame of the image, or another picture; None if it is of none."""
    inputs = model.inputs
    if inputs is None or not layer.startswith(OF_INPUT):
        return frame
    name = inputs.picture_at(layer)
    if name is None:
        return None
    with inputs.given(image.others, image.path):
        pixels = display_pixels(inputs.others[name][0], model.transforms)
    return DisplayFrame(Image.fromarray(pixels))


def _maps_at(
    model: LoadedModel, names: Sequence[str], image: Tensor, targets: Targets, options: Fields
) -> dict[str, InputMaps]:
    """The maps at those of some inputs that probability reaches: at all of them in the same passes, if it can."""
    inputs = model.inputs
    assert inputs is not None  # of networks with several inputs
    layers = list(map(inputs.layer_of, names))
    call = inputs.call(image)

    def explain(**choices: Any) -> tuple[ExcitationResult, ...]:
        return excitation_backprop(model.net, call, targets, layers, **choices)

    shared = {**options, "joint": False}
    try:
        marginal = explain(**{**shared, "contrastive": False, "against": None})
    except LayerError:  # one is of whole numbers, or the output does not depend on it
        if len(names) == 1:
            return {}
        by_name: dict[str, InputMaps] = {}
        for name in names:
            by_name |= _maps_at(model, [name], image, targets, options)
        return by_name
    shown = marginal
    if options["contrastive"] or options["against"] is not None:
        shown = explain(**shared)
    return dict(zip(names, map(InputMaps, marginal, shown), strict=True))


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
