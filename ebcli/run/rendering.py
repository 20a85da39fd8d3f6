"""Rendering: the maps of a photo or a video as pictures, figures and arrays, in any process. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ebcli.datatypes.atlas import Atlas
from ebcli.datatypes.explanation import Explanation, Interval, JsonObject, Map, Size, Subject
from ebcli.datatypes.query import Query
from ebcli.drawing.frame_maps import FrameMaps
from ebcli.drawing.legend import scale_labels
from ebcli.drawing.overlay import downscale
from ebcli.drawing.regions import RegionOptions, largest_region
from ebcli.drawing.style import ATLAS, DrawingStyle
from ebcli.drawing.thumbnails import ThumbnailNames, thumbnails, volume_thumbnails
from ebcli.errors import ImageError
from ebcli.files.clips import Clips, Slices
from ebcli.files.encoding import encode_arrays, encode_picture
from ebcli.files.media.medium import DisplayFrame
from ebcli.files.naming import HTML, MapName, ResultNames, answer_relpath, array_marks
from ebcli.files.paths import url_of
from ebcli.files.records import ClassRecord
from ebcli.files.sources import Source
from ebcli.files.video_encoding import video_writer
from ebcli.models.classes import printable

if TYPE_CHECKING:
    from ebcli.drawing.planes import Orthogonal
    from ebcli.run.reading import NetworkInput, Reader

Arrays = dict[str, ArrayLike]
Facts = Mapping[str, str]
Shares = Mapping[Subject, float]
_OF_MAP = (
    "method mass layer peak strength times_noise evidence share unplaced channels inputs columns"
).split()  # which its record has, too


@dataclass(frozen=True, kw_only=True)
class RenderOptions:
    """How the results of a run are rendered.

    Attributes:
        style: how maps are drawn.
        names: the names of the result files, and so what is rendered: pictures or a panel, and in which format.
        subtitle: the subtitle of panels: model, layer and method.
        provenance: what pictures say about their making; see ``ebcli.files.encoding.FACTS``.
        raw_provenance: the same for raw files; None if none are written.
        regions: how regions are found; None if they are not.
        max_side: pictures are drawn over photos reduced to this longest side; panels have a size of their own.
        at: the pixel at which classes are ranked; None for none.
    """

    style: DrawingStyle
    names: ResultNames
    subtitle: str
    provenance: Facts
    raw_provenance: Arrays | None
    regions: RegionOptions | None = None
    max_side: int | None = None
    at: Size | None = None


class _Drawing(NamedTuple):
    """What figures are made of."""

    frames: Sequence[DisplayFrame]
    maps: Sequence[FrameMaps]
    title: str
    subtitle: str


@dataclass(frozen=True)
class RenderedFiles:
    """One image's results in memory.

    Attributes:
        files: the contents of the result files by path below the output directory.
        classes: the record of each map.
        thumbnails: the same of thumbnails, and of the page of an answer.
    """

    files: dict[Path, bytes]
    classes: tuple[ClassRecord, ...]
    thumbnails: dict[Path, bytes]


def render(
    source: Source,
    network_input: NetworkInput,
    reader: Reader,
    options: RenderOptions,
    explanation: Explanation,
    names: ThumbnailNames | None,
) -> RenderedFiles:
    """Render one file's results: a picture or video per map, the figures, then the arrays; with ``names``, thumbnails.

    Figures are a panel of a photo, and contact sheets of a video or a volume. One frame at a time is in memory.

    Raises:
        ImageError: the file changed since the network saw it, the format cannot hold the frames, or classes are to be
            ranked outside of the image.
    """
    from ebcli.drawing.figure import sheet_frames, small_frame

    size = network_input.size
    clips = network_input.clips
    maps = frame_maps_of(explanation, size, clips, options.style)
    facts = {**options.provenance, "input": file_name(source)}
    if explanation.tiles:
        facts["tiles"] = str(explanation.tiles)
    relpath = source.relpath
    suffix = options.names.suffix(relpath)
    writers: list[_MapFile] = []
    figures = [maps]
    if not options.names.figure:
        writers = [_MapFile(options, suffix, map_, facts | metadata([map_])) for map_ in maps]
        figures = [] if clips is None else [[map_] for map_ in maps]
    numbers = [0] if clips is None else sheet_frames(clips)
    thumbnail_files = None if names is None else _Thumbnails(names, maps, numbers[len(numbers) // 2])
    frames: list[DisplayFrame] = []
    for frame in reader.frames(source, network_input):
        for writer in writers:
            writer.add(frame)
        if thumbnail_files is not None:
            thumbnail_files.add(frame)
        if figures and frame.number in numbers:
            image = frame.image if clips is None else small_frame(frame.image, options.style)
            frames.append(frame._replace(image=image))
    if figures and len(frames) < len(numbers):
        raise ImageError("the file changed during the run")
    pages = {} if thumbnail_files is None else thumbnail_files.finish()
    files = [writer.finish() for writer in writers]
    if explanation.answer is not None:
        from ebcli.drawing.pages import answer_page

        page = answer_page(explanation, frames, maps, source.name, options.subtitle)
        pages[answer_relpath(relpath, source.query or Query(), HTML)] = page
    for rows in figures:
        drawing = _Drawing(frames, rows, source.name, options.subtitle)
        files.append(_figure(options, explanation, drawing, suffix, facts | metadata(rows)))
    coordinate_suffix = ""
    if options.raw_provenance is not None:
        files.append(encode_arrays(options.raw_provenance | arrays_of(explanation, network_input)))
        coordinates = clips.affine if isinstance(clips, Slices) else reader.coordinates(source)
        if coordinates is not None:
            coordinate_suffix = coordinates.suffix
            files += [coordinates.encode(map_.values, _spans(map_, clips)) for map_ in explanation.maps]
    shares = _shares(explanation, options.at, size)
    records = tuple(class_record(map_, options.regions, shares) for map_ in maps)
    named_maps = [
        MapName(map_.subject.index, map_.subject.name, map_.layer, map_.method) for map_ in explanation.maps
    ]
    paths = options.names.relpaths(relpath, named_maps, coordinate_suffix, source.query)
    return RenderedFiles(dict(zip(paths, files, strict=True)), records, pages)


def frame_maps_of(
    explanation: Explanation, size: Size, clips: Clips | None, style: DrawingStyle
) -> list[FrameMaps]:
    """The maps of an explanation for frames of a size (width, height)."""
    number = explanation.subjects.index
    return [FrameMaps.from_map(map_, size, clips, style, number(map_.subject)) for map_ in explanation.maps]


def _planes_of(maps: FrameMaps) -> Orthogonal | None:
    """What draws the planes of a volume; None of anything else."""
    from ebcli.drawing.planes import Orthogonal

    return Orthogonal(maps, maps.clips) if isinstance(maps.clips, Slices) else None


def _figure(
    options: RenderOptions, explanation: Explanation, drawing: _Drawing, suffix: str, facts: Facts
) -> bytes:
    """The content of the figure of some frames and maps."""
    if suffix == HTML:
        from ebcli.drawing.pages import atlas_page

        return atlas_page(*drawing, facts, options.at)
    if options.style.name == ATLAS:
        from ebcli.drawing.atlas import atlas_figure

        return atlas_figure(*drawing, options.at).encode(suffix, facts)
    from ebcli.drawing.figure import answer_figure, contact_sheet, panel

    if explanation.answer is not None:
        return answer_figure(explanation, *drawing).encode(suffix, facts)
    draw = panel if drawing.maps[0].clips is None else contact_sheet
    return draw(*drawing).encode(suffix, facts)


def _shares(explanation: Explanation, pixel: Size | None, size: Size) -> Shares | None:
    """The shares of the classes at a pixel of an image (width, height); None without a pixel."""
    if pixel is None:
        return None
    x, y = pixel
    width, height = size
    if x >= width or y >= height:
        raise ImageError(f"the pixel {x},{y} is outside of it: choose one within {width} x {height} pixels")
    return dict(Atlas.from_maps(explanation.maps).classes_at(x, y))


def _spans(map_: Map, clips: Clips | None) -> list[Interval]:
    """The pixels along x and y, and the slices, that a map covers."""
    left, top, right, bottom = map_.placement
    return [(left, right), (top, bottom), (0, clips.total if clips else 1)][: map_.values.ndim]


def class_record(
    maps: FrameMaps, options: RegionOptions | None = None, shares: Shares | None = None
) -> ClassRecord:
    """The record of a map; with options, also the region that it marks; with shares at a pixel, also its own."""
    map_ = maps.map
    subject = map_.subject
    fields = {name: getattr(map_, name) for name in _OF_MAP}
    if map_.is_two_sided:
        fields["against"] = map_.against
    elif options is not None:
        region = largest_region(map_.values, map_.placement, maps.size, options)
        fields["region"] = region and asdict(region)
    if map_.sufficiency is not None:
        fields["sufficiency"] = map_.sufficiency.record_fields
    if shares is not None:
        fields["share_at"] = round(shares.get(subject, 0.0), 4)
    planes = _planes_of(maps)
    if planes is not None and not maps.is_blank:
        fields |= _place_in_volume(planes, maps.clips)
    score: float | None = subject.score
    if subject.is_value:
        fields["value"] = subject.score
        score = None
    return ClassRecord(
        subject.index,
        subject.name,
        score,
        blank=maps.is_blank,
        losses=map_.lost_mass,
        at_border=maps.at_border,
        box=subject.box,
        position=subject.position,
        span=subject.span,
        window_score=subject.window_score,
        **fields,
    )


def _place_in_volume(planes: Orthogonal, slices: Clips | None) -> JsonObject:
    """Where the planes through a map's maximum cross, as records have it."""
    voxel = tuple(number - 1 for number in planes.voxel)
    affine = slices.affine if isinstance(slices, Slices) else None
    if affine is None:
        return {"voxel": voxel, "world": None}
    return {"voxel": affine.indices_in_file(voxel), "world": affine.position(voxel)}


