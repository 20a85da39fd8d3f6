"""The page of an audit: its findings with photos, and what the maps of each class have in common."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from html import escape
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from ebcli.drawing.overlay import fitted_size, picture
from ebcli.drawing.style import DrawingStyle
from ebcli.errors import ImageError
from ebcli.files.directory import OutputFolder
from ebcli.files.encoding import encode_picture
from ebcli.files.images import decode
from ebcli.files.naming import AUDIT
from ebcli.gallery.findings import BORDER, CELLS, PLACES, Candidate, Mask, Seen
from ebcli.gallery.page import policy, static
from ebcli.nouns.box import Box

_SHOWN = 8  # photos of a finding
_SIDE, _GAP, _SMALL = 180, 6, 84  # pixels
_CORNERS = [name for name in PLACES if name.endswith("corner")]
_STYLE = "table { border-collapse: collapse } td, th { padding: 0.2rem 0.8rem 0.2rem 0; text-align: left }\n"


def write_audit(
    directory: Path, findings: Sequence[tuple[str, Candidate]], classes: Mapping[str, Sequence[Seen]]
) -> Path:
    """Write the page and its pictures into ``audit/`` below the directory of a run, all or none of them.

    Args:
        directory: the directory.
        findings: what was found, in words and with its photos.
        classes: the photos of each class.

    Returns:
        The page.

    Raises:
        OutputError: the directory cannot be written to.
    """
    files: dict[Path, bytes] = {}

    def image(drawn: Image.Image, alt: str, width: int) -> str:
        content = encode_picture(drawn, "png")
        name = f"{hashlib.sha256(content).hexdigest()[:24]}.png"
        files[AUDIT.with_name(name)] = content
        return f'<img loading="lazy" src="{name}" alt="{_text(alt)}" width="{width}">'

    articles = [
        f"<article><h2>{_text(words)}</h2>{image(strip, 'photos with their maps', strip.width)}\n"
        f"<p>{_text(', '.join(one.input for one in found.photos[:_SHOWN]))}</p></article>"
        for words, found in findings
        for strip in [_strip(found)]
    ]
    rows = [
        f"<tr><td>{image(_mean_map(photos), 'mean map', _SMALL)}</td><td>{_text(name)}</td><td>{len(photos)}</td>"
        + "".join(f"<td>{share}</td>" for share in _shares(photos))
        + "</tr>"
        for name, photos in sorted(classes.items())
    ]
    heads = ["mean map", "class", "photos", "border", *_CORNERS, "outside of boxes"]
    style = static("comparison.css") + _STYLE
    page = f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy(style, "")}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Audit</title>
<style>{style}</style>
<h1>Audit</h1>
<p>{len(findings) or "No"} finding{"s" * (len(findings) != 1)}. The frame is the place that was covered.</p>
{"".join(articles)}
<h1>Classes</h1>
<p>Shares of the maps, and by chance: border {BORDER.mean():.2f}, a corner {PLACES[_CORNERS[0]].mean():.2f}.</p>
<table><tr>{"".join(f"<th>{head}</th>" for head in heads)}</tr>
{"".join(rows)}
</table>
</html>
"""
    files[AUDIT] = page.encode(errors="replace")
    with OutputFolder(directory, overwrite=True) as folder:
        folder.add(files)
    return directory / AUDIT


def _shares(photos: Sequence[Seen]) -> list[str]:
    """The mean share of the maps at the border, in each corner, and outside of the boxes."""
    mean = np.mean([one.grid for one in photos], axis=0)
    beyond = [float(one.grid[one.outside].sum()) for one in photos if one.outside is not None]
    shares = [float(mean[mask].sum()) for mask in (BORDER, *(PLACES[name] for name in _CORNERS))]
    return [*(f"{share:.2f}" for share in shares), f"{np.mean(beyond):.2f}" if beyond else "–"]


def _mean_map(photos: Sequence[Seen]) -> Image.Image:
    mean = np.mean([one.grid for one in photos], axis=0)
    white = Image.new("RGB", (_SMALL, _SMALL), "white")
    return picture(white, mean, Box(0, 0, _SMALL, _SMALL), DrawingStyle("heatmap"))


def _strip(found: Candidate) -> Image.Image:
    """The first photos side by side, with their maps and a frame around the place."""
    tiles = []
    for one, mask in zip(found.photos[:_SHOWN], found.masks, strict=False):
        with suppress(ImageError):
            photo = decode(one.path)
            small = photo.resize(fitted_size(photo.size, _SIDE), Image.Resampling.LANCZOS, reducing_gap=2.0)
            drawn = picture(small, one.grid, Box(0, 0, *small.size), DrawingStyle())
            ImageDraw.Draw(drawn).rectangle(_frame(mask, small.size), outline="white", width=2)
            tiles.append(drawn)
    strip = Image.new("RGB", (max(1, len(tiles)) * (_SIDE + _GAP) - _GAP, _SIDE), "white")
    for at, tile in enumerate(tiles):
        strip.paste(tile, (at * (_SIDE + _GAP), 0))
    return strip


def _frame(mask: Mask, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of some cells in a picture (width, height)."""
    rows, columns = np.nonzero(mask)
    width, height = size
    right, bottom = (columns.max() + 1) * width // CELLS - 1, (rows.max() + 1) * height // CELLS - 1
    return int(columns.min() * width // CELLS), int(rows.min() * height // CELLS), int(right), int(bottom)


def _text(text: str) -> str:
    return escape(text.encode(errors="replace").decode())
