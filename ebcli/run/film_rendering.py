"""Drawing a part of a film in any process, as chunks of its result videos. Imports no torch."""

import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
from PIL import Image

from ebcli.datatypes.arrays import FloatArray
from ebcli.datatypes.explanation import Box, Map
from ebcli.drawing import film as drawing
from ebcli.drawing.figure import small_frame
from ebcli.drawing.frame_maps import FrameMaps
from ebcli.drawing.overlay import downscale, reduced_size
from ebcli.drawing.regions import RegionOptions, largest_region
from ebcli.drawing.thumbnails import thumbnails
from ebcli.files.media.film import FilmPart, part_frames
from ebcli.files.media.medium import DisplayFrame
from ebcli.files.records import ClassRecord
from ebcli.files.video_encoding import Video
from ebcli.run.film_parts import DrawnPart, FilmJob, Reel, Row, ScoresOverTime, complete_file, save_part
from ebcli.run.rendering import class_record

_BOX_SIDE = 128  # pixels, of the image in which boxes are found
_OF_MAXIMUM = 0.5  # above which a box reaches
_MOST_POINTS = 4000  # of a curve, which is drawn again in each frame


def draw_part(
    job: FilmJob,
    number: int,
    part: FilmPart,
    maps: Sequence[Sequence[Map]],
    reel: Reel,
    context: Reel,
    past: Sequence[ScoresOverTime],
) -> DrawnPart:
    """Draw the frames of a part and encode them; its table is written last.

    Args:
        job: the film.
        number: the number of the part.
        part: what was read of it, without pixels.
        maps: those of each frame.
        reel: the same for averages.
        context: the same of all frames that are near in time.
        past: the scores of frames before these.
    """
    rows = [(time, _records(job, frame_maps)) for time, frame_maps in zip(part.times, maps, strict=True)]
    best = max(range(len(rows)), key=lambda i: evidence_of(rows[i]))
    times = reel.times
    values = [drawing.smooth(array, context.times, times, job.part.smooth) for array in context.values]
    curves = _curves(job, [*past, (context.times, context.scores)])
    place = context.place or Box(0, 0, *job.film.size)
    with ExitStack() as stack:
        videos = []
        for video_number in range(job.videos):
            target = stack.enter_context(complete_file(job.chunk(number, video_number)))
            videos.append(Video(target, job.suffix, job.film.rate / job.part.every, {}))
        for i, image in _images(job, number, part.times):
            drawn_values = [array[i] for array in values]
            drawn_curves = [curve.until(times[i]) for curve in curves]
            pictures = _draw(job, image, drawn_values, maps[i], place, drawn_curves)
            if i == best:
                _save_thumbnails(job, number, image, maps[i])
            for video, picture in zip(videos, pictures, strict=True):
                video.add(picture, float(times[i] - times[0]))
        for video in videos:
            video.close()
    drawn = DrawnPart(number, part, reel, rows)
    save_part(job, drawn, maps)
    return drawn


def _images(job: FilmJob, number: int, times: Sequence[float]) -> Iterator[tuple[int, Image.Image]]:
    """The images of the frames at some times, with their numbers."""
    numbers = {time: i for i, time in enumerate(times)}
    for frame in part_frames(job.open(), job.film, job.part, number):
        if frame is not None and frame.time in numbers:  # others are broken
            yield numbers[frame.time], frame.load().resize(job.film.size)
            if frame.time == times[-1]:  # behind it, the file may be broken
                return


def _draw(
    job: FilmJob,
    image: Image.Image,
    values: Sequence[FloatArray],
    maps: Sequence[Map],
    place: Box,
    curves: Sequence[drawing.Curve],
) -> list[Image.Image]:
    """The pictures of a frame, one for each result video."""
    style = job.options.style
    if job.is_panel:
        image = small_frame(image, style)
    elif job.options.max_side is not None:
        image = downscale(image, job.options.max_side)
    region = place.rescale(job.film.size, image.size)
    pictures = []
    for track, track_style, track_values, curve in zip(job.tracks, job.styles, values, curves, strict=True):
        shown = track.maps(maps)
        picture = drawing.draw_over(image, track_values, region, shown, track_style)
        if job.is_panel or style.caption:
            picture = drawing.add_curve(picture, _lines(shown), curve)
        pictures.append(picture)
    if job.is_panel:
        return [drawing.panel(image, pictures)]
    return pictures


def _lines(maps: Sequence[Map]) -> list[str]:
    """The class and its score, and how much the map rests on; of several objects, what they are."""
    if len(maps) == 1:
        return [maps[0].title, ", ".join(maps[0].evidence_words)]
    return ["; ".join(map_.title for map_ in maps)]


def _curves(job: FilmJob, parts: Sequence[ScoresOverTime]) -> list[drawing.Curve]:
    """The scores of each track over the video, as far as they are known."""
    times = np.concatenate([part_times for part_times, _ in parts])
    scores = np.concatenate([part_scores for _, part_scores in parts], 1)
    start = job.part.start
    end = float(times[-1])
    if job.film.duration is not None:
        end = max(end, start + job.film.duration)
    low = min(0.0, float(np.nanmin(scores, initial=0.0)))
    high = max(1.0, float(np.nanmax(scores, initial=0.0)))
    step = 1 + len(times) // _MOST_POINTS
    return [drawing.Curve(times[::step], row, (start, end), (low, high)) for row in scores[:, ::step]]


def _records(job: FilmJob, maps: Sequence[Map]) -> list[ClassRecord]:
    """The records of the maps of a frame, each with a box: that of its object, or around its strongest region."""
    records = []
    for map_ in maps:
        frame_maps = FrameMaps.from_map(map_, job.film.size, None, job.options.style)
        record = class_record(frame_maps)
        if record.box is None:
            record = replace(record, box=_box(job, map_))
        records.append(record)
    return records


def _box(job: FilmJob, map_: Map) -> Box | None:
    """The box around the largest region above half of a map's maximum; None for a blank map."""
    size = job.film.size
    small = reduced_size(size, _BOX_SIDE)
    options = RegionOptions("max", _OF_MAXIMUM, False)
    region = largest_region(map_.values, map_.placement.rescale(size, small), small, options)
    return None if region is None else region.box.rescale(small, size)


def evidence_of(row: Row) -> float:
    """How much evidence a frame has: the greatest strength of a map, or else the best score; 0 without maps."""
    _, records = row
    return max((record.strength or record.number for record in records), default=0.0)


def _save_thumbnails(job: FilmJob, number: int, image: Image.Image, maps: Sequence[Map]) -> None:
    """Keep the thumbnails of a frame, if there is a page for them."""
    if job.thumbnail_names is None:
        return
    size = job.film.size
    style = job.options.style
    frame_maps = [FrameMaps.from_map(map_, size, None, style, i) for i, map_ in enumerate(maps)]
    files = thumbnails(job.thumbnail_names, DisplayFrame(image), frame_maps)
    with complete_file(job.thumbnails(number)) as file, zipfile.ZipFile(file, "w") as archive:
        for path, content in files.items():
            archive.writestr(str(path), content)
