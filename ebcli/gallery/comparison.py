"""The maps in the ``.npz`` files of runs, and two runs side by side: a page and JSON, sorted by disagreement."""

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from ebcli.datatypes.arrays import FloatArray
from ebcli.datatypes.explanation import Box, JsonObject, Map, Size, Subject, score_words
from ebcli.drawing.legend import bar_colors
from ebcli.drawing.overlay import (
    Pixels,
    covered_pixels,
    fitted_size,
    interpolate,
    is_blank,
    picture,
    ranks,
    side_by_side,
)
from ebcli.drawing.style import DrawingStyle
from ebcli.errors import ConfigurationError, ImageError, check_value
from ebcli.files.directory import OutputFolder, refuse_foreign_files
from ebcli.files.encoding import encode_picture, read_arrays
from ebcli.files.images import decode
from ebcli.files.naming import COMPARISON, array_marks, canonical, output_relpath, sha256, with_numbers
from ebcli.files.paths import first_link, url_of
from ebcli.files.records import ClassRecord, Record, records_of_run
from ebcli.pages.shell import page

Correlation = Callable[[FloatArray, FloatArray], float]
Files = dict[Path, bytes]  # contents by path relative to the output directory

SIDE = 256  # pixels, the longer side of compared pictures, and of the grid on which maps are compared
DATA = COMPARISON.with_name("comparison.json")

_GAP = 8
_TOP = 0.2  # of the pixels
_STYLES = {"maps": DrawingStyle(), "difference": DrawingStyle("heatmap", signed=True)}


class MapPair(NamedTuple):
    """Two maps of one class of one image.

    Attributes:
        input: the image's path, as last given.
        size: its width and height.
        maps: the maps of the first and of the second run.
        runs: their models, weights, layers and methods, in words.
    """

    input: str
    size: Size
    maps: tuple[Map, Map]
    runs: tuple[str, str]


class ImageMaps(NamedTuple):
    """The maps (h, w) of an image of a size (width, height), layer by layer."""

    size: Size
    maps: list[Map]


def read_maps(directory: Path, record: Record) -> ImageMaps | None:
    """The maps in the ``.npz`` file of a record; None if there is no intact one."""
    relpath = next((Path(result.path) for result in record.results if result.path.endswith(".npz")), None)
    if relpath is None or first_link(directory, relpath):
        return None
    marks = array_marks((class_.layer, class_.method) for class_ in record.classes)
    groups: dict[str, list[ClassRecord]] = {}
    for class_ in record.classes:
        groups.setdefault(f"maps{marks[class_.layer, class_.method]}", []).append(class_)
    has_methods = len({class_.method for class_ in record.classes}) > 1
    maps: list[Map] = []
    with suppress(OSError, ValueError, KeyError, TypeError, IndexError):
        arrays = read_arrays(directory / relpath, ("image_size", "crop", "classes", *groups))
        width, height = map(int, arrays["image_size"])
        placement = Box(*map(float, arrays["crop"]))
        for name, classes in groups.items():
            for index, class_, values in zip(arrays["classes"].tolist(), classes, arrays[name], strict=True):
                if index != class_.index or values.ndim != 2 or not values.size or min(width, height) < 1:
                    return None
                map_ = Map(
                    subject=_subject(class_),
                    layer=class_.layer,
                    values=values,
                    mass=class_.mass,
                    placement=placement,
                    method=class_.method if has_methods else record.method,
                    against=class_.against or "",
                    is_two_sided=class_.against is not None,
                )
                maps.append(map_)
        return ImageMaps((width, height), maps)
    return None


def _subject(class_: ClassRecord) -> Subject:
    outlines = [class_.box.outline] if class_.box else ()
    is_value = class_.value is not None
    return Subject(class_.index, class_.name, class_.number, outlines=outlines, is_value=is_value)


def read_pairs(first_run: Path, second_run: Path) -> Iterator[MapPair]:
    """Every class, layer and method that both runs have of an image; of runs with one layer or method each, these two.

    The latest record of each image counts.

    Raises:
        ConfigurationError: a directory has no records.
    """
    first_records = latest_records(first_run)
    second_records = latest_records(second_run)
    for place in sorted(first_records.keys() & second_records.keys()):
        before = first_records[place]
        now = second_records[place]
        first = read_maps(first_run, before)
        second = read_maps(second_run, now)
        if first is None or second is None or first.size != second.size:  # of another size: another image
            continue
        names = [
            name for name in ("layer", "method") if _has_several(name, first) or _has_several(name, second)
        ]
        second_maps = _by_key(second.maps, names)
        for key, map_ in _by_key(first.maps, names).items():
            if key in second_maps:
                maps = map_, second_maps[key]
                runs = _run_name(before, maps[0]), _run_name(now, maps[1])
                yield MapPair(now.input, second.size, maps, runs)


def _has_several(name: str, image: ImageMaps) -> bool:
    """Whether maps differ in an attribute, or there are none."""
    return len({getattr(map_, name) for map_ in image.maps}) != 1


