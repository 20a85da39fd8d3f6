"""Names of result files, in both directions: an input's path to its results, and a result's name to its input."""

from __future__ import annotations

import hashlib
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from ebcli.datatypes.query import Query

T = TypeVar("T", bound=Hashable)

STDIN = Path("-")  # among the inputs; its results are named after "stdin"
STDOUT = Path("-")  # in place of the output directory
RECORDS = "records.jsonl"
SETTINGS = Path("settings.toml")
COCO = Path("annotations.json")
FIFTYONE_FILES = Path("fiftyone", "metadata.json"), Path("fiftyone", "samples.json")
PAGE = Path("report", "index.html")
COMPARISON = Path("comparison", "index.html")
AUDIT = Path("audit", "index.html")
MARKER = ".eb-saliency"  # has the SHA-256 of each file of this program that is not in the records
PRIVATE = f"{MARKER}-"
UNFINISHED = f"{MARKER}-unfinished"  # a directory with finished parts of videos that take long
NIFTI, GEOTIFF = "nii.gz", "tif"  # of maps with the coordinates of a volume or of a GeoTIFF
OBJECTS = "objects"  # the kind of a video with the maps of all objects
FRAMES_TABLE = "csv"  # of a video, with a row for each frame
FILM_FORMATS = ("mp4", "webm", "gif", "webp", "png")  # of videos; PNG is animated
MOVING_FORMATS = {f".{name}": name for name in FILM_FORMATS} | {".apng": "png"}  # by the suffixes of files
FIGURE_FORMATS = ("pdf", "svg")  # of panels only: their text stays text
HTML = "html"  # of atlases and answers
ANSWER = "answer"  # the figure of an answer
AUTO = "auto"  # the format of pictures: that of the photo if it is JPEG, else PNG
PRIVATE_NAME = re.compile(r"\.eb-saliency-[a-z0-9_]{8}")  # of a directory that a run makes for itself

