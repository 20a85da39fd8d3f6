"""Records: the outcome of each image as one JSON object per line in ``records.jsonl``, for users and later runs."""

import contextlib
import json
import math
import os
import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import KW_ONLY, asdict, dataclass, field, fields
from itertools import repeat
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args

from ebcli.datatypes.explanation import (
    HARDLY_ANY,
    OF_NOISE,
    Box,
    JsonObject,
    Size,
    input_words,
    score_words,
    strength_words,
)
from ebcli.datatypes.query import Query
from ebcli.errors import ConfigurationError
from ebcli.files.naming import RECORDS, is_raw
from ebcli.files.paths import FileState, safe_open

SCHEMA = 1

_LONGEST_LINE = 1 << 25  # bytes; the longest lines list what each operation lost, for hundreds of classes
_HUGE = 2**63
_NUMBERS = int, float
_decoder = json.JSONDecoder(parse_constant=lambda _: None)  # NaN and Infinity are not JSON


class Result(NamedTuple):
    """A result file.

    Attributes:
        path: its path below the output directory.
        bytes, sha256: its size and checksum.
        configuration: a hash of the settings that it was made with.
    """

    path: str
    bytes: int
    sha256: str
    configuration: str


@dataclass(frozen=True)
class ClassRecord:
    """One map of an image.

    Attributes:
        index, name: the class; the name is None if it is unknown.
        score: a softmax or sigmoid probability, or a similarity; None for a value, and in a file if it was not finite.
        value: an output that is no probability, such as an age; for a map of values, the mean of what is explained.
        mass: the share of probability that reached the layer, its class tokens included; for contrastive maps with
            ``--verbose`` only.
        blank: whether the map is empty.
        losses: with ``--verbose``, the probability lost at each operation.
        layer: the layer of the map.
        method: the name of its method, as ``--method`` takes it.
        peak: the map's maximum; 1 is an even spread of all probability over its cells.
        strength: the sum of a contrastive map's positive cells, 0 to 1; None for marginal maps.
        times_noise: the strength as a multiple of that of noise at the layer; None if that is unknown.
        evidence: how much the map rests on: ``"hardly any"``, ``"weak"`` or ``"clear"``; None if that is unknown.
        at_border: whether the maximum is at an edge of the center crop, with more of the image outside.
        box: the box of a detection, in the upright image; in files, left, top, width and height.
        voxel: of a volume, the voxel at the map's maximum: its indices in the file along x, y and z, from 0, as viewers
            and nibabel count. Of an array (D, H, W), they index W, H and D; of DICOM, columns, rows and the slices
            sorted by position. Pictures and the live page count from 1.
        world: the position of the center of this voxel, in millimeters unless NIfTI names another unit: x grows to the
            right, y to the front and z to the top, as in NIfTI, also for DICOM; None if the file does not say.
        sufficiency: with ``--sufficiency``, for the first map: the parts of the image, 0 to 1, that keep half of the
            score in the order of the map (``part``), of the map ``shuffled``, of a blob at the ``center`` and of the
            ``gradient``; the ``score``, the score ``without`` the part, and of the image all ``blurred``; ``suffices``
            and the result in ``words``.
        region: with ``--annotations``, the box, area and polygon of the map's largest region.
        position: for a word of an answer, its number in the answer, from 1.
        span: for a word of an answer, the characters of the answer where it begins and ends, from 0.
        share: for a word of an answer, the share of its evidence that is at places of the picture, 0 to 1.
        unplaced: for a word of an answer, the share that is in the picture, but at no known place, 0 to 1.
        window_score: where windows chose the classes, the highest score of the class in one of them, 0 to 1.
        share_at: with ``--at``, the share of the class in the evidence at this pixel, 0 to 1.
        against: the true class, if the map tells a wrong prediction from it.
        channels: at ``--layer input`` of a network with more than three channels, the share of each channel in the map.
        inputs: of a network with several inputs, the share of each in the evidence, by name: the marginal mass that
            reaches it, step by step. They sum to at most 1; the rest is lost at neurons activated only by their bias.
        columns: of such a network's tables, the evidence of each column, by the names of the input and the column, the
            largest first. It is negative where a contrastive map speaks against the class.
    """

    index: int
    name: str | None
    score: float | None
    _: KW_ONLY
    mass: float | None
    blank: bool
    losses: dict[str, float] | None = None
    value: float | None = None
    layer: str = ""
    method: str = ""
    peak: float | None = None
    region: JsonObject | None = None
    at_border: bool = False
    box: Box | None = None
    voxel: tuple[int, ...] | None = None
    world: tuple[float, ...] | None = None
    strength: float | None = None
    times_noise: float | None = None
    evidence: str | None = None
    sufficiency: JsonObject | None = None
    position: int | None = None
    span: tuple[int, int] | None = None
    share: float | None = None
    unplaced: float | None = None
    share_at: float | None = None
    window_score: float | None = None
    against: str | None = None
    channels: tuple[float, ...] = ()
    inputs: JsonObject = field(default_factory=dict, hash=False)
    columns: dict[str, dict[str, float]] = field(default_factory=dict, hash=False)

    @classmethod
    def parse(cls, values: JsonObject) -> "ClassRecord":
        """That of a JSON object."""
        values["channels"] = tuple(values.get("channels", ()))
        for name in ("span", "voxel", "world"):
            if values.get(name) is not None:
                values[name] = tuple(values[name])
        for place in (values, values.get("region") or {}):
            if place.get("box") is not None:
                place["box"] = Box.from_xywh(*place["box"])
        return cls(**values)

    @property
    def label(self) -> str:
        """The name of the class, or its index if the name is unknown."""
        return self.name or f"class {self.index}"

    @property
    def number(self) -> float:
        """The score or the value; NaN if it was not finite."""
        if self.value is not None:
            return self.value
        if self.score is not None:
            return self.score
        return math.nan

    @property
    def score_words(self) -> str:
        """The score or the value in words."""
        return score_words(self.number, self.value is not None)

    @property
    def evidence_words(self) -> list[str]:
        """The strength and the evidence in words, as far as they are known."""
        return strength_words(self.strength, self.times_noise, self.evidence)

    @property
    def input_words(self) -> list[str]:
        """The shares of several inputs, and the columns with the most evidence, in words; empty for one input."""
        return input_words(self.inputs, self.columns)

    @property
    def only_score_is_poor(self) -> bool | None:
        """Whether there is hardly any evidence only because the score is below chance; None if there is evidence."""
        if self.evidence != HARDLY_ANY:
            return None
        return (self.times_noise or 0) >= OF_NOISE[0]

    def check(self) -> None:
        """Raise TypeError or ValueError if this cannot be true."""
        _check(map(vars(self).get, _OF_CLASS), _OF_CLASS.values())
        if self.index < 0:
            raise ValueError(self.index)
        numbers = [*self.channels, *self.inputs.values()]
        for place in (self.box, self.span, self.voxel, self.world):
            numbers += place or ()
        for values in self.columns.values():
            numbers += values.values()
        if self.sufficiency is not None:
            sufficiency = dict(self.sufficiency)
            _check([sufficiency.pop("suffices"), sufficiency.pop("words")], [(bool,), (str,)])
            numbers += sufficiency.values()
        if self.region is not None:
            numbers += [*self.region["box"], self.region["area"], *(self.region["polygon"] or ())]
        _check(numbers)


