"""A figure: pictures and words at their places. As an image, or as SVG and PDF, in which words stay text."""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from ebcli.drawing.legend import fitted, font, printable
from ebcli.files.encoding import SOFTWARE, encode_picture, shortened
from ebcli.files.naming import FIGURE_FORMATS

_POINTS = 72  # per inch
# In pixels at 100 dpi
TEXT, _TITLE = 13, 16  # font sizes
LINE, GAP = 19, 16
SECONDARY = (90, 90, 90)

Color = tuple[int, int, int]


class Words(NamedTuple):
    """A line of text; sizes are in pixels."""

    left: int
    top: int
    text: str
    size: int
    bold: bool
    fill: Color


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

    def zoomed(self, *lengths: float) -> list[int]:
        """Lengths in pixels at 100 dpi, in pixels of this figure."""
        return [round(one * self.dpi / 100) for one in lengths]

    def write(
        self, left: int, top: int, text: str, room: int | None = None, bold: bool = False, fill: Color = (0, 0, 0)
    ) -> None:
        """Add a line of text, shortened to the room there is: by default, up to a gap at the right."""
        (size,), (gap,) = self.zoomed(_TITLE if bold else TEXT), self.zoomed(GAP)
        room = self.width - gap - left if room is None else room
        self.words.append(Words(left, top, fitted(printable(text), font(size, bold), room), size, bold, fill))

    def image(self) -> Image.Image:
        """The figure as an RGB image."""
        image = Image.new("RGB", (self.width, self.height), "white")
        image.info["dpi"] = (self.dpi, self.dpi)
        for left, top, picture in self.pictures:
            image.paste(picture, (left, top))
        draw = ImageDraw.Draw(image)
        for one in self.words:
            draw.text((one.left, one.top), one.text, font=font(one.size, one.bold), fill=one.fill)
        return image

    def encoded(self, suffix: str, facts: Mapping[str, str]) -> bytes:
        """The content of a file.

        Args:
            suffix: a suffix of ``encode_picture``, or one of ``FIGURE_FORMATS``.
            facts: how it was made, see ``encode_picture``; stored as JSON in the subject of a PDF file and in the
                description of an SVG file.

        Raises:
            ImageError: the format cannot hold the figure.
        """
        return self._vector(suffix, facts) if suffix in FIGURE_FORMATS else encode_picture(self.image(), suffix, facts)

    def _vector(self, suffix: str, facts: Mapping[str, str]) -> bytes:
        """SVG or PDF with the pictures as they are; PDF files contain the font."""
        from matplotlib import figure, style

        about = json.dumps(shortened(facts))
        metadata = {"Creator": SOFTWARE, "Subject": about, "CreationDate": None}
        if suffix == "svg":
            metadata = {"Creator": SOFTWARE, "Description": about, "Date": None}
        # not the user's settings: a matplotlibrc in the working directory could start LaTeX
        options = {"svg.fonttype": "none", "svg.hashsalt": SOFTWARE, "pdf.fonttype": 42, "image.composite_image": False}
        content, width, height = io.BytesIO(), self.width, self.height
        with style.context(options, after_reset=True):
            whole = figure.Figure((width / self.dpi, height / self.dpi), self.dpi)
            axes = whole.add_axes((0, 0, 1, 1))
            axes.set_axis_off()
            for left, top, picture in self.pictures:
                place = left, left + picture.width, top + picture.height, top
                axes.imshow(np.asarray(picture), extent=place, interpolation="none", aspect="auto")
            for one in self.words:
                baseline = one.top + font(one.size, one.bold).getmetrics()[0]  # where matplotlib's text begins
                points, weight = one.size * _POINTS / self.dpi, "bold" if one.bold else "normal"
                color = [value / 255 for value in one.fill]
                axes.text(one.left, baseline, one.text, size=points, weight=weight, color=color, parse_math=False)
            axes.set(xlim=(0, width), ylim=(height, 0))
            whole.savefig(content, format=suffix, metadata=metadata)
        return content.getvalue()
