"""Objects in a picture: their outlines in colors of their own; boxes have class and score."""

from collections.abc import Sequence

from PIL import Image, ImageDraw

from ebcli.drawing.lettering import fitted, font, printable
from ebcli.nouns.explanation import Subject

# Told apart by color-blind readers (Okabe and Ito 2008)
COLORS = ((86, 180, 233), (230, 159, 0), (240, 228, 66), (0, 200, 145), (204, 121, 167), (255, 130, 40))

Color = int | tuple[int, int, int]  # of a picture with a palette, or RGB

_LINES_ACROSS = 200  # the shorter side of a picture divided by the width of a line
_LETTERS_ACROSS = 28
_SMALLEST_TEXT = 10


def outlined(drawn: Image.Image, subject: Subject, number: int, scale: float, width: int) -> Image.Image:
    """Draw a subject's outlines over a picture, with class and score if it has a box.

    They are drawn on both sides of ``side-by-side`` pictures.

    Args:
        drawn: a picture of ``overlay.picture``, which is changed.
        subject: nothing is drawn if it has no outlines.
        number: which of the image's subjects it is, from 0; each has a color of its own.
        scale: pixels of the picture per pixel of the image.
        width: of the photo in the picture.
    """
    color = COLORS[number % len(COLORS)]
    for left in sorted({0, drawn.width - width}):
        polygons = [[(left + x * scale, y * scale) for x, y in points] for points in subject.outlines]
        traced(drawn, polygons, (0, 0, 0), color)
        if subject.box is not None:
            _label(
                drawn,
                subject.title,
                color,
                (left + subject.box.left * scale, subject.box.top * scale),
                (left, left + width),
            )
    return drawn


def traced(drawn: Image.Image, polygons: Sequence[Sequence[tuple[float, float]]], halo: Color, color: Color) -> None:
    """Draw closed polygons in a color with a halo, so that they are seen on any photo."""
    draw, thickness = ImageDraw.Draw(drawn), max(1, round(min(drawn.size) / _LINES_ACROSS))
    for fill, width in ((halo, 3 * thickness), (color, thickness)):
        for points in polygons:
            draw.line(points, fill=fill, width=width, joint="curve")


def _label(
    drawn: Image.Image, text: str, color: tuple[int, int, int], corner: tuple[float, float], across: tuple[int, int]
) -> None:
    """Text on a patch of a color above a corner, or below it at the edge of the picture; none in a tiny one."""
    room = across[1] - across[0]
    letters = font(max(_SMALLEST_TEXT, round(room / _LETTERS_ACROSS)))
    margin, height = round(letters.size) // 4, round(1.4 * letters.size)
    if height > drawn.height / 4:  # it would hide the map of a tiny picture
        return
    text = fitted(printable(text), letters, max(1, room - 2 * margin))
    wide = round(letters.getlength(text)) + 2 * margin
    x = max(across[0], min(round(corner[0]), across[1] - wide))
    y = round(corner[1]) - height
    y = y if y >= 0 else max(0, round(corner[1]))
    draw = ImageDraw.Draw(drawn)
    draw.rectangle((x, y, x + wide, y + height), fill=color)
    draw.text((x + margin, y + height // 10), text, font=letters, fill=(0, 0, 0))
