"""Two runs side by side: a page and JSON, sorted by disagreement."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ebcli.drawing.legend import bar
from ebcli.drawing.overlay import fitted_size, is_blank, picture
from ebcli.drawing.style import DrawingStyle
from ebcli.errors import ConfigurationError, ImageError
from ebcli.files.directory import OutputFolder
from ebcli.files.encoding import encode_picture
from ebcli.files.images import decode
from ebcli.files.naming import COMPARISON
from ebcli.gallery.backfill import below, roots_of
from ebcli.gallery.page import check_page, policy, static
from ebcli.gallery.raw_maps import SIDE, MapPair, aligned
from ebcli.nouns.box import Box

DATA = COMPARISON.with_name("comparison.json")

_GAP = 8
_COLORS = 33  # of a legend
_MAPS, _BARE_MAPS = DrawingStyle(), DrawingStyle("heatmap")
_DIFFERENCE = DrawingStyle("heatmap", signed=True)


def write_comparison(
    directory: Path,
    pairs: Iterable[MapPair],
    correlation: Callable[[Any, Any], float],
    inputs: Sequence[Path] = (),
    overwrite: bool = False,
) -> Path:
    """Write the page, its pictures, and the same as JSON into ``comparison/`` below a directory.

    Args:
        directory: the output directory.
        pairs: the maps; they are compared over the part of the image that both cover.
        correlation: the rank correlation of two arrays of equal shape.
        inputs: of the photos, only those below these paths are read; maps of others are drawn without one.
        overwrite: also replace a page that this program did not write.

    Returns:
        The page.

    Raises:
        ConfigurationError: there are no pairs, or another page would be replaced.
        OutputError: the directory cannot be written to.
    """
    check_page(directory, overwrite, COMPARISON)
    roots, rows = roots_of(inputs), list[dict[str, Any]]()
    with OutputFolder(directory, overwrite=True) as folder:
        for pair in pairs:
            row, drawn = _row(pair, correlation, below(pair.input, roots))
            folder.add({COMPARISON.with_name(row["picture"]): encode_picture(drawn, "png")})
            rows.append(row)
        if not rows:
            raise ConfigurationError(
                "no image and class has raw maps in both runs: repeat both with --raw and the same --target"
            )
        rows.sort(key=lambda row: (row["rank_correlation"], row["input"]))
        folder.add({DATA: f"{json.dumps(rows, indent=1)}\n".encode(), COMPARISON: _html(rows)})
    return directory / COMPARISON


def _row(
    pair: MapPair, correlation: Callable[[Any, Any], float], photo: Path | None
) -> tuple[dict[str, Any], Image.Image]:
    """A pair as JSON, and drawn: the photo, both maps and their difference."""
    size = fitted_size(pair.size, SIDE)
    one, other, box = aligned(pair)
    difference = _drawn(one) - _drawn(other)
    subject = pair.maps[1].subject
    key = "\0".join((pair.input, str(subject.index), *pair.runs))
    scores = [None if math.isnan(one.subject.score) else one.subject.score for one in pair.maps]
    row = {
        "input": pair.input,
        "class": subject.index,
        "name": subject.name,
        "rank_correlation": round(correlation(one, other), 4),
        "mean_difference": round(float(np.abs(difference).mean()), 4),
        **{side: {"run": pair.runs[i], "score": scores[i]} for i, side in enumerate("ab")},
        "picture": f"{hashlib.sha256(os.fsencode(key)).hexdigest()[:24]}.png",
    }
    small = _photo(photo, size)
    row["photo"], style = small is not None, _MAPS if small else _BARE_MAPS
    blank = Image.new("RGB", size, "white")
    under = small or blank
    drawn = [picture(under, map_.values, map_.placement.scaled(pair.size, size), style) for map_ in pair.maps]
    drawn.append(picture(under, difference, Box(*box), _DIFFERENCE) if difference.any() else blank)
    tiles = [small, *drawn] if small else drawn
    strip = Image.new("RGB", (len(tiles) * (size[0] + _GAP) - _GAP, size[1]), "white")
    for at, tile in enumerate(tiles):
        strip.paste(tile, (at * (size[0] + _GAP), 0))
    return row, strip


def _drawn(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """The positive part, scaled to its maximum, as maps are drawn."""
    return np.zeros_like(values) if is_blank(values) else np.maximum(values, 0) / values.max()


def _photo(path: Path | None, size: tuple[int, int]) -> Image.Image | None:
    try:
        return None if path is None else decode(path).resize(size, Image.Resampling.LANCZOS, reducing_gap=2.0)
    except ImageError:
        return None


def _html(rows: Sequence[dict[str, Any]]) -> bytes:
    """The page with its style and script; its policy allows no other ones, and no network."""
    bars = {"maps": _MAPS if any(row["photo"] for row in rows) else _BARE_MAPS, "difference": _DIFFERENCE}
    style = static("comparison.css") + "".join(
        f".{name} i {{ background: {_gradient(one)} }}\n" for name, one in bars.items()
    )
    script = static("comparison.js")
    mean = sum(row["rank_correlation"] for row in rows) / len(rows)
    head = f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy(style, script)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Two runs compared</title>
<style>{style}</style>
<h1>Two runs compared</h1>
<p>{len(rows)} pairs of maps, mean rank correlation {mean:.3f}, least alike first. Select a picture to enlarge it.</p>
<div class="tools">
<input type="search" id="query" placeholder="Search files and classes" aria-label="Search files and classes">
<output id="count"></output>
<span class="legend maps">0 <i></i> each map's maximum</span>
<span class="legend difference">B higher <i></i> A higher</span>
</div>"""
    parts = (head, *map(_article, rows), f"<script>{script}</script>\n</html>\n")
    return "\n".join(parts).encode(errors="replace")


def _article(row: Mapping[str, Any]) -> str:
    """A pair: its numbers, and its pictures with their captions."""
    name = row["name"] or f"class {row['class']}"
    scores = {side: "–" if row[side]["score"] is None else f"{row[side]['score']:.3f}" for side in "ab"}
    runs = "".join(f"<dt>{side.upper()}</dt><dd>{_text(row[side]['run'])}, score {scores[side]}</dd>" for side in "ab")
    captions = ["photo"] * row["photo"] + ["A", "B", "A − B"]
    return f"""<article>
<h2>{_text(row["input"])} · {_text(name)}</h2>
<p>rank correlation {row["rank_correlation"]:.3f} · mean difference {row["mean_difference"]:.3f}</p>
<dl>{runs}</dl>
<figure><div>{"".join(f"<figcaption>{caption}</figcaption>" for caption in captions)}</div>
<label><input type="checkbox" aria-label="Enlarge"><img loading="lazy" src="{quote(row["picture"])}"
alt="{", ".join(captions)}"></label></figure>
</article>"""


def _gradient(style: DrawingStyle) -> str:
    colors = np.asarray(bar(style, (_COLORS, 1)))[0].tolist()
    return f"linear-gradient(to right, {', '.join(f'rgb({r} {g} {b})' for r, g, b in colors)})"


def _text(text: str) -> str:
    return escape(text.encode(errors="replace").decode())
