"""The maps of an image in a notebook: a tab for each, and the value under the pointer."""

import base64
import uuid
from collections.abc import Sequence
from typing import Any

from ebcli.drawing.frames import FrameMaps
from ebcli.drawing.overlay import shrunk
from ebcli.files.encoding import encode_picture
from ebcli.files.media.medium import Shown
from ebcli.pages.shell import page

_LONGEST = 640  # pixels of the photo's longer side


def notebook_view(maps: Sequence[FrameMaps], shown: Shown, about: str) -> str:
    """A fragment of HTML that loads nothing. Where scripts are not run, it shows the pictures one below the other.

    Args:
        maps: the maps.
        shown: the photo.
        about: model, layer and method in words.
    """
    small = shown._replace(image=shrunk(shown.image, _LONGEST))
    layers = {one.map.layer for one in maps}

    def described(one: FrameMaps) -> dict[str, Any]:
        map_, values = one.map, one.map.drawn_values
        width, height = one.size
        left, top, right, bottom = map_.placement
        told = [map_.title, f"mass {map_.mass:.3f}" if map_.mass is not None else "", *map_.told]
        name = map_.subject.name or f"class {map_.subject.index}"
        return {
            "tab": name if len(layers) == 1 else f"{name}, {map_.layer}",
            "told": "; ".join(filter(None, told)),
            "picture": base64.b64encode(encode_picture(one.drawn(small).convert("RGB"), "jpg")).decode(),
            "cells": base64.b64encode((values * values.size).astype("<f4").tobytes()).decode(),
            "grid": [*values.shape[::-1]],
            "place": [left / width, top / height, right / width, bottom / height],
        }

    return page("notebook.html", maps=[*map(described, maps)], about=about, id=f"eb{uuid.uuid4().hex}").decode()
