"""Random networks of tokens, whose middle is made of the operations of `token_steps`."""

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from nets import NUM_CLASSES
from token_steps import ACTIVATIONS, CHANNELS, LAYERS, MIXES, MOVES, TOKENS, Draw, Step, told_apart
from torch import Tensor, nn
from torch.nn import functional as F


class Layout(NamedTuple):
    """Another arrangement of tokens (B, TOKENS, CHANNELS).

    Attributes:
        there: from tokens to it.
        back: from it to tokens.
    """

    there: Callable[[Tensor], Tensor]
    back: Callable[[Tensor], Tensor]


LAYOUTS = {
    "(B, T, C)": Layout(lambda y: y, lambda y: y),
    "(T, B, C)": Layout(lambda y: y.transpose(0, 1), lambda y: y.transpose(0, 1)),
    "(B, C, T)": Layout(lambda y: y.mT, lambda y: y.mT),
    "(C, T, B)": Layout(lambda y: y.permute(2, 1, 0), lambda y: y.permute(2, 1, 0)),
    "(2 B, T / 2, C)": Layout(
        lambda y: y.reshape(-1, TOKENS // 2, CHANNELS), lambda y: y.reshape(-1, TOKENS, CHANNELS)
    ),
    "(B T, C)": Layout(lambda y: y.reshape(-1, CHANNELS), lambda y: y.reshape(-1, TOKENS, CHANNELS)),
    "(B C, T)": Layout(lambda y: y.mT.reshape(-1, TOKENS), lambda y: y.reshape(-1, CHANNELS, TOKENS).mT),
}
HEADS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda y: y.mean(1),
    "class token": lambda y: y[:, 0],
    "maximum": lambda y: y.amax(1),
    "flat": lambda y: y.flatten(1),
}


def fitted(y: Tensor, draw: Draw) -> Tensor:
    """TOKENS tokens of CHANNELS channels, of as many as an operation has made."""
    if y.shape[2] != CHANNELS:
        y = F.linear(y, draw.weight(CHANNELS, y.shape[2]))
    if y.shape[1] < TOKENS:
        y = torch.cat([y, y], 1)
    return y if y.shape[1] == TOKENS else y[:, :TOKENS]


class TokenNet(nn.Module):
    """A convolution, some steps, and a head. After one of the steps, its tokens are the module ``middle``.

    Args:
        steps: the names of the steps.
        seed: of everything random.
    """

    def __init__(self, steps: Sequence[str], seed: int) -> None:
        super().__init__()
        choose = random.Random(seed)
        self.names = steps
        self.layer_index = choose.randrange(len(steps) + 1)  # how many steps are before the layer
        self.layout = choose.choice(sorted(LAYOUTS))
        self.read = choose.choice(sorted(HEADS))
        self.is_activated = choose.random() < 0.6
        self.seed = seed
        torch.manual_seed(seed)
        self.stem = nn.Conv2d(3, CHANNELS, 2, 2).double()
        self.middle = nn.Identity()
        self.head = nn.Linear(CHANNELS * (TOKENS if self.read == "flat" else 1), NUM_CLASSES).double()

    def forward(self, x: Tensor) -> Tensor:
        y = self._layer(0, self.stem(x).flatten(2).mT)
        for index, name in enumerate(self.names, 1):
            draw = Draw(100 * self.seed + index)
            y = self._layer(index, fitted(STEPS[name](y, draw), draw))
        if self.is_activated:
            y = F.gelu(F.linear(y, Draw(self.seed).weight()))
        return self.head(HEADS[self.read](told_apart(y, Draw(self.seed))))

    def _layer(self, index: int, y: Tensor) -> Tensor:
        there, back = LAYOUTS[self.layout]
        return back(self.middle(there(y))) if index == self.layer_index else y

    def by_image(self, relevance: Tensor) -> Tensor:
        """The relevance (B, T, C) of the layer."""
        return LAYOUTS[self.layout].back(relevance)

    def __str__(self) -> str:
        parts = [*self.names]
        parts.insert(self.layer_index, f"<layer {self.layout}>")
        return ", ".join(["convolution", *parts, *["GELU"] * self.is_activated, self.read])


STEPS: dict[str, Step] = {**MOVES, **LAYERS, **ACTIVATIONS, **MIXES}


def random_net(seed: int, *, mixes_images: bool) -> TokenNet:
    """A network of two to six random steps; one of them mixes images if it is asked for."""
    choose = random.Random(seed)
    kinds = choose.choices([MOVES, LAYERS, ACTIVATIONS], [5, 3, 2], k=choose.randint(2, 6))
    if mixes_images:
        kinds[choose.randrange(len(kinds))] = MIXES
    return TokenNet([choose.choice(sorted(kind)) for kind in kinds], seed)


def inputs(seed: int) -> Tensor:
    """Three images (3, 3, 4, 6), which the first convolution makes six patches of."""
    return torch.randn(3, 3, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
