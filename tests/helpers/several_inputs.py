"""Networks with several inputs whose weights are set by hand, so that each input's share is known."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import ebcli


class RedAndTable(nn.Module):
    """How red a picture (B, 3, H, W) is, and three columns (B, 3): a = 3 red + 2 x0 + 5 x1 - 4 x2, and b = x2.

    Without biases, and with values above 0, the share of an input is its part of the positive terms.
    """

    def __init__(self) -> None:
        super().__init__()
        self.red, self.act = nn.Conv2d(3, 1, 1, bias=False), nn.ReLU()
        self.head = nn.Linear(4, 2, bias=False)
        with torch.no_grad():
            self.red.weight.copy_(torch.tensor([1.0, 0, 0]).view(1, 3, 1, 1))
            self.head.weight.copy_(torch.tensor([[3.0, 2, 5, -4], [0, 0, 0, 1]]))

    def forward(self, image: Tensor, table: Tensor) -> Any:
        return self.head(torch.cat([self.act(self.red(image)).mean((2, 3)), table], 1))


class Patient(RedAndTable):
    """The same, which reads its table from a file of JSON beside the picture."""

    preprocessing = ebcli.Preprocessing(resize=64, crop=64, mean=0.0, std=1.0)
    categories = "ill", "healthy"
    columns = "10", "9", "dose"

    def other_inputs(self, path: str | None) -> Tensor:
        if path is None:
            return torch.zeros(3)
        return torch.tensor(json.loads(Path(path).with_suffix(".json").read_text()))


class Difference(nn.Module):
    """What is red in the second picture and was not in the first: logits for change and for none.

    Change is 3 times the red of the second one plus the green of the first one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.colors = nn.Conv2d(6, 2, 1, bias=False)
        self.head = nn.Linear(2, 2, bias=False)
        with torch.no_grad():
            self.colors.weight.copy_(
                torch.tensor([[0.0, 1, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0]]).view(2, 6, 1, 1)
            )
            self.head.weight.copy_(torch.tensor([[1.0, 3], [-1, -1]]))

    def forward(self, before: Tensor, after: Tensor) -> Any:
        return self.head(self.colors(torch.cat([before, after], 1)).relu().mean((2, 3)))
