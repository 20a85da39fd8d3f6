"""Methods that cover parts of the picture and compare scores. They never look into the network.

A covered pixel is 0: the mean color, if the preprocessing subtracts it.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from ebcli.eb.arguments import is_finite
from ebcli.errors import NonFiniteError, import_optional
from ebcli.methods.call import MethodCall, MethodMaps

Scores = Callable[[Tensor], Tensor]  # of pictures (N, C, ...), (N, K)
Sides = Sequence[int]

# Of RISE. On a photo, maps of two such sets correlate at 0.95, but at 0.15 unless the mean score is subtracted.
NUM_MASKS = 1000
_SEED = 0
_CELLS = 7  # of a mask, along the shorter side
_VISIBLE = 0.5  # share of the cells
_INTERPOLATION = {1: "linear", 2: "bilinear", 3: "trilinear"}
_WINDOWS = {1: 8, 2: 8, 3: 4}  # side by side, by the picture's number of axes


def occlusion(call: MethodCall) -> list[MethodMaps]:
    """How much the score falls when a window is covered (Zeiler and Fergus, ECCV 2014), computed by captum.

    The window is a square with 1/8 of the picture's shorter side, which moves by half of its side. For videos and
    volumes, it is 1/4 of the shorter side of the frames, and of their number. A pixel's value is the mean over all
    windows that cover it.
    """
    attribution = import_optional("captum.attr")

    def explain(scores: Scores, picture: Tensor) -> Tensor:
        windows, strides = _windows(picture.shape[2:])
        channels = picture.shape[1]
        # each channel is covered, and gets the same value
        falls: Tensor = attribution.Occlusion(scores).attribute(
            picture, (channels, *windows), (channels, *strides), perturbations_per_eval=call.batch_size
        )
        return falls[:, 0]

    return _explain_each(call, explain, occlusion_passes)


def occlusion_passes(sides: Sides) -> int:
    """The number of forward passes of an image: one for each window, and two of the whole picture."""
    passes = 1
    for side, window, stride in zip(sides, *_windows(sides), strict=True):
        passes *= 1 + math.ceil((side - window) / stride)
    return passes + 2


def rise(call: MethodCall) -> list[MethodMaps]:
    """Random masks, weighted by the scores of what they leave visible (Petsiuk et al., BMVC 2018, Equation 6).

    1,000 masks of 7 x 7 cells, or more along a longer side. Each cell is visible with probability p = 0.5. Scores are
    logits, to which any constant may be added, so their mean over all masks is subtracted:

        map = sum of (score - mean score) * mask / (1000 p)

    The masks are the same in each call.
    """

    def explain(scores: Scores, picture: Tensor) -> Tensor:
        masks = _Masks(picture.shape[2:])
        of_batches = [
            scores(picture * batch.to(picture)[:, None]) for batch in masks.in_batches(call.batch_size)
        ]
        weights = torch.cat(of_batches)
        weights -= weights.mean(0)
        weights /= NUM_MASKS * _VISIBLE
        total = weights.new_zeros(weights.shape[1], *picture.shape[2:])
        for batch in masks.in_batches(call.batch_size):
            batch_weights = weights[: len(batch)]
            weights = weights[len(batch) :]
            total += torch.tensordot(batch_weights, batch.to(total), ([0], [0]))
        return total

    return _explain_each(call, explain, rise_passes)


def rise_passes(_sides: Sides) -> int:
    """The number of forward passes of an image: one for each mask, and one of the whole picture."""
    return NUM_MASKS + 1


def _windows(sides: Sides) -> tuple[list[int], list[int]]:
    """The sides of the window that covers pixels, and by how much it moves along each."""
    count = _WINDOWS[len(sides)]
    windows = [max(1, round(length / count)) for length in _lengths(sides)]
    strides = [max(1, window // 2) for window in windows]
    return windows, strides


def _lengths(sides: Sides) -> list[int]:
    """For each side, the length that windows and cells are a share of: height and width have the shorter one."""
    *others, last = sides
    if not others:
        return [last]
    *frames, height = others
    shorter = min(height, last)
    return [*frames, shorter, shorter]


class _Masks:
    """Random masks of a picture: cells of 0 (covered) or 1 (visible), interpolated, and shifted by less than a cell.

    Args:
        sides: of the picture.
    """

    def __init__(self, sides: Sides) -> None:
        counts = [
            min(side, round(_CELLS * side / length))
            for side, length in zip(sides, _lengths(sides), strict=True)
        ]
        cells = [math.ceil(side / count) for side, count in zip(sides, counts, strict=True)]
        generator = torch.Generator().manual_seed(_SEED)
        numbers = torch.rand(NUM_MASKS, *counts, generator=generator)
        shifts = torch.rand(NUM_MASKS, len(sides), generator=generator) * torch.tensor(cells)
        self._sides = sides
        self._visible = (numbers < _VISIBLE).float()
        self._shifts: list[list[int]] = shifts.int().tolist()
        self._size = [(count + 1) * cell for count, cell in zip(counts, cells, strict=True)]

    def in_batches(self, size: int) -> Iterator[Tensor]:
        """All masks (n, ...), up to so many at a time."""
        mode = _INTERPOLATION[len(self._sides)]
        for first in range(0, NUM_MASKS, size):
            visible = self._visible[first : first + size, None]
            large = F.interpolate(visible, self._size, mode=mode, align_corners=False)[:, 0]
            shifts = self._shifts[first : first + size]
            yield torch.stack([self._cut(mask, shift) for mask, shift in zip(large, shifts, strict=True)])

    def _cut(self, mask: Tensor, shift: Sequence[int]) -> Tensor:
        """The part of a larger mask that lies on the picture."""
        for axis, (start, side) in enumerate(zip(shift, self._sides, strict=True)):
            mask = mask.narrow(axis, start, side)
        return mask


class _Counter:
    """Counts the pictures that pass the network.

    Args:
        call: the call, which may want to know.
        total: how many will pass.
    """

    def __init__(self, call: MethodCall, total: int) -> None:
        self._progress = call.progress
        self._total = total
        self._done = 0

    def add(self, count: int) -> None:
        """Report that so many more have passed."""
        self._done += count
        if self._progress is not None:
            self._progress(self._done, self._total)


def _explain_each(
    call: MethodCall, explain: Callable[[Scores, Tensor], Tensor], passes: Callable[[Sides], int]
) -> list[MethodMaps]:
    """The maps of a function that explains one image at a time, so that no map depends on the others of the batch.

    Args:
        call: the call.
        explain: gets a function that scores pictures, and the picture (1, C, ...), and returns maps (K, ...).
        passes: the number of forward passes of an image, by the sides of the picture.

    Raises:
        NonFiniteError: a score is not finite.
    """
    picture = call.picture
    counter = _Counter(call, len(picture) * passes(picture.shape[2:]))
    with torch.no_grad():
        output = call.output_of(picture)
    counter.add(len(picture))
    priors = call.priors(output).to(output)
    maps = []
    for index, image_priors in enumerate(priors.split(1)):
        image_call = call.of_images(index, index + 1)
        scores = partial(_scores, image_call, image_priors, counter)
        maps.append(explain(scores, image_call.picture))
    return [MethodMaps(layer=None, maps=torch.stack(maps))]


def _scores(call: MethodCall, priors: Tensor, counter: _Counter, pictures: Tensor) -> Tensor:
    """The scores (N, K) of changed pictures of an image, at least in single precision."""
    scores = call.scores_of(pictures, priors)
    if not is_finite(scores):
        raise NonFiniteError("scores of covered pictures are not finite: check the weights and the dtype")
    counter.add(len(pictures))
    return scores.to(torch.promote_types(scores.dtype, torch.float32))
