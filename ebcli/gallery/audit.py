"""The audit of a run: photos whose maps rest on one place, and the page that shows them."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ebcli.datatypes.arrays import FloatArray
from ebcli.datatypes.explanation import Box, JsonObject, Size
from ebcli.drawing.overlay import downscale, heatmap, is_blank, picture, resize, side_by_side
from ebcli.drawing.style import DrawingStyle
from ebcli.errors import ConfigurationError, ImageError
from ebcli.files.directory import OutputFolder
from ebcli.files.encoding import encode_picture
from ebcli.files.images import decode
from ebcli.files.naming import AUDIT, sha256
from ebcli.files.records import read_json_lines
from ebcli.gallery.comparison import Files, latest_records, path_below, read_maps, roots_of
from ebcli.pages.shell import page

CELLS = 14  # a side, of the grid that each map is reduced to
_GRID = CELLS, CELLS
LEAST = 5  # photos

_CORNER, _EDGE = 4, 2  # cells
_RESTS = 0.5  # of a photo's map, in a place that it rests on
_SHARE = 0.3  # of a class's photos, in a finding
_MIN_COSINE = 0.8  # of a group with its mean map
_MAX_LOOK_DIFFERENCE = 0.04  # the mean difference of a group's peaks from their mean look
_PIXELS = 4  # a cell's side in the small photo from which looks are taken
_GROUPS = 8
_MAX_TESTED = 40  # photos of a candidate
_CHANGE = 0.3  # of the tested photos, change class in a finding
_MARGIN = 0.2  # of the tested photos: so many more than with another place covered
_THIRDS = (
    ("at the upper left", "at the top", "at the upper right"),
    ("at the left", "in the middle", "at the right"),
    ("at the lower left", "at the bottom", "at the lower right"),
)

Mask = NDArray[np.bool_]
Boxes = Mapping[str, Sequence[Box]]


def _places() -> dict[str, Mask]:
    """The corners and edges of the grid."""
    from_top, from_left = np.indices(_GRID)
    rows = {"upper": from_top, "lower": from_top[::-1]}
    columns = {"left": from_left, "right": from_left[:, ::-1]}
    places: dict[str, Mask] = {}
    for (vertical, row), (horizontal, column) in product(rows.items(), columns.items()):
        places[f"{vertical} {horizontal} corner"] = np.maximum(row, column) < _CORNER
    for name, distance in (rows | columns).items():
        places[f"{name} edge"] = distance < _EDGE
    return places


PLACES = _places()
BORDER = np.pad(np.zeros((CELLS - 2, CELLS - 2), bool), 1, constant_values=True)


@dataclass(frozen=True, eq=False, kw_only=True)
class AuditPhoto:
    """A photo of a run, reduced to what an audit needs.

    Attributes:
        input, path: the photo as given, and where it can be read.
        state: the photo's state and all settings of its map; equal states have equal maps.
        name: the class that it was explained for: the predicted one, or the first.
        is_wrong: whether that is not its label.
        grid: the positive map (CELLS, CELLS), which sums to 1.
        look: the colors around the peak, 0 to 1.
        outside: the cells outside of its boxes; None without boxes.
    """

    input: str
    path: Path
    state: tuple[str, int | None, int | None]
    name: str
    is_wrong: bool
    grid: FloatArray
    look: FloatArray
    outside: Mask | None


class Candidate(NamedTuple):
    """Photos of a class whose maps rest on the same place.

    Attributes:
        place_words: the place, in words.
        photos: the photos, those that rest on it most first, each with the cells of the place.
        total: the number of photos of the class.
    """

    place_words: str
    photos: Sequence[tuple[AuditPhoto, Mask]]
    total: int

    @property
    def tested(self) -> Sequence[tuple[AuditPhoto, Mask]]:
        """The photos in which the place is covered, as a test."""
        return self.photos[:_MAX_TESTED]

    @property
    def key(self) -> str:
        """A hash of everything that the outcome of that test depends on."""
        photos = [(photo.input, *photo.state, mask.tobytes().hex()) for photo, mask in self.tested]
        return sha256(json.dumps(photos).encode())


class ClassChanges(NamedTuple):
    """What happens if a place is covered.

    Attributes:
        num_changed: how many photos change class.
        opposite: how many do if the opposite place is covered; None if they overlap.
    """

    num_changed: int
    opposite: int | None


class Finding(NamedTuple):
    """What photos of a class rest on, and what happens if it is covered.

    Attributes:
        candidate: the class, the place and the photos.
        num_tested: of the photos, how many were tested.
        num_changed: how many of these change class if the place is covered.
        opposite: how many do if the opposite place is covered; None if they overlap.
    """

    candidate: Candidate
    num_tested: int
    num_changed: int
    opposite: int | None

    @property
    def holds(self) -> bool:
        """Whether it makes a difference."""
        margin = self.num_changed - (self.opposite or 0)
        return self.num_changed >= _CHANGE * self.num_tested and margin >= max(1, _MARGIN * self.num_tested)

    @property
    def words(self) -> str:
        """The finding in a sentence."""
        photos = [photo for photo, _ in self.candidate.photos]
        count = len(photos)
        wrong = sum(photo.is_wrong for photo in photos)
        maps = f"{count} of {self.candidate.total} '{photos[0].name}' maps share {self.candidate.place_words}"
        words = f"{maps}; covering it changes the class of {self.num_changed}"
        if self.num_tested != count:
            words += f" of {self.num_tested} tested"
        if self.opposite is not None:
            words += f", and covering the opposite place changes the class of {self.opposite}"
        if wrong:
            words += f"; {wrong} of the {count} predictions {'is' if wrong == 1 else 'are'} wrong"
        return words


def read_boxes(path: Path) -> Boxes:
    """The boxes of a file in COCO's format, in pixels, by the names of the images.

    Raises:
        ConfigurationError: it cannot be read.
    """
    boxes: dict[str, list[Box]] = {}
    try:
        content = json.loads(path.read_bytes())
        names = {image["id"]: Path(image["file_name"]).name for image in content["images"]}
        for annotation in content["annotations"]:
            box = Box.from_xywh(*map(float, annotation["bbox"]))
            boxes.setdefault(names[annotation["image_id"]], []).append(box)
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"cannot read '{path}' as annotations in COCO's format"
        raise ConfigurationError(f"{problem}: {error!r}") from error
    return boxes


def read_photos(directory: Path, inputs: Sequence[Path], boxes: Boxes) -> dict[str, list[AuditPhoto]]:
    """The photos of a run with raw maps, by their classes; only those below ``inputs`` are read.

    Raises:
        ConfigurationError: the directory has no records.
    """
    roots = roots_of(inputs)
    classes: dict[str, list[AuditPhoto]] = {}
    for record in latest_records(directory).values():
        path = path_below(record.input, roots)
        image = read_maps(directory, record)
        if path is None or image is None or not image.maps:
            continue
        map_ = next((item for item in image.maps if item.subject.index == record.predicted), image.maps[0])
        region = map_.placement.rescale(image.size, _GRID)
        grid = heatmap(map_.values, region, _GRID, signed=False, zero=None)
        if is_blank(grid):
            continue
        subject = map_.subject
        with suppress(ImageError):  # it has changed since
            photo = AuditPhoto(
                input=record.input,
                path=path,
                state=(record.configuration, record.input_bytes, record.input_mtime_ns),
                name=subject.label,
                is_wrong=record.label not in (None, subject.index),
                grid=grid / grid.sum(),
                look=_look(decode(path), grid),
                outside=_outside(boxes[path.name], image.size) if path.name in boxes else None,
            )
            classes.setdefault(photo.name, []).append(photo)
    return classes


def _outside(boxes: Sequence[Box], size: Size) -> Mask:
    """The cells of an image (width, height) that are outside of all boxes."""
    outside = np.ones(_GRID, bool)
    for box in boxes:
        left, top, right, bottom = box.rescale(size, _GRID)
        outside[int(top) : math.ceil(bottom), int(left) : math.ceil(right)] = False
    return outside


def _look(photo: Image.Image, grid: FloatArray) -> FloatArray:
    """The colors of 3 x 3 cells around the peak, 2 x 2 for each cell: (108,)."""
    small = photo.resize((CELLS * _PIXELS, CELLS * _PIXELS), Image.Resampling.BOX, reducing_gap=2.0)
    cells = (np.asarray(small, np.float32) / 255).reshape(CELLS, 2, 2, CELLS, 2, 2, 3).mean((2, 5))
    row, column = np.clip(np.unravel_index(grid.argmax(), _GRID), 1, CELLS - 2)
    return cells[row - 1 : row + 2, :, column - 1 : column + 2].ravel()


def candidates(
    photos: Sequence[AuditPhoto], clusters: Callable[[FloatArray, int], NDArray[np.int64]]
) -> Iterator[Candidate]:
    """What many photos of one class rest on: a corner, an edge, what is outside of the boxes, or a place of one look.

    Args:
        photos: the photos of a class.
        clusters: finds so many groups of rows (photos, numbers), and returns the group of each.
    """
    minimum = max(LEAST, _SHARE * len(photos))
    photo_sets: list[Set[int]] = []

    def candidate(
        place_words: str, masks: Mapping[int, Mask], order: Mapping[int, float]
    ) -> Iterator[Candidate]:
        """The photos with masks, in this order, if they are enough and not about the same as earlier ones."""
        maximum = 0.8 * len(masks)
        if len(masks) >= minimum and all(len(masks.keys() & other) < maximum for other in photo_sets):
            photo_sets.append(masks.keys())
            numbers = sorted(masks, key=lambda number: -order[number])
            yield Candidate(place_words, [(photos[number], masks[number]) for number in numbers], len(photos))

    places: dict[str, list[Mask | None]] = {}
    for name, place in PLACES.items():
        places[f"the {name}"] = [place] * len(photos)
    places["what is outside of the boxes"] = [photo.outside for photo in photos]
    for place_words, place_masks in places.items():
        masks = {}
        shares = {}
        for number, (photo, mask) in enumerate(zip(photos, place_masks, strict=True)):
            if mask is None:
                continue
            share = float(photo.grid[mask].sum())
            if share >= _RESTS:
                masks[number] = mask
                shares[number] = share
        yield from candidate(place_words, masks, shares)
    if len(photos) < 2 * LEAST:
        return
    looks = np.stack([photo.look for photo in photos])
    grids = np.stack([photo.grid.ravel() for photo in photos])
    grids /= np.linalg.norm(grids, axis=1, keepdims=True)
    groups = clusters(np.concatenate([grids, looks], axis=1), min(_GROUPS, len(photos) // LEAST))
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        mean = grids[members].mean(0)
        cosines = grids[members] @ mean / np.linalg.norm(mean)
        difference = np.abs(looks[members] - looks[members].mean(0)).mean()
        if cosines.mean() < _MIN_COSINE or difference > _MAX_LOOK_DIFFERENCE:
            continue
        core = _core(mean)
        row, column = (int(indices.mean() * 3 / CELLS) for indices in np.nonzero(core))  # of the middle
        order = dict(zip(members.tolist(), cosines.tolist(), strict=True))
        yield from candidate(f"the same thing {_THIRDS[row][column]}", dict.fromkeys(order, core), order)


def _core(values: FloatArray) -> Mask:
    """The strongest cells that hold half of a mean map, one cell wider."""
    order = np.argsort(-values)
    count = int(np.searchsorted(values[order].cumsum(), values.sum() / 2)) + 1
    core = np.zeros(_GRID, bool)
    core.flat[order[:count]] = True
    neighborhoods = np.lib.stride_tricks.sliding_window_view(np.pad(core, 1), (3, 3))
    return np.any(neighborhoods, axis=(2, 3))


def read_outcomes(file: Path) -> dict[str, ClassChanges]:
    """What an earlier audit, perhaps an interrupted one, has tested; lines that are something else are ignored."""
    outcomes: dict[str, ClassChanges] = {}
    counts = range(_MAX_TESTED + 1)
    opposites = (None, *counts)
    with suppress(OSError):
        for entry in read_json_lines(file):
            match entry:
                case [str(key), num_changed, opposite] if num_changed in counts and opposite in opposites:
                    outcomes[key] = ClassChanges(num_changed, opposite)
    return outcomes


def count_changes(candidate: Candidate, classify: Callable[[Image.Image], int | None]) -> ClassChanges:
    """Cover the place in the photos of a candidate, and then the opposite one.

    Args:
        candidate: the photos.
        classify: the class of a photo.
    """
    num_changed = 0
    opposite = 0
    for photo, mask in candidate.tested:
        image = downscale(decode(photo.path))
        full_class = classify(image)
        num_changed += classify(_cover(image, mask)) != full_class
        opposite += classify(_cover(image, np.flip(mask))) != full_class
    overlap = any((mask & np.flip(mask)).any() for _, mask in candidate.photos)
    return ClassChanges(num_changed, None if overlap else opposite)


def _cover(image: Image.Image, cells: Mask) -> Image.Image:
    """A photo with its mean color in some cells."""
    mean = image.resize((1, 1), Image.Resampling.BOX)
    mask = Image.fromarray(cells.astype("uint8") * 255).resize(image.size, Image.Resampling.NEAREST)
    return Image.composite(mean.resize(image.size), image, mask)


_MAX_PHOTOS = 8  # photos of a finding
_SIDE, _GAP, _SMALL = 180, 6, 84  # pixels
_CORNERS = [name for name in PLACES if name.endswith("corner")]


def write_audit(
    directory: Path, findings: Sequence[Finding], classes: Mapping[str, Sequence[AuditPhoto]]
) -> Path:
    """Write the page and its pictures into ``audit/`` below the directory of a run, all or none of them.

    Args:
        directory: the directory.
        findings: what was found.
        classes: the photos of each class.

    Returns:
        The page.

    Raises:
        OutputError: the directory cannot be written to.
    """
    files: Files = {}

    def row(image: Image.Image, **fields: Any) -> JsonObject:
        """A row of the page, with its picture."""
        content = encode_picture(image, "png")
        name = f"{sha256(content, 24)}.png"
        files[AUDIT.with_name(name)] = content
        return {**fields, "picture": name, "width": image.width}

    finding_rows = []
    for finding in findings:
        candidate = finding.candidate
        inputs = [photo.input for photo, _ in candidate.photos[:_MAX_PHOTOS]]
        finding_rows.append(row(_strip(candidate), words=finding.words, photos=inputs))
    class_rows = []
    for name, photos in sorted(classes.items()):
        mean = np.mean([photo.grid for photo in photos], axis=0)
        class_rows.append(row(_mean_map(mean), name=name, photos=len(photos), shares=_shares(photos, mean)))
    files[AUDIT] = page(
        "audit.html",
        findings=finding_rows,
        classes=class_rows,
        heads=["mean map", "class", "photos", "border", *_CORNERS, "outside of boxes"],
        border=BORDER.mean(),
        corner=PLACES[_CORNERS[0]].mean(),
    )
    with OutputFolder(directory, overwrite=True) as folder:
        folder.add(files)
    return directory / AUDIT


def _shares(photos: Sequence[AuditPhoto], mean: FloatArray) -> list[float | None]:
    """The mean share of the maps at the border, in each corner, and outside of the boxes, if there are any."""
    shares: list[float | None] = [float(mean[BORDER].sum())]
    shares += [float(mean[PLACES[name]].sum()) for name in _CORNERS]
    outside = [float(photo.grid[photo.outside].sum()) for photo in photos if photo.outside is not None]
    return [*shares, float(np.mean(outside)) if outside else None]


def _mean_map(mean: FloatArray) -> Image.Image:
    white = Image.new("RGB", (_SMALL, _SMALL), "white")
    return picture(white, mean, Box(0, 0, _SMALL, _SMALL), DrawingStyle("heatmap"))


def _strip(candidate: Candidate) -> Image.Image:
    """The first photos side by side, with their maps and a frame around the place."""
    tiles = []
    for photo, mask in candidate.photos[:_MAX_PHOTOS]:
        with suppress(ImageError):
            small = resize(decode(photo.path, to_srgb=True), _SIDE)
            tile = picture(small, photo.grid, Box(0, 0, *small.size), DrawingStyle())
            rows, columns = np.nonzero(mask)
            place = Box(columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
            left, top, right, bottom = map(int, place.rescale(_GRID, small.size))
            ImageDraw.Draw(tile).rectangle((left, top, right - 1, bottom - 1), outline="white", width=2)
            tiles.append(tile)
    return side_by_side(tiles or [Image.new("RGB", (_SIDE, _SIDE), "white")], _GAP)