def _by_key(maps: Sequence[Map], names: Sequence[str]) -> dict[Any, Map]:
    """Maps by class, and by attributes of some names; detections of a class are told apart by their order."""
    keys = ((map_.subject.index, *(getattr(map_, name) for name in names)) for map_ in maps)
    return dict(zip(with_numbers(keys), maps, strict=True))


def _run_name(record: Record, map_: Map) -> str:
    network = f"{record.model} ({record.weights})"
    if record.head is not None:
        network += f", head {record.head}"
    return f"{network}, {map_.layer}, {map_.method}"


def align(pair: MapPair) -> tuple[FloatArray, FloatArray, Pixels]:
    """Two maps on the grid on which they are compared: the pixels of a small image that both cover, and their box."""
    size = fitted_size(pair.size, SIDE)
    first, second = pair.maps
    first_region = first.placement.rescale(pair.size, size)
    second_region = second.placement.rescale(pair.size, size)
    box = covered_pixels(first_region.intersection(second_region), size)
    return interpolate(first.values, first_region, box), interpolate(second.values, second_region, box), box


def latest_records(directory: Path) -> dict[str, Record]:
    """The latest record of each image that was explained, by its input.

    Runs can have placed it differently: below a directory that was named, or where the image itself was.

    Raises:
        ConfigurationError: the directory has no records.
    """
    records = records_of_run(directory)
    return {str(output_relpath(Path(record.input))): record for record in records if record.status == "done"}


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(canonical(path)))  # noqa: PTH100 - links below the inputs are followed, as in a run


def roots_of(inputs: Sequence[Path]) -> set[Path]:
    """The local ones of some files and directories, for ``path_below``."""
    return {_absolute(path) for path in inputs if url_of(path) is None}


def path_below(name: str, roots: Set[Path]) -> Path | None:
    """The local file of a name if it is below one of the roots."""
    if url_of(Path(name)) is not None or "\0" in name:
        return None
    path = _absolute(Path(name))
    return None if roots.isdisjoint((path, *path.parents)) else path


def write_comparison(
    directory: Path,
    pairs: Iterable[MapPair],
    correlation: Correlation,
    inputs: Sequence[Path] = (),
    overwrite: bool = False,
) -> Path:
    """Write the page, its pictures, and the same as JSON into ``comparison/`` below a directory.

    Args:
        directory: the output directory.
        pairs: the maps; they are compared over the part of the image that both cover.
        correlation: the rank correlation of two arrays of equal shape.
        inputs: of the photos, only those below these paths are read; maps of others are drawn without one.
        overwrite: also replace a page that this program did not write.

    Returns:
        The page.

    Raises:
        ConfigurationError: there are no pairs, or another page would be replaced.
        OutputError: the directory cannot be written to.
    """
    refuse_foreign_files(directory, [COMPARISON], overwrite)
    roots = roots_of(inputs)
    rows: list[JsonObject] = []
    with OutputFolder(directory, overwrite=True) as folder:
        for pair in pairs:
            row, image = _row(pair, correlation, path_below(pair.input, roots))
            folder.add({COMPARISON.with_name(row["picture"]): encode_picture(image, "png")})
            rows.append(row)
        if not rows:
            advice = "repeat both with --raw and the same --target"
            raise ConfigurationError(f"no image and class has raw maps in both runs: {advice}")
        rows.sort(key=lambda row: (row["rank_correlation"], row["input"]))
        bars = {name: bar_colors(style) for name, style in _STYLES.items()}
        html = page("comparison.html", rows=rows, bars=bars)
        folder.add({DATA: f"{json.dumps(rows, indent=1)}\n".encode(), COMPARISON: html})
    return directory / COMPARISON


def _row(pair: MapPair, correlation: Correlation, photo: Path | None) -> tuple[JsonObject, Image.Image]:
    """A pair as JSON, and drawn: the photo, both maps and their difference."""
    size = fitted_size(pair.size, SIDE)
    background = Image.new("RGB", size, "white")
    tiles = []
    if photo is not None:
        with suppress(ImageError):
            background = decode(photo, to_srgb=True).resize(size, Image.Resampling.LANCZOS, reducing_gap=2.0)
            tiles.append(background)
    has_photo = bool(tiles)
    for map_ in pair.maps:
        region = map_.placement.rescale(pair.size, size)
        tiles.append(picture(background, map_.values, region, _STYLES["maps"]))
    first, second, box = align(pair)
    difference = _normalize(first) - _normalize(second)
    if difference.any():
        tiles.append(picture(background, difference, Box(*box), _STYLES["difference"]))
    subject = pair.maps[1].subject
    key = "\0".join((pair.input, str(subject.index), *pair.runs))
    row = {
        "input": pair.input,
        "class": subject.index,
        "name": subject.name,
        "rank_correlation": round(correlation(first, second), 4),
        "mean_difference": round(float(np.abs(difference).mean()), 4),
        "picture": f"{sha256(os.fsencode(key), 24)}.png",
        "photo": has_photo,
    }
    for side, run, map_ in zip("ab", pair.runs, pair.maps, strict=True):
        subject = map_.subject
        score = None if math.isnan(subject.score) else subject.score
        row[side] = {"run": run, "score": score, "words": score_words(subject.score, subject.is_value)}
    return row, side_by_side(tiles, _GAP)


