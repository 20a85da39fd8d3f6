"""A page on which a photo tells which class has how much evidence where. One file that loads nothing."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from ebcli.drawing.overlay import shrunk
from ebcli.files.encoding import encode_picture
from ebcli.files.media.medium import Shown
from ebcli.nouns.atlas import CLEAR, Atlas
from ebcli.pages.shell import page

_LONGEST = (1600, 1200, 900, 600)  # pixels of the photo's longer side: the first one that fits
_LARGEST = 500_000  # bytes of the photo
_CELLS = 64  # along each axis


def described(atlas: Atlas, size: tuple[int, int]) -> dict[str, Any]:
    """What the script of a page needs of the atlas of a photo of a size (width, height)."""
    left, top, right, bottom = atlas.placement
    height, width = (min(cells, _CELLS) for cells in atlas.evidence.shape[1:])
    x = left + (np.arange(width) + 0.5) * (right - left) / width
    y = top + (np.arange(height) + 0.5) * (bottom - top) / height
    cells = (65535 * atlas.sampled(x, y)).round().astype("<u2")
    return {
        "size": size,
        "place": atlas.placement,
        "shape": (height, width),
        "clear": CLEAR,
        "cells": base64.b64encode(cells.tobytes()).decode(),
        "subjects": [{"index": one.index, "name": one.name, "score": one.score} for one in atlas.subjects],
    }


def atlas_page(shown: Shown, atlas: Atlas, name: str, about: str) -> bytes:
    """The HTML of a page of at most 1 MB with a photo and its atlas.

    Args:
        shown: the photo.
        atlas: its atlas.
        name: the title.
        about: the subtitle.
    """
    encoded = (encode_picture(shrunk(shown.image.convert("RGB"), longest), "jpg") for longest in _LONGEST)
    photo = next((one for one in encoded if len(one) <= _LARGEST), b"")
    data = described(atlas, shown.image.size)
    return page("atlas.html", name=name, about=about, data=data, photo=base64.b64encode(photo).decode())
