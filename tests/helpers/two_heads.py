"""A network with two heads, whose maps are known: one reads the red of each pixel, the other the green and the blue."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import ebcli

KIND = ["cat", "dog"]
COLOR = ["green", "blue", "neither"]


class TwoHeads(nn.Module):
    """Images (B, 3, H, W), whose channels pass as they are, to logits (B, 2) and (B, 3).

    The only evidence for class 0 of ``kind`` is red; for classes 0 and 1 of ``color``, it is green and blue.

    Args:
        form: what is returned, made of both.
    """

    def __init__(self, form: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.pixels = nn.Conv2d(3, 3, 1, bias=False)
        self.kind = nn.Linear(3, 2, bias=False)
        self.color = nn.Linear(3, 3, bias=False)
        with torch.no_grad():
            self.pixels.weight.copy_(torch.eye(3)[..., None, None])
            self.kind.weight.copy_(torch.tensor([[1.0, 0, 0], [-1, 0, 0]]))
            self.color.weight.copy_(torch.tensor([[0.0, 1, 0], [0, 0, 1], [0, -1, -1]]))
        self.form = form

    def forward(self, images: Tensor) -> Any:
        features = torch.relu(self.pixels(images)).mean((2, 3))
        return self.form(self.kind(features), self.color(features))


def as_dict(kind: Tensor, color: Tensor) -> dict[str, Tensor]:
    """By name."""
    return {"kind": kind, "color": color}


def two() -> nn.Module:
    """The network as a factory returns it; images are resized to 16 x 16 pixels, and values are from 0 to 1."""
    return _complete(as_dict)


def twins() -> nn.Module:
    """Two heads of the same classes, which differ in their logits alone."""
    net = _complete(lambda kind, color: {"kind": kind, "color": -kind})
    net.categories = {"kind": KIND, "color": KIND}
    return net


def usual() -> nn.Module:
    """One head has a name that says that it is explained."""
    return _complete(lambda kind, color: {"kind": kind, "out": color})


def one() -> nn.Module:
    """One head, and a loss."""
    return _complete(lambda kind, color: {"loss": color.sum(), "kind": kind})


def _complete(form: Callable[[Tensor, Tensor], Any]) -> nn.Module:
    net = TwoHeads(form)
    net.preprocessing = ebcli.Preprocessing(resize=16, crop=16, mean=0.0, std=1.0)
    net.categories = {"kind": KIND, "color": COLOR}
    return net
