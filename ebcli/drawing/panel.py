"""Figures with several maps, their numbers and the color scale: panels of photos, and contact sheets of videos."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from ebcli.drawing.color_scale import levels
from ebcli.drawing.explanation import Map, Subject
from ebcli.drawing.frames import FrameMaps
from ebcli.drawing.overlay import fitted_size, is_blank_on
from ebcli.drawing.painters import PAINTERS
from ebcli.drawing.style import DrawingStyle
from ebcli.files.frame_ranges import Clips
from ebcli.files.input_spec import Placement
from ebcli.files.media.medium import Shown

_TILE = 300  # pixels, the longer side of each tile's picture
_NARROWEST = 200  # room for the notes below a picture
_GAP = 16
_COLUMNS = 4  # if each class has a single map, and of a contact sheet
_MOST_SHOWN = 12  # frames of a contact sheet
_TEXT, _TITLE = 13, 16  # font sizes
_LINE = 19
_BAR = (240, 14)
_PHOTO_OF_BAR = (150, 150, 150)  # a uniform gray stands for the photo in the color scale
_SECONDARY = (90, 90, 90)


@dataclass(frozen=True)
class Tile:
    """A picture with a title above it and notes below."""

    picture: Image.Image
    title: str
    notes: tuple[str, ...]


def panel(shown: Sequence[Shown], maps: Sequence[FrameMaps], name: str, about: str) -> Image.Image:
    """Draw all maps of a photo in one RGB figure.

    With one map per class, the classes follow the photo from left to right. With several layers, or with other
    methods' maps beside, each class has a row.

    Args:
        shown: the photo, a clip of one frame.
        maps: the maps; layers are shown in order. The style ``side-by-side`` becomes ``heatmap``, as the photo is there
            anyway.
        name: the photo's name, the title of the figure.
        about: the subtitle: model, layer and method.
    """
    image, style = shown[0].image, _without_photo_beside(maps[0].style, "heatmap")
    small = shown[0]._replace(image=small_frame(image))
    photo = Tile(small.image, "photo", (f"{image.width} × {image.height} pixels",))
    rows: dict[Subject, list[Tile]] = {}
    for one in maps:
        for map_, title, notes in _maps(one.map):
            drawn = FrameMaps.of(map_, one.size, None, style)
            grid = f"{map_.values.shape[1]} × {map_.values.shape[0]} cells"
            rows.setdefault(one.map.subject, [photo]).append(_tile(drawn, small, title, (grid, *notes)))
    if all(len(tiles) == 2 for tiles in rows.values()):
        flow = [photo, *(replace(tiles[1], title=subject.title) for subject, tiles in rows.items())]
        lines = [("", flow[start : start + _COLUMNS]) for start in range(0, len(flow), _COLUMNS)]
    else:
        lines = [(subject.title, tiles) for subject, tiles in rows.items()]
    return arranged(name, about, lines, style)


def sheet_frames(clips: Clips) -> list[int]:
    """The numbers of the frames that a contact sheet shows, evenly spread over those that have maps."""
    frames = [frame for frame, _, _ in clips.explained()]
    chosen = np.linspace(0, len(frames) - 1, min(_MOST_SHOWN, len(frames)))
    return [frames[i] for i in np.unique(chosen.round().astype(int))]


def contact_sheet(shown: Sequence[Shown], maps: Sequence[FrameMaps], name: str, about: str) -> Image.Image:
    """Draw some frames of a video with their maps in one RGB figure, with their times.

    Args:
        shown: the frames, reduced by ``small_frame``.
        maps: the maps, row by row.
        name: the video's name, the title of the figure.
        about: the subtitle: model, layer and method.
    """
    lines: list[tuple[str, list[Tile]]] = []
    several = len({row.map.layer for row in maps}) > 1
    for row in maps:
        one = replace(row, style=_without_photo_beside(row.style, "overlay"))
        times = [f"{row.clips.time(frame.number):.2f} s" if row.clips else "" for frame in shown]
        tiles = [_tile(one, frame, time) for frame, time in zip(shown, times, strict=True)]
        heading = f"{row.map.subject.title}, {row.map.layer}" if several else row.map.subject.title
        for start in range(0, len(tiles), _COLUMNS):
            lines.append(("" if start else heading, tiles[start : start + _COLUMNS]))
    style = one.style if len({row.style.vmax for row in maps}) == 1 else replace(one.style, vmax=None)
    return arranged(name, about, lines, style)  # without vmax, each row has its own scale


def small_frame(image: Image.Image) -> Image.Image:
    """A photo or a frame at the size of a tile."""
    return image.resize(fitted_size(image.size, _TILE), Image.Resampling.LANCZOS, reducing_gap=2.0)


def _tile(one: FrameMaps, shown: Shown, title: str, notes: Sequence[str] = ()) -> Tile:
    """The tile of a map over a small frame; the last notes are its peak and its strength."""
    region = one.map.placement.scaled(one.size, shown.image.size)
    peak = peak_note(one.at(shown), region, shown.image.size, one.style)
    strength = [one.map.strength_in_words] if one.map.strength_in_words else []
    return Tile(on_white(one.drawn(shown)), title, (*notes, peak, *strength))


def _without_photo_beside(style: DrawingStyle, name: str) -> DrawingStyle:
    """The style, or another one instead of ``side-by-side``, which would be too wide."""
    return replace(style, name=name) if style.name == "side-by-side" else style


def _maps(map_: Map) -> Iterator[tuple[Map, str, Sequence[str]]]:
    """A map and those beside it, each with its title, and with its mass if that is worth a note."""
    mass = f"mass {map_.mass:.3f}"
    if not map_.beside:
        # a contrastive map sums to 0, so this is the mass of another map
        yield map_, map_.layer, [mass if map_.method == "marginal" else f"marginal {mass}"]
        return
    yield map_, f"{map_.layer}, {map_.method}", [] if "marginal" in map_.beside else [f"marginal {mass}"]
    for method, values in map_.beside.items():
        other = replace(map_, values=values, method=method, noise=None)
        yield other, f"{map_.layer}, {method}", [mass] if method == "marginal" else []


def peak_note(map_: NDArray[np.float32], region: Placement, size: tuple[int, int], style: DrawingStyle) -> str:
    """The peak of a map drawn in a region of a picture of a size (width, height), in words."""
    if is_blank_on(size, map_, region, style.signed):
        return "blank map" if np.isfinite(map_).all() else "blank map: not finite"
    return f"peak {map_.max() * map_.size:.3g}"


def arranged(name: str, about: str, rows: Sequence[tuple[str, Sequence[Tile]]], style: DrawingStyle) -> Image.Image:
    """Lay out rows of tiles below a title, each row below its heading, with the color scale at the bottom."""
    width = max(_NARROWEST, *(tile.picture.width for _, tiles in rows for tile in tiles)) + _GAP
    height = max(tile.picture.height for _, tiles in rows for tile in tiles)
    lines = 1 + max(len(tile.notes) for _, tiles in rows for tile in tiles)
    heading = _LINE + _GAP // 2
    row_height = height + lines * _LINE + _GAP
    columns = max(len(tiles) for _, tiles in rows)
    whole = (
        _GAP + max(columns * width, 3 * (_NARROWEST + _GAP)),
        2 * _GAP + 2 * _LINE + sum(row_height + heading * bool(title) for title, _ in rows) + 2 * _LINE + _GAP,
    )
    figure = Image.new("RGB", whole, "white")
    draw = ImageDraw.Draw(figure)

    def write(x: int, y: int, text: str, room: int, bold: bool = False, fill: tuple[int, int, int] = (0, 0, 0)) -> None:
        font = _font(_TITLE if bold else _TEXT, bold)
        draw.text((x, y), _fitted(_printable(text), font, room), font=font, fill=fill)

    room = whole[0] - 2 * _GAP
    write(_GAP, _GAP, name, room, bold=True)
    write(_GAP, _GAP + _LINE, about, room, fill=_SECONDARY)
    y = 2 * _GAP + 2 * _LINE
    for title, tiles in rows:
        if title:
            write(_GAP, y, title, room, bold=True)
            y += heading
        for column, tile in enumerate(tiles):
            x = _GAP + column * width
            write(x, y, tile.title, width - _GAP)
            figure.paste(tile.picture, (x, y + _LINE))
            for line, note in enumerate(tile.notes):
                below = y + _LINE + tile.picture.height + line * _LINE + 2
                write(x, below, note, width - _GAP, fill=_SECONDARY)
        y += row_height
    low, high = _ends(style)
    write(_GAP, y, low, room)
    x = _GAP + round(_font(_TEXT).getlength(low)) + 8
    figure.paste(_bar(style), (x, y + 1))
    write(x + _BAR[0] + 8, y, high, room - x - _BAR[0])
    unit = "Scale and peaks: 1 = each cell's value if the probability were spread evenly"
    write(_GAP, y + _LINE, unit, room, fill=_SECONDARY)
    return figure


def _bar(style: DrawingStyle) -> Image.Image:
    """The colors of the scale, drawn over a uniform gray."""
    values = np.tile(levels(np.linspace(0, 1, _BAR[0]), (0, 1)), (_BAR[1], 1))
    return on_white(PAINTERS[style.name].inside(Image.new("RGB", _BAR, _PHOTO_OF_BAR), Image.fromarray(values), style))


def _ends(style: DrawingStyle) -> tuple[str, str]:
    """The ends of the scale, in words."""
    if style.vmax is not None:
        return f"{-style.vmax if style.signed else style.vmin:g}".replace("-", "−"), f"{style.vmax:g}"
    end = "greatest magnitude" if style.signed else "maximum"
    if style.percentile != 100:
        end = f"percentile {style.percentile:g} of its {'magnitudes' if style.signed else 'positive values'}"
    return ("−m", f"m, each map's {end}") if style.signed else (f"{style.vmin:g}", f"each map's {end}")


def on_white(picture: Image.Image) -> Image.Image:
    """A picture without transparency."""
    if picture.mode != "RGBA":
        return picture
    return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")


@lru_cache
def _font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(_font_file(bold), size)


def _font_file(bold: bool = False) -> str:
    """DejaVu Sans, which comes with matplotlib; Pillow's own font has only ASCII letters."""
    from matplotlib import get_data_path

    return str(Path(get_data_path(), "fonts", "ttf", f"DejaVuSans{'-Bold' * bold}.ttf"))


@lru_cache
def _letters() -> frozenset[str]:
    """The characters that both weights of the font have."""
    from matplotlib.ft2font import FT2Font

    fonts = [FT2Font(_font_file(bold)).get_charmap() for bold in (False, True)]
    return frozenset(map(chr, fonts[0].keys() & fonts[1].keys()))


def _printable(text: str) -> str:
    """Text with control characters and missing glyphs as Python escapes."""
    return "".join(c if c.isprintable() and c in _letters() else c.encode("unicode_escape").decode() for c in text)


def _fitted(text: str, font: ImageFont.FreeTypeFont, room: int) -> str:
    """Shorten a text to the room there is by dropping its middle."""
    if font.getlength(text) <= room:
        return text
    kept = len(text)
    while kept > 1 and font.getlength(shorter := f"{text[: kept // 2]}…{text[len(text) - kept // 2 :]}") > room:
        kept -= 1
    return shorter