# the suffixes of files that may be videos; a directory of frames has none
MOVING = {"", ".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".gif", ".png", ".apng", ".webp"}
_JPEG = {".jpg", ".jpeg", ".jpe", ".jfif"}
_LONGEST_STEM = 160  # bytes; leaves room for a class and a suffix in the 255 that file systems allow
_LONGEST_SLUG = 60
_LONGEST_ANSWER = 20  # beside a question
_ROOM_OF_NUMBERED = 50  # characters of a class name before its number
_NUMBER = re.compile(r"-([0-9]{1,4})(?:[@+][^.]*)?\.(?:nii\.gz|[a-z]+)$")
_SHEET = "sheet."  # before the suffix of a contact sheet, which stands beside the video of the same class
_NOT_PORTABLE = re.compile(r'[<>:"|?*%\\]')
_OUTSIDE = "absolute"
_OF_OTHERS = re.compile(rf"{_OUTSIDE}|parent(-\d+)?")  # folders for inputs from outside the working directory
_LONGEST_MARKS = 56
_PICTURE = "input"  # the layer of maps that lie on the picture
_MARKS = r"(?:@[a-z0-9-]+)*(?:\+[a-z0-9-]+)*"  # layers and method, see ``ResultNames``
_OF_CLASS = rf"(?P<index>[0-9]{{1,9}})(?:-[a-z0-9-]+)?{_MARKS}(?:\.mp4|\.nii\.gz|(?:\.sheet)?\.[a-z]+)"
_OF_ALL = r"(?:panel|layers|atlas|answer|objects|frames)"  # a file of all maps
_RESULT = rf"(?P<stem>.+)\.(?:{_OF_CLASS}|{_OF_ALL}{_MARKS}\.(?:mp4|[a-z]+)|npz)"
_MARKED_RAW = re.compile(rf"(?P<stem>.+)\.maps(?=[@+]){_MARKS}", re.DOTALL)
_LIKE_MARKED_RAW = re.compile(rf"{_MARKED_RAW.pattern}~*", re.DOTALL)
_RESULT_NAME = re.compile(_RESULT, re.DOTALL)
_FILES = (RECORDS, SETTINGS.name, COCO.name, PAGE.name, *(path.name for path in FIFTYONE_FILES))
_OTHER_NAMES = "|".join([*map(re.escape, _FILES), rf"{re.escape(MARKER)}(?:-.*?)?"])
_RESERVED_NAME = re.compile(rf"(?:{_RESULT}|{_OTHER_NAMES})~*", re.DOTALL)


def sha256(content: bytes, digits: int = 64) -> str:
    """The first digits of the SHA-256."""
    return hashlib.sha256(content).hexdigest()[:digits]


def canonical(path: Path) -> Path:
    """One spelling for each file: without ``.`` and ``..``, and relative to the working directory if it is below."""
    if os.pardir not in path.parts:
        return Path(os.path.normpath(path))
    # `link/..` is not the directory that holds the link, so only the file system knows what `..` means
    real_path = Path(os.path.realpath(path.parent), path.name)
    cwd = Path.cwd()
    if not real_path.is_relative_to(cwd):
        return real_path
    return real_path.relative_to(cwd)


def output_relpath(path: Path) -> Path:
    """The path below the output directory of an input that the user names: different for every input.

    A path below the working directory is kept: ``a/b.jpg`` -> ``a/b.jpg``. Another one is kept from the nearest
    directory that holds both: ``../a/b.jpg`` -> ``parent/a/b.jpg``, ``../../b.jpg`` -> ``parent-2/b.jpg``. If that is
    the root, it goes to ``absolute/``: ``/data/b.jpg`` -> ``absolute/data/b.jpg``. For the names, see ``safe_relpath``.
    Characters of a URL are escaped as by ``portable``: ``https://host:80/b.jpg`` -> ``https%3A/host%3A80/b.jpg``.
    """
    plain = canonical(path)
    if plain.parts[:1] and plain.parts[0].endswith(":"):  # its scheme
        plain = portable(plain)
    if plain.is_absolute() or is_outside(plain):
        plain = _place_of(Path(os.path.abspath(plain)))  # noqa: PTH100 - Path.resolve would follow links
    return safe_relpath(plain)


def portable(path: Path) -> Path:
    """The path with those characters escaped that Windows allows in no name, which URLs may have."""
    return Path(*(_NOT_PORTABLE.sub(lambda match: f"%{ord(match[0]):02X}", part) for part in path.parts))


def safe_relpath(plain: Path) -> Path:
    """A relative path without ``..``, with names that results can start with; different for different paths.

    If the name is too long to append a class, its end is replaced by a hash. What is named like a result, or like one
    without its suffix, gets a ``~``: ``a.jpg.npz/b.jpg`` -> ``a.jpg.npz~/b.jpg``, ``a.jpg.maps@b`` ->
    ``a.jpg.maps@b~``.
    """
    name = os.fsencode(plain.name)
    if len(name) > _LONGEST_STEM:
        mark = "~" + sha256(name, 16)
        plain = plain.with_name(name[: _LONGEST_STEM - len(mark)].decode(errors="ignore") + mark)
    folders = (f"{folder}~" if _RESERVED_NAME.fullmatch(folder) else folder for folder in plain.parts[:-1])
    return Path(*folders, f"{plain.name}~" if _LIKE_MARKED_RAW.fullmatch(plain.name) else plain.name)


def is_outside(relative: Path) -> bool:
    """Whether a place is one of inputs from outside the working directory."""
    return bool(relative.parts and _OF_OTHERS.fullmatch(relative.parts[0]))


def _place_of(path: Path) -> Path:
    cwd = Path.cwd()
    for levels, folder in enumerate((cwd, *cwd.parents)):
        if path.is_relative_to(folder) and folder != Path(folder.anchor):
            relpath = path.relative_to(folder)
            if levels:
                return Path("parent" if levels == 1 else f"parent-{levels}", relpath)
            if not is_outside(relpath):
                return relpath
    drive = re.sub(r"[:\\/]+", " ", path.drive).split()
    return Path(_OUTSIDE, *drive, *path.parts[1:])


def slug(name: str) -> str:
    """A class name for file names, in lower-case ASCII letters, digits and single dashes: ``tiger-cat``."""
    ascii_name = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", "-", ascii_name.lower())[:_LONGEST_SLUG].strip("-")


def distinct_slug(text: str, room: int = _LONGEST_SLUG) -> str:
    """A slug that differs for any two texts: unless it is the text itself but for dashes, it ends with a hash.

    ``a red car`` -> ``a-red-car``, ``A red car`` -> ``a-red-car-27a7a6b2``.
    """
    plain = slug(text)[:room].strip("-")
    if plain.replace("-", " ") == text:
        return plain
    digest = sha256(text.encode(errors="surrogatepass"), 8)
    return f"{plain[: room - 9].strip('-')}-{digest}".removeprefix("-")


def name_marks(layers: Iterable[str], method: str = "") -> str:
    """What tells maps from the default ones in file names: ``@features-11``, ``+marginal``, ``@a@b+marginal``.

    Args:
        layers: the layers to name.
        method: the method, in words that ``slug`` keeps; empty for the default.
    """
    layers = list(layers)
    names = [*layers, method]
    mark = "".join(f"@{slug(layer)}" for layer in layers)
    if method:
        mark += f"+{slug(method)}"
    if len(mark) <= _LONGEST_MARKS and max(map(len, names)) <= _LONGEST_SLUG:
        return mark
    digest = sha256("\0".join(names).encode(), 16)
    return f"{mark[: _LONGEST_MARKS - 17]}-{digest}"


def picture_relpath(
    relpath: Path,
    index: int,
    class_name: str | None,
    suffix: str = "png",
    mark: str = "",
    described: bool = False,
) -> Path:
    """``photos/cat.jpg`` + class 282 -> ``photos/cat.jpg.282-tiger-cat.png``.

    The whole input name and the class index are part of it, so different inputs and classes never collide. With
    ``name_marks``: ``photos/cat.jpg.282-tiger-cat@features-11.png``. If the classes are `described` by the user, their
    names tell them apart in all runs, see ``distinct_slug``.
    """
    # 255 bytes, without the stem, two dots, a dash, the index and the suffix
    room = 255 - _LONGEST_STEM - 3 - 9 - max(4, len(suffix)) - len(mark)
    name = distinct_slug(class_name or "", room) if described else slug(class_name or "")[:room]
    label = f"{index}-{name}".rstrip("-")
    return figure_relpath(relpath, label, suffix, mark)


def figure_relpath(relpath: Path, kind: str, suffix: str = "png", mark: str = "") -> Path:
    """``photos/cat.jpg`` + ``panel`` -> ``photos/cat.jpg.panel.png``; with marks, ``photos/cat.jpg.panel@a.png``."""
    return relpath.with_name(f"{relpath.name}.{kind}{mark}.{suffix}")


def answer_relpath(relpath: Path, query: Query, suffix: str = "png") -> Path:
    """``photos/cat.jpg`` + "what is it" -> ``photos/cat.jpg.answer+what-is-it.png``.

    An answer that is not the network's own stands before the question: ``photos/cat.jpg.answer@a-cat+what-is-it.png``.
    """
    mark = ""
    if query.answer is not None:
        mark = f"@{distinct_slug(query.answer, _LONGEST_ANSWER)}"
    if query.question:
        mark += f"+{distinct_slug(query.question)}"
    return figure_relpath(relpath, ANSWER, suffix, mark)


def raw_relpath(relpath: Path, mark: str = "") -> Path:
    """``photos/cat.jpg`` -> ``photos/cat.jpg.npz``; with ``name_marks``, ``photos/cat.jpg.maps+marginal.npz``."""
    if mark:
        return figure_relpath(relpath, "maps", "npz", mark)
    return relpath.with_name(f"{relpath.name}.npz")


def array_marks(maps: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """What the names of arrays in an ``.npz`` file end with, for each layer and method of its maps, in their order.

    With several layers, it is the layer, and with several methods the method: ``@features.11+object``.
    """
    pairs = dict.fromkeys(maps)
    has_layers = len({layer for layer, _ in pairs}) > 1
    has_methods = len({method for _, method in pairs}) > 1
    marks = {}
    for layer, method in pairs:
        marks[layer, method] = ""
        if has_layers:
            marks[layer, method] += f"@{layer}"
        if has_methods:
            marks[layer, method] += f"+{method}"
    return marks


def is_raw(name: str) -> bool:
    """Whether a result has numbers, and is no picture."""
    return name.endswith((".npz", f".{NIFTI}", f".{GEOTIFF}", f".{FRAMES_TABLE}"))


def parse_result_name(result: Path) -> tuple[Path, int | None] | None:
    """The input's ``output_relpath`` and the class index of a result; None if the name is not a result's.

    ``a.jpg.282-tiger-cat.png`` -> ``a.jpg``, 282; ``a.mp4.3-archery.mp4`` and ``a.mp4.3-archery.sheet.png`` ->
    ``a.mp4``, 3; ``a.jpg.npz`` and ``a.jpg.panel.png`` -> ``a.jpg``, None.
    """
    match = _RESULT_NAME.fullmatch(result.name)
    if match is None:
        return None
    stem, index = match["stem"], match["index"]
    raw_match = _MARKED_RAW.fullmatch(stem)
    if result.suffix == ".npz" and raw_match:
        stem = raw_match["stem"]
    return result.with_name(stem), None if index is None else int(index)


def with_numbers(maps: Iterable[T]) -> Iterator[tuple[T, int]]:
    """Each item, and how many equal ones there are up to it: 1 for the first detection of a class, 2 for the next."""
    counts = Counter[T]()
    for item in maps:
        counts[item] += 1
        yield item, counts[item]


class MapName(NamedTuple):
    """What a map is called: its class, its layer and its method."""

    class_index: int
    class_name: str | None
    layer: str
    method: str = ""


@dataclass(frozen=True, kw_only=True)
class ResultNames:
    """The names of the files that a run writes for each image.

    Attributes:
        format: the pictures' suffix, or ``AUTO``.
        figure: what shows all maps in one, ``"panel"``, ``"layers"``, ``"atlas"`` or ``ANSWER``; empty for a picture
            of each.
        raw: also an ``.npz`` file.
        layers: the run's layers; they are part of the names, except for the default layer on its own.
        default_layer: the layer that a run without ``--layer`` uses; None if there is none.
        method: what differs from the default method, in words for ``slug``; empty for the default.
        method_marks: of a run with several methods, the same for each of them, by its name.
        described: the classes are texts or pictures of this run, not those of the network.
        video: of videos, the suffix of result videos, each of which has a contact sheet beside it; empty for images.
        volumes: they are of volumes, whose pictures have contact sheets, too.
        is_film: they are of a video whose frames are explained as images, see ``of_film``.
    """

    format: str
    figure: str = ""
    raw: bool = False
    layers: tuple[str, ...]
    default_layer: str | None = None
    method: str = ""
    method_marks: Mapping[str, str] = field(default_factory=dict)
    described: bool = False
    video: str = ""
    volumes: bool = False
    is_film: bool = False

    def of_film(self, suffix: str, has_objects: bool) -> ResultNames:
        """The names for a video whose frames are explained as images: result videos and a table of its frames.

        Args:
            suffix: the format of result videos.
            has_objects: whether all objects of a frame are in one picture.
        """
        figure = self.figure
        if has_objects and not figure:
            figure = OBJECTS
        return replace(self, format=suffix, figure=figure, is_film=True)

    def suffix(self, relpath: Path) -> str:
        """The format of an image's pictures, such as ``png``.

        A JPEG photo has lost what PNG would keep, and PNG takes many times as long to write and as much space.

        Args:
            relpath: the input's path below the output directory; its suffix decides.
        """
        if self.format != AUTO:
            return self.format
        return "jpg" if relpath.suffix.lower() in _JPEG else "png"

    def relpaths(
        self, relpath: Path, maps: Iterable[MapName], coordinate_suffix: str = "", query: Query | None = None
    ) -> list[Path]:
        """The results of one image: its pictures or its panel, then its ``.npz`` file; videos before their sheets.

        After these, its maps as files with coordinates.

        Args:
            relpath: the input's path below the output directory.
            maps: what each map is called.
            coordinate_suffix: the suffix of maps with coordinates, ``NIFTI`` or ``GEOTIFF``; empty if there are none.
            query: what a vision-language model was asked, whose figures are answers; None for other networks.
        """
        names = []
        for (index, name, layer, method), number in with_numbers(maps):
            # the second and further detections of a class: ``person 2``
            title = name if number == 1 else f"{slug(name or '')[:_ROOM_OF_NUMBERED]} {number}"
            names.append((index, title, self._marks((layer,), self.method_marks.get(method, self.method))))

        def of_maps(suffix: str) -> list[Path]:
            return [
                picture_relpath(relpath, index, name, suffix, mark, self.described)
                for index, name, mark in names
            ]

        picture = self.suffix(relpath)
        if query is not None:
            results = [answer_relpath(relpath, query, picture)]
        elif self.figure:
            mark = self._marks(() if self.figure == "layers" else self.layers, self.method)
            results = [figure_relpath(relpath, self.figure, picture, mark)]
        else:
            results = of_maps(self.video or picture)
            if self.video or self.volumes:
                results += of_maps(f"{_SHEET}{picture}")
        if self.is_film:
            mark = self._marks(self.layers, self.method)
            results.append(figure_relpath(relpath, "frames", FRAMES_TABLE, mark))
        if self.raw:
            results.append(raw_relpath(relpath, self._marks(self.layers, self.method)))
        if coordinate_suffix:
            results += of_maps(coordinate_suffix)
        return results

    def matches(self, path: Path, class_names: Mapping[int, str | None]) -> bool:
        """Whether the run may write a file of this name, given the names of all classes that it may draw."""
        origin = parse_result_name(path)
        if origin is None:
            return False
        relpath, index = origin
        if not self.is_film and relpath.suffix.lower() in MOVING:
            films = (self.of_film(path.suffix[1:], has_objects) for has_objects in (False, True))
            if any(names.matches(path, class_names) for names in films):
                return True
        if index is None:
            if self.figure == ANSWER:  # to whatever question
                is_answer = path.name.startswith(f"{relpath.name}.{ANSWER}")
                return is_answer and path.suffix in (f".{self.suffix(relpath)}", f".{HTML}")
            return path in self.relpaths(relpath, ())
        if index not in class_names:
            return False
        suffixes = [suffix for suffix in (NIFTI, GEOTIFF) if self.raw and path.name.endswith(f".{suffix}")]
        match = _NUMBER.search(path.name)
        number = int(match[1]) if match else 1
        layers = [*self.layers]
        if self.method_marks:
            layers.append(_PICTURE)
        pairs = product(layers, self.method_marks or [""])
        names = [MapName(index, class_names[index], layer, method) for layer, method in pairs]
        return path in self.relpaths(relpath, names * max(1, number), "".join(suffixes))

    def _marks(self, layers: tuple[str, ...], method: str) -> str:
        if self.layers == (self.default_layer,):
            layers = ()
        return name_marks(layers, method)


_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")  # how formulas of spreadsheets begin
_IS_TEXT = "'"


def as_cell(text: str) -> str:
    """A text as a cell of a CSV file, which spreadsheets do not take for a formula; see ``from_cell``."""
    if text.startswith((*_FORMULA, _IS_TEXT)):
        return _IS_TEXT + text
    return text


def from_cell(cell: str) -> str:
    """The text of a cell of a CSV file."""
    if cell.startswith(_IS_TEXT) and cell[1:].startswith((*_FORMULA, _IS_TEXT)):
        return cell[1:]
    return cell
