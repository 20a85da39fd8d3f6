"""Which classes are explained in each image of a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ebcli.run.plan import MapOptions

_WIDTH_ABOVE = 4  # classes at a time if images have different numbers of them


@dataclass(frozen=True)
class Choice:
    """The classes of each image of a batch.

    The network gets as many targets for every image of every batch, whatever the images have, so that maps do not
    depend on the other images: images with fewer classes repeat one, and those with more take several turns.

    Attributes:
        classes, scores: for each image, the class indices and their scores.
        labels, predicted: for each image, its true class if it is known, and the most likely one.
        width: the number of targets at a time.
        device: where targets are needed.
    """

    classes: list[list[int]]
    scores: list[list[float]]
    labels: list[int | None]
    predicted: list[int]
    width: int
    device: torch.device

    @classmethod
    def of(
        cls,
        scores: Tensor,
        maps: MapOptions,
        classes: Sequence[int] | None,
        labels: Sequence[int | None] | None,
        against: Sequence[int] = (),
    ) -> Choice:
        """Choose the classes.

        Args:
            scores: (B, num_classes).
            maps: which classes are asked for if there are no ``classes``.
            classes: the classes of every image.
            labels: the true classes of the first images; each image is explained for its own, if it is known, and for
                the most likely class. None to go by the other arguments.
            against: the classes to contrast with, which are never chosen.
        """
        predicted: list[int] = scores.argmax(1).tolist()
        known = [*(labels or ()), *[None] * (len(predicted) - len(labels or ()))]
        ranks = scores.index_fill(1, torch.tensor(against, dtype=torch.long, device=scores.device), -math.inf)
        chosen: list[list[int]]
        if labels is not None:
            best = ranks.argmax(1).tolist()
            chosen = [
                list(dict.fromkeys(k for k in pair if k is not None and k not in against))
                for pair in zip(known, best, strict=True)
            ]
            width = 2
        elif classes is not None:
            chosen, width = [list(classes) for _ in predicted], len(classes)
        elif maps.above is not None:
            order = ranks.argsort(1, descending=True)
            counts = (ranks > maps.above).sum(1).tolist()
            chosen = [row[:count].tolist() for row, count in zip(order, counts, strict=True)]
            width = min(_WIDTH_ABOVE, scores.shape[1])
        else:
            chosen, width = ranks.topk(maps.most).indices.tolist(), maps.most
        values = [row[indices].tolist() for row, indices in zip(scores, chosen, strict=True)]
        return cls(chosen, values, known, predicted, width, scores.device)

    @property
    def starts(self) -> range:
        """Where each turn starts in the lists of classes; there is always one turn."""
        return range(0, max(1, *map(len, self.classes)), self.width)

    def targets(self, start: int) -> Tensor:
        """The targets of a turn, (B, width)."""
        rows = [(row[start : start + self.width] + row[:1] * self.width)[: self.width] for row in self.classes]
        return torch.tensor([row or [0] * self.width for row in rows], device=self.device)

    def label_and_prediction(self, i: int) -> tuple[int | None, int | None]:
        """The true class of an image and the most likely one; both None if the true one is not known."""
        return (None, None) if self.labels[i] is None else (self.labels[i], self.predicted[i])
