"""The page of an audit: its findings with photos, and what the maps of each class have in common."""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

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
from ebcli.nouns.box import Box
from ebcli.pages.shell import page

_SHOWN = 8  # photos of a finding
_SIDE, _GAP, _SMALL = 180, 6, 84  # pixels
_CORNERS = [name for name in PLACES if name.endswith("corner")]


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

    def picture_of(drawn: Image.Image) -> dict[str, Any]:
        content = encode_picture(drawn, "png")
        name = f"{hashlib.sha256(content).hexdigest()[:24]}.png"
        files[AUDIT.with_name(name)] = content
        return {"picture": name, "width": drawn.width}

    files[AUDIT] = page(
        "audit.html",
        findings=[
            {"words": words, "photos": [one.input for one in found.photos[:_SHOWN]], **picture_of(_strip(found))}
            for words, found in findings
        ],
        classes=[
            {"name": name, "photos": len(photos), "shares": _shares(photos), **picture_of(_mean_map(photos))}
            for name, photos in sorted(classes.items())
        ],
        heads=["mean map", "class", "photos", "border", *_CORNERS, "outside of boxes"],
        border=BORDER.mean(),
        corner=PLACES[_CORNERS[0]].mean(),
    )
    with OutputFolder(directory, overwrite=True) as folder:
        folder.add(files)
    return directory / AUDIT


def _shares(photos: Sequence[Seen]) -> list[float | None]:
    """The mean share of the maps at the border, in each corner, and outside of the boxes, if there are any."""
    mean = np.mean([one.grid for one in photos], axis=0)
    beyond = [float(one.grid[one.outside].sum()) for one in photos if one.outside is not None]
    shares = [float(mean[mask].sum()) for mask in (BORDER, *(PLACES[name] for name in _CORNERS))]
    return [*shares, float(np.mean(beyond)) if beyond else None]


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
