"""The pages of a photo: an answer, an atlas, and the view of its maps in a notebook. Each loads nothing."""

import base64
import json
import uuid
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from PIL import Image

from ebcli.datatypes.atlas import CLEAR, Atlas
from ebcli.datatypes.explanation import Explanation, JsonObject, Map, Size
from ebcli.drawing.frame_maps import FrameMaps, Frames, MapsOfImage
from ebcli.drawing.legend import printable, shade
from ebcli.drawing.overlay import downscale
from ebcli.files.encoding import encode_picture, shorten
from ebcli.files.media.medium import DisplayFrame
from ebcli.pages.shell import page

# Pixels of the photo's longer side
_OF_ANSWER = 1200
_OF_NOTEBOOK = 640
_OF_ATLAS = (1600, 1200, 900, 400)  # the first one that fits
_LARGEST = 500_000  # bytes of the photo of an atlas
_VALUES = 100_000  # of evidence, of all classes
_LONGEST_NAME = 200  # characters


def answer_page(
    explanation: Explanation, frames: Frames, maps: MapsOfImage, name: str, subtitle: str
) -> bytes:
    """The HTML of a page with the question, the answer, the photo, and the map of each word over it.

    Args:
        explanation, frames, maps, name, subtitle: as for ``answer_figure``.
    """
    small = frames[0]._replace(image=downscale(frames[0].image, _OF_ANSWER))
    words = []
    for frame_maps in maps:
        color = shade(frame_maps.map.share or 0.0)
        words.append({**vars(frame_maps.map), "color": color, "picture": _jpeg(frame_maps.draw(small))})
    return page(
        "answer.html",
        name=name,
        explanation=explanation,
        about=subtitle,
        photo=_jpeg(small.image),
        words=words,
    )


def notebook_view(
    maps: MapsOfImage, frame: DisplayFrame, subtitle: str, answer: Explanation | None = None
) -> str:
    """A fragment of HTML: a tab for each map, with the value under the pointer. Of an answer, the words are the tabs.

    Where scripts are not run, it shows the pictures one below the other.

    Args:
        maps: the maps.
        frame: the photo.
        subtitle: model, layer and method in words.
        answer: the question and the answer, if the maps are those of its words.
    """

    def tab(frame_maps: FrameMaps, frame: DisplayFrame) -> tuple[Map, str, JsonObject]:
        small = frame._replace(image=downscale(frame.image, _OF_NOTEBOOK))
        map_ = replace(frame_maps.map, pictures=())
        frame_maps = replace(frame_maps, map=map_)
        values = map_.display_values
        data = {
            "cells": _base64((values * values.size).astype("<f4").tobytes()),
            "grid": values.shape[::-1],
            "place": map_.placement.rescale(frame_maps.size, (1, 1)),
        }
        return map_, _jpeg(frame_maps.draw(small)), data

    tabs = []
    for frame_maps in maps:
        tabs.append(tab(frame_maps, frame))
        tabs += [tab(*pair) for pair in frame_maps.beside]
    id_ = f"eb{uuid.uuid4().hex}"
    return page("notebook.html", tabs=tabs, about=subtitle, id=id_, answer=answer, shade=shade).decode()


def atlas_page(
    frames: Frames,
    maps: MapsOfImage,
    name: str,
    subtitle: str,
    facts: Mapping[str, str],
    pixel: tuple[int, int] | None = None,
) -> bytes:
    """The HTML of a page of at most 1 MB on which a photo tells which class has how much evidence where.

    Args:
        frames, maps, name, subtitle, pixel: as for ``atlas_figure``.
        facts: as for ``encode_picture``.
    """
    image = frames[0].image
    encodings = (_jpeg(downscale(image, longest)) for longest in _OF_ATLAS)
    photo = next(encoding for encoding in encodings if len(encoding) * 3 // 4 <= _LARGEST)
    data = atlas_data(Atlas.from_maps([frame_maps.map for frame_maps in maps]), image.size)
    data["at"] = pixel and [position + 0.5 for position in pixel]
    return page(
        "atlas.html",
        name=printable(name),
        about=subtitle,
        facts=json.dumps(shorten(facts)),
        data=data,
        photo=photo,
    )


def atlas_data(atlas: Atlas, size: Size) -> JsonObject:
    """What the script of a page needs of the atlas of a photo of a size (width, height)."""
    left, top, right, bottom = atlas.placement
    max_cells = int((_VALUES / len(atlas.subjects)) ** 0.5)
    height, width = (min(cells, max_cells) for cells in atlas.evidence.shape[1:])
    x = left + (np.arange(width) + 0.5) * (right - left) / width
    y = top + (np.arange(height) + 0.5) * (bottom - top) / height
    subjects = []
    for subject in atlas.subjects:
        name = subject.name and subject.name[:_LONGEST_NAME]
        subjects.append({"index": subject.index, "name": name, "score": subject.score})
    return {
        "size": size,
        "place": atlas.placement,
        "shape": (height, width),
        "clear": CLEAR,
        "cells": _base64((65535 * atlas.sample(x, y)).round().astype("<u2").tobytes()),
        "subjects": subjects,
    }


def _jpeg(image: Image.Image) -> str:
    return _base64(encode_picture(image.convert("RGB"), "jpg"))


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
