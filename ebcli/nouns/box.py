"""Boxes in images."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Box(NamedTuple):
    """A rectangle in an image, in pixels. ``(0, 0)`` is the top left *corner* of the top left pixel.

    What a network sees may reach beyond the image, where a crop was larger than the image and had to be padded.
    """

    left: float
    top: float
    right: float
    bottom: float

    @classmethod
    def of_size(cls, left: float, top: float, width: float, height: float) -> Box:
        """The box that options and files give by its top left corner and its size."""
        return cls(left, top, left + width, top + height)

    @property
    def sized(self) -> tuple[float, float, float, float]:
        """Left, top, width and height as options and files have them, to hundredths of a pixel."""
        left, top, right, bottom = self
        return round(left, 2), round(top, 2), round(right - left, 2), round(bottom - top, 2)

    @property
    def sides(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Where it begins and ends along x, and along y."""
        return (self.left, self.right), (self.top, self.bottom)

    @property
    def outline(self) -> NDArray[np.float64]:
        """The closed outline, (5, 2)."""
        import numpy as np  # which the command's help need not wait for

        left, top, right, bottom = self
        return np.array([[left, top], [right, top], [right, bottom], [left, bottom], [left, top]], np.float64)

    @property
    def area(self) -> float:
        """In square pixels; 0 if it is empty."""
        return max(self.right - self.left, 0.0) * max(self.bottom - self.top, 0.0)

    def scaled(self, old: tuple[float, float], new: tuple[float, float]) -> Box:
        """The same rectangle after the image was resized from one size (width, height) to another."""
        (width, height), (x, y) = old, new  # multiplied first, as edges of the image stay exact so
        return Box(self.left * x / width, self.top * y / height, self.right * x / width, self.bottom * y / height)

    def shifted(self, x: float, y: float) -> Box:
        """The same rectangle, further to the right and further down."""
        return Box(self.left + x, self.top + y, self.right + x, self.bottom + y)

    def within(self, other: Box) -> Box:
        """The part that lies in another box; its area is 0 if there is none."""
        return Box(*map(max, self[:2], other[:2]), *map(min, self[2:], other[2:]))

    def overlap(self, other: Box) -> float:
        """The area of the intersection divided by that of the union, 0 to 1."""
        common = self.within(other).area
        return common / (self.area + other.area - common)

    def share_of(self, size: tuple[int, int]) -> float:
        """The share of an image (width, height) that lies in the rectangle."""
        whole = Box(0, 0, *size)
        return self.within(whole).area / whole.area
