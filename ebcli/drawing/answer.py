"""The figure of an answer of a vision-language model: its words, and the map of each."""

import re
from collections.abc import Sequence

from PIL import Image

from ebcli.drawing.figure import Figure, Words
from ebcli.drawing.frames import FrameMaps
from ebcli.drawing.lettering import font, printable
from ebcli.drawing.panel import panel
from ebcli.files.media.medium import Shown
from ebcli.nouns.explanation import Explanation

_SHADE = (255, 168, 54)  # behind a word that comes from the picture alone
_SIZE, _LINE, _MARGIN = 18, 28, 16  # pixels at 100 dpi
_SECONDARY = (90, 90, 90)


def shade(share: float) -> tuple[int, int, int]:
    """The color behind a word, from white to orange."""
    red, green, blue = (round(255 + share * (value - 255)) for value in _SHADE)
    return red, green, blue


def answer_figure(
    explanation: Explanation, shown: Sequence[Shown], maps: Sequence[FrameMaps], name: str, about: str
) -> Figure:
    """The question, the answer with its words shaded by their shares, and the panel of their maps.

    Args:
        explanation: the question, the answer and the maps.
        shown, maps, name, about: as for ``panel``.
    """
    return _below_text(panel(shown, maps, name, about), explanation)


def _below_text(figure: Figure, explanation: Explanation) -> Figure:
    """A figure below the question and the answer."""
    zoom = figure.dpi / 100
    size, line, margin = (round(zoom * value) for value in (_SIZE, _LINE, _MARGIN))
    letters, space = font(size), round(font(size).getlength(" "))
    pictures, words = [], []
    x, y = margin, margin
    for text, word, color in [
        (explanation.question, None, _SECONDARY),
        *((text, word, (0, 0, 0)) for text, word in [("\n", None), *explanation.parts]),
    ]:
        for piece in re.findall(r"\n|\s|\S{1,24}", text):
            width = round(letters.getlength(written := printable(piece)))
            if piece == "\n" or (x > margin and x + width > figure.size[0] - margin):
                x, y = margin, y + line
            if piece.isspace():
                x += space * (x > margin)
            else:
                if word is not None:
                    pictures.append((x, y, Image.new("RGB", (width, size + line // 4), shade(word.share or 0.0))))
                words.append(Words(x, y, written, size, False, color))
                x += width
    top = y + line + margin
    return Figure(
        (figure.size[0], figure.size[1] + top),
        figure.dpi,
        pictures + [(left, down + top, picture) for left, down, picture in figure.pictures],
        words + [one._replace(top=one.top + top) for one in figure.words],
    )