@dataclass(frozen=True)
class Record:
    """The outcome of one file.

    Attributes:
        input: the path as given.
        status: ``"done"``; ``"failed"``, see ``error``; ``"planned"`` in a dry run; ``"not said"`` if an answer has
            none of the words to explain; ``"not an image"`` for other files in a directory, which are not written to
            the records.
        output: the result files: pictures, the ``.npz`` file, maps with coordinates, and contact sheets.
        output_bytes: their sizes.
        classes: the maps in order, one for each class and layer.
        seconds: the time spent on this image, without waiting.
        error: the reason of a failure.
        place: the path below the output directory; the names of the results start with it.
        input_bytes, input_mtime_ns: the size and modification time of the input; None if it could not be read.
        configuration: a hash of all settings that the results depend on.
        model, weights, layer, method: how the maps were computed, in words.
        head: the output that was explained, of a network that returns several; None of the only one.
        against: the indices of the classes of ``--against``.
        output_sha256: the checksums of the result files.
        label, predicted: with ``--labels``, the indices of the true class and of the most likely one.
        image_size: with ``--annotations``, the width and height of the upright image.
        clips: the explained clips of a video, see ``ebcli.files.clips.Clips``.
        film: of a video whose frames were explained as images, the number of these ``frames``, how many others are
            ``broken``, and when they ``start`` and ``end``, in seconds. The scores and strengths of its classes are
            means over frames; a ``.csv`` file has a row for each.
        problem: why a file could be explained in part only; empty if all of it was.
        fit: how the image was fitted into the network's input: ``whole``, ``crop``, ``squash`` or ``pad``.
        tiles: the number of tiles that were explained and joined; 0 if the image was not cut.
        seen: the share of the image that the network saw, 0 to 1.
        pages: the number of pages or frames of an image file; the first one was explained.
        notes: what a user may not expect of the file, such as values that are missing, by topic.
        candidates: how the classes were chosen: ``windows``, ``photo`` or the name of a file; empty if in another way.
        question, answer: the question to a vision-language model and its answer.
        answer_given: whether the answer is not the model's own, but one that was to be explained.
        other_inputs: a hash of what a network of several inputs got beside the image; empty for one input.
    """

    input: str
    status: Literal["done", "failed", "planned", "not said", "not an image"]
    _: KW_ONLY
    output: tuple[str, ...] = ()
    output_bytes: tuple[int, ...] = ()
    classes: tuple[ClassRecord, ...] = ()
    seconds: float = 0.0
    error: str | None = None
    place: str = ""
    input_bytes: int | None = None
    input_mtime_ns: int | None = None
    configuration: str = ""
    model: str = ""
    weights: str = ""
    layer: str = ""
    method: str = ""
    head: str | None = None
    against: tuple[int, ...] = ()
    output_sha256: tuple[str, ...] = ()
    label: int | None = None
    predicted: int | None = None
    image_size: Size | None = None
    clips: JsonObject | None = None
    fit: str = ""
    tiles: int = 0
    seen: float = 1.0
    pages: int = 1
    notes: JsonObject = field(default_factory=dict)
    question: str = ""
    answer: str | None = None
    answer_given: bool = False
    other_inputs: str = ""
    candidates: str = ""
    film: JsonObject | None = None
    problem: str = ""

    @classmethod
    def parse(cls, line: bytes) -> "Record | None":
        """The record in a line of the file; None if it cannot be true.

        Anybody can write to a directory of results, so nothing is assumed about the line.
        """
        try:
            text = line.decode()
            values, end = _decoder.raw_decode(text)
            if values.pop("schema") != SCHEMA or text[end:].strip():
                return None
            if not _FIELD_NAMES - _LATER.keys() <= values.keys() <= _FIELD_NAMES:
                return None
            values |= {name: tuple(values[name]) for name in _TUPLES}
            values["classes"] = tuple(map(ClassRecord.parse, values["classes"]))
            record = object.__new__(cls)
            # setting frozen fields one by one would take as long as all else
            vars(record).update(_LATER | values)
            record._check()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        return record

    @property
    def stamp(self) -> FileState | None:
        """The state of the input; None if it could not be read."""
        if self.input_bytes is None or self.input_mtime_ns is None:
            return None
        return FileState(self.input_bytes, self.input_mtime_ns)

    @property
    def query(self) -> Query:
        """What was asked about the image; an empty question if nothing was."""
        return Query(self.question, self.answer if self.answer_given else None)

    @property
    def is_answered(self) -> bool:
        """Whether there is an answer, with maps or without the words that were asked for."""
        return self.answer is not None and self.status in ("done", "not said")

    @property
    def is_without_maps(self) -> bool:
        """Whether the image was processed, and nothing in it was to be explained."""
        return self.status == "done" and not self.classes

    @property
    def prediction_words(self) -> str:
        """Whether the prediction is right, in words."""
        if self.label is None:
            return "without a label"
        if self.label == self.predicted:
            return "classified correctly"
        return "classified wrongly"

    @property
    def results(self) -> list[Result]:
        """The result files. They are beside the input's path below the output directory, which may have moved."""
        folder, separator, _ = self.place.rpartition(os.sep)
        paths = [folder + separator + name for name in self._names]
        configuration = sys.intern(self.configuration)  # which all results of a run share
        return list(map(Result, paths, self.output_bytes, self.output_sha256, repeat(configuration)))

    @property
    def _names(self) -> list[str]:
        """The names of the result files."""
        return [path.rpartition(os.sep)[2] for path in self.output]

    def _check(self) -> None:
        """Raise TypeError or ValueError if this cannot be true."""
        for class_record in self.classes:
            class_record.check()
        _check(map(vars(self).get, _OF_RECORD), _OF_RECORD.values())
        names = self._names
        self._check_texts(names)
        self._check_counts(names)

    def _check_texts(self, names: list[str]) -> None:
        texts = [value for name, value in vars(self).items() if type(value) is str and name not in _SENTENCES]
        layers = [class_record.layer for class_record in self.classes]
        joined_text = "".join((*texts, *layers, *names, *self.output_sha256))  # raises for other types
        if not joined_text.isascii():
            os.fsencode(joined_text)  # raises for characters that paths cannot hold
        steps = self.place.replace(os.sep, "/").split("/")
        if "\0" in joined_text or {"", ".", ".."}.intersection(steps):
            raise ValueError(self.place)
        if os.name == "nt" and ":" in self.place:
            raise ValueError(self.place)
        if not all(name.startswith(f"{steps[-1]}.") for name in names):
            raise ValueError(self.output)

    def _check_counts(self, names: list[str]) -> None:
        integers = [*self.output_bytes, *self.against, *(self.image_size or ())]
        if self.film is not None:
            _check([self.film["start"], self.film["end"]])
            integers += [self.film["frames"], self.film["broken"]]
        count = len(self.classes)
        if self.status == "done" and self.error is None:
            integers += (self.input_bytes, self.input_mtime_ns)
            possible = (1, count, 2 * count) if count else (0,)
        elif self.status == "not said" and self.error is None:
            integers += (self.input_bytes, self.input_mtime_ns)
            possible = (0,)
        elif self.status == "failed" and type(self.error) is str:
            possible = (0,)
        else:
            raise ValueError(self.status)
        _check(integers, repeat((int,)))
        pictures = [name for name in names if not is_raw(name)]
        if len(pictures) not in possible or len(self.image_size or "xy") != 2:
            raise ValueError(self.output)
        if not len(names) == len(self.output_bytes) == len(self.output_sha256):
            raise ValueError(self.output)

    def line(self) -> str:
        """The JSON object in ASCII, without a newline; bytes that are not UTF-8 are escaped as by ``os.fsdecode``."""
        return json.dumps(finite({"schema": SCHEMA, **asdict(self)}), allow_nan=False)


