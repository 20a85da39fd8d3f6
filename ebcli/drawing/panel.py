"""One figure an image: the photo beside its maps, with the numbers that belong to them and the scale of colours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from ebcli.drawing.color_scale import DrawingStyle
from ebcli.drawing.explanation import Explanation, LayerMaps
from ebcli.drawing.overlay import is_blank_on, picture
from ebcli.drawing.painters import STYLES
from ebcli.files.images import Placement

_TILE = 300  # pixels, the longer side of each picture
_NARROWEST = 200  # which a picture's caption needs
_GAP = 16
_COLUMNS = 4  # where each class has but one map
_TEXT, _TITLE = 13, 16  # sizes of letters
_LINE = 19
_BAR = (240, 14)
_PHOTO_OF_BAR = (150, 150, 150)  # an even grey stands for the photo in the scale of colours
_SECONDARY = (90, 90, 90)


@dataclass(frozen=True)
class Tile:
    """A picture with a title above it and notes below."""

    picture: Image.Image
    title: str
    notes: tuple[str, ...]


def panel(
    image: Image.Image, place: Placement, explained: Explanation, look: DrawingStyle, name: str, about: str
) -> Image.Image:
    """A photo's maps in one RGB figure.

    With one map a class, the classes follow the photo from left to right. With several, from several layers or with
    the marginal map beside the contrastive one, each class has a row.

    Args:
        image: RGB.
        place: where the network looked.
        explained: the maps; layers are shown in their order.
        look: how they are drawn; the style ``side-by-side`` as ``heatmap``, for the photo is there anyway.
        name: the photo's name.
        about: what the maps were computed with, in words.
    """
    if look.style == "side-by-side":
        look = replace(look, style="heatmap")
    scale = _TILE / max(image.size)
    size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    x, y = size[0] / image.width, size[1] / image.height
    place = Placement(place.left * x, place.top * y, place.right * x, place.bottom * y)
    small = image.resize(size, Image.Resampling.LANCZOS, reducing_gap=2.0)

    photo = Tile(small, "photo", (f"{image.width} × {image.height} pixels",))
    rows = []
    for k, (index, category) in enumerate(zip(explained.classes, explained.names, strict=True)):
        maps = [shown for at in explained.layers for shown in _maps(at, k)]
        tiles = [
            Tile(_on_white(picture(small, map_, place, look)), title, (*notes, peak_note(map_, place, size, look)))
            for map_, title, notes in maps
        ]
        heading = f"{category or f'class {index}'}, probability {explained.scores[k]:.3f}"
        rows.append((heading, [photo, *tiles]))
    if all(len(tiles) == 2 for _, tiles in rows):
        named = [replace(tiles[1], title=heading, notes=tiles[1].notes) for heading, tiles in rows]
        flow = [photo, *named]
        rows = [("", flow[start : start + _COLUMNS]) for start in range(0, len(flow), _COLUMNS)]
    return arranged(name, about, rows, look)


def _maps(at: LayerMaps, k: int) -> Iterator[tuple[NDArray[np.float32], str, tuple[str, ...]]]:
    """The maps of a class at a layer, with their titles and notes."""
    grid = f"{at.maps.shape[2]} × {at.maps.shape[1]} cells"
    mass = f"mass {at.mass[k]:.3f}"
    if at.marginal is None:
        yield at.maps[k], at.layer, (grid, mass)
    else:
        yield at.maps[k], f"{at.layer}, contrastive", (grid,)
        yield at.marginal[k], f"{at.layer}, marginal", (grid, mass)


def peak_note(map_: NDArray[np.float32], place: Placement, size: tuple[int, int], look: DrawingStyle) -> str:
    """How high a map reaches that is drawn at a place of a picture, in words."""
    if is_blank_on(size, map_, place, look.signed):
        return "nothing to show" if np.isfinite(map_).all() else "not finite: nothing to show"
    return f"peak {map_.max() * map_.size:.3g}"


def arranged(name: str, about: str, rows: Sequence[tuple[str, Sequence[Tile]]], look: DrawingStyle) -> Image.Image:
    """Rows of tiles below a name, each row below its heading, and the scale at the bottom."""
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
    low, high = _ends(look)
    write(_GAP, y, low, room)
    x = _GAP + round(_font(_TEXT).getlength(low)) + 8
    figure.paste(_bar(look), (x, y + 1))
    write(x + _BAR[0] + 8, y, high, room - x - _BAR[0])
    write(_GAP, y + _LINE, "1 is an even spread of all probability over a map's cells", room, fill=_SECONDARY)
    return figure


def _bar(look: DrawingStyle) -> Image.Image:
    """The scale's colours, as they are on an even grey."""
    shares = np.tile(np.linspace(0, 1, _BAR[0], dtype=np.float32), (_BAR[1], 1))
    return _on_white(STYLES[look.style].inside(Image.new("RGB", _BAR, _PHOTO_OF_BAR), shares, look))


def _ends(look: DrawingStyle) -> tuple[str, str]:
    """What the scale's ends stand for, in words."""
    if look.vmax is not None:
        return f"{-look.vmax if look.signed else look.vmin:g}".replace("-", "−"), f"{look.vmax:g}"
    end = "greatest magnitude" if look.signed else "maximum"
    if look.percentile != 100:
        end = f"percentile {look.percentile:g} of its {'magnitudes' if look.signed else 'positive values'}"
    return ("−m", f"m, each map's {end}") if look.signed else (f"{look.vmin:g}", f"each map's {end}")


def _on_white(picture: Image.Image) -> Image.Image:
    if picture.mode != "RGBA":
        return picture
    return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")


@lru_cache
def _font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(_font_file(bold), size)


def _font_file(bold: bool = False) -> str:
    """matplotlib's own font: Pillow's has no letters but English ones."""
    from matplotlib import get_data_path

    return str(Path(get_data_path(), "fonts", "ttf", f"DejaVuSans{'-Bold' * bold}.ttf"))


@lru_cache
def _letters() -> frozenset[str]:
    """All characters that both fonts have."""
    from matplotlib.ft2font import FT2Font

    fonts = [FT2Font(_font_file(bold)).get_charmap() for bold in (False, True)]
    return frozenset(map(chr, fonts[0].keys() & fonts[1].keys()))


def _printable(text: str) -> str:
    """Text with what cannot be shown, or would do something, spelt out as in Python: a line break as two letters."""
    return "".join(c if c.isprintable() and c in _letters() else c.encode("unicode_escape").decode() for c in text)


def _fitted(text: str, font: ImageFont.FreeTypeFont, room: int) -> str:
    """As much of a text as there is room for; a longer one loses its middle, for both ends of a name tell."""
    if font.getlength(text) <= room:
        return text
    kept = len(text)
    while kept > 1 and font.getlength(shorter := f"{text[: kept // 2]}…{text[len(text) - kept // 2 :]}") > room:
        kept -= 1
    return shorter