class _MapFile:
    """The file of a map: drawn over each frame, or over three slices of a volume."""

    def __init__(self, options: RenderOptions, suffix: str, maps: FrameMaps, facts: Facts) -> None:
        clips = maps.clips
        test = maps.map.sufficiency
        if test is not None and not test.suffices:  # without words, the picture would convince
            maps = replace(maps, style=replace(maps.style, caption=True))
        self._maps = maps
        self._longest = options.max_side
        self._suffix = suffix
        self._facts = facts
        self._volume = _planes_of(maps)
        self._video = None
        if clips is not None and self._volume is None:
            self._video = video_writer(options.names.video, clips.frame_rate, facts)

    def add(self, frame: DisplayFrame) -> None:
        if self._volume is not None:
            self._volume.add(frame)
            return
        if self._longest is not None:
            frame = frame._replace(image=downscale(frame.image, self._longest))
        self._picture = self._maps.draw(frame)
        if self._video is not None:
            self._video.add(self._picture)

    def finish(self) -> bytes:
        if self._video is not None:
            return self._video.finish()
        picture = self._picture if self._volume is None else self._volume.draw(self._longest)
        return encode_picture(picture, self._suffix, self._facts)


class _Thumbnails:
    """The thumbnails of a photo, of one frame of a video, or of three planes of a volume."""

    def __init__(self, names: ThumbnailNames, maps: Sequence[FrameMaps], number: int) -> None:
        self._names = names
        self._maps = maps
        self._number = number
        self._volume = _planes_of(maps[0])
        self._files: dict[Path, bytes] = {}

    def add(self, frame: DisplayFrame) -> None:
        if self._volume is not None:
            self._volume.add(frame)
        elif frame.number == self._number:
            self._files = thumbnails(self._names, frame, self._maps)

    def finish(self) -> dict[Path, bytes]:
        if self._volume is not None:
            return volume_thumbnails(self._names, self._volume, self._maps)
        return self._files