def _scalars(record: type[ClassRecord | Record]) -> dict[str, set[Any]]:
    """The fields that have one value, with its types in JSON, where 1.0 can be 1."""
    scalars = {}
    for record_field in fields(record):
        kinds = set(get_args(record_field.type) or [record_field.type])
        if kinds <= {bool, int, float, str, NoneType}:
            scalars[record_field.name] = kinds | {int} if float in kinds else kinds
    return scalars


_OF_CLASS = _scalars(ClassRecord)
_OF_RECORD = _scalars(Record)
_FIELD_NAMES = {record_field.name for record_field in fields(Record)}
_LATER: JsonObject = {
    "question": "",
    "answer": None,
    "answer_given": False,
    "head": None,
    "other_inputs": "",
    "candidates": "",
    "notes": {},
    "film": None,
    "problem": "",
}  # which records of earlier versions lack
_SENTENCES = ("error", "problem")  # which may name anything
_TUPLES = ("output", "output_bytes", "output_sha256", "against")


def _check(values: Iterable[Any], kinds: Iterable[Collection[type]] = repeat(_NUMBERS)) -> None:
    """Raise TypeError unless each value is of one of its kinds, and no huge number."""
    for value, value_kinds in zip(values, kinds):  # noqa: B905 - kinds may be endless
        kind = type(value)
        if kind not in value_kinds or (kind in _NUMBERS and not -_HUGE < value < _HUGE):
            raise TypeError(value)


