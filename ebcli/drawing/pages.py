"""The pages of a photo: an answer, an atlas, and the view of its maps in a notebook. Each loads nothing."""

import base64
import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from ebcli.datatypes.atlas import CLEAR, Atlas
from ebcli.datatypes.explanation import Explanation, Map
from ebcli.drawing.frame_maps import FrameMaps
from ebcli.drawing.legend import printable, shade
from ebcli.drawing.overlay import shrunk
from ebcli.files.encoding import encode_picture, shorten
from ebcli.files.media.medium import DisplayFrame
from ebcli.pages.shell import page

# Pixels of the photo's longer side; of an atlas, the first one that fits
_OF_ANSWER, _OF_NOTEBOOK, _OF_ATLAS = 1200, 640, (1600, 1200, 900, 400)
_LARGEST = 500_000  # bytes of the photo of an atlas
_VALUES = 100_000  # of evidence, of all classes
_LONGEST_NAME = 200  # characters


def answer_page(
    explanation: Explanation, shown: Sequence[DisplayFrame], maps: Sequence[FrameMaps], name: str, about: str
) -> bytes:
    """The HTML of a page with the question, the answer, the photo, and the map of each word over it.

    Args:
        explanation, shown, maps, name, about: as for ``answer_figure``.
    """
    small = shown[0]._replace(image=shrunk(shown[0].image, _OF_ANSWER))
    drawn = ((one.map, _jpeg(one.drawn(small))) for one in maps)
    words = [{**vars(map_), "color": shade(map_.share or 0.0), "picture": picture} for map_, picture in drawn]
    photo = _jpeg(small.image)
    return page("answer.html", name=name, explanation=explanation, about=about, photo=photo, words=words)


def notebook_view(maps: Sequence[FrameMaps], shown: DisplayFrame, about: str) -> str:
    """A fragment of HTML: a tab for each map, with the value under the pointer.

    Where scripts are not run, it shows the pictures one below the other.

    Args:
        maps: the maps.
        shown: the photo.
        about: model, layer and method in words.
    """
    small, tabs = shown._replace(image=shrunk(shown.image, _OF_NOTEBOOK)), list[tuple[Map, str, dict[str, Any]]]()
    for one in maps:
        values = one.map.display_values
        cells = _base64((values * values.size).astype("<f4").tobytes())
        data = {"cells": cells, "grid": values.shape[::-1], "place": one.map.placement.rescale(one.size, (1, 1))}
        tabs.append((one.map, _jpeg(one.drawn(small)), data))
    return page("notebook.html", tabs=tabs, about=about, id=f"eb{uuid.uuid4().hex}").decode()


def atlas_page(
    shown: Sequence[DisplayFrame],
    maps: Sequence[FrameMaps],
    name: str,
    about: str,
    facts: Mapping[str, str],
    at: tuple[int, int] | None = None,
) -> bytes:
    """The HTML of a page of at most 1 MB on which a photo tells which class has how much evidence where.

    Args:
        shown, maps, name, about, at: as for ``atlas_figure``.
        facts: as for ``encode_picture``.
    """
    image, told = shown[0].image, json.dumps(shorten(facts))
    tried = (_jpeg(shrunk(image, longest)) for longest in _OF_ATLAS)
    photo = next(one for one in tried if len(one) * 3 // 4 <= _LARGEST)
    data = {
        **atlas_data(Atlas.from_maps([one.map for one in maps]), image.size),
        "at": at and (at[0] + 0.5, at[1] + 0.5),
    }
    return page("atlas.html", name=printable(name), about=about, facts=told, data=data, photo=photo)


def atlas_data(atlas: Atlas, size: tuple[int, int]) -> dict[str, Any]:
    """What the script of a page needs of the atlas of a photo of a size (width, height)."""
    left, top, right, bottom = atlas.placement
    most = int((_VALUES / len(atlas.subjects)) ** 0.5)
    height, width = (min(cells, most) for cells in atlas.evidence.shape[1:])
    x = left + (np.arange(width) + 0.5) * (right - left) / width
    y = top + (np.arange(height) + 0.5) * (bottom - top) / height
    cells = _base64((65535 * atlas.sample(x, y)).round().astype("<u2").tobytes())
    subjects = [
        {"index": one.index, "name": one.name and one.name[:_LONGEST_NAME], "score": one.score}
        for one in atlas.subjects
    ]
    where = {"size": size, "place": atlas.placement, "shape": (height, width)}
    return {**where, "clear": CLEAR, "cells": cells, "subjects": subjects}


def _jpeg(image: Image.Image) -> str:
    return _base64(encode_picture(image.convert("RGB"), "jpg"))


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
