"""Volumes on the page: three planes through a voxel, and the values of maps in each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from ebcli.datatypes.arrays import FloatArray
from ebcli.datatypes.explanation import Explanation, JsonObject, Size
from ebcli.drawing.planes import Orthogonal
from ebcli.drawing.style import DrawingStyle
from ebcli.errors import ConfigurationError, ImageError, sides
from ebcli.files.clips import Slices
from ebcli.files.encoding import encode_picture
from ebcli.files.sources import Source
from ebcli.run.reading import NetworkInput, Reader
from ebcli.run.rendering import frame_maps_of

_WIDEST = 1600  # pixels, of all planes together
_NARROWEST = 200


@dataclass(frozen=True, kw_only=True)
class PlaneOptions:
    """How the page shows a volume.

    Attributes:
        voxel: where the planes cross: the numbers in the file, from 1, of the slices along x, y and z. None for the
            maximum of the first map.
        width: of all planes, in pixels.
        is_stacked: one plane is below the other.
    """

    voxel: tuple[int, ...] | None = None
    width: int = 1024
    is_stacked: bool = False

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> Self:
        """Those of an address of the page. Raises ConfigurationError if it is none."""
        try:
            voxel = tuple(map(int, filter(None, query.get("voxel", "").split(",")))) or None
            width = int(query.get("width") or cls.width)
        except ValueError as error:
            raise ConfigurationError(
                f"this is no address of the page ({error}): open the page again"
            ) from error
        width = min(_WIDEST, max(_NARROWEST, width))
        return cls(voxel=voxel, width=width, is_stacked=query.get("stacked") == "1")


class PlanesView(NamedTuple):
    """The planes of a volume.

    Attributes:
        picture: the planes with their words, JPEG.
        size: the width and height of the picture.
        planes: what the page needs to know of each plane.
        values: of each map, the values (h, w) in each plane, in the map's own units.
        volume: the numbers of slices of the volume along x, y and z, which of them are drawn in reverse, and the voxel.
    """

    picture: bytes
    size: Size
    planes: list[JsonObject]
    values: list[list[FloatArray]]
    volume: JsonObject


def view_planes(
    source: Source,
    network_input: NetworkInput,
    reader: Reader,
    explanation: Explanation,
    options: PlaneOptions,
) -> PlanesView:
    """Draw the planes of a volume, in any process.

    Raises:
        ImageError: the file changed, or the voxel is outside of it.
    """
    slices = network_input.clips
    assert isinstance(slices, Slices)
    shape = (*network_input.size, slices.total)
    check_voxel(options.voxel, shape)
    maps = frame_maps_of(explanation, network_input.size, slices, DrawingStyle())
    orthogonal = Orthogonal(maps[0], slices, options.voxel)
    for frame in reader.frames(source, network_input):
        orthogonal.add(frame)
    figure = orthogonal.figure(options.width, has_map=False, is_stacked=options.is_stacked)
    picture = figure.image()
    planes = []
    for plane, (left, top, image) in zip(slices.planes, figure.pictures, strict=False):
        planes.append(
            {
                "name": plane.name,
                "axes": (plane.across, plane.down),
                "ends": slices.ends(plane.across) + slices.ends(plane.down),
                "place": (left, top, left + image.width, top + image.height),
            }
        )
    values = [
        [plane * (plane.size / item.map.values.size) for plane in orthogonal.values_of(item)] for item in maps
    ]
    volume = {"shape": shape, "flips": slices.flips, "voxel": orthogonal.voxel}
    return PlanesView(encode_picture(picture, "jpg"), picture.size, planes, values, volume)


def check_voxel(voxel: Sequence[int] | None, shape: Sequence[int]) -> None:
    """Raise ImageError if there is no such voxel in a volume of a shape (x, y, z)."""
    if voxel is None:
        return
    is_inside = len(voxel) == len(shape) and all(
        0 < number <= size for number, size in zip(voxel, shape, strict=True)
    )
    if not is_inside:
        numbers = ",".join(map(str, voxel))
        raise ImageError(f"the voxel {numbers} is outside of it: choose one within {sides(shape)}")
