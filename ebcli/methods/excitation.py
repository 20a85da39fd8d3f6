"""Excitation Backprop's maps, and the object map that is made of two of them."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ebcli.eb import ExcitationResult, excitation_backprop
from ebcli.eb.backprop import both_maps
from ebcli.methods.call import MethodCall, MethodMaps, has_own_shape, positive_sums

_WIDTH = 1 / 16  # of the Gaussian, as a share of the shorter side of the map
_REACH = 3  # of the Gaussian, in its widths


def contrastive(call: MethodCall) -> list[MethodMaps]:
    """Contrastive Excitation Backprop (Zhang et al., ECCV 2016, section 3.3), or against other classes."""
    return _as_maps(_excitation(call, contrastive=True, against=call.against))


def marginal(call: MethodCall) -> list[MethodMaps]:
    """Excitation Backprop's marginal winning probability (section 3.2)."""
    return _as_maps(_excitation(call))


def object_maps(call: MethodCall) -> list[MethodMaps]:
    """Where the object is: sqrt(m * G * max(c, 0)), for a marginal map m and a contrastive one c, blurred by G.

    The contrastive map tells classes apart but marks parts; the marginal one covers the object. Their geometric mean is
    high only where both are. It is no probability, so each map is scaled to a sum of 1; a contrastive map without
    positive cells gives a map of zeros.
    """
    pairs = both_maps(call.net, call.inputs, call.priors, call.layers, against=call.against, **_options(call))
    results = []
    for marginal_result, contrastive_result in zip(*pairs, strict=True):
        product = marginal_result.maps.clamp(min=0) * blurred(contrastive_result.maps.clamp(min=0))
        maps = product.sqrt()
        results.append(
            MethodMaps(
                layer=marginal_result.layer,
                maps=maps / positive_sums(maps),
                joint=marginal_result.joint,
                special_tokens=marginal_result.special_tokens,
            )
        )
    return results


def blurred(maps: Tensor) -> Tensor:
    """Maps (B, K, ...) under a Gaussian whose width is 1/16 of their shorter side. Beyond edges, edges go on."""
    sigma = min(maps.shape[max(2, maps.ndim - 2) :]) * _WIDTH
    for axis in range(2, maps.ndim):
        maps = _blurred_along(maps, axis, sigma)
    return maps


def _blurred_along(maps: Tensor, axis: int, sigma: float) -> Tensor:
    reach = math.ceil(_REACH * sigma)
    distances = torch.arange(-reach, reach + 1, device=maps.device, dtype=maps.dtype)
    weights = torch.exp(-0.5 * (distances / sigma) ** 2)
    weights = weights / weights.sum()
    moved = maps.movedim(axis, -1)
    rows = moved.reshape(-1, 1, moved.shape[-1])
    blurred_rows = F.conv1d(F.pad(rows, (reach, reach), mode="replicate"), weights[None, None])
    return blurred_rows.reshape(moved.shape).movedim(-1, axis)


def _excitation(call: MethodCall, **kind: Any) -> Sequence[ExcitationResult]:
    return excitation_backprop(call.net, call.inputs, call.priors, [*call.layers], **kind, **_options(call))


def _options(call: MethodCall) -> dict[str, Any]:
    return {
        "joint": call.joint,
        "head": call.head,
        "unsupported": "gradient" if call.allow_unsupported else "error",
        "track_lost_mass": call.track_lost_mass,
    }


def _as_maps(results: Sequence[ExcitationResult]) -> list[MethodMaps]:
    maps = []
    for result in results:
        is_table = has_own_shape(result.layer, result.relevance)
        at_layer = MethodMaps(
            layer=result.layer,
            maps=result.relevance if is_table else result.maps,
            relevance=result.relevance,
            mass=result.mass,
            lost_mass=result.lost_mass,
            joint=result.joint,
            special_tokens=result.special_tokens,
        )
        maps.append(at_layer)
    return maps
