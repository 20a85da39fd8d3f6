"""Cells that stand for a block: below a 1 x 1 convolution with stride 2, only one of four is read."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import ebcli
from ebcli.datatypes.explanation import Box, Map, Subject
from ebcli.drawing.frame_maps import FrameMaps
from ebcli.drawing.style import DrawingStyle
from ebcli.files.media.medium import DisplayFrame
from ebcli.models.running import strides_of_cells


class Subsampled(nn.Module):
    """A layer of which a residual block reads only every second cell, as in torchvision's ResNets of old."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU())
        self.branch = nn.Sequential(nn.Conv2d(8, 8, 1, stride=2), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
        self.shortcut = nn.Conv2d(8, 8, 1, stride=2)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.stem(x)
        return self.head((self.branch(y) + self.shortcut(y)).relu().mean((2, 3)))


def drawn(values: np.ndarray, stride: int) -> np.ndarray:
    side = 16 * len(values)
    map_ = Map(
        subject=Subject(0, None, 1.0),
        layer="stem",
        values=values,
        mass=1.0,
        placement=Box(0, 0, side, side),
        stride=stride,
    )
    maps = FrameMaps.from_map(map_, (side, side), None, DrawingStyle("heatmap"))
    shown = DisplayFrame(Image.new("RGB", (side, side)), 0, 0, 0)
    return np.asarray(maps.draw(shown)).astype(float).mean(2)


def test_a_subsampled_layer_has_no_dots() -> None:
    """On noise, the map of the layer is dots; its picture is nearly as even as that of a layer read whole."""
    torch.manual_seed(0)
    net = Subsampled().eval()
    images = torch.rand(1, 3, 24, 24)
    with strides_of_cells(net) as strides:
        maps = ebcli.excitation_backprop(net, images, 1, "stem").maps
    values = maps[0].numpy()
    assert values[::2, ::2].sum() == pytest.approx(values.sum(), rel=1e-5)  # all dots
    assert strides == {(24, 24): 2}
    dots, blocks = drawn(values, 1), drawn(values, strides[24, 24])
    # how much the picture changes from one cell to the next, as a share of its brightness
    change = [
        np.abs(np.diff(picture[8::16, 8::16], axis=1)).mean() / picture.mean() for picture in (dots, blocks)
    ]
    assert change[1] < change[0] / 3


def test_a_cell_fills_the_block_that_it_was_sampled_from() -> None:
    values = np.zeros((6, 6), np.float32)
    values[2, 4] = 1
    picture = drawn(values, 2)[8::16, 8::16]
    bright = picture > 0.9 * picture.max()
    expected = np.zeros((6, 6), bool)
    expected[2:4, 4:6] = True
    np.testing.assert_array_equal(bright, expected)


def test_a_block_has_what_its_cell_has_but_for_what_lies_beyond_the_edge() -> None:
    values = np.zeros((5, 5), np.float32)
    values[0, 2], values[4, 4] = 0.8, 0.4
    expected = np.zeros((5, 5))
    expected[:2, 2:4], expected[4, 4] = 0.2, 0.1
    subject, place = Subject(0, None, 1.0), Box(0, 0, 80, 80)
    map_ = Map(subject=subject, layer="stem", values=values, mass=1.0, placement=place, stride=2)
    np.testing.assert_allclose(map_.display_values, expected)
    assert map_.peak == pytest.approx(expected.max() * expected.size)  # as pictures say it


def test_which_grids_are_subsampled() -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 4, 4, stride=4),  # patches: every pixel is read
        nn.Conv2d(4, 4, 3, stride=2, padding=1),
        nn.Conv2d(4, 4, 1),
        nn.Conv2d(4, 4, 1, stride=3),
    )
    net[1].stride = [2, 2]  # as efficientnet-lite-pytorch sets it
    with strides_of_cells(net) as strides:
        net(torch.rand(1, 3, 72, 96))
    assert strides == {(9, 12): 3}
    net(torch.rand(1, 3, 48, 48))
    assert strides == {(9, 12): 3}  # nothing is left behind
