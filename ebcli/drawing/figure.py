"""Figures, which are pictures and words at their places: the panel of a photo, contact sheets, and answers."""

import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw
from PIL.ImageFont import FreeTypeFont

from ebcli.datatypes.arrays import FloatArray
from ebcli.datatypes.explanation import Box, Explanation, Size, Subject
from ebcli.drawing.frame_maps import FrameMaps, Frames, MapsOfImage
from ebcli.drawing.legend import (
    bar,
    font,
    in_lines,
    printable,
    scale_labels,
    shade,
    truncate,
    with_bars,
    write_ends,
)
from ebcli.drawing.overlay import is_blank_on, resize
from ebcli.drawing.painters import Color
from ebcli.drawing.style import DrawingStyle
from ebcli.files.clips import Clips, Slices
from ebcli.files.encoding import SOFTWARE, encode_picture, shorten
from ebcli.files.images import to_rgb
from ebcli.files.media.medium import DisplayFrame
from ebcli.files.naming import FIGURE_FORMATS

COLUMNS = 4  # if each class has a single map
MOST_SHOWN = 12  # frames of a contact sheet
_WIDE = 2.0  # times as wide as high: such photos are stacked, and larger
_POINTS = 72  # per inch
# In pixels at 100 dpi
_TEXT = 13  # font sizes
_TITLE = 16
_LINE = 19
_GAP = 16
_TILE = 300  # the longer side of each tile's picture
_NARROWEST = 80  # room for the notes below a picture
_MOST_LINES = 4  # of a text
_BAR_WIDTH = 240
_BAR_SHARE = 0.3  # of the width of a figure, at most
_BAR_HEIGHT = 14
_ANSWER_TEXT = 18
_ANSWER_LINE = 28
BLACK = (0, 0, 0)
SECONDARY = (90, 90, 90)


class Words(NamedTuple):
    """A line of text; sizes are in pixels."""

    left: int
    top: int
    text: str
    size: int
    bold: bool = False
    fill: Color = BLACK

    @property
    def font(self) -> FreeTypeFont:
        return font(self.size, self.bold)


