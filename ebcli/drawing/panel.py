"""Panels: one figure per image, with the photo, its maps, their numbers and the color scale."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ebcli.drawing.figure import Figure, Words
from ebcli.drawing.frames import FrameMaps
from ebcli.drawing.legend import bar, ends, on_white, with_bars
from ebcli.drawing.lettering import fitted, font, in_lines, printable
from ebcli.drawing.outlines import outlined
from ebcli.drawing.overlay import fitted_size, is_blank_on
from ebcli.drawing.style import DrawingStyle
from ebcli.files.media.medium import Shown
from ebcli.nouns.box import Box
from ebcli.nouns.explanation import Map, Subject

# In pixels at 100 dpi
_DPI = 100
_TILE = 300  # the longer side of each tile's picture
_NARROWEST = 150  # room for the notes below a picture
_LEGEND = 630, 900  # least and most room for the color scale and its words
_GAP = 16
_TEXT, _TITLE = 13, 16  # font sizes
_LINE = 19
_BAR = (240, 14)

COLUMNS = 4  # if each class has a single map
_WIDE = 2.0  # times as wide as high: such photos are stacked, and larger
_SECONDARY = (90, 90, 90)


@dataclass(frozen=True)
class Tile:
    """A picture with a title above it and notes below."""

    picture: Image.Image
    title: str
    notes: tuple[str, ...]


def panel(shown: Sequence[Shown], maps: Sequence[FrameMaps], name: str, about: str) -> Figure:
    """Draw all maps of a photo in one figure.

    With one map per class, the classes follow the photo from left to right. With several layers, or with other
    methods' maps beside, each class has a row. Photos that are much wider than high are stacked instead.

    Args:
        shown: the photo, a clip of one frame.
        maps: the maps; layers are shown in order. The style ``side-by-side`` becomes ``heatmap``, as the photo is there
            anyway.
        name: the photo's name, the title of the figure.
        about: the subtitle: model, layer and method.
    """
    image, style = shown[0].image, without_photo_beside(maps[0].style, "heatmap")
    small = shown[0]._replace(image=small_frame(image, style))
    marked = small.image.copy()
    for one in maps:
        outlined(marked, one.map.subject, one.number, marked.width / one.size[0], marked.width)
    photo = Tile(marked, "photo", (f"{image.width} × {image.height} pixels",))
    rows: dict[Subject, list[Tile]] = {}
    titles = {one.map.subject: one.map.title for one in maps}
    for one in maps:
        for map_, title, notes in _maps(one.map):
            drawn = FrameMaps.of(map_, one.size, None, style, one.number)
            rows.setdefault(one.map.subject, [photo]).append(map_tile(drawn, small, title, notes))
    if all(len(tiles) == 2 for tiles in rows.values()):
        flow = [photo, *(replace(tiles[1], title=titles[subject]) for subject, tiles in rows.items())]
        lines = wrapped("", flow, 1 if _is_wide(image) else COLUMNS)
    else:
        lines = [
            line
            for subject, tiles in rows.items()
            for line in wrapped(titles[subject], tiles, 1 if _is_wide(image) else len(tiles))
        ]
    first = maps[0].map
    test = first.sufficiency
    said = "" if test is None else f"{first.subject.title}: " * (len(maps) > 1) + test.words
    finest, has_faint = max(one.map.values.size for one in maps), any(one.faded != one.style for one in maps)
    return arranged(name, about, lines, style, finest, first.against, said, has_faint)


def wrapped(heading: str, tiles: Sequence[Tile], columns: int) -> list[tuple[str, Sequence[Tile]]]:
    """Tiles in rows of so many columns, below one heading."""
    return [(heading * (not start), tiles[start : start + columns]) for start in range(0, len(tiles), columns)]


def _is_wide(image: Image.Image) -> bool:
    return image.width >= _WIDE * image.height


def small_frame(image: Image.Image, style: DrawingStyle) -> Image.Image:
    """A photo or a frame at the size of a tile; a wide one is stacked, so it may be twice as long."""
    longest = (style.cell_size or round(_TILE * style.dpi / _DPI)) * (1 + _is_wide(image))
    return image.resize(fitted_size(image.size, longest), Image.Resampling.LANCZOS, reducing_gap=2.0)


def map_tile(one: FrameMaps, shown: Shown, title: str, notes: Sequence[str] = ()) -> Tile:
    """The tile of a map over a small frame; the last notes are its peak and its strength."""
    region = one.map.placement.scaled(one.size, shown.image.size)
    peak = peak_note(one.at(shown), region, shown.image.size, one.style)
    drawn = with_bars(on_white(one.drawn(shown)), one.map.channels)
    return Tile(drawn, title, (*notes, peak, *one.map.told))  # in short lines, as cells can be narrow


def without_photo_beside(style: DrawingStyle, name: str) -> DrawingStyle:
    """The style, or another one instead of ``side-by-side``, which would be too wide."""
    return replace(style, name=name) if style.name == "side-by-side" else style


def _maps(map_: Map) -> Iterator[tuple[Map, str, Sequence[str]]]:
    """A map and those beside it, each with its title and notes."""
    grid, mass = _grid(map_.values), [] if map_.mass is None else [f"mass {map_.mass:.3f}"]
    # a contrastive map sums to 0, so this is the mass of another map
    own = [note if map_.method == "marginal" else f"marginal {note}" for note in mass]
    if not map_.beside:
        yield map_, map_.layer, (grid, *own)
        return
    yield map_, f"{map_.layer}, {map_.method}", [grid] + own * ("marginal" not in map_.beside)
    for method, values in map_.beside.items():
        other = replace(map_, values=values, method=method, noise=None)
        yield other, f"{map_.layer}, {method}", [_grid(values)] + mass * (method == "marginal")


def _grid(values: NDArray[np.float32]) -> str:
    return f"{values.shape[1]} × {values.shape[0]} cells"


def peak_note(map_: NDArray[np.float32], region: Box, size: tuple[int, int], style: DrawingStyle) -> str:
    """The peak of a map drawn in a region of a picture of a size (width, height), in words."""
    if is_blank_on(size, map_, region, style.signed):
        return "blank map" if np.isfinite(map_).all() else "blank map: not finite"
    return f"peak {map_.max() * map_.size:.3g}"


def arranged(
    name: str,
    about: str,
    rows: Sequence[tuple[str, Sequence[Tile]]],
    style: DrawingStyle,
    finest: int,
    against: str = "",
    sufficiency: str = "",
    has_faint: bool = False,
) -> Figure:
    """Lay out rows of tiles below a title, each row below its heading, with the color scale at the bottom.

    Args:
        name: the title.
        about: the subtitle.
        rows: the headings and tiles.
        style: the colors and the scale, and the resolution of the figure.
        finest: the number of cells of the finest map.
        against: the class that the maps are contrasted with.
        sufficiency: what is said of the first map below the subtitle.
        has_faint: whether some maps are drawn faint, see ``ends``.
    """
    zoom = style.dpi / _DPI
    gap, line_height, narrowest, least, most = (round(zoom * one) for one in (_GAP, _LINE, _NARROWEST, *_LEGEND))
    text, large = font(round(zoom * _TEXT)), font(round(zoom * _TITLE), bold=True)
    low, high = ends(style, finest, against=against, has_faint=has_faint)
    legend = min(most, max(least, round(zoom * _BAR[0] + text.getlength(low + high)) + 4 * gap))
    width = max(narrowest, *(tile.picture.width for _, tiles in rows for tile in tiles)) + gap
    heading = line_height + gap // 2
    columns = max(len(tiles) for _, tiles in rows)
    if columns == 1:  # wide pictures one below another, with room for their notes in one line
        rows = [(title, [replace(tile, notes=(", ".join(tile.notes),)) for tile in tiles]) for title, tiles in rows]
    heights = [
        max(tile.picture.height for tile in tiles) + (1 + max(len(tile.notes) for tile in tiles)) * line_height + gap
        for _, tiles in rows
    ]
    across = gap + max(columns * width, legend)
    room = across - 2 * gap
    said = in_lines(printable(sufficiency), text, room) if sufficiency else []
    top = 2 * gap + (2 + len(said)) * line_height
    below = sum(heights) + sum(heading for title, _ in rows if title) + 2 * line_height + gap
    figure = Figure((across, top + below), style.dpi)

    def write(
        x: int, y: int, words: str, room: int, bold: bool = False, fill: tuple[int, int, int] = (0, 0, 0)
    ) -> None:
        letters = large if bold else text
        figure.words.append(Words(x, y, fitted(printable(words), letters, room), round(letters.size), bold, fill))

    write(gap, gap, name, room, bold=True)
    write(gap, gap + line_height, about, room, fill=_SECONDARY)
    for number, line in enumerate(said, 2):
        write(gap, gap + number * line_height, line, room)
    y = top
    for height, (title, tiles) in zip(heights, rows, strict=True):
        if title:
            write(gap, y, title, room, bold=True)
            y += heading
        for column, tile in enumerate(tiles):
            x = gap + column * width
            write(x, y, tile.title, width - gap)
            figure.pictures.append((x, y + line_height, tile.picture))
            for number, note in enumerate(tile.notes):
                below = y + line_height + tile.picture.height + number * line_height + round(2 * zoom)
                write(x, below, note, room if columns == 1 else width - gap, fill=_SECONDARY)
        y += height
    write(gap, y, low, room)
    x = gap + round(text.getlength(low)) + gap // 2
    colors = bar(style, (round(zoom * _BAR[0]), round(zoom * _BAR[1])))
    figure.pictures.append((x, y + round(zoom), colors))
    x += colors.width + gap // 2
    write(x, y, high, room - x)
    unit = "Scale and peaks are multiples of an even share, 1 / number of cells"
    write(gap, y + line_height, unit, room, fill=_SECONDARY)
    return figure
