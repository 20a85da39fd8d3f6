"""Where the cells of a map lie in space, and maps as files that viewers lay over the input."""

import gzip
import io
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ebcli.datatypes.arrays import AnyArray, DoubleArray, FloatArray
from ebcli.datatypes.explanation import Interval
from ebcli.errors import DISTRIBUTION, ImageError, import_optional
from ebcli.files.naming import GEOTIFF, NIFTI

_PIXEL_IS_POINT = 2  # of GeoTIFF: positions are those of the pixels' centers
_PLACES = 33550, 33922, 34264  # GeoTIFF's scale, tie points and matrix
_FARTHEST = 1e12  # from the origin; more would be a header that lies
_KEYS = 34735, 34736, 34737  # its coordinate system: directory, numbers and texts


@dataclass(frozen=True)
class Coordinates(ABC):
    """The coordinate system of an image or a volume.

    Attributes:
        matrix: (4, 4), from the indices (x, y, z, 1) of a cell to its position.
        suffix: of files with such coordinates.
    """

    matrix: DoubleArray
    suffix: ClassVar[str]

    @abstractmethod
    def encode(self, map_: FloatArray, spans: Sequence[Interval]) -> bytes:
        """The content of a file of a map (h, w) or (d, h, w), which covers these cells along x, y and z."""

    def _of_cells(self, map_: FloatArray, spans: Sequence[Interval], center: float) -> DoubleArray:
        """The matrix of the map's own cells; ``center`` is where in a cell its position is meant, 0 or 0.5."""
        cells = np.eye(4)
        for axis, ((low, high), count) in enumerate(zip(spans, map_.shape[::-1], strict=True)):
            step = (high - low) / count
            cells[axis, axis] = step
            cells[axis, 3] = low + center * (step - 1)
        return self.matrix @ cells


@dataclass(frozen=True)
class Affine(Coordinates):
    """That of a volume: distances to the patient's right, front and top, as in NIfTI.

    Attributes:
        unit: of distances, in nibabel's words.
        is_oriented: whether the file says where the axes lead, and not only how far its cells are apart.
        stored: that of the file's own axes, which written maps have; None if these are they.
    """

    suffix = NIFTI
    unit: str = "mm"
    is_oriented: bool = True
    stored: "Affine | None" = None

    @property
    def spacing(self) -> tuple[float, ...]:
        """The distances of cells along x, y and z."""
        lengths = np.linalg.norm(self.matrix[:3, :3], axis=0)
        return tuple(np.where(np.isfinite(lengths) & (lengths > 0), lengths, 1.0).tolist())

    def position(self, voxel: Sequence[int]) -> tuple[float, ...] | None:
        """Where the center of a voxel lies, given its indices along x, y and z, from 0; None if it is nowhere."""
        place = (self.matrix @ [*voxel, 1])[:3]
        if not np.isfinite(place).all() or np.abs(place).max() > _FARTHEST:
            return None
        return tuple(place.tolist())

    @property
    def codes(self) -> str:
        """Where x, y and z lead, such as RAS for right, anterior and superior; empty if that is unknown.

        Oblique axes have the letters of the nearest ones, and no two the same, by the way of nibabel's ``aff2axcodes``.
        """
        axes = self.matrix[:3, :3]
        if not self.is_oriented or not np.isfinite(axes).all() or np.linalg.matrix_rank(axes) < 3:
            return ""
        left, _, right = np.linalg.svd(axes / np.linalg.norm(axes, axis=0))
        rotation = left @ right  # the nearest one
        shares = rotation**2
        codes = {}
        for axis in np.argsort(-shares.max(0)):  # the clearest one first
            direction = shares[:, axis].argmax()
            letters = "RAS" if rotation[direction, axis] > 0 else "LPI"
            codes[axis] = letters[direction]
            shares[direction] = -1  # taken
        return "".join(codes[axis] for axis in range(3))

    def indices_in_file(self, voxel: Sequence[int]) -> tuple[int, ...]:
        """The indices of a voxel along the file's own x, y and z, from 0."""
        if self.stored is None:
            return tuple(voxel)
        place = np.linalg.solve(self.stored.matrix, self.matrix @ [*voxel, 1])
        return tuple(np.rint(place[:3]).astype(int).tolist())

    def reorient(self, values: AnyArray, codes: str) -> tuple[AnyArray, "Affine"]:
        """Values (C, D, H, W) in the order in which x, y and z lead to other directions, and where they lie then.

        Args:
            values: in the order of this system.
            codes: as those of ``codes``.

        Raises:
            ImageError: it is unknown where the axes lead.
        """
        if not self.codes:
            raise ImageError(
                f"it does not say where its axes lead, so it cannot be reoriented to {codes}: drop orientation"
            )
        orientations = import_optional("nibabel").orientations
        change = _change_of_axes(self.codes, codes)
        in_space = values.T  # (x, y, z, C)
        matrix = self.matrix @ orientations.inv_ornt_aff(change, in_space.shape[:3])
        reoriented = orientations.apply_orientation(in_space, change).T
        return reoriented, replace(self, matrix=matrix, stored=self)

    def encode(self, map_: FloatArray, spans: Sequence[Interval]) -> bytes:
        nibabel = import_optional("nibabel")
        volume = nibabel.Nifti1Image(map_.astype(np.float32).T, self._of_cells(map_, spans, 0.5))
        if self.stored is not None:
            volume = volume.as_reoriented(_change_of_axes(self.codes, self.stored.codes))
        volume.header.set_xyzt_units(self.unit)
        volume.header["descrip"] = DISTRIBUTION
        return gzip.compress(volume.to_bytes(), mtime=0)  # equal maps are equal files


