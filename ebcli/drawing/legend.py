"""What a picture says about its map: the letters, the color scale, and the caption below an overlay."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ebcli.datatypes.arrays import DoubleArray
from ebcli.datatypes.explanation import Box, Map, Size, Subject
from ebcli.drawing.painters import PAINTERS, Color, levels
from ebcli.drawing.style import DrawingStyle
from ebcli.files.images import to_rgb

_PHOTO_OF_BAR = (150, 150, 150)  # a uniform gray stands for the photo in the color scale
_LETTERS_ACROSS = 36  # the font size of a caption is the width of the picture divided by this
_SMALLEST_TEXT = 10
_SHADE = (255, 168, 54)  # behind a word that comes from the picture alone
_COLORS_OF_PAGES = 33  # odd, so that the middle of a signed scale is one of them
_BAR_SHARE = 0.4  # of the width of a caption
_LINES_ACROSS = 200  # the shorter side of a picture divided by the width of an outline
_LABELS_ACROSS = 28  # the width of a photo divided by the font size of labels

# Told apart by color-blind readers (Okabe and Ito 2008)
COLORS = ((86, 180, 233), (230, 159, 0), (240, 228, 66), (0, 200, 145), (204, 121, 167), (255, 130, 40))

_AnyColor = int | Color  # of a picture with a palette, or RGB


@lru_cache
def font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(_font_file(bold), size)


def _font_file(bold: bool = False) -> str:
    """DejaVu Sans, which comes with matplotlib; Pillow's own font has only ASCII letters."""
    from matplotlib import get_data_path

    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return f"{get_data_path()}/fonts/ttf/{name}"


@lru_cache
def _letters() -> frozenset[str]:
    """The characters that both weights of the font have."""
    from matplotlib.ft2font import FT2Font

    regular, bold = (FT2Font(_font_file(is_bold)).get_charmap() for is_bold in (False, True))
    return frozenset(map(chr, regular.keys() & bold.keys()))


def printable(text: str) -> str:
    """Text with control characters and missing glyphs as Python escapes."""

    def escape(letter: str) -> str:
        if letter.isprintable() and letter in _letters():
            return letter
        return letter.encode("unicode_escape").decode()

    return "".join(map(escape, text))


def truncate(text: str, font: ImageFont.FreeTypeFont, room: int) -> str:
    """Shorten a text to the room there is by dropping its middle."""
    # letters are wider than a pixel, and Pillow refuses to measure a million of them
    shorter = text
    length = max(2, min(len(text), room))
    while length > 1 and (len(shorter) > room or font.getlength(shorter) > room):
        shorter = f"{text[: length // 2]}…{text[len(text) - length // 2 :]}"
        length -= 1
    return shorter


