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

from ebcli.datatypes.explanation import Box, Explanation, Map, Size, Subject
from ebcli.drawing.frame_maps import FrameMaps
from ebcli.drawing.legend import bar, font, in_lines, printable, scale_labels, shade, truncate, with_bars
from ebcli.drawing.overlay import is_blank_on, resize
from ebcli.drawing.painters import Color, Values
from ebcli.drawing.style import DrawingStyle
from ebcli.files.clips import Clips
from ebcli.files.encoding import SOFTWARE, encode_picture, shorten
from ebcli.files.images import to_rgb
from ebcli.files.media.medium import DisplayFrame
from ebcli.files.naming import FIGURE_FORMATS

COLUMNS = 4  # if each class has a single map
MOST_SHOWN = 12  # frames of a contact sheet
_WIDE = 2.0  # times as wide as high: such photos are stacked, and larger
_POINTS = 72  # per inch
# In pixels at 100 dpi
TEXT, _TITLE = 13, 16  # font sizes
LINE = 19
GAP = 16
_TILE = 300  # the longer side of each tile's picture
_NARROWEST = 150  # room for the notes below a picture
_LEGEND = 630, 900  # least and most room for the color scale and its words
_BAR = 240, 14
_ANSWER = 18, 28, 16  # its letters, lines and margin
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
        width, height: in pixels.
        pictures: each with its left and top, RGB.
        words: lines of text, fitted into their room.
    """

    dpi: int
    width: int
    height: int = 0
    pictures: list[tuple[int, int, Image.Image]] = field(default_factory=list)
    words: list[Words] = field(default_factory=list)

    def zoom(self, *lengths: float) -> list[int]:
        """Lengths in pixels at 100 dpi, in pixels of this figure."""
        return [round(length * self.dpi / 100) for length in lengths]

    def write(
        self, left: int, top: int, text: str, room: int | None = None, bold: bool = False, fill: Color = BLACK
    ) -> None:
        """Add a line of text, shortened to the room there is: by default, up to a gap at the right."""
        size, gap = self.zoom(_TITLE if bold else TEXT, GAP)
        if room is None:
            room = self.width - gap - left
        self.words.append(Words(left, top, truncate(printable(text), font(size, bold), room), size, bold, fill))

    def write_title(self, name: str, subtitle: str) -> None:
        """Add the first two lines."""
        gap, line = self.zoom(GAP, LINE)
        self.write(gap, gap, name, bold=True)
        self.write(gap, gap + line, subtitle, fill=SECONDARY)

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
        """SVG or PDF, in which pictures stay as they are and words stay text; PDF files contain the font."""
        from matplotlib import figure, style

        facts_json = json.dumps(shorten(facts))
        metadata = {"Subject": facts_json, "CreationDate": None}
        if suffix == "svg":
            metadata = {"Description": facts_json, "Date": None}
        # not the user's settings: a matplotlibrc in the working directory could start LaTeX
        options = {"svg.fonttype": "none", "svg.hashsalt": SOFTWARE, "pdf.fonttype": 42, "image.composite_image": False}
        content = io.BytesIO()
        with style.context(options, after_reset=True):
            page = figure.Figure((self.width / self.dpi, self.height / self.dpi), self.dpi)
            axes = page.add_axes((0, 0, 1, 1))
            axes.set_axis_off()
            for left, top, picture in self.pictures:
                place = left, left + picture.width, top + picture.height, top
                axes.imshow(np.asarray(picture), extent=place, interpolation="none", aspect="auto")
            for words in self.words:
                baseline = words.top + words.font.getmetrics()[0]  # where matplotlib's text begins
                points = words.size * _POINTS / self.dpi
                weight = "bold" if words.bold else "normal"
                color = [value / 255 for value in words.fill]
                axes.text(words.left, baseline, words.text, size=points, weight=weight, color=color, parse_math=False)
            axes.set(xlim=(0, self.width), ylim=(self.height, 0))
            page.savefig(content, format=suffix, metadata={"Creator": SOFTWARE, **metadata})
        return content.getvalue()


class Tile(NamedTuple):
    """A picture with a title above it and notes below."""

    picture: Image.Image
    title: str
    notes: tuple[str, ...]


Row = tuple[str, Sequence[Tile]]  # with its heading


def panel(frames: Sequence[DisplayFrame], maps: Sequence[FrameMaps], name: str, subtitle: str) -> Figure:
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
    photo = Tile(small.image.copy(), "photo", (f"{image.width} × {image.height} pixels",))
    rows: dict[Subject, list[Tile]] = {}
    titles: dict[Subject, str] = {}
    for frame_maps in maps:
        frame_maps.draw_outlines(photo.picture, photo.picture.width)
        subject = frame_maps.map.subject
        titles[subject] = frame_maps.map.title
        for map_, title, notes in _maps(frame_maps.map):
            panel_maps = FrameMaps.from_map(map_, frame_maps.size, None, style, frame_maps.number)
            rows.setdefault(subject, [photo]).append(map_tile(panel_maps, small, title, notes))
    lines: list[Row] = []
    if all(len(tiles) == 2 for tiles in rows.values()):
        flow = [photo, *(tiles[1]._replace(title=titles[subject]) for subject, tiles in rows.items())]
        lines = split_rows("", flow, 1 if _is_wide(image) else COLUMNS)
    else:
        for subject, tiles in rows.items():
            lines += split_rows(titles[subject], tiles, 1 if _is_wide(image) else len(tiles))
    first = maps[0].map
    sufficiency = first.sufficiency.words if first.sufficiency else ""
    if sufficiency and len(maps) > 1:
        sufficiency = f"{first.subject.title}: {sufficiency}"
    has_faint = any(frame_maps.faded_style != frame_maps.style for frame_maps in maps)
    scale = scale_labels(style, _finest(maps), sides=(first.against, "the class"), has_faint=has_faint)
    return lay_out(name, subtitle, lines, style, scale, sufficiency)


def _finest(maps: Sequence[FrameMaps]) -> int:
    """The largest number of cells of some maps."""
    return max(frame_maps.map.values.size for frame_maps in maps)


def split_rows(heading: str, tiles: Sequence[Tile], columns: int) -> list[Row]:
    """Tiles in rows of so many columns, below one heading."""
    return [("" if start else heading, tiles[start : start + columns]) for start in range(0, len(tiles), columns)]


def _is_wide(image: Image.Image) -> bool:
    return image.width >= _WIDE * image.height


def small_frame(image: Image.Image, style: DrawingStyle) -> Image.Image:
    """A photo or a frame at the size of a tile; a wide one is stacked, so it may be twice as long."""
    longest = style.cell_size or round(_TILE * style.dpi / 100)
    return resize(image, 2 * longest if _is_wide(image) else longest)


def map_tile(maps: FrameMaps, frame: DisplayFrame, title: str, notes: Sequence[str] = ()) -> Tile:
    """The tile of a map over a small frame; the last notes are its peak and its strength."""
    region = maps.map.placement.rescale(maps.size, frame.image.size)
    peak = peak_note(maps.map_at(frame), region, frame.image.size, maps.style)
    image = with_bars(to_rgb(maps.draw(frame)), maps.map.channels)
    return Tile(image, title, (*notes, peak, *maps.map.evidence_words))  # in short lines, as cells can be narrow


def without_photo_beside(style: DrawingStyle, name: str) -> DrawingStyle:
    """The style, or another one instead of ``side-by-side``, which would be too wide."""
    return replace(style, name=name) if style.name == "side-by-side" else style


def _maps(map_: Map) -> Iterator[tuple[Map, str, Sequence[str]]]:
    """A map and those beside it, each with its title and notes."""
    others = [replace(map_, values=values, method=method, noise=None) for method, values in map_.method_maps.items()]
    with_mass = next((other for other in others if other.method == "marginal"), map_)
    for item in (map_, *others):
        height, width = item.values.shape
        notes = [f"{width} × {height} cells"]
        if item is with_mass and map_.mass is not None:  # a contrastive map sums to 0: then it is that of another map
            notes.append(f"{'' if item.method == 'marginal' else 'marginal '}mass {map_.mass:.3f}")
        yield item, f"{map_.layer}, {item.method}" if others else map_.layer, notes


def peak_note(map_: Values, region: Box, size: Size, style: DrawingStyle) -> str:
    """The peak of a map drawn in a region of a picture of a size (width, height), in words."""
    if not is_blank_on(size, map_, region, style.signed):
        return f"peak {map_.max() * map_.size:.3g}"
    return "blank map" if np.isfinite(map_).all() else "blank map: not finite"


def lay_out(
    name: str, subtitle: str, rows: Sequence[Row], style: DrawingStyle, scale: tuple[str, str], sufficiency: str = ""
) -> Figure:
    """Lay out rows of tiles below a title, each row below its heading, with the color scale at the bottom.

    Args:
        name: the title.
        subtitle: the subtitle.
        rows: the headings and tiles.
        style: the colors, and the resolution of the figure.
        scale: the ends of the color scale in words, see ``scale_labels``.
        sufficiency: what is said of the first map below the subtitle.
    """
    columns = max(len(tiles) for _, tiles in rows)
    if columns == 1:  # wide pictures one below another, with their notes in one line
        rows = [(title, [tile._replace(notes=(", ".join(tile.notes),)) for tile in tiles]) for title, tiles in rows]
    figure = Figure(style.dpi, 0)
    gap, line, narrowest, minimum, maximum, size, one_pixel, two = figure.zoom(
        GAP, LINE, _NARROWEST, *_LEGEND, TEXT, 1, 2
    )
    bar_width, bar_height = figure.zoom(*_BAR)
    colors = bar(style, (bar_width, bar_height))
    text = font(size)
    low, high = scale
    legend = min(maximum, max(minimum, round(colors.width + text.getlength(low + high)) + 4 * gap))
    width = max(narrowest, *(tile.picture.width for _, tiles in rows for tile in tiles)) + gap
    figure.width = gap + max(columns * width, legend)
    figure.write_title(name, subtitle)
    y = gap + 2 * line
    if sufficiency:
        for words in in_lines(printable(sufficiency), text, figure.width - 2 * gap):
            figure.write(gap, y, words)
            y += line
    y += gap
    for title, tiles in rows:
        if title:
            figure.write(gap, y, title, bold=True)
            y += line + gap // 2
        for column, tile in enumerate(tiles):
            x = gap + column * width
            figure.write(x, y, tile.title, width - gap)
            figure.pictures.append((x, y + line, tile.picture))
            for number, note in enumerate(tile.notes, 1):
                note_top = y + tile.picture.height + number * line + two
                figure.write(x, note_top, note, None if columns == 1 else width - gap, fill=SECONDARY)
        y += max(tile.picture.height for tile in tiles) + (1 + max(len(tile.notes) for tile in tiles)) * line + gap
    x = gap + round(text.getlength(low)) + gap // 2
    figure.write(gap, y, low)
    figure.pictures.append((x, y + one_pixel, colors))
    figure.write(x + colors.width + gap // 2, y, high)
    figure.write(gap, y + line, "Scale and peaks are multiples of an even share, 1 / number of cells", fill=SECONDARY)
    figure.height = y + 2 * line + gap
    return figure


def sheet_frames(clips: Clips) -> list[int]:
    """The numbers of the frames that a contact sheet shows, evenly spread over those that have maps."""
    frames = [frame.number for frame in clips.explained_frames()]
    chosen = np.linspace(0, len(frames) - 1, min(MOST_SHOWN, len(frames)))
    return [frames[i] for i in np.unique(chosen.round().astype(int))]


def contact_sheet(frames: Sequence[DisplayFrame], maps: Sequence[FrameMaps], name: str, subtitle: str) -> Figure:
    """Draw some frames of a video, or slices of a volume, with their maps in one figure.

    Args:
        frames: the frames, reduced by ``small_frame``.
        maps: the maps, row by row.
        name: the video's name, the title of the figure.
        subtitle: the subtitle: model, layer and method.
    """
    lines: list[Row] = []
    has_layers = len({row.map.layer for row in maps}) > 1
    for row in maps:
        row_maps = replace(row, style=replace(without_photo_beside(row.style, "overlay"), caption=False))
        tiles = [map_tile(row_maps, frame, row.clips.title(frame.number) if row.clips else "") for frame in frames]
        heading = f"{row.map.subject.title}, {row.map.layer}" if has_layers else row.map.subject.title
        lines += split_rows(heading, tiles, COLUMNS)
    style = row_maps.faded_style
    if len({row.faded_style.vmax for row in maps}) > 1:  # each on a scale of its own
        style = replace(row_maps.style, vmax=None)
    has_faint = any(row.map.brightness(row.style.signed) < 1 for row in maps)
    scale = scale_labels(style, _finest(maps), has_faint=has_faint)
    return lay_out(name, subtitle, lines, style, scale)


def answer_figure(
    explanation: Explanation, frames: Sequence[DisplayFrame], maps: Sequence[FrameMaps], name: str, subtitle: str
) -> Figure:
    """The question, the answer with its words shaded by their shares, and the panel of their maps.

    Args:
        explanation: the question, the answer and the maps.
        frames, maps, name, subtitle: as for ``panel``.
    """
    maps_panel = panel(frames, maps, name, subtitle)
    figure = Figure(maps_panel.dpi, maps_panel.width)
    size, line, margin = figure.zoom(*_ANSWER)
    letters = font(size)
    x, y = margin, margin
    for number, (text, word) in enumerate([(explanation.question, None), ("\n", None), *explanation.parts]):
        for piece in re.findall(r"\n|\s|\S{1,24}", text):
            words = Words(x, y, printable(piece), size, fill=BLACK if number else SECONDARY)
            width = round(letters.getlength(words.text))
            if piece == "\n" or (x > margin and x + width > figure.width - margin):
                x = margin
                y += line
            if not piece.isspace():
                if word is not None:
                    patch = Image.new("RGB", (width, size + line // 4), shade(word.share or 0.0))
                    figure.pictures.append((x, y, patch))
                figure.words.append(words._replace(left=x, top=y))
                x += width
            elif x > margin:
                x += round(letters.getlength(" "))
    top = y + line + margin
    figure.height = top + maps_panel.height
    figure.pictures += [(left, down + top, picture) for left, down, picture in maps_panel.pictures]
    figure.words += [words._replace(top=words.top + top) for words in maps_panel.words]
    return figure
