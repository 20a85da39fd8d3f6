"""A page on which a photo tells which class has how much evidence where. One file that loads nothing."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ebcli.drawing.frames import FrameMaps
from ebcli.drawing.lettering import printable
from ebcli.drawing.overlay import shrunk
from ebcli.files.encoding import encode_picture, shortened
from ebcli.files.media.medium import Shown
from ebcli.nouns.atlas import CLEAR, Atlas
from ebcli.pages.shell import page

_LONGEST = (1600, 1200, 900, 400)  # pixels of the photo's longer side: the first one that fits
_LARGEST = 500_000  # bytes of the photo
_VALUES = 100_000  # of evidence, of all classes
_LONGEST_NAME = 200  # characters


def described(atlas: Atlas, size: tuple[int, int]) -> dict[str, Any]:
    """What the script of a page needs of the atlas of a photo of a size (width, height)."""
    left, top, right, bottom = atlas.placement
    most = int((_VALUES / len(atlas.subjects)) ** 0.5)
    height, width = (min(cells, most) for cells in atlas.evidence.shape[1:])
    x = left + (np.arange(width) + 0.5) * (right - left) / width
    y = top + (np.arange(height) + 0.5) * (bottom - top) / height
    cells = (65535 * atlas.sampled(x, y)).round().astype("<u2")
    return {
        "size": size,
        "place": atlas.placement,
        "shape": (height, width),
        "clear": CLEAR,
        "cells": base64.b64encode(cells.tobytes()).decode(),
        "subjects": [
            {"index": one.index, "name": one.name and one.name[:_LONGEST_NAME], "score": one.score}
            for one in atlas.subjects
        ],
    }


@dataclass(frozen=True)
class AtlasPage:
    """A page of at most 1 MB with a photo and its atlas.

    Args:
        shown, maps, name, about, at: as for ``atlas_figure``.
    """

    shown: Sequence[Shown]
    maps: Sequence[FrameMaps]
    name: str
    about: str
    at: tuple[int, int] | None = None

    def encoded(self, _suffix: str, facts: Mapping[str, str]) -> bytes:
        """The HTML; see ``encode_picture``."""
        image, at = self.shown[0].image.convert("RGB"), self.at
        tried = (encode_picture(shrunk(image, longest), "jpg") for longest in _LONGEST)
        photo = next(one for one in tried if len(one) <= _LARGEST)
        data = described(Atlas.of([one.map for one in self.maps]), image.size)
        data["at"] = at and (at[0] + 0.5, at[1] + 0.5)
        return page(
            "atlas.html",
            name=printable(self.name),
            about=self.about,
            facts=json.dumps(shortened(facts)),
            data=data,
            photo=base64.b64encode(photo).decode(),
        )