def _normalize(values: FloatArray) -> FloatArray:
    """The positive part, scaled to its maximum, as maps are drawn."""
    if is_blank(values):
        return np.zeros_like(values)
    return values.clip(0) / values.max()


@dataclass(frozen=True)
class Limits:
    """How much two maps may differ.

    Attributes:
        correlation: the least correlation (Pearson).
        overlap: the least overlap, intersection over union, of the strongest fifths of their pixels.
        shift: the largest distance of their peaks, as a share of the diagonal.
        changed: the largest share of images with another first class.

    Raises:
        ConfigurationError: a value is out of range.
    """

    correlation: float = 0.9
    overlap: float = 0.7
    shift: float = 0.1
    changed: float = 0.0

    def __post_init__(self) -> None:
        check_value("--min-correlation", self.correlation, lambda it: -1 <= it <= 1, "from -1 to 1")
        shares = {"--min-overlap": self.overlap, "--max-shift": self.shift, "--max-changed": self.changed}
        for name, value in shares.items():
            check_value(name, value, lambda it: 0 <= it <= 1, "from 0 to 1")


class Comparison(NamedTuple):
    """What was found about a map, or about an image.

    Attributes:
        input: the image.
        subject: the class of the map; empty if it is about the image.
        correlation: that of the maps; below all correlations if there is none.
        problems: what differs too much.
        equal: whether the maps are exactly equal.
    """

    input: str
    subject: str
    correlation: float
    problems: tuple[str, ...] = ()
    equal: bool = False

    @property
    def words(self) -> str:
        """The problems in a sentence."""
        place = f"{self.input}, {self.subject}" if self.subject else self.input
        return f"{place}: {', '.join(self.problems)}"


def comparison_of(pair: MapPair, limits: Limits) -> Comparison:
    """How well two maps agree."""
    first, second, _ = align(pair)
    before, now = pair.maps
    equal = np.array_equal(before.values, now.values)
    correlation = 1.0 if equal else 0.0
    if not equal and np.ptp(first) > 0 and np.ptp(second) > 0:
        correlation = float(np.corrcoef(first.flat, second.flat)[0, 1])
    top = ranks(first) < _TOP * first.size
    second_top = ranks(second) < _TOP * second.size
    overlap = float((top & second_top).sum() / (top | second_top).sum())
    peaks = [np.unravel_index(values.argmax(), values.shape) for values in (first, second)]
    shift = math.dist(peaks[0], peaks[1]) / math.hypot(*first.shape)
    problems = []
    if not correlation >= limits.correlation:  # which NaN is not, either
        problems.append(f"correlation {correlation:.3f} (at least {limits.correlation:g})")
    if overlap < limits.overlap:
        problems.append(f"overlap of the strongest fifth {overlap:.3f} (at least {limits.overlap:g})")
    if shift > limits.shift:
        problems.append(f"peak moved by {shift:.3f} of the diagonal (at most {limits.shift:g})")
    return Comparison(pair.input, before.subject.label, correlation, tuple(problems), equal)


def changes(
    baseline: Path, repetition: Path, limits: Limits, inputs_compared: Set[str]
) -> Iterator[Comparison]:
    """The images without maps in one of the runs, and those with another first class if these are too many.

    Likewise those whose other inputs changed, of a network with several.

    Args:
        baseline, repetition: the directories of the runs.
        limits: the share of images whose class may change.
        inputs_compared: the inputs of which maps were compared.
    """
    before = latest_records(baseline)
    now = latest_records(repetition)
    for place in sorted(before.keys() - now.keys()):
        yield Comparison(before[place].input, "", -3, ("not explained any more",))
    changed = []
    for place in sorted(before.keys() & now.keys()):
        earlier = before[place]
        later = now[place]
        hashes = (earlier.other_inputs, later.other_inputs)
        if all(hashes) and hashes[0] != hashes[1]:
            problem = "the network got other inputs beside it than in the baseline"
            yield Comparison(earlier.input, "", -3, (problem,))
        is_compared = later.input in inputs_compared or not earlier.classes
        if not is_compared and read_maps(baseline, earlier) is None:
            yield Comparison(earlier.input, "", -3, ("its raw maps in the baseline are missing or damaged",))
        if [class_.index for class_ in earlier.classes[:1]] != [class_.index for class_ in later.classes[:1]]:
            problem = f"{_first_class(earlier)} before, {_first_class(later)} now"
            changed.append(Comparison(earlier.input, "", -2, (problem,)))
    if len(changed) > limits.changed * len(before):
        yield from changed


def _first_class(record: Record) -> str:
    if not record.classes:
        return "nothing found"
    first = record.classes[0]
    if math.isnan(first.number):
        return first.label
    return f"{first.label} ({first.score_words.partition(' ')[2]})"
