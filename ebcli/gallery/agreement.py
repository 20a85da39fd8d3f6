"""How well the maps of a run agree with those of another one, and what differs too much."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ebcli.drawing.ranks import ranks
from ebcli.errors import ConfigurationError
from ebcli.files.records import ClassRecord, Record
from ebcli.gallery.raw_maps import MapPair, aligned, latest_records

_TOP = 0.2  # of the pixels


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
        for name, value in vars(self).items():
            least = -1 if name == "correlation" else 0
            if not least <= value <= 1:
                side = "min" if name in ("correlation", "overlap") else "max"
                raise ConfigurationError(f"--{side}-{name} is {value:g}, but it must be from {least} to 1")


@dataclass(frozen=True)
class Comparison:
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
