"""What the page gets: maps as numbers that it draws itself, and the colors to draw them with."""

import json
from collections.abc import Iterable
from typing import Any

import numpy as np

from ebcli.drawing.color_scale import limits, opacity, overlay_colors, palette
from ebcli.drawing.frames import FrameMaps
from ebcli.drawing.style import DrawingStyle
from ebcli.nouns.explanation import Explanation, Map, Subject

_STYLES = {"unsigned": DrawingStyle(), "signed": DrawingStyle(signed=True)}


def colors() -> dict[str, Any]:
    """The colors and the opacities of the 256 levels of each scale."""
    scales = {
        name: {
            "overlay": overlay_colors(style).ravel().tolist(),
            "heatmap": palette(style.colormap).ravel().tolist(),
            "opacity": (255 * opacity(style)).round().astype(int).tolist(),
        }
        for name, style in _STYLES.items()
    }
    return {"scales": scales, "alpha": DrawingStyle.alpha}


def told(subjects: Iterable[Subject]) -> list[dict[str, Any]]:
    """Subjects with their boxes and outlines, in pixels of the photo."""
    return [
        {
            "index": one.index,
            "name": one.name,
            "score": one.score,
            "box": one.box and one.box.sized,
            "outlines": [np.asarray(line).round(1).tolist() for line in one.outlines],
        }
        for one in subjects
    ]


def encoded(explanation: Explanation, size: tuple[int, int], **more: Any) -> bytes:
    """The maps of a photo of a size (width, height): a description in JSON, then their values, 32-bit floats.

    More can be in the description. The first four bytes are its length, which spaces make a multiple of four.
    """
    found = [_described(map_, size) for map_ in explanation.maps]
    about = {"size": size, "subjects": told(explanation.subjects), "maps": found, **more}
    text = json.dumps(about).encode()
    text += b" " * (-len(text) % 4)
    values = [map_.drawn_values.astype("<f4").tobytes() for map_ in explanation.maps]
    return b"".join([len(text).to_bytes(4, "little"), text, *values])


def _described(map_: Map, size: tuple[int, int]) -> dict[str, Any]:
    """What is said of a map; the ends of its scales, None for one on which it is blank, are in the map's own units."""
    scales = {}
    for name, style in _STYLES.items():
        frame = FrameMaps.of(map_, size, None, style)
        scales[name] = None if frame.is_blank else limits(map_.drawn_values, frame.faded)
    return {
        "layer": map_.layer,
        "shape": map_.values.shape,
        "place": map_.placement,
        "mass": map_.mass,
        "told": map_.told,
        "scales": scales,
    }
