"""Text in pictures."""

from functools import lru_cache
from pathlib import Path

from PIL import ImageFont


@lru_cache
def font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
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


def printable(text: str) -> str:
    """Text with control characters and missing glyphs as Python escapes."""
    return "".join(c if c.isprintable() and c in _letters() else c.encode("unicode_escape").decode() for c in text)


def fitted(text: str, font: ImageFont.FreeTypeFont, room: int) -> str:
    """Shorten a text to the room there is by dropping its middle."""
    # letters are wider than a pixel, and Pillow refuses to measure a million of them
    if len(text) <= room and font.getlength(text) <= room:
        return text
    kept = max(2, min(len(text), room))
    while kept > 1 and font.getlength(shorter := f"{text[: kept // 2]}…{text[len(text) - kept // 2 :]}") > room:
        kept -= 1
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
