"""The map of a photo from values of the tokens that a vision-language network reads."""

from typing import NamedTuple

import torch
from torch import Tensor

from ebcli.datatypes.explanation import Box

_MOST_CELLS = 512  # of a map, along a side


class TokenBoxes(NamedTuple):
    """Where in a photo tokens lie.

    Attributes:
        corners: (2, N, 2), x and y of the top left and of the bottom right corners, in pixels of the photo.
    """

    corners: Tensor

    @property
    def placement(self) -> Box:
        """The rectangle that they cover together."""
        starts, ends = self.corners
        return Box(*starts.amin(0).tolist(), *ends.amax(0).tolist())

    def map(self, values: Tensor) -> Tensor:
        """A map (K, h, w) of the placement from the values (K, N), in cells as small as the smallest token.

        Each token's value is spread evenly over its box.
        """
        x, y = self.corners.double().unbind(2)
        x_side, y_side = self.placement.sides
        across = _shares(x, *x_side)
        down = _shares(y, *y_side)
        return (values.double()[:, None] * down.T) @ across


def _shares(intervals: Tensor, start: float, end: float) -> Tensor:
    """Which share of each of the intervals (2, N) lies in each of the cells from start to end.

    A cell is as long as the shortest interval.
    """
    low, high = intervals[..., None]
    lengths = high - low
    shortest = float(lengths.min())
    count = min(_MOST_CELLS, max(1, round((end - start) / shortest)))
    edges = torch.linspace(start, end, count + 1, dtype=low.dtype, device=low.device)
    return edges.clamp(low, high).diff() / lengths
