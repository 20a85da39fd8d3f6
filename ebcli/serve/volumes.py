"""Volumes on the page: three planes through a voxel in one picture, and the values of maps in each plane."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, NamedTuple

from ebcli.datatypes.arrays import FloatArray
from ebcli.datatypes.explanation import Explanation, JsonObject
from ebcli.drawing.frame_maps import FrameMaps
from ebcli.drawing.planes import Orthogonal
from ebcli.drawing.style import DrawingStyle
from ebcli.errors import ConfigurationError, ImageError, sides
from ebcli.files.clips import Slices
from ebcli.files.encoding import encode_picture
from ebcli.files.sources import Source

if TYPE_CHECKING:
    from ebcli.run.reading import NetworkInput, Reader

_WIDTH = 900  # pixels, of all planes side by side
_STACKED_WIDTH = 340  # pixels, of planes one below the other

Voxel = tuple[int, ...]  # the numbers in the file, from 1, of the slices along x, y and z


class PlanesView(NamedTuple):
    """The planes of a volume, and maps in them.

    Attributes:
        description: what the page is told of the volume and the picture of its planes, which is in it.
        planes: what the page is told of each plane.
        values: of each map, the values (h, w) in each plane, in the map's own units.
    """

    description: JsonObject
    planes: list[JsonObject]
    values: list[list[FloatArray]]


def parse_voxel(text: str) -> Voxel | None:
    """A voxel of an address of the page; None if the address has none. Raises ConfigurationError if it is broken."""
    if not text:
        return None
    try:
        return tuple(map(int, text.split(",")))
    except ValueError as error:
        raise ConfigurationError(f"this is no address of the page ({error}): open the page again") from error


def is_within(voxel: Voxel, shape: Voxel) -> bool:
    """Whether a volume of a shape (x, y, z) has a voxel."""
    return len(voxel) == 3 and all(1 <= at <= length for at, length in zip(voxel, shape, strict=True))


def view_planes(
    source: Source,
    network_input: NetworkInput,
    reader: Reader,
    explanation: Explanation,
    voxel: Voxel | None,
    is_stacked: bool,
) -> PlanesView:
    """Draw the planes of a volume, in any process.

    Args:
        source, network_input, reader, explanation: the volume, and its maps.
        voxel: where the planes cross; None for the maximum of the first map.
        is_stacked: one plane is below the other.

    Raises:
        ImageError: the file changed, or the voxel is outside of it.
    """
    slices = network_input.clips
    assert isinstance(slices, Slices)
    size = network_input.size
    shape = (*size, slices.total)
    if voxel is not None and not is_within(voxel, shape):
        numbers = ",".join(map(str, voxel))
        raise ImageError(f"the voxel {numbers} is outside of it: choose one within {sides(shape)}")
    maps = [FrameMaps.from_map(map_, size, slices, DrawingStyle()) for map_ in explanation.maps]
    orthogonal = Orthogonal(maps[0], slices, voxel)
    for frame in reader.frames(source, network_input):
        orthogonal.add(frame)
    figure = orthogonal.figure(_STACKED_WIDTH if is_stacked else _WIDTH, has_map=False, is_stacked=is_stacked)
    picture = figure.image()
    planes: list[JsonObject] = []
    for plane, (left, top, image) in zip(slices.planes, figure.pictures, strict=False):
        axes = plane.across, plane.down
        place = left, top, left + image.width, top + image.height
        planes.append(
            {"name": plane.name, "axes": axes, "place": place, "ends": "".join(map(slices.ends, axes))}
        )
    description = {
        "size": picture.size,
        "picture": base64.b64encode(encode_picture(picture, "jpg")).decode(),
        "volume": {"shape": shape, "flips": slices.flips, "voxel": orthogonal.voxel},
    }
    values = [
        [plane * (plane.size / item.map.values.size) for plane in orthogonal.values_of(item)] for item in maps
    ]
    return PlanesView(description, planes, values)