def in_lines(text: str, font: ImageFont.FreeTypeFont, room: int) -> list[str]:
    """Break a text between words into lines that fit into the room, unless a word alone is longer."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".lstrip()
        if lines[-1] and font.getlength(longer) > room:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def bar(style: DrawingStyle, size: Size) -> Image.Image:
    """The colors of the scale from left to right, as they are over a uniform gray."""
    painter = PAINTERS["heatmap" if style.name == "side-by-side" else style.name]
    width, height = size
    values = np.tile(levels(np.linspace(0, 1, width), (0, 1)), (height, 1))
    photo = Image.new("RGB", size, _PHOTO_OF_BAR)
    return to_rgb(painter.inside(photo, Image.fromarray(values), style))


def bar_colors(style: DrawingStyle) -> list[list[int]]:
    """Some colors of the scale from left to right, for pages."""
    colors: list[list[int]] = np.asarray(bar(style, (_COLORS_OF_PAGES, 1)))[0].tolist()
    return colors


def scale_labels(
    style: DrawingStyle,
    finest: int,
    owner: str = "each map's ",
    against: str = "",
    target: str = "the class",
    has_faint: bool = False,
) -> tuple[str, str]:
    """The ends of the scale of maps, the finest of which has so many cells, in words.

    Args:
        style: the style.
        finest: the number of cells.
        owner: of which map the ends are.
        against, target: the classes that the lower and the upper end of a signed scale speak for, if there are two.
        has_faint: whether some maps are drawn faint, on a scale that ends above their maximum.
    """
    low = f"{style.vmin:g}"
    is_between_classes = style.signed and against
    if style.vmax is not None:
        high = f"{style.vmax:g}"
        if is_between_classes:
            return f"{against} −{high}", f"{high} {target}"
        return f"−{high}" if style.signed else low, high
    if is_between_classes:
        return against, target
    end = "greatest magnitude" if style.signed else "maximum"
    percentile = style.percentile_of(finest)
    if percentile != 100:
        values = "magnitudes" if style.signed else "positive values"
        if owner and style.percentile is None:
            end += f" (fine maps: percentile {percentile:g})"
        else:
            end = f"percentile {percentile:g} of its {values}"
    if has_faint:
        end += ", more where evidence is weak"
    if style.signed:
        return "−m", f"m, {owner}{end}"
    return low, owner + end


def add_caption(image: Image.Image, map_: Map, style: DrawingStyle, is_blank: bool) -> Image.Image:
    """A picture of a map with its caption and color scale in a strip below it; a blank map has no scale."""
    size = max(_SMALLEST_TEXT, round(min(image.width, 2 * image.height) / _LETTERS_ACROSS))
    letters = font(size)
    margin = size // 2
    line = round(1.5 * size)
    room = image.width - 2 * margin

    def fits(text: str) -> bool:
        return truncate(text, letters, room) == text

    title = map_.title
    details = ", ".join(map_.evidence_words)
    if map_.head is not None:
        details = f"head {map_.head}, {details}".removesuffix(", ")
    extra_lines = in_lines(map_.sufficiency.words, letters, room) if map_.sufficiency else []
    for words in map_.input_words:
        extra_lines += in_lines(words, letters, room)
    if is_blank:
        title = f"{map_.subject.title}, blank map"
    elif details and fits(details) and not fits(printable(f"{title}, {details}")):
        extra_lines.insert(0, details)
    elif details:
        title += f", {details}"
    height = image.height + (2 + len(extra_lines)) * line + margin
    result = Image.new(image.mode, (image.width, height), "white")
    result.paste(image)
    draw = ImageDraw.Draw(result)
    top = image.height + margin // 2

    def write(left: int, line_number: int, text: str) -> int:
        """Write on a line; returns where that goes on."""
        text = truncate(printable(text), letters, max(1, image.width - left - margin))
        draw.text((left, top + line_number * line), text, "black", letters)
        return left + round(letters.getlength(text)) + margin

    write(margin, 0, title)
    for number, words in enumerate(extra_lines, 2):
        write(margin, number, words)
    if not is_blank:
        low, high = scale_labels(style, map_.values.size, "", map_.against, map_.subject.name or "the class")
        colors = bar(style, (max(1, round(_BAR_SHARE * image.width)), size))
        left = write(margin, 1, low)
        result.paste(colors, (left, top + line + size // 8))
        write(left + colors.width + margin, 1, high)
    return result


def with_bars(picture: Image.Image, shares: Sequence[float]) -> Image.Image:
    """A picture above bars, one for each channel with its number from 1; without shares, the picture itself."""
    if not shares:
        return picture
    result = Image.new("RGB", (picture.width, picture.height + max(48, picture.width // 4)), "white")
    result.paste(picture)
    draw = ImageDraw.Draw(result)
    step = picture.width / len(shares)
    letters = font(max(1, min(13, round(0.6 * step))))
    foot = result.height - letters.size - 4
    full_height = foot - picture.height - 4
    largest = max(*shares, 1e-9)
    for number, share in enumerate(shares):
        left = number * step
        height = share / largest * full_height
        draw.rectangle((left + 1, foot - height, left + step - 2, foot), _PHOTO_OF_BAR)
        draw.text((left + step / 2, foot + 2), str(number + 1), "black", letters, anchor="ma")
    return result


def draw_outlines(image: Image.Image, subject: Subject, number: int, scale: float, width: int) -> None:
    """Draw a subject's outlines over a picture, with class and score if it has a box.

    They are drawn on both sides of ``side-by-side`` pictures.

    Args:
        image: a picture of ``overlay.picture``, which is changed.
        subject: nothing is drawn if it has no outlines.
        number: which of the image's subjects it is, from 0; each has a color of its own.
        scale: pixels of the picture per pixel of the image.
        width: of the photo in the picture.
    """
    color = COLORS[number % len(COLORS)]
    for left in sorted({0, image.width - width}):
        trace(image, [points * scale + (left, 0) for points in subject.outlines], (0, 0, 0), color)
        if subject.box is not None:
            _label(image, subject.title, color, subject.box.rescale((1, 1), (scale, scale)), left, width)


def trace(image: Image.Image, polygons: Sequence[DoubleArray], halo: _AnyColor, color: _AnyColor) -> None:
    """Draw closed polygons (N, 2) in a color with a halo, so that they are seen on any photo."""
    draw = ImageDraw.Draw(image)
    thickness = max(1, round(min(image.size) / _LINES_ACROSS))
    for fill, width in ((halo, 3 * thickness), (color, thickness)):
        for points in polygons:
            draw.line(points.ravel().tolist(), fill, width, joint="curve")


def _label(image: Image.Image, text: str, color: Color, box: Box, left: int, room: int) -> None:
    """Text on a patch of a color above a box, or in it at the edge of the picture; none in a tiny picture."""
    size = max(_SMALLEST_TEXT, round(room / _LABELS_ACROSS))
    margin = size // 4
    height = round(1.4 * size)
    if height > image.height / 4:  # it would hide the map
        return
    letters = font(size)
    text = truncate(printable(text), letters, max(1, room - 2 * margin))
    width = round(letters.getlength(text)) + 2 * margin
    x = left + max(0, min(round(box.left), room - width))
    y = max(0, round(box.top))
    if y >= height:
        y -= height
    draw = ImageDraw.Draw(image)
    draw.rectangle((x, y, x + width, y + height), color)
    draw.text((x + margin, y + height // 10), text, "black", letters)


def write_ends(image: Image.Image, ends: str, size: int, count: int = 1) -> None:
    """Write four letters at the left, the right, the top and the foot, so that they are seen on any picture.

    Args:
        image: the picture, which is changed; or several of one width, side by side.
        ends: the letters; empty for none.
        size: of the letters, in pixels.
        count: how many pictures there are.
    """
    draw = ImageDraw.Draw(image)
    letters = font(size, True)
    margin = size // 4
    width = image.width // count
    for left in range(0, width * count, width):
        middle = left + width // 2
        places = [
            ("lm", left + margin, image.height // 2),
            ("rm", left + width - margin, image.height // 2),
            ("ma", middle, margin),
            ("md", middle, image.height - margin),
        ]
        for letter, (anchor, x, y) in zip(ends, places, strict=False):
            draw.text((x, y), letter, "white", letters, anchor, stroke_width=2, stroke_fill="black")


def shade(share: float) -> Color:
    """The color behind a word, from white to orange."""
    red, green, blue = (round(255 + share * (value - 255)) for value in _SHADE)
    return red, green, blue
