"""Images as Python programs have them: paths and URLs, pictures, arrays and tensors, open files."""

import io
import os
import reprlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ebcli.errors import ConfigurationError, ImageError
from ebcli.files.frame_ranges import ClipOptions
from ebcli.files.images import decode, to_rgb
from ebcli.files.media.array import NumPy
from ebcli.files.media.medium import Shown
from ebcli.files.safe_open import Stamp
from ebcli.files.sources import Source
from ebcli.nouns.input_spec import InputSpec
from ebcli.run.reading import NetworkInput, Reader

File = str | os.PathLike[str] | IO[bytes] | Image.Image
Array = NDArray[Any] | Tensor

_KINDS = "a path, a URL, a Pillow image, an array (H, W, 3), a tensor (3, H, W) or an open file"
_COLORS = (1, 3, 4)  # channels: gray, RGB, with transparency


def listed(images: Any) -> tuple[list[Any], bool]:
    """Each image, and whether these are several: a list, a tuple or a batch."""
    if isinstance(images, (list, tuple)):
        return [*images], True
    return ([*images], True) if getattr(images, "ndim", 0) == 4 else ([images], False)


def is_input(image: Any) -> bool:
    """Whether an image is a network's input already: a tensor of floats."""
    return isinstance(image, Tensor) and image.is_floating_point()


def read_all(images: Sequence[Any], spec: InputSpec) -> list[tuple[NetworkInput, Shown]]:
    """What the network gets of each image, and what its maps are drawn over.

    Raises:
        ConfigurationError: the network is not for images, or gets no such thing.
        ImageError: an image cannot be read; the message names it.
    """
    if spec.axes != "HW":
        what = "videos" if spec.frames is not None else "volumes"
        raise ConfigurationError(f"{spec.network} is for {what}, explain() for images: use the command")
    found = []
    for number, image in enumerate(images, 1):
        try:
            found.append(_read(image, spec))
        except ImageError as error:
            name = f"'{image}'" if isinstance(image, (str, os.PathLike)) else f"image {number} of {len(images)}"
            raise ImageError(f"{name}: {error}") from error
    return found


def _read(image: Any, spec: InputSpec) -> tuple[NetworkInput, Shown]:
    if isinstance(image, (str, os.PathLike)) and not os.path.isdir(image):
        reader, source = Reader(spec), Source(Path(image))
        loaded = reader.load(source)
        assert loaded is not None  # which only files in directories are
        (shown,) = reader.frames(source, loaded)
        return loaded, shown
    if isinstance(image, Tensor):
        values = (image.float() if is_input(image) else image).detach().cpu().numpy()
        return _of_array(values[None] if values.ndim == 2 else values, spec, is_input(image))
    if isinstance(image, np.ndarray):
        is_first = image.ndim < 3 or (len(image) == spec.channels and image.shape[-1] not in (*_COLORS, len(image)))
        return _of_array(np.atleast_3d(image.T).T if is_first else np.moveaxis(image, -1, 0), spec)
    if hasattr(image, "read"):
        image = decode(image)
    if not isinstance(image, Image.Image):
        raise ConfigurationError(f"image is {reprlib.repr(image)}, but explain() takes {_KINDS}, or a list of these")
    upright = to_rgb(image)
    return NetworkInput.of(upright, spec), Shown(upright)


def _of_array(values: NDArray[Any], spec: InputSpec, is_input: bool = False) -> tuple[NetworkInput, Shown]:
    """The same of an array (C, H, W)."""
    if not is_input and len(values) in _COLORS and spec.channels in _COLORS:
        if spec.range is None and values.dtype not in (np.uint8, np.uint16) and values.max(initial=0) > 1:
            kind, most = values.dtype, values.max()
            raise ImageError(f"it is {kind} with values up to {most:g}: pass integers of 8 bits, or floats from 0 to 1")
        if values.dtype == np.uint8 or spec.function is not None:
            levels = (
                values if values.dtype == np.uint8 else (255 * spec.scaled(values).clip(0, 1)).round().astype(np.uint8)
            )
            return _read(Image.fromarray(levels[0] if len(values) == 1 else np.moveaxis(levels, 0, -1)), spec)
        values = values.repeat(spec.channels, 0) if len(values) == 1 else values
    file, medium, all_of_it = io.BytesIO(), NumPy("HW"), ClipOptions()
    np.save(file, values)  # as a file of it is read
    pixels, size, _ = medium.read(file, spec, all_of_it)
    (shown,) = medium.frames(file, spec, all_of_it, None)
    return NetworkInput(pixels=pixels, stamp=Stamp(0, 0), seconds=0.0, size=size), shown
