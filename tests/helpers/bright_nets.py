"""Networks whose marginal map is the brightness of what they get, as a model file, and data with one bright place."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

NETS = """
import ebcli
import torch
from torch import nn

def bright(channels, convolution, pool):
    first = convolution(channels, 1, 1, bias=False)
    nn.init.ones_(first.weight)
    net = nn.Sequential(first, nn.ReLU(), pool(1), nn.Flatten(), nn.Linear(1, 2))
    net[-1].weight.data[:, 0] = torch.tensor([1.0, -1.0])
    net.categories = ["bright", "other"]
    return net

def gray():
    return flat(1)

def color():
    return flat(3)

def bands():
    return flat(13)

def flat(channels):
    net = bright(channels, nn.Conv2d, nn.AdaptiveAvgPool2d)
    net.preprocessing = ebcli.Preprocessing(resize=32, crop=32, mean=0, std=1)
    return net

def solid():
    return bright(1, nn.Conv3d, nn.AdaptiveAvgPool3d)

def fixed():
    net = solid()
    net.preprocessing = ebcli.Preprocessing(depth=12, crop=16)
    return net

class Reordered(nn.Sequential):
    categories = ["bright", "other"]
    preprocessing = ebcli.Preprocessing(depth=12, crop=16)

    def forward(self, x):  # (B, C, Z, Y, X)
        return super().forward(x.permute(0, 1, 4, 3, 2).flip(2))

def reordered():
    return Reordered(*solid())

def sided():
    net = solid()
    net[2] = nn.AdaptiveAvgPool3d((1, 1, 2))
    net[4] = nn.Linear(2, 2)
    net[4].weight.data = torch.tensor([[1.0, 3.0], [-1.0, -1.0]])  # the second half of x is worth more
    return net

def narrow():
    net = solid()
    net[0] = nn.Conv3d(1, 1, 9, bias=False)
    return net

class Flat(nn.Sequential):
    categories = ["bright", "other"]

    def forward(self, x):
        x = self[0](x).amax(2)
        for module in [*self][1:]:
            x = module(x)
        return x

def collapsing():
    end = nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    return Flat(nn.Conv3d(1, 8, 1), nn.Conv2d(8, 4, 1), *end)

class Declared(Flat):
    channels = 2
    preprocessing = ebcli.Preprocessing(depth=8, crop=16)

    def forward(self, x):
        return super().forward(x[:, :1] + x[:, 1:])

def declared():
    return Declared(*collapsing())
"""
OPTIONS = ("--layer", "0", "--marginal", "--target", "bright", "--json", "--workers", "0")


def volume(shape: tuple[int, int, int], place: tuple[int, int, int], dtype: Any = np.int16) -> NDArray[Any]:
    """A dark volume (D, H, W) with a bright cube of 3 cells a side around a place."""
    values = np.zeros(shape, dtype)
    values[tuple(slice(at - 1, at + 2) for at in place)] = 100
    return values


def center(map_: NDArray[Any]) -> NDArray[np.float64]:
    """The center of mass of a map, in cells."""
    grids = np.indices(map_.shape)
    return np.array([(grid * map_).sum() / map_.sum() for grid in grids])


def dicom_series(
    folder: Path, values: NDArray[Any], spacing: tuple[float, float, float], **changes: Any
) -> None:
    """Write slices (D, H, W) as DICOM files, made of pydicom's CT, in no order of names; with its patient."""
    import pydicom
    from pydicom.data import get_testdata_file

    folder.mkdir(parents=True, exist_ok=True)
    for i, one in enumerate(values):
        header = pydicom.dcmread(str(get_testdata_file("CT_small.dcm")))
        header.Rows, header.Columns = one.shape
        header.PixelData = one.astype(np.int16).tobytes()
        header.RescaleSlope, header.RescaleIntercept = 2, -10
        header.PixelSpacing = [spacing[1], spacing[0]]
        header.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
        header.ImagePositionPatient = [-30, 20, 5 + spacing[2] * i]
        for name, value in changes.items():
            setattr(header, name, value(i) if callable(value) else value)
        header.save_as(folder / f"{(i * 37) % 101:03d}.dcm")
