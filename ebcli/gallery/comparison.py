"""Two runs side by side: a page and JSON, sorted by disagreement."""

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

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
from ebcli.gallery.page import check_page
from ebcli.gallery.raw_maps import SIDE, MapPair, aligned
from ebcli.nouns.box import Box
from ebcli.pages.shell import page

DATA = COMPARISON.with_name("comparison.json")

_GAP = 8
_COLORS = 33  # of a legend
_STYLES = {"maps": DrawingStyle(), "difference": DrawingStyle("heatmap", signed=True)}


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
        mean = sum(row["rank_correlation"] for row in rows) / len(rows)
        bars = {name: np.asarray(bar(style, (_COLORS, 1)))[0].tolist() for name, style in _STYLES.items()}
        html = page("comparison.html", rows=rows, mean=mean, bars=bars)
        folder.add({DATA: f"{json.dumps(rows, indent=1)}\n".encode(), COMPARISON: html})
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
    row["photo"], under = small is not None, small or Image.new("RGB", size, "white")
    tiles = [under] if small else []
    tiles += [picture(under, one.values, one.placement.scaled(pair.size, size), _STYLES["maps"]) for one in pair.maps]
    if difference.any():
        tiles.append(picture(under, difference, Box(*box), _STYLES["difference"]))
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
