"""Rendering: an image's maps as pictures, panels and arrays, in any process. Imports no torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from ebcli.drawing.explanation import Explanation, Map, Subject
from ebcli.drawing.overlay import is_blank_on, outlined, peaks_at_border, picture, shrunk
from ebcli.drawing.panel import panel
from ebcli.drawing.regions import Region, RegionOptions, largest_region
from ebcli.drawing.style import DrawingStyle
from ebcli.drawing.thumbnails import ThumbnailNames, thumbnails
from ebcli.errors import ImageError
from ebcli.files.encoding import encode_arrays, encode_picture
from ebcli.files.images import decode, limit_pixels
from ebcli.files.naming import ResultNames, output_relpath
from ebcli.files.sources import Source
from ebcli.files.storage import Stamp, url_of
from ebcli.models.classes import printable


@dataclass(frozen=True)
class RenderOptions:
    """How the results of a run are rendered.

    Attributes:
        style: how maps are drawn.
        names: the names of the result files, and so what is rendered: pictures or a panel, and in which format.
        about: the subtitle of panels: model, layer and method.
        provenance: what pictures say about their making; see ``ebcli.files.encoding.FACTS``.
        facts: the same as arrays by name, for raw files; None if none are written.
        regions: how regions are found; None if they are not.
        max_side: pictures are drawn over photos reduced to this longest side; panels have a size of their own.
    """

    style: DrawingStyle
    names: ResultNames
    about: str
    provenance: Mapping[str, str]
    facts: Mapping[str, NDArray[np.str_]] | None
    regions: RegionOptions | None = None
    max_side: int | None = None


@dataclass(frozen=True)
class DrawnMap:
    """What was seen of a map when it was drawn.

    Attributes:
        blank: whether nothing of it is positive, or if drawn signed, not 0.
        at_border: whether it peaks at an edge of the center crop.
        region: the region that it marks, if requested.
    """

    blank: bool
    at_border: bool
    region: Region | None = None


@dataclass(frozen=True)
class RenderedFiles:
    """One image's results in memory.

    Attributes:
        files: the contents of the result files.
        maps: what was seen of each map.
        thumbnails: their contents by path.
        size: the image's width and height.
        spent: the seconds of decoding, drawing and encoding; see ``ebcli.files.records.STAGES``.
    """

    files: list[bytes]
    maps: list[DrawnMap]
    thumbnails: dict[Path, bytes]
    size: tuple[int, int]
    spent: dict[str, float]


def render(
    source: Source,
    stamp: Stamp,
    options: RenderOptions,
    explanation: Explanation,
    names: ThumbnailNames | None,
    max_pixels: int | None = None,
) -> RenderedFiles:
    """Render one image's results: a picture per map or one panel, then the arrays; with ``names``, thumbnails too.

    The image is decoded a second time: keeping thousands of photos until the network is done with them would take
    far more memory than decoding takes time.

    Raises:
        ImageError: the file changed since the network saw it, or the format cannot hold the picture.
    """
    laps = Laps()
    limit_pixels(max_pixels)
    now, file = source.opened()
    image = decode(file)
    laps.end("decode")
    if now != stamp:
        raise ImageError("the file changed during the run")
    style, size = options.style, image.size
    if options.names.panel:
        pictures = iter([panel(image, explanation, style, source.name, options.about)])
    else:
        photo = image if options.max_side is None else shrunk(image, options.max_side)
        pictures = (_picture(photo, size, map_, style) for map_ in explanation.maps)
    common = {**options.provenance, "input": file_name(source)}
    about = about_pictures(explanation, options.names.panel)
    suffix = options.names.suffix(output_relpath(source.path))
    files = []
    for drawn, facts in zip(pictures, about, strict=True):
        laps.end("draw")
        files.append(encode_picture(drawn, suffix, common | facts))
        laps.end("encode")
    if options.facts is not None:
        files.append(encode_arrays({**options.facts, "image_size": np.array(size), **arrays_of(explanation)}))
        laps.end("encode")
    small = {} if names is None else thumbnails(names, image, explanation.maps, style)
    maps = [
        DrawnMap(
            is_blank_on(size, map_.values, map_.placement, style.signed),
            peaks_at_border(size, map_.values, map_.placement),
            None if options.regions is None else largest_region(map_.values, map_.placement, size, options.regions),
        )
        for map_ in explanation.maps
    ]
    laps.end("draw")
    return RenderedFiles(files, maps, small, size, laps.spent)


def _picture(photo: Image.Image, size: tuple[int, int], map_: Map, style: DrawingStyle) -> Image.Image:
    """A map over a photo that had another size (width, height)."""
    drawn = picture(photo, map_.values, map_.placement.scaled(size, photo.size), style)
    return outlined(drawn, map_.subject.outlines, photo.width / size[0])


class Laps:
    """A stopwatch: ``end`` adds the time since the last lap to a stage."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        self._start = perf_counter()

    def end(self, stage: str) -> None:
        now = perf_counter()
        self.spent[stage] += now - self._start
        self._start = now


def file_name(source: Source) -> str:
    """An input's name; without its directory and a URL's query, as pictures are passed on, but these are private."""
    name = output_relpath(source.path).name
    return printable(name if url_of(source.path) is None else name.partition("?")[0])


def about_pictures(explanation: Explanation, panel: bool) -> list[dict[str, str]]:
    """The layer, class and score of each picture, or of all maps in a panel."""
    if panel:
        subjects = explanation.subjects
        return [
            {
                "layer": ", ".join(explanation.by_layer),
                "class": "; ".join(map(_class, subjects)),
                "score": ", ".join(f"{subject.score:.4f}" for subject in subjects),
            }
        ]
    return [
        {"layer": map_.layer, "class": _class(map_.subject), "score": f"{map_.subject.score:.4f}"}
        for map_ in explanation.maps
    ]


def _class(subject: Subject) -> str:
    return f"{subject.index} {subject.name}" if subject.name else str(subject.index)


def arrays_of(explanation: Explanation) -> dict[str, ArrayLike]:
    """An explanation as arrays, for the raw file; with several layers, the arrays' names end with the layer's."""
    subjects, place = explanation.subjects, explanation.maps[0].placement
    arrays: dict[str, ArrayLike] = {
        "crop": np.array([place.left, place.top, place.right, place.bottom]),
        "classes": np.array([subject.index for subject in subjects]),
        "names": np.array([subject.name or "" for subject in subjects]),
        "scores": np.array([subject.score for subject in subjects], np.float32),
    }
    if subjects[0].box is not None:
        arrays["boxes"] = np.array([subject.box for subject in subjects], np.float32)
    by_layer = explanation.by_layer
    for layer, maps in by_layer.items():
        where = f"@{layer}" if len(by_layer) > 1 else ""
        arrays[f"maps{where}"] = np.stack([map_.values for map_ in maps])
        arrays[f"mass{where}"] = np.array([map_.mass for map_ in maps], np.float32)
        relevance = [map_.relevance for map_ in maps if map_.relevance is not None]
        if relevance:
            arrays[f"relevance{where}"] = np.stack(relevance)
    return arrays
