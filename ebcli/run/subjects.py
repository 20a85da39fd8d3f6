"""What is explained in an image by networks that predict many things: each detection, each segmented class."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ebcli.drawing.explanation import Explanation, LayerMaps, rectangle
from ebcli.eb.capture import single_tensor
from ebcli.errors import ConfigurationError, ImageError
from ebcli.files.images import Placement, read_mask
from ebcli.models import Detection, DetectionScores, LoadedModel, detections
from ebcli.models.keywords import CLASSIFICATION, DETECTION, SEGMENTATION, VIDEO
from ebcli.run.layer_maps import joined
from ebcli.run.plan import MapOptions, RunPlan

Size = tuple[int, int]

_LEAST_SHARE = 0.01  # of the pixels: smaller segments are often noise
_BACKGROUND = ("__background__", "background")


@dataclass(frozen=True)
class Subject:
    """One map to compute.

    Attributes:
        index: the class.
        score: a detection's score; a segmented class's share of the pixels, or its mean probability ``where`` asked.
        where: where the probability starts: weights (...) of the network's output (1, num_classes, ...), or an index.
        box: a detection's left, top, right and bottom, in pixels of the image.
        outlines: the closed polygons (N, 2) around what is explained, in pixels of the image.
    """

    index: int
    score: float
    where: Tensor | tuple[int, ...]
    box: tuple[float, float, float, float] | None = None
    outlines: list[NDArray[np.float64]] = field(default_factory=list)

    def prior(self, logits: Tensor) -> Tensor:
        """The prior (num_classes, ...) for an output (1, num_classes, ...)."""
        prior = torch.zeros_like(logits[0])
        if isinstance(self.where, tuple):
            prior[self.index][self.where] = 1
        else:
            prior[self.index] = self.where.to(prior) / self.where.sum()
        return prior


def check_options(plan: RunPlan, loaded: LoadedModel) -> None:
    """Raise ConfigurationError if the plan has options that the network's task does not know."""
    maps, task = plan.maps, loaded.task
    misplaced = {
        "--box works only with detectors": maps.box is not None and task != DETECTION,
        "--score works only with detectors": maps.score != MapOptions.score and task != DETECTION,
        "--where works only with segmentation networks": maps.where is not None and task != SEGMENTATION,
        "--above works only with classes": maps.above is not None and task == DETECTION,
        "--labels works only with classifiers": plan.inputs.labels is not None and task in SCENES,
        "--boxes and --masks mark regions of images": (plan.output.boxes or plan.output.masks) and task == VIDEO,
        "--style mask needs transparency, which videos lack": plan.style.name == "mask" and task == VIDEO,
        "--beside works only with classifiers": bool(maps.beside) and task != CLASSIFICATION,
        "--dtype bfloat16 has no non-maximum suppression": plan.execution.dtype != "float32" and task == DETECTION,
    }
    for reason, is_misplaced in misplaced.items():
        if is_misplaced:
            hint = "use --score, or drop it" if reason.startswith("--above") else "drop it"
            raise ConfigurationError(f"{reason}, but {loaded.name} is for {task}: {hint}")


class View(NamedTuple):
    """An image's width and height, and the rectangle of it that the network sees."""

    size: Size
    region: Placement


@dataclass(frozen=True)
class Scene:
    """The subjects of an image, and the rectangle of the image that their maps cover."""

    subjects: list[Subject]
    placement: Placement

    def priors(self, at_a_time: int) -> Iterator[Callable[[Tensor], Tensor]]:
        """For some subjects at a time, the function from logits (1, num_classes, ...) to priors (1, K, ...)."""
        for first in range(0, len(self.subjects), at_a_time):
            yield partial(_priors, self.subjects[first : first + at_a_time])

    def explained(
        self, turns: Sequence[Sequence[LayerMaps]], category: Callable[[int], str | None], start: float
    ) -> Explanation:
        """The explanation of the image.

        Args:
            turns: for the subjects of each turn, their maps at each layer.
            category: the name of a class.
            start: the time at which the work began.
        """
        found = self.subjects
        return Explanation(
            [one.index for one in found],
            [one.score for one in found],
            [category(one.index) for one in found],
            tuple(joined(of_layer, len(found)) for of_layer in zip(*turns, strict=True)),
            time.perf_counter() - start,
            placement=self.placement,
            boxes=[one.box for one in found if one.box is not None],
            outlines=[one.outlines for one in found],
        )


def _priors(subjects: Sequence[Subject], logits: Tensor) -> Tensor:
    return torch.stack([one.prior(logits) for one in subjects])[None]


