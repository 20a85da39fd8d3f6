"""Rendering: an image's maps as pictures, panels and arrays, in any process. Imports no torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ebcli.drawing.explanation import Explanation
from ebcli.drawing.overlay import is_blank_on, outlined, peaks_at_border, picture, shrunk
from ebcli.drawing.panel import panel
from ebcli.drawing.regions import Region, RegionOptions, largest_region
from ebcli.drawing.style import DrawingStyle
from ebcli.drawing.thumbnails import ThumbnailNames, thumbnails
from ebcli.errors import ImageError
from ebcli.files.encoding import encode_arrays, encode_picture
from ebcli.files.images import Geometry, decode, limit_pixels, placement
from ebcli.files.naming import ResultNames, output_relpath
from ebcli.files.remote import url_of
from ebcli.files.sources import Source
from ebcli.files.stamp import Stamp
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
class RenderedFiles:
    """One image's results in memory.

    Attributes:
        files: the contents of the result files.
        blank: whether each map is blank, in the order of ``Explanation.each_map``.
        thumbnails: their contents by path.
        regions: the region of each map, if requested.
        size: the image's width and height.
        at_border: whether each map peaks at an edge of the center crop.
        spent: the seconds of decoding, drawing and encoding; see ``ebcli.files.records.STAGES``.
    """

    files: list[bytes]
    blank: list[bool]
    thumbnails: dict[Path, bytes]
    regions: list[Region | None]
    size: tuple[int, int]
    at_border: list[bool]
    spent: dict[str, float]


def render(
    source: Source,
    stamp: Stamp,
    geometry: Geometry,
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
    region, style = explanation.placement or placement(image.size, geometry), options.style
    maps = [at.maps[k] for k, at in explanation.each_map()]
    if options.names.panel:
        pictures = iter([panel(image, region, explanation, style, source.name, options.about)])
    else:
        photo = image if options.max_side is None else shrunk(image, options.max_side)
        inside = region.scaled(image.size, photo.size)
        pictures = (
            outlined(picture(photo, at.maps[k], inside, style), explanation.outline(k), photo.width / image.width)
            for k, at in explanation.each_map()
        )
    common = {**options.provenance, "input": file_name(source)}
    about = about_pictures(explanation, options.names.panel)
    suffix = options.names.suffix(output_relpath(source.path))
    files = []
    for drawn, facts in zip(pictures, about, strict=True):
        laps.end("draw")
        files.append(encode_picture(drawn, suffix, common | facts))
        laps.end("encode")
    if options.facts is not None:
        crop = np.array([region.left, region.top, region.right, region.bottom])
        arrays = {**options.facts, "crop": crop, "image_size": np.array(image.size)}
        files.append(encode_arrays(arrays | arrays_of(explanation)))
        laps.end("encode")
    small = {} if names is None else thumbnails(names, image, region, explanation, style)
    regions: list[Region | None] = [None] * len(maps)
    if options.regions is not None:
        regions = [largest_region(map_, region, image.size, options.regions) for map_ in maps]
    blank = [is_blank_on(image.size, map_, region, style.signed) for map_ in maps]
    at_border = [peaks_at_border(image.size, map_, region) for map_ in maps]
    laps.end("draw")
    return RenderedFiles(files, blank, small, regions, image.size, at_border, laps.spent)


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
    names = zip(explanation.classes, explanation.names, strict=True)
    classes = [f"{index} {name}" if name else str(index) for index, name in names]
    scores = [f"{score:.4f}" for score in explanation.scores]
    if panel:
        layers = ", ".join(at.layer for at in explanation.layers)
        return [{"layer": layers, "class": "; ".join(classes), "score": ", ".join(scores)}]
    return [{"layer": at.layer, "class": classes[k], "score": scores[k]} for k, at in explanation.each_map()]


def record_box(explanation: Explanation, k: int) -> tuple[float, float, float, float] | None:
    """The left, top, width and height of a detection."""
    if not explanation.boxes:
        return None
    left, top, right, bottom = explanation.boxes[k]
    return round(left, 2), round(top, 2), round(right - left, 2), round(bottom - top, 2)


def arrays_of(explanation: Explanation) -> dict[str, ArrayLike]:
    """What was explanation, for a raw file; with several layers, each layer's name stands in its arrays' names."""
    arrays: dict[str, ArrayLike] = {
        "classes": np.array(explanation.classes),
        "names": np.array([name or "" for name in explanation.names]),
        "scores": np.array(explanation.scores, np.float32),
    }
    if explanation.boxes:
        arrays["boxes"] = np.array(explanation.boxes, np.float32)
    for at in explanation.layers:
        where = f"@{at.layer}" if len(explanation.layers) > 1 else ""
        arrays[f"maps{where}"] = at.maps
        arrays[f"mass{where}"] = np.array(at.mass, np.float32)
        if at.relevance is not None:
            arrays[f"relevance{where}"] = at.relevance
    return arrays
