"""Where in a photo the tokens of a vision-language model come from, whatever its processor and its encoder do.

Two experiments tell. The processor gets pictures whose colors are coordinates, so each patch tells by its color where
it lies: in tiles, beside padding, packed in any order. And without the encoder's blocks, which mix tokens, a patch
reaches only the token that it belongs to, so derivatives tell which patches were merged and which were dropped.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ebcli.errors import ConfigurationError
from ebcli.models.probe import Reached, hooked
from ebcli.nouns.explanation import Box

_INSIDE = 0.75  # of what is white in the photo; padding is darker
_EDGE = 0.002  # of the photo's size, by which interpolation moves its edges
_MOST_CELLS = 512  # of a map, along a side


class Patches(NamedTuple):
    """The patches of a photo that a network reads.

    Attributes:
        corners: (N, 4), left, top, right and bottom in pixels of the photo.
        tokens: (N,), the token of the photo that each belongs to.
    """

    corners: Tensor
    tokens: Tensor

    @property
    def placement(self) -> Box:
        """The rectangle that they cover together."""
        return Box(*self.corners[:, :2].amin(0).tolist(), *self.corners[:, 2:].amax(0).tolist())

    def map(self, values: Tensor) -> Tensor:
        """A map (K, h, w) of the placement from the values (K, tokens), in cells as small as the smallest patch.

        Each token's value is spread evenly over its patches.
        """
        place = self.placement
        across, down = (
            _shares(self.corners[:, axis].double(), self.corners[:, axis + 2].double(), place[axis], place[axis + 2])
            for axis in (0, 1)
        )
        each = values.double() / self.tokens.bincount(minlength=values.shape[1]).clamp(min=1)
        return (each[:, self.tokens][:, None] * down.T) @ across


def _shares(low: Tensor, high: Tensor, start: float, end: float) -> Tensor:
    """Which share of each interval lies in each of the cells, as long as the shortest interval, from start to end."""
    count = min(_MOST_CELLS, max(1, round((end - start) / float((high - low).min()))))
    edges = torch.linspace(start, end, count + 1, dtype=low.dtype, device=low.device)
    overlap = torch.minimum(high[:, None], edges[1:]) - torch.maximum(low[:, None], edges[:-1])
    return overlap.clamp(min=0) / (high - low)[:, None]


def patches(
    run: Callable[[Tensor], Tensor], net: nn.Module, blocks: Sequence[nn.Module], size: tuple[int, int]
) -> Patches:
    """The patches of a photo.

    Args:
        run: from a photo (3, H, W), from 0 to 255, to its tokens (n, D).
        net: the network.
        blocks: those of its encoder.
        size: the photo's width and height.

    Raises:
        ConfigurationError: no convolution of the network reads an image's three colors, or no patch is in the photo.
    """
    for reader in net.modules():
        if isinstance(reader, nn.modules.conv._ConvNd) and reader.in_channels == 3:
            corners = _corners(run, reader, size)
            tokens = _tokens(lambda: run(torch.rand(3, *size[::-1]) * 255), reader, blocks)
            known = (corners[:, 2:] > corners[:, :2]).all(1) & (tokens >= 0)
            if not known.any():
                raise ConfigurationError("no patch of the network is in the photo, which is too small or too narrow")
            return Patches(corners[known], tokens[known])
    raise ConfigurationError("the network has no convolution that reads an image's three colors: choose another one")


def _corners(run: Callable[[Tensor], Tensor], reader: Any, size: tuple[int, int]) -> Tensor:
    """The corners (N, 4) of all patches, in the order of the convolution's output; of padding, they coincide."""
    width, height = size
    x = ((torch.arange(width) + 0.5) / width).expand(height, width)
    y = ((torch.arange(height) + 0.5) / height)[:, None].expand(height, width)
    white = torch.ones(3, height, width)
    found: list[Tensor] = []

    def keep(_module: nn.Module, args: tuple[Tensor, ...]) -> None:
        found.append(args[0].detach().double())
        raise Reached

    dtype = reader.weight.dtype
    reader.float()  # coordinates need more than the 8 bits of bfloat16
    try:
        for colors in (0 * white, white, torch.stack([x, y, white[0]])):
            with hooked([reader], keep, before=True), suppress(Reached):
                run(255 * colors)
    finally:
        reader.to(dtype)
    low, high, seen = found  # what is black and what is white undo the normalization
    u = ((seen - low) / (high - low)).where(high > low, 0)  # padding is the same in all
    weight, pool = (u[:, 2:] > _INSIDE).to(u), F.avg_pool2d if u.ndim == 4 else F.avg_pool3d

    def mean(values: Tensor) -> Tensor:
        pooled, share = (pool(one, reader.kernel_size, reader.stride) for one in (weight * values, weight))
        return (pooled / share.clamp(min=1e-9)).movedim(1, -1).flatten(0, -2)

    center, pixels = mean(u[:, :2]), torch.tensor(reader.kernel_size[:-3:-1], device=u.device)
    # n evenly spaced numbers in an interval of length 1 have the variance (1 - 1 / n²) / 12
    length = (12 / (1 - 1 / pixels**2) * (mean(u[:, :2] ** 2) - center**2)).clamp(min=0).sqrt()
    corners = torch.cat([center - length / 2, center + length / 2], 1)
    for edge in (0, 1):
        corners = torch.where((corners - edge).abs() < _EDGE, edge, corners)
    return (corners * torch.tensor(size * 2, device=u.device)).float()


def _tokens(run: Callable[[], Tensor], reader: nn.Module, blocks: Sequence[Any]) -> Tensor:
    """The token (N,) of each patch, in the order of the convolution's output; -1 for those that were dropped."""
    found: list[Tensor] = []

    def start(_module: nn.Module, _args: Any, output: Tensor) -> Tensor:
        found.append(output.detach().requires_grad_())
        return found[-1] * 1

    for block in blocks:  # which leave all as it is
        block.forward = lambda hidden_states, *_, **__: hidden_states
    try:
        with hooked([reader], start), torch.enable_grad():
            tokens = run()
    finally:
        for block in blocks:
            del block.forward
    # a token's number in binary, one digit at a time: it is doubled where that digit is 1
    numbers = torch.arange(len(tokens), device=tokens.device)
    digits = [0 * numbers, *(numbers >> place & 1 for place in range(len(tokens).bit_length()))]
    direction = torch.randn_like(tokens)
    arrived = []
    for digit in digits:
        (slopes,) = torch.autograd.grad(tokens, found, direction * (1 + digit[:, None]), retain_graph=True)
        arrived.append(slopes.double().abs().sum(1).flatten())
    ones, *others = arrived
    number = sum((one > 1.5 * ones).long() << place for place, one in enumerate(others))
    return torch.where(ones > 0, number, -1)
