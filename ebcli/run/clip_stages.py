"""One video's stages before and after the network, as ``ebcli.run.stages`` for images. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import IO, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image

from ebcli.drawing.clip import ClipMap, SheetRow, Shown, contact_sheet, sheet_frames, small_frame
from ebcli.drawing.explanation import Explanation
from ebcli.drawing.overlay import peaks_at_border, shrunk
from ebcli.drawing.thumbnails import ThumbnailNames, map_thumbnails
from ebcli.errors import ImageError
from ebcli.files.clips import Clips
from ebcli.files.encoding import encode_arrays, encode_picture
from ebcli.files.images import Placement, limit_pixels
from ebcli.files.naming import numbered, output_relpath
from ebcli.files.remote import url_of
from ebcli.files.sources import Source
from ebcli.files.video import ClipGeometry, clip_placement, has_video_suffix, is_video, network_clips, sampled
from ebcli.files.video_writing import video_writer
from ebcli.run.rendering import Laps, RenderedFiles, RenderOptions, about_pictures, arrays_of, file_name
from ebcli.run.stages import Call, ImageStages, NetworkInput


def load_clips(source: Source, geometry: ClipGeometry, max_pixels: int | None = None) -> NetworkInput | None:
    """Decode a video and crop what the network sees; None for a file in a directory that is not a video.

    Raises:
        ImageError: the file does not exist or cannot be decoded, or its clips do not fit into memory.
    """
    start = perf_counter()
    limit_pixels(max_pixels)
    if not is_clip(source):
        return None
    stamp, file = source.opened()
    pixels, clips, size = network_clips(file, geometry)
    return NetworkInput(pixels, stamp, perf_counter() - start, size, clips=clips)


def is_clip(source: Source) -> bool:
    """Whether to work on a file: the user named it, or it looks like a video."""
    if source.named or has_video_suffix(source.path):
        return True
    # remote files are recognized by extension only: opening every one would be slow
    return source.span is None and url_of(source.path) is None and is_video(source.path)


def render_clips(
    source: Source,
    loaded: NetworkInput,
    geometry: ClipGeometry,
    options: RenderOptions,
    explanation: Explanation,
    names: ThumbnailNames | None,
    max_pixels: int | None = None,
) -> RenderedFiles:
    """Render one video's results: a video per map, then a contact sheet per map or one of all, then the arrays.

    The video is decoded a second time, frame by frame, so one frame at a time is in memory at its full size.

    Raises:
        ImageError: the file changed since the network saw it, or the format cannot hold the frames.
    """
    laps = Laps()
    limit_pixels(max_pixels)
    now, file = source.opened()
    if now != loaded.stamp or loaded.clips is None:
        raise ImageError("the file changed during the run")
    clips, size, panel = loaded.clips, loaded.size, options.names.panel
    region, each = clip_placement(size, geometry), [*explanation.each_map()]
    maps = [ClipMap.of(at.maps[k], clips, size, region, options.style) for k, at in each]
    common = {**options.provenance, "input": file_name(source)}
    facts = [common | of_map for of_map in about_pictures(explanation, False)]
    writers = [] if panel else [video_writer(options.names.video, clips.frame_rate, of_map) for of_map in facts]
    chosen, shown, small = sheet_frames(clips), list[Shown](), dict[Path, bytes]()
    for image, number, clip, place in _explained(file, clips, geometry, size):
        laps.end("decode")
        photo = image if options.max_side is None else shrunk(image, options.max_side)
        for map_, writer in zip(maps, writers, strict=not panel):
            drawn = map_.drawn(photo, region.scaled(size, photo.size), clip, place)
            laps.end("draw")
            writer.add(drawn)
            laps.end("encode")
        if number in chosen:
            shown.append((small_frame(image), number, clip, place))
        if names is not None and number == chosen[len(chosen) // 2]:
            small = _thumbnails(names, image, region, explanation, maps, (clip, place))
        laps.end("draw")
    if len(shown) < len(chosen):
        raise ImageError("the file changed during the run")
    files = [writer.finish() for writer in writers]
    laps.end("encode")
    suffix = options.names.suffix(output_relpath(source.path))
    rows = [SheetRow(explanation, k, at.layer, map_) for (k, at), map_ in zip(each, maps, strict=True)]
    if panel:
        facts = [common | of_all for of_all in about_pictures(explanation, True)]
    for of_sheet, about in zip([rows] if panel else [[row] for row in rows], facts, strict=True):
        sheet = contact_sheet(shown, size, region, of_sheet, source.name, options.about)
        laps.end("draw")
        files.append(encode_picture(sheet, suffix, about))
        laps.end("encode")
    if options.facts is not None:
        crop = np.array([region.left, region.top, region.right, region.bottom])
        arrays = {**options.facts, "crop": crop, "image_size": np.array(size), **_times(explanation, clips)}
        files.append(encode_arrays(arrays | arrays_of(explanation)))
        laps.end("encode")
    at_border = [peaks_at_border(size, at.maps[k].max(0), region) for k, at in each]
    blank = [map_.is_blank for map_ in maps]
    return RenderedFiles(files, blank, small, [None] * len(maps), size, at_border, laps.spent)


def _explained(file: Path | IO[bytes], clips: Clips, geometry: ClipGeometry, size: tuple[int, int]) -> Iterator[Shown]:
    """The frames that have maps, each with its number, its clip, and its place there."""
    rest = clips.explained()
    wanted = next(rest, None)
    with closing(sampled(file, geometry)) as frames:
        for number, frame in enumerate(frames):
            if wanted is None:
                return
            if number == wanted[0]:
                image = frame.load()
                yield (image if image.size == size else image.resize(size)), *wanted
                wanted = next(rest, None)


def _times(explanation: Explanation, clips: Clips) -> dict[str, ArrayLike]:
    """The time of each map of a raw file, in seconds; with several layers, as other arrays."""
    arrays: dict[str, ArrayLike] = {}
    for at in explanation.layers:
        where = f"@{at.layer}" if len(explanation.layers) > 1 else ""
        depth = at.maps.shape[1] // len(clips.starts)
        centers = (np.arange(depth) + 0.5) * clips.frames / depth - 0.5
        arrays[f"times{where}"] = np.array([clips.time(start + center) for start in clips.starts for center in centers])
    return arrays


def _thumbnails(
    names: ThumbnailNames,
    image: Image.Image,
    region: Placement,
    explanation: Explanation,
    maps: Sequence[ClipMap],
    at: Sequence[int],
) -> dict[Path, bytes]:
    """The thumbnails of one frame, and of its maps."""
    files = {names.photo: encode_picture(shrunk(image), "jpg")}
    each = [(one.layer, explanation.classes[k]) for k, one in explanation.each_map()]
    for ((layer, index), number), map_ in zip(numbered(each), maps, strict=True):
        path = names.map(layer, index, number)
        files |= map_thumbnails({path: map_.frame(*at)}, image.size, region, map_.style, {path: []})
    return files


@dataclass(frozen=True)
class ClipStages(ImageStages):
    """What all videos of a run share. Can be sent to other processes.

    Attributes:
        clips: what the network sees of a video.
    """

    clips: ClipGeometry | None = None
    unit: ClassVar[str] = "video"

    @classmethod
    def like(cls, stages: ImageStages, clips: ClipGeometry) -> ClipStages:
        """The same stages for videos."""
        return cls(**vars(stages), clips=clips)

    def accepts(self, source: Source) -> bool:
        return is_clip(source)

    def _loaded(self, source: Source, call: Call) -> NetworkInput | None:
        found: NetworkInput | None = call(load_clips, source, self.clips, self.max_pixels)
        return found

    def _rendered(
        self,
        source: Source,
        loaded: NetworkInput,
        explanation: Explanation,
        names: ThumbnailNames | None,
        call: Call,
    ) -> RenderedFiles:
        rendered: RenderedFiles = call(
            render_clips,
            source,
            replace(loaded, pixels=np.empty(0, np.uint8)),  # rendering needs none
            self.clips,
            self.options,
            explanation,
            names,
            self.max_pixels,
        )
        return rendered
