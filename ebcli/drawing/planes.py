"""The three planes of a volume through the maximum of its map: their names, slices, directions, and a scale."""

import math

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ebcli.datatypes.arrays import AnyArray, FloatArray
from ebcli.datatypes.explanation import Box
from ebcli.drawing.figure import BLACK, SECONDARY, Figure, Tile
from ebcli.drawing.frame_maps import FrameMaps
from ebcli.drawing.legend import font, scale_labels
from ebcli.drawing.overlay import picture
from ebcli.files.clips import Plane, Slices
from ebcli.files.media.medium import DisplayFrame

_Pixels = NDArray[np.uint8]  # (height, width, 3)

_LEAST = 256  # pixels, of the longer side of a slice
_MAX_STRETCH = 16  # times; more would be a header that lies
_WIDTH = 8  # inches of all planes together, at least, so that words are not small beside them
_RESOLUTION = 100  # pixels per inch, at least
_ROOM = 130  # for the words of a narrow plane, and the three numbers below, in pixels at 100 dpi
_LETTER = 15
_MARGIN = 4
_RULER = 3
_SHARE_OF_RULER = 0.5  # of the width of a plane, at most
_UNITS = {"micron": "µm", "meter": "m"}


class Orthogonal:
    """The planes of a volume through its map's maximum, side by side, with the proportions of the volume in space.

    Planes are axial, coronal and sagittal, as radiologists see them, if the directions of the axes are known. Of the
    slices, only what is drawn is kept.

    Args:
        maps: the map.
        slices: those of the volume.

    Attributes:
        peak: the slice, row and column of the maximum, as they are drawn.
    """

    def __init__(self, maps: FrameMaps, slices: Slices) -> None:
        self._maps = maps
        self._slices = slices
        self._values = slices.upright(maps.map.display_values)
        strength = np.nan_to_num(self._values)
        if maps.style.signed:
            strength = np.abs(strength)
        self._cell = np.array(np.unravel_index(strength.argmax(), strength.shape))
        self._shape = (slices.total, *maps.size[::-1])
        pixels = np.array(self._shape)
        self.peak = ((2 * self._cell + 1) * pixels // (2 * np.array(strength.shape))).tolist()
        self._slice: DisplayFrame | None = None
        self._rows: list[_Pixels] = []
        self._columns: list[_Pixels] = []

    def add(self, frame: DisplayFrame) -> None:
        """Keep what is drawn of the next slice."""
        z, y, x = self.peak
        if frame.number == z:
            self._slice = frame
        pixels = np.asarray(frame.image)
        self._rows.append(pixels[y])
        self._columns.append(pixels[:, x])

    def draw(self, longest: int | None = None) -> Image.Image:
        """The picture, in which all planes together are at most so wide."""
        return self._maps.caption(self.figure(longest).image())

    def figure(self, longest: int | None = None) -> Figure:
        """The planes with their words."""
        zoom = max(1, _LEAST / max(self._maps.size))
        planes = [(plane, self._draw_plane(plane, zoom)) for plane in self._slices.planes]
        total = sum(image.width for _, image in planes)
        share = min(1, (longest or total) / total)
        figure = Figure(round(max(_RESOLUTION, total * share / _WIDTH)))
        figure.height = top = figure.gap // 2
        left = figure.gap
        for plane, image in planes:
            size = max(1, round(image.width * share)), max(1, round(image.height * share))
            small = image.resize(size, Image.Resampling.LANCZOS)
            self._write_ends(small, plane, figure)
            room = max(small.width, figure.pixels(_ROOM))
            figure.add_tile(Tile(small, plane.name, [self._slice_words(plane)]), left, top, room)
            left += room + figure.gap
        figure.width = left
        figure.height += figure.gap // 2
        self._write_legend(figure, zoom * share / min(self._slices.spacing), planes[0][1].width * share)
        return figure

    def _draw_plane(self, plane: Plane, zoom: float) -> Image.Image:
        """A plane with its map."""
        spacing = np.array(self._slices.spacing)
        steps = zoom * np.minimum(spacing / spacing.min(), _MAX_STRETCH)
        pixels = self._turn(self._pixels(plane.normal), plane)
        height, width, _ = pixels.shape
        size = max(1, round(width * steps[plane.across])), max(1, round(height * steps[plane.down]))
        image = Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC)
        values = self._turn(self._values_of(plane.normal), plane)
        return picture(image, values, Box(0, 0, *size), self._maps.faded_style, is_blank=self._maps.is_blank)

    def _pixels(self, normal: int) -> _Pixels:
        """The pixels of a plane, with the axes that remain of z, y and x."""
        assert self._slice is not None
        if normal == 2:
            return np.asarray(self._slice.image)
        return np.stack(self._rows if normal == 1 else self._columns)

    def _values_of(self, normal: int) -> FloatArray:
        """The map in a plane, on the scale of the whole map."""
        assert self._slice is not None
        if normal == 2:
            return self._maps.map_at(self._slice)
        axis = 2 - normal
        return self._values.take(self._cell[axis], axis) * self._values.shape[axis]

    def _turn(self, values: AnyArray, plane: Plane) -> AnyArray:
        """Values with the axes that remain of z, y and x, as they are drawn; x and y have their directions already."""
        if plane.normal != 2 and self._slices.flips[2]:
            values = values[::-1]
        return values.swapaxes(0, 1) if plane.across > plane.down else values

    def _slice_words(self, plane: Plane) -> str:
        """The number of a plane in the file, from 1."""
        axis = 2 - plane.normal
        number = self.peak[axis] + 1
        if plane.normal != 2 and self._slices.flips[plane.normal]:
            number = self._shape[axis] + 1 - number
        return f"slice {number} of {self._shape[axis]}"

    def _write_ends(self, image: Image.Image, plane: Plane, figure: Figure) -> None:
        """Write the letters of the directions at the edges of a plane, and of the one beside it."""
        ends = self._slices.ends(plane.across) + self._slices.ends(plane.down)
        width = image.width
        if self._maps.style.name == "side-by-side":
            width //= 2
        draw = ImageDraw.Draw(image)
        margin = figure.pixels(_MARGIN)
        for start in sorted({0, image.width - width}):
            middle = start + width // 2
            places = {
                "lm": (start + margin, image.height // 2),
                "rm": (start + width - margin, image.height // 2),
                "ma": (middle, margin),
                "md": (middle, image.height - margin),
            }
            for letter, (anchor, place) in zip(ends, places.items(), strict=False):
                letters = font(figure.pixels(_LETTER), True)
                draw.text(place, letter, "white", letters, anchor, stroke_width=2, stroke_fill="black")

    def _write_legend(self, figure: Figure, scale: float, width: float) -> None:
        """Write the color scale, and how long a distance is, of which a unit has so many pixels."""
        style = self._maps.faded_style
        map_ = self._maps.map
        if not self._maps.is_blank and not style.caption:  # which has the scale
            labels = scale_labels(style, map_.values.size, "", map_.against, map_.subject.name or "the class")
            figure.write_scale(style, labels)
            figure.write_line("Multiples of an even share, 1 / number of cells", fill=SECONDARY)
        affine = self._slices.affine
        if affine is not None and max(affine.spacing) <= _MAX_STRETCH * min(affine.spacing):
            longest = _SHARE_OF_RULER * width / scale
            power = 10.0 ** math.floor(math.log10(longest))
            length = max(step * power for step in (1, 2, 5) if step * power <= longest)
            ruler = Image.new("RGB", (max(1, round(length * scale)), figure.pixels(_RULER)), BLACK)
            figure.pictures.append((figure.gap, figure.height + figure.line // 2, ruler))
            words = f"{length:g} {_UNITS.get(affine.unit, affine.unit)}"
            figure.write(figure.gap + ruler.width + figure.gap // 2, figure.height, words)
            figure.height += figure.line
        figure.height += figure.gap // 2
