"""Overlapping windows of an image, each as the network gets an image of its own."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import numpy as np
from PIL import Image

from ebcli.datatypes.arrays import AnyArray
from ebcli.datatypes.explanation import Box, Size
from ebcli.datatypes.input_spec import InputSpec

ACROSS = 3  # windows a side: nine in all


class _Corners(NamedTuple):
    """The edges of a window, in whole pixels."""

    left: int
    top: int
    right: int
    bottom: int


class WindowSpec(InputSpec):
    """What a network gets of each of nine windows of an image, where it gets the image as another `InputSpec` says.

    The windows overlap by half. Each is half as wide and half as high as the part of the image that the network sees.
    They are cut from the image, and then resized, so they show it in more detail. `read` and `read_array` return all
    of them, (9, height, width, C).
    """

    @classmethod
    def from_spec(cls, spec: InputSpec) -> WindowSpec:
        """The windows of images that are preprocessed in this way."""
        return cls(**vars(spec))

    def read(self, image: Image.Image) -> AnyArray:
        spec = self._spec_of_window(image.size)
        return np.stack([spec.read(image.crop(corners)) for corners in self.corners(image.size)])

    def read_array(self, values: AnyArray) -> AnyArray:
        height, width = values.shape[-2:]
        size = width, height
        spec = self._spec_of_window(size)
        windows = []
        for left, top, right, bottom in self.corners(size):
            windows.append(spec.read_array(values[..., top:bottom, left:right]))
        return np.stack(windows)

    def _region(self, size: Size) -> Box:
        """The part of an image (width, height) that the network sees."""
        return self.place(size).intersection(Box(0, 0, *size))

    def corners(self, size: Size) -> list[_Corners]:
        """The windows of an image (width, height), from the top left to the bottom right."""
        left, top, right, bottom = map(round, self._region(size))
        width = max(1, round((right - left) / 2))
        height = max(1, round((bottom - top) / 2))
        lefts = np.linspace(left, max(left, right - width), ACROSS).round().astype(int).tolist()
        tops = np.linspace(top, max(top, bottom - height), ACROSS).round().astype(int).tolist()
        return [_Corners(x, y, x + width, y + height) for y, x in product(tops, lefts)]

    def _spec_of_window(self, size: Size) -> InputSpec:
        """How each window of an image (width, height) is preprocessed: whole, in one piece."""
        settings = vars(self) | {"tiles": 0}
        if self.fit == "crop":  # has cut off the margin already
            width, height = map(round, self._region(size).size)
            sides = self.size or (height, width)
            settings |= {"fit": "squash", "resize": sides}
        return InputSpec(**settings)
