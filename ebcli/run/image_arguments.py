"""Images as Python has them: paths, Pillow images, arrays, tensors and open files, as the network gets them."""

from __future__ import annotations

import io
import os
import reprlib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from ebcli.datatypes.arrays import AnyArray
from ebcli.datatypes.input_spec import InputSpec
from ebcli.errors import ConfigurationError, ImageError
from ebcli.files.clips import ClipOptions
from ebcli.files.images import decode, in_srgb, to_rgb
from ebcli.files.media.array import NumPy
from ebcli.files.media.medium import DisplayFrame
from ebcli.files.sources import Source
from ebcli.run.reading import NetworkInput, Reader

Frame = tuple[NetworkInput, DisplayFrame]  # what the network gets, and what its maps are drawn over

_KINDS = "a path, a URL, a Pillow image, an array (H, W, 3), a tensor (3, H, W) or an open file"
_COLORS = (1, 3, 4)  # channels: gray, RGB, with transparency


def is_input(image: Any) -> bool:
    """Whether an image is a network's input already: a tensor of floats."""
    return isinstance(image, Tensor) and image.is_floating_point()


def read_all(images: Sequence[Any], spec: InputSpec) -> list[Frame]:
    """What the network gets of each image, and what its maps are drawn over.

    Raises:
        ConfigurationError: the network is not for images, or gets no such thing.
        ImageError: an image cannot be read; the message names it.
    """
    if spec.axes != "HW":
        kind = "videos" if spec.frames is not None else "volumes"
        raise ConfigurationError(f"{spec.network} is for {kind}, explain() for images: use the command")
    inputs = []
    topics: set[str] = set()
    for number, image in enumerate(images, 1):
        name = f"image {number} of {len(images)}"
        if isinstance(image, (str, os.PathLike)):
            name = f"'{image}'"
        try:
            frame = _read(image, spec)
        except ImageError as error:
            raise ImageError(f"{name}: {error}") from error
        for topic, note in frame[0].notes.items():
            if topic not in topics:
                warnings.warn(f"{name}: {note}", stacklevel=3)
        topics.update(frame[0].notes)
        inputs.append(frame)
    return inputs


def _read(image: Any, spec: InputSpec) -> Frame:
    if isinstance(image, (str, os.PathLike)) and not os.path.isdir(image):
        reader = Reader(spec)
        source = Source(Path(image))
        network_input = reader.load(source)
        assert network_input is not None  # which only files in directories are
        (frame,) = reader.frames(source, network_input)
        return network_input, frame
    if isinstance(image, Tensor):
        if is_input(image):
            image = image.float()
        values = image.detach().cpu().numpy()
        if values.ndim == 2:
            values = values[None]
        return _of_array(values, spec, values.dtype.kind == "f")
    if isinstance(image, np.ndarray):
        return _of_array(_channels_first(image, spec), spec)
    if hasattr(image, "read"):
        image = decode(image)
    if not isinstance(image, Image.Image):
        raise ConfigurationError(f"image is {reprlib.repr(image)}: pass {_KINDS}, or a list of these")
    return NetworkInput.from_image(to_rgb(image), spec), DisplayFrame(to_rgb(in_srgb(image)))


def _channels_first(values: AnyArray, spec: InputSpec) -> AnyArray:
    if values.ndim < 3:
        return np.atleast_3d(values.T).T
    if len(values) == spec.channels and values.shape[-1] not in (*_COLORS, len(values)):
        return values
    return np.moveaxis(values, -1, 0)


def _of_array(values: AnyArray, spec: InputSpec, is_input: bool = False) -> Frame:
    """The same of an array (C, H, W)."""
    if not is_input and len(values) in _COLORS and spec.channels in _COLORS:
        values = _as_colors(values, spec)
        is_gray = len(values) == 1
        if values.dtype == np.uint8:
            pixels = values[0] if is_gray else np.moveaxis(values, 0, -1)
            return _read(Image.fromarray(pixels), spec)
        if is_gray:
            values = values.repeat(spec.channels, 0)
    if is_input and not np.isfinite(values).all():
        raise ImageError("it is a network's input with values that are not finite: replace them")
    file = io.BytesIO()
    np.save(file, values)  # as a file of it is read
    medium = NumPy("HW")
    pixels, size, _, notes = medium.read(file, spec, ClipOptions())
    (frame,) = medium.frames(file, spec, ClipOptions(), None)
    return NetworkInput(pixels=pixels, size=size, notes=notes), frame


def _as_colors(values: AnyArray, spec: InputSpec) -> AnyArray:
    """An array of colors, in 8 bits if that is what the preprocessing takes."""
    maximum = values.max(initial=0)
    if spec.range is None and values.dtype not in (np.uint8, np.uint16) and maximum > 1:
        problem = f"it is {values.dtype} with values up to {maximum:g}"
        raise ImageError(f"{problem}: pass integers of 8 bits, or floats from 0 to 1")
    if values.dtype == np.uint8 or spec.function is None:
        return values
    return (255 * spec.to_unit_range(values).clip(0, 1)).round().astype(np.uint8)
