"""Two runs side by side: a page and JSON, sorted by disagreement."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ebcli.drawing.overlay import covered, fitted_size, interpolated, is_blank, picture
from ebcli.drawing.style import DrawingStyle
from ebcli.errors import ConfigurationError, ImageError
from ebcli.files.directory import OutputFolder
from ebcli.files.encoding import encode_picture
from ebcli.files.images import decode
from ebcli.files.input_spec import Placement
from ebcli.files.naming import COMPARISON
from ebcli.gallery.backfill import below, roots_of
from ebcli.gallery.page import check_page
from ebcli.gallery.raw_maps import MapPair

DATA = COMPARISON.with_name("comparison.json")

_SIDE = 256  # pixels, the longer side of each picture, and of the grid on which maps are compared
_GAP = 8
_STYLE = (
    "body{font:15px system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem}"
    "article{border-top:1px solid #8886;padding:1rem 0}h2{font-size:1rem;margin:0 0 .25rem;overflow-wrap:anywhere}"
    "img{max-width:100%;height:auto}p{margin:.25rem 0;color:#777}:root{color-scheme:light dark}"
)


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
    with closing(OutputFolder(directory, overwrite=True)) as folder:
        for pair in pairs:
            row, drawn = _row(pair, correlation, below(pair.input, roots))
            folder.write({COMPARISON.with_name(row["picture"]): encode_picture(drawn, "png")})
            rows.append(row)
        if not rows:
            raise ConfigurationError(
                "no image and class has raw maps in both runs: repeat both with --raw and the same --target"
            )
        rows.sort(key=lambda row: (row["rank_correlation"], row["input"]))
        folder.write({DATA: f"{json.dumps(rows, indent=1)}\n".encode(), COMPARISON: _html(rows)})
    return directory / COMPARISON


def _row(
    pair: MapPair, correlation: Callable[[Any, Any], float], photo: Path | None
) -> tuple[dict[str, Any], Image.Image]:
    """A pair as JSON, and drawn: the photo, both maps and their difference."""
    size = fitted_size(pair.size, _SIDE)
    values, regions = zip(*((one.values, one.placement.scaled(pair.size, size)) for one in pair.maps), strict=True)
    boxes = [covered(region, size) for region in regions]
    both = max(boxes[0][0], boxes[1][0]), max(boxes[0][1], boxes[1][1]), *map(min, boxes[0][2:], boxes[1][2:])
    box = (both[0], both[1], max(both[2], both[0] + 1), max(both[3], both[1] + 1))
    one, other = (interpolated(cells, region, box) for cells, region in zip(values, regions, strict=True))
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
    style = DrawingStyle("heatmap" if small is None else "overlay")
    blank = Image.new("RGB", size, "white")
    under = small or blank
    drawn = [picture(under, cells, region, style) for cells, region in zip(values, regions, strict=True)]
    signed = DrawingStyle("heatmap", signed=True)
    drawn.append(picture(under, difference, Placement(*box), signed) if difference.any() else blank)
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
    """The page; its policy allows no scripts and no network."""
    policy = "default-src 'none'; img-src 'self'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    mean = sum(row["rank_correlation"] for row in rows) / len(rows)
    articles = []
    for row in rows:
        name = row["name"] or f"class {row['class']}"
        scores = ", ".join("–" if row[side]["score"] is None else f"{row[side]['score']:.3f}" for side in ("a", "b"))
        articles.append(
            f"<article><h2>{_text(row['input'])} · {_text(name)}</h2>"
            f"<p>rank correlation {row['rank_correlation']:.3f} · mean difference {row['mean_difference']:.3f} · "
            f"scores {scores}</p><p>A: {_text(row['a']['run'])} · B: {_text(row['b']['run'])}</p>"
            f'<img loading="lazy" src="{quote(row["picture"])}" alt="both maps and their difference"></article>'
        )
    head = (
        f'<!doctype html><html lang="en"><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"><title>Two runs compared</title>'
        f"<style>{_STYLE}</style><h1>Two runs compared</h1><p>{len(rows)} pairs of maps, mean rank correlation "
        f"{mean:.3f}, least alike first. From left to right: the photo if it was given, A, B, and A − B: orange where "
        "A is higher, blue where B is.</p>"
    )
    return "\n".join((head, *articles)).encode(errors="replace") + b"\n"


def _text(text: str) -> str:
    return escape(text.encode(errors="replace").decode())
