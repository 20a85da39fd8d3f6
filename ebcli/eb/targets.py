"""Where probability starts: from classes, pixels and masks to priors over the network's outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from ebcli.errors import ConfigurationError

Targets = int | Sequence[int] | Sequence[Sequence[int]] | Tensor
Where = tuple[int, ...] | Tensor


def priors(targets: Targets, logits: Tensor, where: Where | None = None) -> tuple[Tensor, bool]:
    """Targets as priors (K, *logits.shape), and whether K is to be left out of the result.

    Args:
        targets: a class for all, (B,) or (B, K) classes, or a floating-point prior shaped like the logits.
        logits: (B, num_classes), or (B, num_classes, ...) with a class for each pixel.
        where: the pixels that share the probability of each class, as a place or as a mask of weights (...) or
            (B, ...); None for all pixels alike.

    Raises:
        ConfigurationError: they do not fit the logits, or there are none.
    """
    if logits.ndim < 2:
        raise ConfigurationError(f"the network's output is {tuple(logits.shape)}, not (B, num_classes, ...)")
    batch, classes, *pixels = logits.shape
    if not batch:
        raise ConfigurationError("there are no images: the batch is empty")
    try:
        wanted = torch.as_tensor(targets, device=logits.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigurationError(
            "the targets are neither class indices, as many for each image, nor a prior; a class's name has to be "
            "looked up first"
        ) from error
    if wanted.is_floating_point():
        if wanted.shape != logits.shape:
            raise ConfigurationError(
                f"the prior has shape {tuple(wanted.shape)}, but the network's output has {tuple(logits.shape)}"
            )
        if where is not None:
            raise ConfigurationError("a prior says itself which pixels it is about: leave out `where`")
        return wanted.to(logits.dtype)[None], True
    share = _share(where, logits)
    if wanted.dtype == torch.bool:
        raise ConfigurationError("the targets are bool, but class indices are integers and a prior is floating")
    single = wanted.ndim < 2
    if wanted.ndim == 0:
        wanted = wanted.expand(batch)
    if wanted.ndim > 2 or wanted.shape[0] != batch:
        raise ConfigurationError(
            f"targets of shape {tuple(wanted.shape)} do not fit {batch} images: give one class, ({batch},) or "
            f"({batch}, K) classes, or a prior {tuple(logits.shape)}"
        )
    if not wanted.numel():
        raise ConfigurationError("there are no targets: give at least one class for each image")
    wanted = wanted.reshape(batch, -1).long()
    wrong = wanted[(wanted < 0) | (wanted >= classes)]
    if wrong.numel():
        raise ConfigurationError(f"class {int(wrong[0])} does not exist: the network has classes 0 to {classes - 1}")
    one_hot = F.one_hot(wanted.mT, classes).to(logits.dtype)  # (K, B, num_classes)
    return one_hot.reshape(*one_hot.shape, *(1 for _ in pixels)) * share, single


def _share(where: Where | None, logits: Tensor) -> Tensor:
    """Each pixel's share of its image's probability, (B or 1, 1, ...); sums to 1 for each image."""
    pixels = tuple(logits.shape[2:])
    if where is None:
        return logits.new_full((1, 1, *pixels), 1 / math.prod(pixels))
    if not pixels:
        raise ConfigurationError("this network has one answer for the whole image: leave out `where`")
    if isinstance(where, tuple):
        if not all(isinstance(at, int) for at in where):
            raise ConfigurationError(f"the pixel {where} is not one: give whole numbers, (row, column)")
        if len(where) != len(pixels) or not all(0 <= at < size for at, size in zip(where, pixels, strict=True)):
            raise ConfigurationError(f"there is no pixel {where} in an output of {' x '.join(map(str, pixels))} pixels")
        mask = logits.new_zeros(pixels)
        mask[where] = 1
    else:
        mask = torch.as_tensor(where).to(logits)
        if mask.shape not in (pixels, (len(logits), *pixels)):
            raise ConfigurationError(
                f"the mask has shape {tuple(mask.shape)}, but it must be {pixels} or {(len(logits), *pixels)}"
            )
    mask = mask.reshape(-1, 1, *pixels)
    total = mask.flatten(1).sum(1)
    if not (total > 0).all() or (mask < 0).any():
        raise ConfigurationError("the mask must be nowhere negative and somewhere positive in each image")
    return mask / total.reshape(-1, *(1 for _ in mask.shape[1:]))
