"""Weights rounded to 8 bits per output, small enough to keep beside the tests."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

from .training import CACHE, ROOT

Rounded = dict[str, tuple[Tensor, ...]]  # values of 8 bits and the scale of each output, or values alone


def rounded(state: dict[str, Tensor]) -> Rounded:
    """A state dict with 8 bits for each weight."""
    small: Rounded = {}
    for name, weight in state.items():
        if weight.ndim < 2 or not weight.is_floating_point():
            small[name] = (weight,)
            continue
        scale = weight.flatten(1).abs().amax(1).clamp(min=1e-8) / 127
        values = weight / scale.reshape(-1, *(1 for _ in weight.shape[1:]))
        small[name] = (values.round().to(torch.int8), scale)
    return small


def restored(small: Rounded) -> dict[str, Tensor]:
    """The state dict of rounded weights."""
    return {
        name: values.float() * scales[0].float().reshape(-1, *(1 for _ in values.shape[1:]))
        if scales
        else values
        for name, (values, *scales) in small.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Keep a trained network of benchmarks.trained.dense for the tests."
    )
    parser.add_argument("names", nargs="+")
    parser.add_argument("--cache", type=Path, default=CACHE)
    options = parser.parse_args()
    for name in options.names:
        state = torch.load(options.cache / f"{name}.pt", weights_only=True)
        torch.save(rounded(state), ROOT / "tests" / "evaluate" / "weights" / f"{name}.pt")


if __name__ == "__main__":
    main()