def finite(value: Any) -> Any:
    """JSON has no NaN: null instead; boxes as files have them."""
    if isinstance(value, Box):
        value = value.xywh
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _read_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file that have an end, but for those that are too long.

    Raises:
        OSError: there is none, or it is not a regular file.
    """
    with safe_open(path, follow=False) as file:
        is_complete = True
        while line := file.readline(_LONGEST_LINE):
            starts = is_complete
            is_complete = line.endswith(b"\n") or len(line) < _LONGEST_LINE
            if starts and is_complete:
                yield line


def read_json_lines(path: Path) -> Iterator[Any]:
    """The values in a file with one JSON text per line; a line that is anything else costs only itself.

    Raises:
        OSError: there is none, or it is not a regular file.
    """
    for line in _read_lines(path):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        yield value


def read_records(directory: Path) -> Iterator[Record]:
    """The records of an output directory, oldest first, without the lines that cannot be true.

    Raises:
        OSError: there are none, or they are not a regular file.
    """
    return filter(None, map(Record.parse, _read_lines(directory / RECORDS)))


def records_of_run(directory: Path) -> Iterator[Record]:
    """The records of a directory that the user names as that of a run.

    Raises:
        ConfigurationError: there are none, or they cannot be read.
    """
    file = directory / RECORDS
    try:
        is_plausible = not file.stat().st_size  # as of a run without images
        for record in read_records(directory):
            is_plausible = True
            yield record
    except OSError as error:
        raise ConfigurationError(
            f"cannot read '{file}' ({error.strerror}): name the --output directory of a run"
        ) from error
    if not is_plausible:
        raise ConfigurationError(f"'{file}' is damaged, and has no record of a result: repeat the run")


def latest_done(directory: Path, configuration: str) -> list[Record]:
    """The latest record of each image that was done with a configuration, in the order of their paths.

    Raises:
        OSError: there are no records.
    """
    latest = {
        record.input: record
        for record in read_records(directory)
        if record.configuration == configuration and record.status == "done"
    }
    return [latest[name] for name in sorted(latest)]


def append_lines(path: Path, *lines: str) -> None:
    """Append lines to a file, all or none of them; any number of threads, processes and machines may do so.

    Raises:
        OSError: they do not fit, or it is not a regular file.
    """
    from filelock import lock_descriptor

    with safe_open(path, follow=False, flags=os.O_RDWR | os.O_CREAT | os.O_APPEND) as file:
        number = file.fileno()
        with contextlib.suppress(OSError):  # some network file systems know no locks
            lock_descriptor(number, poll_interval=0.005)  # until it is closed
        content = "\n".join([*lines, ""]).encode()
        end = os.fstat(number).st_size
        # a killed run may have left half a line
        if content and end:
            os.lseek(number, end - 1, os.SEEK_SET)
            if os.read(number, 1) != b"\n":
                content = b"\n" + content
        try:
            count = os.write(number, content)
            if count < len(content):  # the file system is full: the rest would say why
                os.write(number, content[count:])
        except OSError:
            os.ftruncate(number, end)
            raise
