"""Frames of a video with their maps: averaged over time, on one color scale, above a curve of the score."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from ebcli.datatypes.arrays import DoubleArray, FloatArray
from ebcli.datatypes.explanation import Box, Map
from ebcli.drawing.legend import draw_outlines, font, printable, truncate
from ebcli.drawing.overlay import picture, side_by_side
from ebcli.drawing.painters import limits, overlay_colors, visible
from ebcli.drawing.style import DrawingStyle
from ebcli.files.images import to_rgb

_LETTERS_ACROSS = 36  # the font size of a caption is the width of the picture divided by this
_SMALLEST_TEXT = 10
_LINES = 2.5  # of text, which the curve is as high as
_AXIS = (200, 200, 200)
_GAP = 0.02  # of the height, between pictures


class Curve(NamedTuple):
    """The score of a class over a video.

    Attributes:
        times: seconds, ascending, (n,).
        scores: (n,); NaN where there is none.
        ends: the first and the last time of the axis.
        limits: the lowest and the highest score of the axis.
    """

    times: DoubleArray
    scores: DoubleArray
    ends: tuple[float, float]
    limits: tuple[float, float]

    def until(self, time: float) -> "Curve":
        """The part of the curve up to a time."""
        count = int(np.searchsorted(self.times, time, side="right"))
        return self._replace(times=self.times[:count], scores=self.scores[:count])


def merge(maps: Sequence[Map], signed: bool) -> FloatArray:
    """The maps of a frame in one, (h, w): in each cell, the greatest value.

    Maps that rest on little evidence are fainter, as they are in pictures with a scale of their own.
    """
    values = np.stack([np.nan_to_num(map_.display_values) * map_.brightness(signed) for map_ in maps])
    if signed:
        strongest = np.abs(values).argmax(0)
        return np.take_along_axis(values, strongest[None], 0)[0]
    return values.max(0)


def scale_end(maps: Sequence[Map], style: DrawingStyle) -> float:
    """The end of the color scale of a video, in units of a uniform map, by maps of a sample of its frames."""
    ends = []
    for map_ in maps:
        values = np.nan_to_num(map_.display_values)
        if visible(values, style).any():
            ends.append(limits(values, style)[1] * values.size)
    return max(ends, default=1.0)


def smooth(maps: FloatArray, times: DoubleArray, at: DoubleArray, seconds: float) -> FloatArray:
    """Maps averaged over time, with weights that fall linearly to 0 so many seconds before and after.

    Args:
        maps: (n, h, w).
        times: their times in seconds, ascending, (n,).
        at: the times of the averages, (m,), which are among ``times``.
        seconds: the reach of the average; 0 for none.

    Returns:
        (m, h, w).
    """
    distances = np.abs(np.subtract.outer(at, times))
    # the frame itself counts, even if it is alone
    weights = np.where(distances == 0, 1.0, (1 - distances / max(seconds, 1e-9)).clip(0))
    weights /= weights.sum(1, keepdims=True)
    return np.tensordot(weights.astype(np.float32), maps, 1)


def draw_over(
    image: Image.Image, values: FloatArray, place: Box, maps: Sequence[Map], style: DrawingStyle
) -> Image.Image:
    """A frame with its maps over it.

    Args:
        image: the frame, perhaps reduced.
        values: the values that are drawn, (h, w).
        place: the rectangle of the image that they cover.
        maps: the maps of the frame, for their outlines; none if there is nothing to outline.
        style: the style, on the video's color scale.
    """
    result = to_rgb(picture(image, values, place, style, is_blank=False))
    for map_ in maps:
        scale = place.size[0] / map_.placement.size[0]
        # a class keeps its color in all frames
        draw_outlines(result, map_.subject, map_.subject.index, scale, image.width)
    return result


def add_curve(image: Image.Image, lines: Sequence[str], curve: Curve) -> Image.Image:
    """A picture above a strip of always the same height: two lines of text, and the score up to now as a curve."""
    size = max(_SMALLEST_TEXT, round(min(image.width, 2 * image.height) / _LETTERS_ACROSS))
    letters = font(size)
    margin = size // 2
    line = round(1.4 * size)
    top = image.height + margin // 2
    foot = top + 2 * line + round(_LINES * line)
    result = Image.new("RGB", (image.width, foot + margin), "white")
    result.paste(image)
    draw = ImageDraw.Draw(result)
    for number, text in enumerate(lines[:2]):
        words = truncate(printable(text), letters, max(1, image.width - 2 * margin))
        draw.text((margin, top + number * line), words, "black", letters)
    high = top + 2 * line
    left, right = margin, image.width - margin
    draw.line((left, foot, right, foot), _AXIS, 1)
    draw.line((left, high, right, high), _AXIS, 1)
    points = _points(curve, (left, right), (foot, high))
    color = tuple(overlay_colors(DrawingStyle())[-1].tolist())
    width = max(2, size // 6)
    for run in points:
        draw.line(run, color, width, joint="curve")
    if points and np.isfinite(curve.scores[-1]):
        x, y = points[-1][-1]
        draw.ellipse((x - width, y - width, x + width, y + width), color)
    return result


def _points(
    curve: Curve, across: tuple[float, float], up: tuple[float, float]
) -> list[list[tuple[float, float]]]:
    """The curve in pixels: lines between gaps."""
    x = np.interp(curve.times, curve.ends, across)
    y = np.interp(curve.scores, curve.limits, up)
    lines: list[list[tuple[float, float]]] = [[]]
    for point in zip(x.tolist(), y.tolist(), strict=True):
        if np.isfinite(point[1]):
            lines[-1].append(point)
        elif lines[-1]:
            lines.append([])
    return [line for line in lines if line]


def panel(image: Image.Image, pictures: Sequence[Image.Image]) -> Image.Image:
    """A frame beside the pictures of its maps."""
    return side_by_side([image, *pictures], max(2, round(_GAP * image.height)))