def file_name(source: Source) -> str:
    """An input's name; without its directory and a URL's query, as pictures are passed on, but these are private."""
    name = source.relpath.name
    if url_of(source.path) is not None:
        name = name.partition("?")[0]
    return printable(name)


def metadata(frame_maps: Sequence[FrameMaps]) -> dict[str, str]:
    """The layer, class, score, strength, sufficiency and color scale of the maps in a picture or figure."""
    maps = [item.map for item in frame_maps]
    owner = ""
    if len(maps) > 1:
        owner = "each map's "
    low, high = scale_labels(frame_maps[0].style, max(map_.values.size for map_ in maps), owner)
    subjects = dict.fromkeys(map_.subject for map_ in maps)
    facts = {}
    strengths = [", ".join(map_.evidence_words).removeprefix("strength ") for map_ in maps]
    if all(strengths):
        facts["strength"] = "; ".join(strengths)
    sufficiency = maps[0].sufficiency
    if sufficiency is not None:
        facts["sufficiency"] = sufficiency.words
    are_values = maps[0].subject.is_value
    facts |= {"scale": f"{low} to {high}", "layer": ", ".join(dict.fromkeys(map_.layer for map_ in maps))}
    names = "; ".join(f"{subject.index} {subject.name or ''}".rstrip() for subject in subjects)
    if are_values:
        return facts | {"output": names, "value": ", ".join(f"{subject.score:.6g}" for subject in subjects)}
    return facts | {"class": names, "score": ", ".join(f"{subject.score:.4f}" for subject in subjects)}


