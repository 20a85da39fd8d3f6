"""The three planes of a volume through the maximum of its map: their names, slices, directions, and a scale."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ebcli.datatypes.arrays import AnyArray, FloatArray
from ebcli.datatypes.explanation import Box
from ebcli.drawing.figure import BLACK, SECONDARY, Figure, Tile
from ebcli.drawing.frame_maps import FrameMaps
from ebcli.drawing.legend import scale_labels, write_ends
from ebcli.drawing.overlay import picture
from ebcli.files.clips import Plane, Slices
from ebcli.files.media.medium import DisplayFrame

_Pixels = NDArray[np.uint8]  # (height, width, 3)

_LEAST = 256  # pixels, of the longer side of a slice
_MAX_STRETCH = 16  # times; more would be a header that lies
_WIDTH = 8  # inches of all planes together, at least, so that words are not small beside them
_RESOLUTION = 100  # pixels per inch, at least
_ROOM = 130  # for the words of a narrow plane; this and the two numbers below are pixels at 100 dpi
_LETTER = 15
_RULER = 3
_SHARE_OF_RULER = 0.5  # of the width of the first plane, at most
_UNITS = {"micron": "µm", "meter": "m"}


class Orthogonal:
    """The planes of a volume through its map's maximum, or another voxel, with the proportions of the volume in space.

    Planes are axial, coronal and sagittal, as radiologists see them, if the directions of the axes are known. Of the
    slices, only what is drawn is kept.

    Args:
        maps: the map.
        slices: those of the volume.
        voxel: where the planes cross: the numbers in the file, from 1, of the slices along x, y and z. None for the
            map's maximum.

    Attributes:
        peak: the slice, row and column where the planes cross, as they are drawn.
    """

    def __init__(self, maps: FrameMaps, slices: Slices, voxel: Sequence[int] | None = None) -> None:
        self._maps = maps
        self._slices = slices
        self._values = slices.upright(maps.map.display_values)
        self._shape = (slices.total, *maps.size[::-1])
        cells = np.array(self._values.shape)
        pixels = np.array(self._shape)
        if voxel is None:
            strength = np.nan_to_num(self._values)
            if maps.style.signed:
                strength = np.abs(strength)
            self._cell = np.array(np.unravel_index(strength.argmax(), strength.shape))
            self.peak = ((2 * self._cell + 1) * pixels // (2 * cells)).tolist()
        else:
            self.peak = [number - 1 for number in reversed(self._mirror(voxel))]
            self._cell = np.array(self.peak) * cells // pixels
        self._slice: DisplayFrame | None = None
        self._rows: list[_Pixels] = []
        self._columns: list[_Pixels] = []

    @property
    def voxel(self) -> list[int]:
        """Where the planes cross: the numbers in the file, from 1, of the slices along x, y and z."""
        return self._mirror([at + 1 for at in reversed(self.peak)])

    def _mirror(self, numbers: Sequence[int]) -> list[int]:
        """The numbers of slices along x, y and z as they are drawn, given those in the file; or the other way round.

        Slices along z are drawn one by one, in the order of the file.
        """
        x, y, z = numbers
        x_flipped, y_flipped, _ = self._slices.flips
        _, height, width = self._shape
        if x_flipped:
            x = width + 1 - x
        if y_flipped:
            y = height + 1 - y
        return [x, y, z]

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

    def figure(self, longest: int | None = None, has_map: bool = True, is_stacked: bool = False) -> Figure:
        """The planes, which are its first pictures, with their words, side by side or one below the other.

        Without the map, the figure has no color scale, either.
        """
        zoom = max(1, _LEAST / max(self._maps.size))
        planes = [(plane, self._draw_plane(plane, zoom, has_map)) for plane in self._slices.planes]
        widths = [image.width for _, image in planes]
        total = max(widths) if is_stacked else sum(widths)
        share = min(1, (longest or total) / total)
        figure = Figure(round(max(_RESOLUTION, total * share / _WIDTH)))
        figure.height = top = figure.gap // 2
        left = figure.gap
        for plane, image in planes:
            size = max(1, round(image.width * share)), max(1, round(image.height * share))
            small = image.resize(size, Image.Resampling.LANCZOS)
            ends = self._slices.ends(plane.across) + self._slices.ends(plane.down)
            count = 2 if self._maps.style.name == "side-by-side" and has_map else 1
            write_ends(small, ends, figure.pixels(_LETTER), count)
            room = max(small.width, figure.pixels(_ROOM))
            figure.add_tile(Tile(small, plane.name, [self._slice_words(plane)]), left, top, room)
            figure.width = max(figure.width, left + room + figure.gap)
            if is_stacked:
                top = figure.height + figure.gap // 2
            else:
                left += room + figure.gap
        figure.height += figure.gap // 2
        if has_map:
            self._write_scale(figure)
        self._write_ruler(figure, zoom * share / min(self._slices.spacing), planes[0][1].width * share)
        return figure

    def values_of(self, maps: FrameMaps) -> list[FloatArray]:
        """The values of a map of the same volume in each plane of the figure."""
        whole = Orthogonal(maps, self._slices, self.voxel)
        whole._slice = self._slice
        return [whole._turn(whole._values_of(plane.normal), plane) for plane in self._slices.planes]

    def _draw_plane(self, plane: Plane, zoom: float, has_map: bool) -> Image.Image:
        spacing = np.array(self._slices.spacing)
        steps = zoom * np.minimum(spacing / spacing.min(), _MAX_STRETCH)
        pixels = self._turn(self._pixels(plane.normal), plane)
        height, width, _ = pixels.shape
        size = max(1, round(width * steps[plane.across])), max(1, round(height * steps[plane.down]))
        image = Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC)
        if not has_map:
            return image
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
        return f"slice {self.voxel[plane.normal]} of {self._shape[2 - plane.normal]}"

    def _write_scale(self, figure: Figure) -> None:
        """Write the color scale, unless the map is blank or a caption has it."""
        style = self._maps.faded_style
        map_ = self._maps.map
        if self._maps.is_blank or style.caption:
            return
        labels = scale_labels(style, map_.values.size, "", map_.against, map_.subject.name or "the class")
        figure.write_scale(style, labels)
        figure.write_line("Multiples of an even share, 1 / number of cells", fill=SECONDARY)
        figure.height += figure.gap // 2

    def _write_ruler(self, figure: Figure, scale: float, width: float) -> None:
        """Write how long a distance is, of which a unit has so many pixels, beside planes of a width."""
        affine = self._slices.affine
        if affine is None or max(affine.spacing) > _MAX_STRETCH * min(affine.spacing):
            return
        longest = _SHARE_OF_RULER * width / scale
        power = 10.0 ** math.floor(math.log10(longest))
        length = max(step * power for step in (1, 2, 5) if step * power <= longest)
        ruler = Image.new("RGB", (max(1, round(length * scale)), figure.pixels(_RULER)), BLACK)
        figure.pictures.append((figure.gap, figure.height + figure.line // 2, ruler))
        words = f"{length:g} {_UNITS.get(affine.unit, affine.unit)}"
        figure.write(figure.gap + ruler.width + figure.gap // 2, figure.height, words)
        figure.height += figure.line + figure.gap // 2
