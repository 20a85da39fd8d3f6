"""The answer of a vision-language model: its words, the map of each, and one figure of all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image

from ebcli.drawing.figure import Figure, Words
from ebcli.drawing.frames import FrameMaps
from ebcli.drawing.lettering import font, printable
from ebcli.drawing.panel import COLUMNS, Tile, arranged, map_tile, small_frame, wrapped
from ebcli.drawing.style import DrawingStyle
from ebcli.files.media.medium import Shown
from ebcli.nouns.explanation import Map

LAYER = "photo tokens"
_SHADE = (255, 168, 54)  # behind a word that comes from the picture alone
_SIZE, _LINE, _MARGIN = 18, 28, 16  # pixels at 100 dpi
_SECONDARY = (90, 90, 90)


@dataclass(frozen=True, eq=False)
class Word:
    """A word of an answer.

    Attributes:
        start, end: where in the answer it is.
        position: the number of the word, from 1.
        map: where in the picture its evidence is; its subject is the word.
    """

    start: int
    end: int
    position: int
    map: Map

    @property
    def share(self) -> float:
        """The share of its evidence that is in the picture, 0 to 1; the rest is in the text before it."""
        return self.map.share or 0.0

    @property
    def in_words(self) -> str:
        """The word and its share."""
        return f"{self.map.subject.name}: {self.share:.2f} from the picture"


@dataclass(frozen=True)
class Answer:
    """What a vision-language model says of a photo, with those of its words that are explained."""

    question: str
    text: str
    words: Sequence[Word]

    @property
    def parts(self) -> list[tuple[str, Word | None]]:
        """The text in parts, each with its word if that is explained."""
        found: list[tuple[str, Word | None]] = []
        end = 0
        for word in self.words:
            found += [(self.text[end : word.start], None), (self.text[word.start : word.end], word)]
            end = word.end
        return [*found, (self.text[end:], None)]


def shade(share: float) -> tuple[int, int, int]:
    """The color behind a word, from white to orange."""
    red, green, blue = (round(255 + share * (value - 255)) for value in _SHADE)
    return red, green, blue


def answer_figure(shown: Shown, answer: Answer, name: str, about: str, style: DrawingStyle) -> Figure:
    """The question, the answer with its words shaded by their shares, and the map of each word.

    Args:
        shown: the photo.
        answer: the answer.
        name: the photo's name.
        about: model, layer and method.
        style: how maps are drawn.
    """
    image = shown.image
    small = shown._replace(image=small_frame(image, style))
    photo = Tile(small.image, "photo", (f"{image.width} × {image.height} pixels",))
    tiles = [photo]
    for word in answer.words:
        drawn = FrameMaps.of(word.map, image.size, None, style)
        tiles.append(map_tile(drawn, small, word.in_words, (f"score {word.map.subject.score:.3f}",)))
    finest = max(word.map.values.size for word in answer.words)
    figure = arranged(name, about, wrapped("", tiles, COLUMNS), style, finest, answer.words[0].map.against)
    return _below_text(figure, answer)


def _below_text(figure: Figure, answer: Answer) -> Figure:
    """A figure below the question and the answer."""
    zoom = figure.dpi / 100
    size, line, margin = (round(zoom * value) for value in (_SIZE, _LINE, _MARGIN))
    letters, space = font(size), round(font(size).getlength(" "))
    pictures, words = [], []
    x, y = margin, margin
    for text, word, color in [
        (answer.question, None, _SECONDARY),
        *((text, word, (0, 0, 0)) for text, word in [("\n", None), *answer.parts]),
    ]:
        for piece in re.findall(r"\n|\s|\S{1,24}", text):
            width = round(letters.getlength(written := printable(piece)))
            if piece == "\n" or (x > margin and x + width > figure.size[0] - margin):
                x, y = margin, y + line
            if piece.isspace():
                x += space * (x > margin)
            else:
                if word is not None:
                    pictures.append((x, y, Image.new("RGB", (width, size + line // 4), shade(word.share))))
                words.append(Words(x, y, written, size, False, color))
                x += width
    top = y + line + margin
    return Figure(
        (figure.size[0], figure.size[1] + top),
        figure.dpi,
        pictures + [(left, down + top, picture) for left, down, picture in figure.pictures],
        words + [one._replace(top=one.top + top) for one in figure.words],
    )