def detected(loaded: LoadedModel, inputs: Tensor, maps: MapOptions, classes: Sequence[int] | None, view: View) -> Scene:
    """The detections of an image, best first.

    Args:
        loaded: a detector.
        inputs: (1, 3, H, W).
        maps: which detections are explained.
        classes: only detections of these; None for all.
        view: the image; detectors see all of it.

    Raises:
        ImageError: the box that is asked for is outside the image.
    """
    net = loaded.net
    assert isinstance(net, DetectionScores)
    width, height = view.size
    if maps.box is not None:
        left, top, across, down = maps.box
        if left >= width or top >= height or left + across <= 0 or top + down <= 0:
            raise ImageError(f"the box {_numbers(maps.box)} is outside the image of {width} x {height} pixels")
    (found,) = detections(net, inputs, maps.score if maps.box is None else 0)
    if classes is not None:
        found = [one for one in found if one.label in classes]
    if maps.box is not None:
        found = sorted(found, key=_distance_to(maps.box))[:1]
    below, beyond = net.extent(height, width)
    subjects = [
        Subject(one.label, one.score, (one.anchor,), one.box, [rectangle(one.box)]) for one in found[: maps.top_k]
    ]
    return Scene(subjects, Placement(0, 0, beyond, below))


def _distance_to(box: tuple[float, float, float, float]) -> Callable[[Detection], tuple[float, float]]:
    """How far a detection is from a box (left, top, width, height): one minus the overlap, then between centers."""
    left, top, right, bottom = box[0], box[1], box[0] + box[2], box[1] + box[3]

    def distance(one: Detection) -> tuple[float, float]:
        x0, y0, x1, y1 = one.box
        both = max(0.0, min(x1, right) - max(x0, left)) * max(0.0, min(y1, bottom) - max(y0, top))
        either = (x1 - x0) * (y1 - y0) + (right - left) * (bottom - top) - both
        return 1 - both / either, abs(x0 + x1 - left - right) + abs(y0 + y1 - top - bottom)

    return distance


def _numbers(values: Sequence[float]) -> str:
    return ",".join(f"{value:g}" for value in values)


@torch.no_grad()
def segmented(
    loaded: LoadedModel, inputs: Tensor, maps: MapOptions, classes: Sequence[int] | None, view: View
) -> Scene:
    """The classes that an image is segmented into, or those of some pixels.

    Args:
        loaded: a segmentation network.
        inputs: (1, 3, H, W).
        maps: which classes are explained, and where.
        classes: these classes; None for those that cover enough pixels, without the background.
        view: the image.

    Raises:
        ImageError: the pixel is outside the image, or what the network sees of it; or the mask cannot be read.
    """
    region = view.region
    scores = loaded.to_scores(single_tensor(loaded.net(inputs), "the output").movedim(1, -1))[0]
    predicted = scores.argmax(-1)
    shape = predicted.shape[0], predicted.shape[1]
    if maps.where is not None:
        mask = _asked(maps.where, shape, view).to(predicted.device)
        chosen = classes or [int(predicted[mask].mode().values)]
        subjects = [Subject(c, float(scores[mask][:, c].mean()), mask, None, _polygons(mask, region)) for c in chosen]
        return Scene(subjects, region)
    shares = predicted.flatten().bincount(minlength=scores.shape[-1]) / predicted.numel()
    least = maps.above if maps.above is not None else 0.0 if classes else _LEAST_SHARE
    chosen = [c for c in shares.argsort(descending=True).tolist() if shares[c] > least]
    is_background = [name in _BACKGROUND for name in loaded.categories or ()] or [False] * len(shares)
    chosen = [c for c in chosen if (c in classes if classes else not is_background[c])]
    return Scene(
        [
            Subject(c, float(shares[c]), predicted == c, None, _polygons(predicted == c, region))
            for c in chosen[: maps.top_k]
        ],
        region,
    )


def _asked(where: tuple[int, int] | Path, shape: Size, view: View) -> Tensor:
    """The pixels (H, W) of the network's output that a pixel or a mask of the image asks for."""
    (width, height), region = view.size, view.region
    if isinstance(where, Path):
        mask = torch.from_numpy(read_mask(where, view.size, region, shape))
        if not mask.any():
            raise ImageError(f"the mask '{where}' has no bright pixels in the part of the image that the network sees")
        return mask
    x, y = where
    if not (0 <= x < width and 0 <= y < height):
        raise ImageError(f"the pixel {x},{y} is outside the image of {width} x {height} pixels")
    row = int((y + 0.5 - region.top) / (region.bottom - region.top) * shape[0])
    column = int((x + 0.5 - region.left) / (region.right - region.left) * shape[1])
    if not (0 <= row < shape[0] and 0 <= column < shape[1]):
        raise ImageError(f"the pixel {x},{y} is outside what the network sees of the image")
    mask = torch.zeros(shape, dtype=torch.bool)
    mask[row, column] = True
    return mask


def _polygons(mask: Tensor, region: Placement) -> list[NDArray[np.float64]]:
    """The outlines of a mask (H, W), in pixels of the image."""
    from contourpy import contour_generator

    values = np.pad(mask.cpu().numpy().astype(np.float64), 1)
    height, width = mask.shape
    columns = (np.arange(-1, width + 1) + 0.5) / width * (region.right - region.left) + region.left
    rows = (np.arange(-1, height + 1) + 0.5) / height * (region.bottom - region.top) + region.top
    return [np.asarray(line) for line in contour_generator(columns, rows, values).lines(0.5)]


SCENES = {DETECTION: detected, SEGMENTATION: segmented}
