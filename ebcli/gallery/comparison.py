"""Two runs side by side: a page and JSON, sorted by disagreement."""

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ebcli.drawing.legend import bar
from ebcli.drawing.overlay import beside, fitted_size, is_blank, picture, ranks
from ebcli.drawing.style import DrawingStyle
from ebcli.errors import ConfigurationError, ImageError, check_value
from ebcli.files.directory import OutputFolder, refuse_foreign_files
from ebcli.files.encoding import encode_picture
from ebcli.files.images import decode
from ebcli.files.naming import COMPARISON
from ebcli.files.records import ClassRecord, Record
from ebcli.gallery.raw_maps import SIDE, MapPair, aligned, below, latest_records, roots_of
from ebcli.nouns.explanation import Box
from ebcli.pages.shell import page

DATA = COMPARISON.with_name("comparison.json")

_GAP = 8
_COLORS = 33  # of a legend
_TOP = 0.2  # of the pixels
_STYLES = {"maps": DrawingStyle(), "difference": DrawingStyle("heatmap", signed=True)}


def write_comparison(
    directory: Path,
    pairs: Iterable[MapPair],
    correlation: Callable[[Any, Any], float],
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
    roots, rows = roots_of(inputs), list[dict[str, Any]]()
    with OutputFolder(directory, overwrite=True) as folder:
        for pair in pairs:
            row, drawn = _row(pair, correlation, below(pair.input, roots))
            folder.add({COMPARISON.with_name(row["picture"]): encode_picture(drawn, "png")})
            rows.append(row)
        if not rows:
            raise ConfigurationError(
                "no image and class has raw maps in both runs: repeat both with --raw and the same --target"
            )
        rows.sort(key=lambda row: (row["rank_correlation"], row["input"]))
        bars = {name: np.asarray(bar(style, (_COLORS, 1)))[0].tolist() for name, style in _STYLES.items()}
        html = page("comparison.html", rows=rows, bars=bars)
        folder.add({DATA: f"{json.dumps(rows, indent=1)}\n".encode(), COMPARISON: html})
    return directory / COMPARISON


def _row(
    pair: MapPair, correlation: Callable[[Any, Any], float], photo: Path | None
) -> tuple[dict[str, Any], Image.Image]:
    """A pair as JSON, and drawn: the photo, both maps and their difference."""
    size = fitted_size(pair.size, SIDE)
    one, other, box = aligned(pair)
    difference = _drawn(one) - _drawn(other)
    subject = pair.maps[1].subject
    key = "\0".join((pair.input, str(subject.index), *pair.runs))
    scores = [None if math.isnan(one.subject.score) else one.subject.score for one in pair.maps]
    row = {
        "input": pair.input,
        "class": subject.index,
        "name": subject.name,
        "rank_correlation": round(correlation(one, other), 4),
        "mean_difference": round(float(np.abs(difference).mean()), 4),
        **{side: {"run": pair.runs[i], "score": scores[i]} for i, side in enumerate("ab")},
        "picture": f"{hashlib.sha256(os.fsencode(key)).hexdigest()[:24]}.png",
    }
    small = None
    with suppress(ImageError):
        small = photo and decode(photo).resize(size, Image.Resampling.LANCZOS, reducing_gap=2.0)
    row["photo"], under = small is not None, small or Image.new("RGB", size, "white")
    tiles = [under] if small else []
    tiles += [picture(under, one.values, one.placement.scaled(pair.size, size), _STYLES["maps"]) for one in pair.maps]
    if difference.any():
        tiles.append(picture(under, difference, Box(*box), _STYLES["difference"]))
    return row, beside(tiles, _GAP)


def _drawn(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """The positive part, scaled to its maximum, as maps are drawn."""
    return np.zeros_like(values) if is_blank(values) else np.maximum(values, 0) / values.max()


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
        for name, value in {"min-overlap": self.overlap, "max-shift": self.shift, "max-changed": self.changed}.items():
            check_value(f"--{name}", value, lambda it: 0 <= it <= 1, "from 0 to 1")


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
        return f"{', '.join(filter(None, (self.input, self.subject)))}: {', '.join(self.problems)}"


def comparison_of(pair: MapPair, limits: Limits) -> Comparison:
    """How well two maps agree."""
    one, other, _ = aligned(pair)
    equal = np.array_equal(pair.maps[0].values, pair.maps[1].values)
    is_flat = not (np.ptp(one) > 0 and np.ptp(other) > 0)
    correlation = 1.0 if equal else 0.0 if is_flat else float(np.corrcoef(one.ravel(), other.ravel())[0, 1])
    top, other_top = (ranks(values) < _TOP * values.size for values in (one, other))
    overlap = float((top & other_top).sum() / (top | other_top).sum())
    peaks = [np.array(np.unravel_index(values.argmax(), values.shape)) for values in (one, other)]
    shift = float(np.linalg.norm(peaks[0] - peaks[1]) / np.linalg.norm(one.shape))
    told = {
        f"correlation {correlation:.3f} (at least {limits.correlation:g})": correlation >= limits.correlation,
        f"overlap of the strongest fifth {overlap:.3f} (at least {limits.overlap:g})": overlap >= limits.overlap,
        f"peak moved by {shift:.3f} of the diagonal (at most {limits.shift:g})": shift <= limits.shift,
    }
    subject = pair.maps[0].subject
    problems = tuple(words for words, is_right in told.items() if not is_right)
    return Comparison(pair.input, subject.name or f"class {subject.index}", correlation, problems, equal)


def changed_images(baseline: Path, repeated: Path, limits: Limits) -> Iterator[Comparison]:
    """The images that are not explained any more, and those with another first class if these are too many."""
    before, now = latest_records(baseline), latest_records(repeated)
    changed = [place for place in before.keys() & now.keys() if _first(before, place) != _first(now, place)]
    for place in sorted(before.keys() - now.keys()):
        yield Comparison(before[place].input, "", -3, ("not explained any more",))
    for place in sorted(changed) if len(changed) > limits.changed * len(before) else ():
        was, is_now = (_shown(records[place]) for records in (before, now))
        yield Comparison(before[place].input, "", -2, (f"{was} before, {is_now} now",))


def _first(records: Mapping[str, Record], place: str) -> int | None:
    return next((one.index for one in records[place].classes), None)


def _shown(record: Record) -> str:
    first: ClassRecord | None = next(iter(record.classes), None)
    if first is None:
        return "nothing found"
    score = "" if first.score is None else f" ({first.score:.3f})"
    return f"{first.name or f'class {first.index}'}{score}"
