"""Elements of a value that are constants, such as a class token beside an image's tokens, and whose images they are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ebcli.eb.facts import Constants
from ebcli.eb.nodes import quiet


def is_constant(node: Any, constants: Constants, like: Tensor) -> Tensor:
    """Which elements of the value of a node come from no operand that carries the signal; shaped like `like`."""
    with torch.enable_grad(), quiet():
        probe = torch.zeros_like(like).requires_grad_()
        arrived = _back(node, probe, constants.operands)
        readers = torch.autograd.grad(arrived, probe, [torch.ones_like(a) for a in arrived], allow_unused=True)[0]
    return torch.ones_like(like, dtype=torch.bool) if readers is None else readers == 0


def _back(node: Any, arrived: Tensor, operands: frozenset[Any]) -> list[Tensor]:
    """What arrives at operands, if something arrives at a node above them."""
    found: list[Tensor] = []
    passed = node(arrived)
    for (parent, _), part in zip(node.next_functions, passed if isinstance(passed, tuple) else (passed,), strict=False):
        if parent is not None and part is not None:
            found += [part] if parent in operands else _back(parent, part, operands)
    return found


def numbered(prior: Tensor) -> Tensor:
    """A prior (B, ...), and once for each binary digit of an image's number, doubled where that digit is 1."""
    images = torch.arange(len(prior), device=prior.device)
    digits = [1 + (images >> digit) % 2 for digit in range((len(prior) - 1).bit_length())]
    return torch.stack([prior, *(prior * d.reshape(-1, *(1 for _ in prior.shape[1:])).to(prior) for d in digits)])


def images_of(P: Tensor) -> Tensor:
    """Which image each element (N,) belongs to, from what arrives there of a numbered prior (1 + digits, N).

    Tokens may be part of the batch or come before it, so the shape does not tell.
    """
    digits = P[1:].abs() > 1.5 * P[:1].abs()
    return sum((digit.long() << at for at, digit in enumerate(digits)), torch.zeros_like(P[0], dtype=torch.long))
