"""The page of an answer: pointing at a word shows its map. One file that loads nothing."""

from __future__ import annotations

import base64
from typing import Any

from PIL import Image

from ebcli.drawing.answer import Answer, Word, shade
from ebcli.drawing.frames import FrameMaps
from ebcli.drawing.overlay import shrunk
from ebcli.drawing.style import DrawingStyle
from ebcli.files.encoding import encode_picture
from ebcli.files.media.medium import Shown
from ebcli.pages.shell import page

_LONGEST = 1200  # pixels of the photo's longer side


def answer_page(photo: Image.Image, answer: Answer, name: str, about: str, style: DrawingStyle) -> bytes:
    """The HTML of a page with the question, the answer, the photo, and the map of each word over it.

    Args:
        photo: RGB.
        answer: the answer.
        name: the photo's name, the title.
        about: model, layer and method.
        style: how maps are drawn.
    """
    small = Shown(shrunk(photo, _LONGEST))

    def encoded(drawn: Image.Image) -> str:
        return base64.b64encode(encode_picture(drawn.convert("RGB"), "jpg")).decode()

    def described(word: Word) -> dict[str, Any]:
        subject = word.map.subject
        return {
            "position": word.position,
            "name": subject.name or "",
            "score": subject.score,
            "share": word.share,
            "told": word.in_words,
            "color": "#{:02x}{:02x}{:02x}".format(*shade(word.share)),
            "picture": encoded(FrameMaps.of(word.map, photo.size, None, style).drawn(small)),
        }

    words = {word.position: described(word) for word in answer.words}
    return page(
        "answer.html",
        name=name,
        question=answer.question,
        about=about,
        photo=encoded(small.image),
        words=words,
        parts=[(text, word and words[word.position]) for text, word in answer.parts],
    )
