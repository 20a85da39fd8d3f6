"""What a picture says about its map: the color scale, and the caption below an overlay."""

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from ebcli.drawing.color_scale import levels
from ebcli.drawing.lettering import fitted, font, in_lines, printable
from ebcli.drawing.painters import PAINTERS
from ebcli.drawing.style import DrawingStyle
from ebcli.nouns.explanation import Map

_PHOTO_OF_BAR = (150, 150, 150)  # a uniform gray stands for the photo in the color scale
_LETTERS_ACROSS = 36  # the font size of a caption is the width of the picture divided by this
_SMALLEST_TEXT = 10
_BAR_SHARE = 0.4  # of the width of a caption


def caption(map_: Map) -> str:
    """What is said of a map below it."""
    return ", ".join([map_.title, *map_.told])


def bar(style: DrawingStyle, size: tuple[int, int]) -> Image.Image:
    """The colors of the scale from left to right, as they are over a uniform gray."""
    painter = PAINTERS["heatmap" if style.name == "side-by-side" else style.name]
    values = np.tile(levels(np.linspace(0, 1, size[0]), (0, 1)), (size[1], 1))
    return on_white(painter.inside(Image.new("RGB", size, _PHOTO_OF_BAR), Image.fromarray(values), style))


def ends(
    style: DrawingStyle,
    finest: int,
    whose: str = "each map's ",
    against: str = "",
    target: str = "the class",
    has_faint: bool = False,
) -> tuple[str, str]:
    """The ends of the scale of maps, the finest of which has so many cells, in words.

    Args:
        style: the style.
        finest: the number of cells.
        whose: of which map the ends are.
        against: the class that the lower end speaks for, if there is one.
        target: the class that the upper end speaks for.
        has_faint: whether some maps are drawn faint, on a scale that ends above their maximum.
    """
    low, high = _ends(style, finest, whose)
    if has_faint and style.vmax is None:
        high += ", more where evidence is weak"
    if style.signed and against:
        return (against, target) if style.vmax is None else (f"{against} {low}", f"{high} {target}")
    return low, high


def _ends(style: DrawingStyle, finest: int, whose: str) -> tuple[str, str]:
    if style.vmax is not None:
        return f"{-style.vmax if style.signed else style.vmin:g}".replace("-", "−"), f"{style.vmax:g}"
    end = "greatest magnitude" if style.signed else "maximum"
    if (percentile := style.percentile_of(finest)) != 100:
        part = f"percentile {percentile:g}"
        of_what = f" of its {'magnitudes' if style.signed else 'positive values'}"
        end = f"{end} (fine maps: {part})" if whose and style.percentile is None else part + of_what
    return ("−m", f"m, {whose}{end}") if style.signed else (f"{style.vmin:g}", f"{whose}{end}")


def captioned(drawn: Image.Image, map_: Map, style: DrawingStyle, is_blank: bool) -> Image.Image:
    """A picture of a map with its caption and color scale in a strip below it; a blank map has no scale."""
    letters = font(max(_SMALLEST_TEXT, round(min(drawn.width, 2 * drawn.height) / _LETTERS_ACROSS)))
    size = round(letters.size)
    margin, line = size // 2, round(1.5 * size)
    sufficiency = in_lines(map_.sufficiency.words, letters, drawn.width - 2 * margin) if map_.sufficiency else []
    whole = Image.new(drawn.mode, (drawn.width, drawn.height + (2 + len(sufficiency)) * line + margin), "white")
    whole.paste(drawn)
    draw = ImageDraw.Draw(whole)

    def write(x: int, y: int, text: str) -> int:
        text = fitted(printable(text), letters, max(1, drawn.width - x - margin))
        draw.text((x, y), text, font=letters, fill="black")
        return x + round(letters.getlength(text)) + margin

    top = drawn.height + margin // 2
    write(margin, top, f"{map_.subject.title}, blank map" if is_blank else caption(map_))
    if not is_blank:
        low, high = ends(style, map_.values.size, "", map_.against, map_.subject.name or "the class")
        x = write(margin, top + line, low)
        colors = bar(style, (max(1, round(_BAR_SHARE * drawn.width)), size))
        whole.paste(colors, (x, top + line + size // 8))
        write(x + colors.width + margin, top + line, high)
    for number, words in enumerate(sufficiency, 2):
        write(margin, top + number * line, words)
    return whole


def on_white(picture: Image.Image) -> Image.Image:
    """A picture without transparency."""
    if picture.mode != "RGBA":
        return picture
    return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")


def with_bars(picture: Image.Image, shares: Sequence[float]) -> Image.Image:
    """A picture above bars, one for each channel with its number from 1; without shares, the picture itself."""
    if not shares:
        return picture
    height, step = max(48, picture.width // 4), picture.width / len(shares)
    both = Image.new("RGB", (picture.width, picture.height + height), "white")
    both.paste(picture)
    draw, letters = ImageDraw.Draw(both), font(max(1, min(13, round(0.6 * step))))
    foot = both.height - letters.size - 4
    for i, share in enumerate(shares):
        top = foot - share / max(*shares, 1e-9) * (foot - picture.height - 4)
        draw.rectangle((i * step + 1, top, (i + 1) * step - 2, foot), fill=_PHOTO_OF_BAR)
        draw.text(((i + 0.5) * step, foot + 2), str(i + 1), "black", letters, anchor="ma")
    return both
