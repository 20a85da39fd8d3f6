"""Where a function of an image looks in it, measured. Imports no torch."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ebcli.errors import ConfigurationError
from ebcli.nouns.box import Box

_TOLERANCE = 0.02  # of a side; 8 bits tell places of a side apart to 0.004


def called(function: Callable[[Image.Image], Any], image: Image.Image) -> NDArray[np.float32]:
    """What a function makes of an image, (height, width, C).

    Raises:
        ConfigurationError: it does not return a tensor (C, height, width).
    """
    made = function(image)
    if getattr(made, "ndim", 0) != 3:
        what = f"a {type(made).__name__}" if getattr(made, "shape", None) is None else f"shape {tuple(made.shape)}"
        raise ConfigurationError(f"transform returns {what}, but a tensor (C, height, width) is needed")
    return np.ascontiguousarray(np.moveaxis(np.asarray(made, np.float32), 0, -1))


@lru_cache(maxsize=64)
def measured(function: Callable[[Image.Image], Any], size: tuple[int, int]) -> Box:
    """The rectangle of an image of a size (width, height) that a function resizes, crops or pads to its result.

    Ramps from black to white along each side tell where the result's pixels come from; it may be normalized.

    Raises:
        ConfigurationError: the pixels do not come from a rectangle, or from another one each time.
    """
    x, y = (np.arange(side) / max(1, side - 1) * 255 for side in size)

    def seen(values: NDArray[Any] | float) -> NDArray[np.float32]:
        gray = np.broadcast_to(np.round(values), size[::-1]).astype(np.uint8)
        return called(function, Image.fromarray(gray).convert("RGB"))

    black, white = seen(0.0), seen(255.0)
    contrast = white - black
    is_image = np.abs(contrast) > np.abs(contrast).max() / 2  # what is the same in all is padding
    ends = []
    for side, ramp, axis in ((size[0], np.broadcast_to(x, size[::-1]), 1), (size[1], y[:, None], 0)):
        first, again = seen(ramp), seen(ramp)
        at = np.nonzero(is_image)[axis] + 0.5
        found = (first - black)[is_image] / contrast[is_image] * (side - 1) + 0.5
        slope, start = np.polyfit(at, found, 1) if len(set(at.tolist())) > 1 else (0.0, 0.0)
        if slope <= 0 or np.abs(slope * at + start - found).max() > _TOLERANCE * side or (first != again).any():
            raise ConfigurationError(
                "transform does not always resize, crop and pad an image in the same way, so its maps have no place in "
                "it: pass the tensor that it makes, or another transform"
            )
        ends.append((start, start + slope * black.shape[axis]))
    (left, right), (top, bottom) = ends
    return Box(float(left), float(top), float(right), float(bottom))