@dataclass
class Figure:
    """Pictures and words on white.

    Attributes:
        dpi: pixels per inch.
        width, height: in pixels. Lines and tiles are added at the foot, so the figure grows.
        pictures: each with its left and top, RGB.
        words: lines of text, fitted into their room.
    """

    dpi: int
    width: int = 0
    height: int = 0
    pictures: list[tuple[int, int, Image.Image]] = field(default_factory=list)
    words: list[Words] = field(default_factory=list)

    def pixels(self, length: float) -> int:
        """A length in pixels at 100 dpi, in pixels of this figure."""
        return round(length * self.dpi / 100)

    @property
    def gap(self) -> int:
        """The space around pictures and words."""
        return self.pixels(_GAP)

    @property
    def line(self) -> int:
        """The height of a line."""
        return self.pixels(_LINE)

    @property
    def letters(self) -> FreeTypeFont:
        """The font of all words but titles."""
        return font(self.pixels(_TEXT))

    def lines(self, text: str, room: int, bold: bool = False) -> list[str]:
        """A text in at most ``_MOST_LINES`` lines that fit into the room, shortened at its end."""
        letters = font(self.pixels(_TITLE if bold else _TEXT), bold)
        text = printable(text[: _MOST_LINES * room])  # letters are wider than a pixel
        lines = [truncate(line, letters, room) for line in in_lines(text, letters, room)]
        if len(lines) > _MOST_LINES:
            lines[_MOST_LINES - 1 :] = [f"{lines[_MOST_LINES - 1]}…"]
        return lines

    def write(
        self, left: int, top: int, text: str, room: int | None = None, bold: bool = False, fill: Color = BLACK
    ) -> int:
        """Add words in lines that fit into the room: by default, up to a gap at the right.

        Returns:
            The top of what follows below.
        """
        if room is None:
            room = self.width - self.gap - left
        size = self.pixels(_TITLE if bold else _TEXT)
        for line in self.lines(text, room, bold):
            self.words.append(Words(left, top, line, size, bold, fill))
            top += self.line
        return top

    def write_line(self, text: str, bold: bool = False, fill: Color = BLACK) -> None:
        """Add words at the foot."""
        self.height = self.write(self.gap, self.height, text, bold=bold, fill=fill)

    def write_title(self, name: str, subtitle: str, style: DrawingStyle) -> None:
        """Add the first two lines, if the style has them."""
        self.height = self.gap
        if not style.header:
            return
        letters = font(self.pixels(_TITLE), bold=True)
        # a path, whose end says most
        self.write_line(truncate(printable(name), letters, self.width - 2 * self.gap), bold=True)
        self.write_line(subtitle, fill=SECONDARY)

    def add_tile(self, tile: "Tile", left: int, top: int, room: int) -> None:
        """Add a tile; the figure grows as far as it reaches."""
        top = self.write(left, top, tile.title, room)
        self.pictures.append((left, top, tile.picture))
        top += tile.picture.height
        for note in tile.notes:
            top = self.write(left, top + self.pixels(2), note, room, fill=SECONDARY) - self.pixels(2)
        self.height = max(self.height, top)

    def write_scale(self, style: DrawingStyle, labels: tuple[str, str]) -> None:
        """Add the color scale at the foot, with its ends in words."""
        low, high = labels
        share = round(_BAR_SHARE * self.width)
        colors = bar(style, (min(self.pixels(_BAR_WIDTH), share), self.pixels(_BAR_HEIGHT)))
        low = truncate(printable(low), self.letters, share)  # a class, on a scale between two
        top = self.height
        self.write_line(low)
        left = self.gap + round(self.letters.getlength(low)) + self.gap // 2
        self.pictures.append((left, top + self.pixels(1), colors))
        self.height = max(self.height, self.write(left + colors.width + self.gap // 2, top, high))

    def image(self) -> Image.Image:
        """The figure as an RGB image."""
        image = Image.new("RGB", (self.width, self.height), "white")
        image.info["dpi"] = (self.dpi, self.dpi)
        for left, top, picture in self.pictures:
            image.paste(picture, (left, top))
        draw = ImageDraw.Draw(image)
        for words in self.words:
            draw.text((words.left, words.top), words.text, font=words.font, fill=words.fill)
        return image

    def encode(self, suffix: str, facts: Mapping[str, str]) -> bytes:
        """The content of a file.

        Args:
            suffix: a suffix of ``encode_picture``, or one of ``FIGURE_FORMATS``.
            facts: how it was made, see ``encode_picture``; stored as JSON in the subject of a PDF file and in the
                description of an SVG file.

        Raises:
            ImageError: the format cannot hold the figure.
        """
        if suffix in FIGURE_FORMATS:
            return self._vector(suffix, facts)
        return encode_picture(self.image(), suffix, facts)

    def _vector(self, suffix: str, facts: Mapping[str, str]) -> bytes:
        """SVG or PDF, in which pictures stay as they are and words stay text; PDF files contain the font.

        Images are drawn without matplotlib, which takes many times as long.
        """
        from matplotlib import figure, style

        facts_json = json.dumps(shorten(facts))
        metadata = {"Creator": SOFTWARE, "Subject": facts_json, "CreationDate": None}
        if suffix == "svg":
            metadata = {"Creator": SOFTWARE, "Description": facts_json, "Date": None}
        # not the user's settings: a matplotlibrc in the working directory could start LaTeX
        options = {
            "svg.fonttype": "none",
            "svg.hashsalt": SOFTWARE,
            "pdf.fonttype": 42,
            "image.composite_image": False,
        }
        content = io.BytesIO()
        with style.context(options, after_reset=True):
            page = figure.Figure((self.width / self.dpi, self.height / self.dpi), self.dpi)
            axes = page.add_axes((0, 0, 1, 1), autoscale_on=False)
            axes.set(xlim=(0, self.width), ylim=(self.height, 0))
            axes.set_axis_off()
            for left, top, picture in self.pictures:
                extent = left, left + picture.width, top + picture.height, top
                axes.imshow(np.asarray(picture), aspect="auto", interpolation="none", extent=extent)
            for words in self.words:
                ascent, _ = words.font.getmetrics()
                axes.text(
                    words.left,
                    words.top + ascent,  # the baseline
                    words.text,
                    size=words.size * _POINTS / self.dpi,
                    weight="bold" if words.bold else "normal",
                    color=[value / 255 for value in words.fill],
                    parse_math=False,
                )
            page.savefig(content, format=suffix, metadata=metadata)
        return content.getvalue()


class Tile(NamedTuple):
    """A picture with a title above it and notes below."""

    picture: Image.Image
    title: str
    notes: Sequence[str]


class Row(NamedTuple):
    """Tiles below a heading, which may be empty."""

    heading: str
    tiles: list[Tile]


def panel(frames: Frames, maps: MapsOfImage, name: str, subtitle: str) -> Figure:
    """Draw all maps of a photo in one figure.

    With one map per class, the classes follow the photo from left to right. With several layers, or with other
    methods' maps beside, each class has a row. Photos that are much wider than high are stacked instead.

    Args:
        frames: the photo, a clip of one frame.
        maps: the maps; layers are shown in order. The style ``side-by-side`` becomes ``heatmap``, as the photo is there
            anyway.
        name: the photo's name, the title of the figure.
        subtitle: the subtitle: model, layer and method.
    """
    image = frames[0].image
    style = without_photo_beside(maps[0].style, "heatmap")
    small = frames[0]._replace(image=small_frame(image, style))
    photo = Tile(small.image.copy(), "photo", [f"{image.width} × {image.height} pixels"])
    rows = _rows(maps, photo, small, style)
    columns = max(len(row.tiles) for row in rows)
    if columns == 2:
        rows = [Row("", [photo, *(row.tiles[1]._replace(title=row.heading) for row in rows)])]
        columns = COLUMNS
    if _is_wide(image):
        columns = 1
    first = maps[0].map
    sufficiency = ""
    if first.sufficiency is not None:
        sufficiency = first.sufficiency.words
        if len(maps) > 1:
            sufficiency = f"{first.subject.title}: {sufficiency}"
    has_faint = any(frame_maps.faded_style != frame_maps.style for frame_maps in maps)
    scale = scale_labels(style, _finest(maps), against=first.against, has_faint=has_faint)
    return lay_out(name, subtitle, rows, style, scale, sufficiency, columns)


def _rows(maps: MapsOfImage, photo: Tile, small: DisplayFrame, style: DrawingStyle) -> list[Row]:
    """A row of tiles for each subject, with the photo first."""
    rows: dict[Subject, Row] = {}
    names_methods = len({frame_maps.map.method for frame_maps in maps}) > 1 or bool(maps[0].map.method_maps)
    for frame_maps in maps:
        frame_maps.draw_outlines(photo.picture, photo.picture.width)
        row = rows.setdefault(frame_maps.map.subject, Row(frame_maps.map.title, [photo]))
        row.tiles.extend(_map_tiles(frame_maps, small, style, names_methods))
    return list(rows.values())


def _finest(maps: MapsOfImage) -> int:
    """The largest number of cells of some maps."""
    return max(frame_maps.map.values.size for frame_maps in maps)


def _is_wide(image: Image.Image) -> bool:
    return image.width >= _WIDE * image.height


def small_frame(image: Image.Image, style: DrawingStyle) -> Image.Image:
    """A photo or a frame at the size of a tile; a wide one is stacked, so it may be twice as long."""
    longest = style.cell_size or round(_TILE * style.dpi / 100)
    if _is_wide(image):
        longest *= 2
    return resize(image, longest)


def map_tile(maps: FrameMaps, frame: DisplayFrame, title: str, notes: Sequence[str] = ()) -> Tile:
    """The tile of a map over a small frame; the last notes are its peak and its strength."""
    region = maps.map.placement.rescale(maps.size, frame.image.size)
    peak = peak_note(maps.map_at(frame), region, frame.image.size, maps.style)
    image = with_bars(to_rgb(maps.draw(frame)), maps.map.channels)
    notes = [
        *notes,
        peak,
        *maps.map.evidence_words,
        *maps.map.input_words,
    ]  # in short lines, as cells can be narrow
    return Tile(image, title, notes)


def without_photo_beside(style: DrawingStyle, name: str) -> DrawingStyle:
    """The style, or another one instead of ``side-by-side``, which would be too wide."""
    return replace(style, name=name) if style.name == "side-by-side" else style


def _map_tiles(
    maps: FrameMaps, frame: DisplayFrame, style: DrawingStyle, names_methods: bool
) -> Iterator[Tile]:
    """The tiles of a map, and of those beside it, over a small photo; with the names of methods if asked."""
    map_ = maps.map
    items = [map_]
    for method, values in map_.method_maps.items():
        items.append(replace(map_, values=values, method=method, noise=None))
    with_mass = next((item for item in items[1:] if item.method == "marginal"), map_)
    for item in items:
        height, width = item.values.shape
        notes = [f"{width} × {height} cells"]
        if item is with_mass and map_.mass is not None:
            mass = f"mass {map_.mass:.3f}"
            if item.method != "marginal":  # a contrastive map sums to 0: the mass is that of another map
                mass = f"marginal {mass}"
            notes.append(mass)
        title = map_.layer
        if names_methods:
            title = f"{title}, {item.method}"
        yield map_tile(FrameMaps.from_map(item, maps.size, None, style, maps.number), frame, title, notes)


def peak_note(map_: FloatArray, region: Box, size: Size, style: DrawingStyle) -> str:
    """The peak of a map drawn in a region of a picture of a size (width, height), in words."""
    if not is_blank_on(size, map_, region, style.signed):
        return f"peak {map_.max() * map_.size:.3g}"
    return "blank map" if np.isfinite(map_).all() else "blank map: not finite"


def lay_out(
    name: str,
    subtitle: str,
    rows: Sequence[Row],
    style: DrawingStyle,
    scale: tuple[str, str],
    sufficiency: str = "",
    columns: int = COLUMNS,
) -> Figure:
    """Lay out tiles below a title, those of each row below its heading, with the color scale at the bottom.

    Args:
        name: the title.
        subtitle: the subtitle.
        rows: the headings and tiles.
        style: the colors, and the resolution of the figure.
        scale: the ends of the color scale in words, see ``scale_labels``.
        sufficiency: what is said of the first map below the subtitle.
        columns: longer rows are split.
    """
    figure = Figure(style.dpi)
    gap = figure.gap
    columns = min(columns, max(len(row.tiles) for row in rows))
    room = max(tile.picture.width for row in rows for tile in row.tiles)
    room = max(figure.pixels(_NARROWEST), room)
    figure.width = gap + columns * (room + gap)
    figure.write_title(name, subtitle, style)
    if sufficiency:
        for words in in_lines(printable(sufficiency), figure.letters, figure.width - 2 * gap):
            figure.write_line(words)
    if style.header or sufficiency:
        figure.height += gap
    for row in rows:
        if row.heading:
            figure.write_line(row.heading, bold=True)
            figure.height += gap // 2
        for start in range(0, len(row.tiles), columns):
            top = figure.height
            tiles = row.tiles[start : start + columns]
            title_lines = [len(figure.lines(tile.title, room)) for tile in tiles]
            for column, tile in enumerate(tiles):
                notes = [", ".join(tile.notes)] if columns == 1 else tile.notes
                blank_lines = max(title_lines) - title_lines[column]  # so that the pictures have the same top
                left = gap + column * (room + gap)
                tile_top = top + blank_lines * figure.line
                figure.add_tile(tile._replace(notes=notes), left, tile_top, room)
            figure.height += gap
    figure.write_scale(style, scale)
    figure.write_line("Scale and peaks are multiples of an even share, 1 / number of cells", fill=SECONDARY)
    figure.height += gap
    return figure


def sheet_frames(clips: Clips) -> list[int]:
    """The numbers of the frames that a contact sheet shows, evenly spread over those that have maps."""
    frames = [frame.number for frame in clips.explained_frames()]
    chosen = np.linspace(0, len(frames) - 1, min(MOST_SHOWN, len(frames)))
    return [frames[i] for i in np.unique(chosen.round().astype(int))]


def contact_sheet(frames: Frames, maps: MapsOfImage, name: str, subtitle: str) -> Figure:
    """Draw some frames of a video, or slices of a volume, with their maps in one figure.

    Args:
        frames: the frames, reduced by ``small_frame``.
        maps: the maps, row by row.
        name: the video's name, the title of the figure.
        subtitle: the subtitle: model, layer and method.
    """
    rows = []
    has_layers = len({frame_maps.map.layer for frame_maps in maps}) > 1
    for frame_maps in maps:
        style = replace(without_photo_beside(frame_maps.style, "overlay"), caption=False)
        row_maps = replace(frame_maps, style=style)
        clips = frame_maps.clips
        tiles = [map_tile(row_maps, frame, clips.title(frame.number) if clips else "") for frame in frames]
        if isinstance(clips, Slices):
            for tile in tiles:
                write_ends(tile.picture, clips.ends(0) + clips.ends(1), round(_TEXT * style.dpi / 100))
        heading = frame_maps.map.subject.title
        if has_layers:
            heading = f"{heading}, {frame_maps.map.layer}"
        rows.append(Row(heading, tiles))
    style = row_maps.faded_style
    if len({frame_maps.faded_style.vmax for frame_maps in maps}) > 1:  # each on a scale of its own
        style = replace(row_maps.style, vmax=None)
    has_faint = any(frame_maps.map.brightness(frame_maps.style.signed) < 1 for frame_maps in maps)
    return lay_out(name, subtitle, rows, style, scale_labels(style, _finest(maps), has_faint=has_faint))


def answer_figure(
    explanation: Explanation, frames: Frames, maps: MapsOfImage, name: str, subtitle: str
) -> Figure:
    """The question, the answer with its words shaded by their shares, and the panel of their maps.

    Args:
        explanation: the question, the answer and the maps.
        frames, maps, name, subtitle: as for ``panel``.
    """
    maps_panel = panel(frames, maps, name, subtitle)
    figure = Figure(maps_panel.dpi, maps_panel.width)
    size = figure.pixels(_ANSWER_TEXT)
    line = figure.pixels(_ANSWER_LINE)
    margin = figure.gap
    letters = font(size)
    x = y = margin
    parts = [(explanation.question, None), ("\n", None), *explanation.parts]
    for number, (text, map_) in enumerate(parts):
        fill = BLACK if number else SECONDARY
        for piece in re.findall(r"\n|\s|\S{1,24}", text):
            label = " " if piece.isspace() else printable(piece)
            width = round(letters.getlength(label))
            if piece == "\n" or (x > margin and x + width > figure.width - margin):
                x = margin
                y += line
            if label == " ":
                if x > margin:  # a line begins with a word
                    x += width
                continue
            if map_ is not None:
                patch = Image.new("RGB", (width, size + line // 4), shade(map_.share or 0.0))
                figure.pictures.append((x, y, patch))
            figure.words.append(Words(x, y, label, size, fill=fill))
            x += width
    top = y + line + margin
    figure.height = top + maps_panel.height
    figure.pictures += [(left, down + top, picture) for left, down, picture in maps_panel.pictures]
    figure.words += [words._replace(top=words.top + top) for words in maps_panel.words]
    return figure
