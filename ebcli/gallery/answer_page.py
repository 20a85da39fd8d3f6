"""The page of an answer: pointing at a word shows its map. One file that loads nothing."""

from __future__ import annotations

import base64
from html import escape

from PIL import Image

from ebcli.drawing.answer import Answer, Word, shade
from ebcli.drawing.frames import FrameMaps
from ebcli.drawing.overlay import shrunk
from ebcli.drawing.style import DrawingStyle
from ebcli.files.encoding import encode_picture
from ebcli.files.media.medium import Shown
from ebcli.gallery.page import policy

_LONGEST = 1200  # pixels of the photo's longer side
_STYLE = """
body { font: 1.1rem/1.8 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem }
img { max-width: 100%; max-height: 75vh; display: block }
.answer { position: relative } .word { border-radius: .2rem; cursor: pointer; padding: 0 .15rem; color: #000 }
.word img { display: none; position: absolute; left: 0; top: calc(100% + 1.1rem); z-index: 1 }
.word:is(:hover, :focus) { outline: 2px solid } .word:is(:hover, :focus) img { display: block }
.answer:has(:hover) .word:focus:not(:hover) img { display: none }
body { overflow-wrap: anywhere } small { color: #666 } td, th { padding: 0 1rem 0 0; text-align: left }
"""


def answer_page(photo: Image.Image, answer: Answer, name: str, about: str, style: DrawingStyle) -> str:
    """The HTML of a page with the question, the answer, the photo, and the map of each word over it.

    Args:
        photo: RGB.
        answer: the answer.
        name: the photo's name, the title.
        about: model, layer and method.
        style: how maps are drawn.
    """
    small = Shown(shrunk(photo, _LONGEST))

    def image(drawn: Image.Image, alt: str) -> str:
        content = base64.b64encode(encode_picture(drawn.convert("RGB"), "jpg")).decode()
        return f'<img alt="{_text(alt)}" src="data:image/jpeg;base64,{content}">'

    def part(text: str, word: Word | None) -> str:
        if word is None:
            return _text(text)
        drawn = FrameMaps.of(word.map, photo.size, None, style).drawn(small)
        color = "#{:02x}{:02x}{:02x}".format(*shade(word.share))
        styles.append(f".w{word.position} {{ background: {color} }}")
        return f'<span class="word w{word.position}" tabindex="0">{_text(text)}{image(drawn, word.in_words)}</span>'

    styles = [_STYLE]
    spoken = "".join(part(text, word) for text, word in answer.parts)
    rows = "".join(
        f"<tr><td>{_text(subject.name or '')}</td><td>{word.share:.2f}</td><td>{subject.score:.3f}</td></tr>"
        for word in answer.words
        for subject in [word.map.subject]
    )
    sheet = "\n".join(styles)
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy(sheet, "", "data:")}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{_text(name)}</title>
<style>{sheet}</style>
<h1>{_text(answer.question or name)}</h1>
<p class="answer">{spoken}</p>
{image(small.image, name)}
<p>Point at a colored word to see its map.</p>
<table><tr><th>word</th><th>from the picture</th><th>score</th></tr>
{rows}
</table>
<p><small>{_text(name)}; {_text(about)}</small></p>
</html>
"""


def _text(text: str) -> str:
    return escape(text.encode(errors="replace").decode())