def arrays_of(explanation: Explanation, network_input: NetworkInput) -> Arrays:
    """An explanation as arrays, for the raw file.

    With several layers or methods, the arrays' names end with theirs, see ``array_marks``.
    """
    subjects = explanation.subjects
    arrays: Arrays = {"image_size": network_input.size}
    if explanation.tiles:
        arrays["tiles"] = str(explanation.tiles)
    arrays |= {
        "crop": explanation.maps[0].placement,
        "classes": [subject.index for subject in subjects],
        "names": [subject.name or "" for subject in subjects],
        "scores": np.array([subject.score for subject in subjects], np.float32),
    }
    if subjects[0].box is not None:
        arrays["boxes"] = np.array([subject.box for subject in subjects], np.float32)
    marks = array_marks((map_.layer, map_.method) for map_ in explanation.maps)
    for key, mark in marks.items():
        maps = [map_ for map_ in explanation.maps if (map_.layer, map_.method) == key]
        for name, array in _layer_arrays(maps, network_input.video_clips).items():
            arrays[name + mark] = array
    return arrays


def _layer_arrays(maps: Sequence[Map], clips: Clips | None) -> Arrays:
    """The arrays of the maps at a layer. Of a video, ``times`` are the seconds at which the maps lie."""
    arrays: Arrays = {"maps": np.stack([map_.values for map_ in maps])}
    if maps[0].mass is not None:
        arrays["mass"] = np.array([map_.mass for map_ in maps], np.float32)
    relevance = [map_.relevance for map_ in maps if map_.relevance is not None]
    if relevance:
        arrays["relevance"] = np.stack(relevance)
    if clips is not None:
        depth = len(maps[0].values) // len(clips.starts)
        centers = (np.arange(depth) + 0.5) * clips.frames / depth - 0.5
        frames = np.add.outer(clips.starts, centers).ravel()
        arrays["times"] = [*map(clips.time, frames)]
    return arrays
