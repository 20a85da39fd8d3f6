"""The page of an answer: pointing at a word shows its map. One file that loads nothing."""

import base64
from collections.abc import Sequence
from typing import Any

from PIL import Image

from ebcli.drawing.answer import shade
from ebcli.drawing.frames import FrameMaps
from ebcli.drawing.overlay import shrunk
from ebcli.files.encoding import encode_picture
from ebcli.files.media.medium import Shown
from ebcli.nouns.explanation import Explanation
from ebcli.pages.shell import page

_LONGEST = 1200  # pixels of the photo's longer side


def answer_page(
    explanation: Explanation, shown: Sequence[Shown], maps: Sequence[FrameMaps], name: str, about: str
) -> bytes:
    """The HTML of a page with the question, the answer, the photo, and the map of each word over it.

    Args:
        explanation, shown, maps, name, about: as for ``answer_figure``.
    """
    small = shown[0]._replace(image=shrunk(shown[0].image, _LONGEST))

    def encoded(drawn: Image.Image) -> str:
        return base64.b64encode(encode_picture(drawn.convert("RGB"), "jpg")).decode()

    def described(one: FrameMaps) -> dict[str, Any]:
        subject, share = one.map.subject, one.map.share or 0.0
        return {
            "position": subject.position,
            "name": subject.name or "",
            "score": subject.score,
            "share": share,
            "told": one.map.title,
            "color": "#{:02x}{:02x}{:02x}".format(*shade(share)),
            "picture": encoded(one.drawn(small)),
        }

    words = {one.map.subject.position: described(one) for one in maps}
    return page(
        "answer.html",
        name=name,
        question=explanation.question,
        about=about,
        photo=encoded(small.image),
        words=words,
        parts=[(text, word and words[word.subject.position]) for text, word in explanation.parts],
    )
