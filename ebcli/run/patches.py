"""Where in a photo the patches lie that a vision-language model reads, and which of its tokens each belongs to."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ebcli.datatypes.explanation import Box
from ebcli.errors import ConfigurationError
from ebcli.models.running import ReachedLayer, hook_modules

TokenReader = Callable[[Tensor], Tensor]  # from a photo (3, H, W), from 0 to 255, to its tokens (n, D)

_INSIDE = 0.75  # of what is white in the photo; padding is darker
_EDGE = 0.002  # of the photo's size, by which interpolation moves its edges
_MOST_CELLS = 512  # of a map, along a side


class Patches(NamedTuple):
    """The patches of a photo that a network reads.

    Attributes:
        corners: (2, N, 2), x and y of the top left and of the bottom right corners, in pixels of the photo.
        tokens: (N,), the token of the photo that each belongs to.
    """

    corners: Tensor
    tokens: Tensor

    @property
    def placement(self) -> Box:
        """The rectangle that they cover together."""
        starts, ends = self.corners
        return Box(*starts.amin(0).tolist(), *ends.amax(0).tolist())

    def map(self, values: Tensor) -> Tensor:
        """A map (K, h, w) of the placement from the values (K, tokens), in cells as small as the smallest patch.

        Each token's value is spread evenly over its patches.
        """
        x, y = self.corners.double().unbind(2)
        x_side, y_side = self.placement.sides
        across = _shares(x, *x_side)
        down = _shares(y, *y_side)
        counts = self.tokens.bincount(minlength=values.shape[1])
        per_token = values.double() / counts.clamp(min=1)
        per_patch = per_token[:, None, self.tokens]
        return (per_patch * down.T) @ across


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


def find_patches(run: TokenReader, net: nn.Module, blocks: Sequence[Any], size: tuple[int, int]) -> Patches:
    """The patches of a photo, whatever its processor and its encoder do.

    Two experiments tell. The processor gets pictures whose colors are coordinates, so each patch tells by its color
    where it lies: in tiles, beside padding, packed in any order. And without the encoder's blocks, which mix tokens, a
    patch reaches only the token that it belongs to, so derivatives tell which patches were merged and which dropped.

    Args:
        run: the network as far as the photo's tokens.
        net: the network.
        blocks: those of its encoder.
        size: the photo's width and height.

    Raises:
        ConfigurationError: no convolution of the network reads an image's three colors, or no patch is in the photo.
    """
    for reader in net.modules():
        if isinstance(reader, (nn.Conv2d, nn.Conv3d)) and reader.in_channels == 3:
            starts, ends = corners = _corners(run, reader, size)
            noise = torch.rand(3, *size[::-1])
            tokens = _tokens(partial(run, 255 * noise), reader, blocks)
            is_known = (ends > starts).all(1) & (tokens >= 0)
            if not is_known.any():
                problem = "no patch of the network is in the photo"
                raise ConfigurationError(f"{problem}, which is too small or too narrow")
            return Patches(corners[:, is_known], tokens[is_known])
    problem = "the network has no convolution that reads an image's three colors"
    raise ConfigurationError(f"{problem}: choose another one")


def _corners(run: TokenReader, reader: Any, size: tuple[int, int]) -> Tensor:
    """The corners (2, N, 2) of all patches, in the order of the convolution's output; of padding, they coincide."""
    centers = [(torch.arange(side) + 0.5) / side for side in size]
    x, y = torch.meshgrid(*centers, indexing="xy")
    white = torch.ones(3, *x.shape)
    inputs: list[Tensor] = []

    def keep(_module: nn.Module, args: tuple[Tensor, ...]) -> None:
        inputs.append(args[0].detach().double())
        raise ReachedLayer

    dtype = reader.weight.dtype
    reader.float()  # coordinates need more than the 8 bits of bfloat16
    try:
        coordinates = torch.stack([x, y, white[0]])
        for colors in (0 * white, white, coordinates):
            with hook_modules([reader], keep, before=True), suppress(ReachedLayer):
                run(255 * colors)
    finally:
        reader.to(dtype)
    black, white, coordinates = inputs
    u = (coordinates - black) / (white - black)  # without the normalization
    u = u.where(white > black, 0)  # padding is the same in all
    places, is_inside = u.split([2, 1], 1)
    weight = (is_inside > _INSIDE).to(u)
    pool = F.avg_pool2d if u.ndim == 4 else F.avg_pool3d

    def mean(values: Tensor) -> Tensor:
        total = pool(weight * values, reader.kernel_size, reader.stride)
        share = pool(weight, reader.kernel_size, reader.stride)
        means = total / share.clamp(min=1e-9)
        return means.movedim(1, -1).flatten(0, -2)

    center = mean(places)
    variance = mean(places**2) - center**2
    pixels = torch.tensor(reader.kernel_size[:-3:-1], device=u.device)
    # n evenly spaced numbers in an interval of length 1 have the variance (1 - 1 / n²) / 12
    squared_length = 12 / (1 - 1 / pixels**2) * variance
    half = squared_length.clamp(min=0).sqrt() / 2
    corners = torch.stack([center - half, center + half])
    for edge in (0, 1):
        corners = torch.where((corners - edge).abs() < _EDGE, edge, corners)
    return (corners * torch.tensor(size, device=u.device)).float()


def _tokens(run: Callable[[], Tensor], reader: nn.Module, blocks: Sequence[Any]) -> Tensor:
    """The token (N,) of each patch, in the order of the convolution's output; -1 for those that were dropped."""
    outputs: list[Tensor] = []

    def start(_module: nn.Module, _args: Any, output: Tensor) -> Tensor:
        outputs.append(output.detach().requires_grad_())
        return outputs[-1] * 1

    for block in blocks:  # which leave all as it is
        block.forward = lambda hidden_states, *_, **__: hidden_states
    try:
        with hook_modules([reader], start), torch.enable_grad():
            tokens = run()
    finally:
        for block in blocks:
            del block.forward
    direction = torch.randn_like(tokens)

    def slopes(weights: Tensor) -> Tensor:
        """How strongly each patch acts on the tokens with such weights."""
        weighted = direction * weights[:, None]
        (gradient,) = torch.autograd.grad(tokens, outputs, weighted, retain_graph=True)
        return gradient.double().abs().sum(1).flatten()

    # a token's number in binary, one digit at a time: it is doubled where that digit is 1
    numbers = torch.arange(len(tokens), device=tokens.device)
    baseline = slopes(1 + 0 * numbers)
    number = torch.zeros_like(baseline, dtype=torch.long)
    for place in range(len(tokens).bit_length()):
        digits = numbers >> place & 1
        is_one = slopes(1 + digits) > 1.5 * baseline
        number += is_one.long() << place
    return torch.where(baseline > 0, number, -1)