def _change_of_axes(codes: str, new_codes: str) -> Any:
    """How axes change that lead to other directions, as nibabel says it."""
    orientations = import_optional("nibabel").orientations
    return orientations.ornt_transform(*map(orientations.axcodes2ornt, (codes, new_codes)))


@dataclass(frozen=True)
class GeoTags(Coordinates):
    """That of a GeoTIFF.

    Attributes:
        keys: the tags of its coordinate system: code, type, count, value, and True, as tifffile writes them.
        center: where in a pixel its position is meant, 0 or 0.5.
    """

    suffix = GEOTIFF
    keys: Sequence[tuple[Any, ...]]
    center: float

    @classmethod
    def from_page(cls, page: Any) -> "GeoTags | None":
        """That of a page that tifffile has opened; None if its tags do not say where its pixels lie."""
        scale, points, matrix = (page.tags.valueof(code, ()) for code in _PLACES)
        if len(matrix) == 16:
            affine = np.array(matrix, np.float64).reshape(4, 4)
        elif scale and len(points) >= 6:
            affine = np.diag([scale[0], -scale[1], 1.0, 1.0])
            affine[:2, 3] = np.array(points[3:5]) - affine.diagonal()[:2] * points[:2]
        else:
            return None
        tags = filter(None, map(page.tags.get, _KEYS))
        keys = [(tag.code, tag.dtype, tag.count, tag.value, True) for tag in tags]
        raster = (page.geotiff_tags or {}).get("GTRasterTypeGeoKey")
        return cls(affine, keys, 0.5 if raster == _PIXEL_IS_POINT else 0.0)

    def encode(self, map_: FloatArray, spans: Sequence[Interval]) -> bytes:
        file = io.BytesIO()
        matrix = self._of_cells(map_, spans, self.center).ravel().tolist()
        tags = [(_PLACES[2], "d", 16, matrix, True), *self.keys]
        tifffile = import_optional("tifffile")
        tifffile.imwrite(file, map_.astype(np.float32), extratags=tags, software=DISTRIBUTION, metadata=None)
        return file.getvalue()
