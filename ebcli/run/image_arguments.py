"""Images as Python has them: paths, Pillow images, arrays, tensors and open files, as the network gets them."""

from __future__ import annotations

import io
import os
import reprlib
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image
from torch import Tensor

from ebcli.datatypes.arrays import AnyArray
from ebcli.datatypes.input_spec import InputSpec
from ebcli.errors import ConfigurationError, ImageError
from ebcli.files.clips import ClipOptions
from ebcli.files.images import as_photo, is_gray, reading, values_of
from ebcli.files.media.array import NumPy, is_tiff_photo
from ebcli.files.media.medium import DisplayFrame
from ebcli.files.sources import Source
from ebcli.run.reading import NetworkInput, Reader

Frame = tuple[NetworkInput, DisplayFrame]  # what the network gets, and what its maps are drawn over

_KINDS = "a path, a URL, a Pillow image, an array (H, W, 3), a tensor (3, H, W), an open file or its bytes"
_OTHER_DATA = (
    "call excitation_backprop(net, x, class, layer, contrastive=True) with its input x, or use the command"
)
_COLORS = (1, 3, 4)  # channels: gray, RGB, with transparency
# of ranges in which values from 0 to 1 may be meant; in wider ones, they would all look alike
_WIDEST_OF_SCALED = 8


def is_input(image: Any) -> bool:
    """Whether an image is a network's input already: a tensor of floats."""
    return isinstance(image, Tensor) and image.is_floating_point()


def check_kind(spec: InputSpec) -> None:
    """Raise ConfigurationError if a network is not for images."""
    if spec.axes != "HW":
        kind = "videos" if spec.frames is not None else "volumes"
        raise ConfigurationError(f"{spec.network} is for {kind}, explain() for images: {_OTHER_DATA}")


def check_axes(images: Sequence[Any], least: int) -> None:
    """Raise ConfigurationError if an array or a tensor has too many axes for an image, or less than the least."""
    for image in images:
        if isinstance(image, (np.ndarray, Tensor)) and not least <= image.ndim <= 3:
            shape = tuple(image.shape)
            problem = f"an image has the shape {shape}, but (H, W) or (C, H, W) is needed, or a batch"
            raise ConfigurationError(f"{problem}: for volumes or videos, {_OTHER_DATA}")


def read_all(images: Sequence[Any], spec: InputSpec) -> list[Frame]:
    """What the network gets of each image, and what its maps are drawn over.

    Raises:
        ConfigurationError: the network is not for images, or gets no such thing.
        ImageError: an image cannot be read; the message names it.
    """
    check_kind(spec)
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
        return _of_file(Source(Path(image)), spec)
    if isinstance(image, Tensor):
        if is_input(image):
            image = image.float()
        values = image.detach().cpu().numpy()
        if values.ndim == 2:
            values = values[None]
        return _of_array(values, spec, values.dtype.kind == "f")
    if isinstance(image, np.ndarray):
        return _of_array(_channels_first(image, spec), spec)
    if isinstance(image, bytes):
        image = io.BytesIO(image)
    if hasattr(image, "read"):
        return _of_file(_open_source(image), spec)
    if not isinstance(image, Image.Image):
        raise ConfigurationError(f"image is {reprlib.repr(image)}: pass {_KINDS}, or a list of these")
    return _of_pillow(image, spec)


def _of_file(source: Source, spec: InputSpec) -> Frame:
    reader = Reader(spec)
    network_input = reader.load(source)
    assert network_input is not None  # which only files in directories are
    (frame,) = reader.frames(source, network_input)
    return network_input, frame


def _open_source(file: IO[bytes]) -> Source:
    """An open file, from its beginning; its name says what it is, if it has one."""
    name = getattr(file, "name", "")
    with reading():
        file.seek(0)
        content = file.read()
    if not isinstance(content, bytes):
        raise ConfigurationError(f"{reprlib.repr(file)} is open as text: open it with mode 'rb'")
    return Source(Path(name if isinstance(name, str) and name else "image"), content=content)


def _of_pillow(image: Image.Image, spec: InputSpec) -> Frame:
    """An image that is open in Pillow, as its file is read; only TIFF files have floats."""
    bits = 16 if is_gray(image) else 8
    is_tiff = image.mode == "F" or image.format == "TIFF"
    if is_tiff and not is_tiff_photo(len(image.getbands()), bits, spec):
        with reading():
            values = values_of(image)
        return _as_file(np.moveaxis(np.atleast_3d(values), -1, 0), spec)
    photo = as_photo(image, spec.range)
    network_input = NetworkInput.from_image(photo.image, spec)
    notes = photo.notes | network_input.notes
    return replace(network_input, notes=notes), DisplayFrame(as_photo(image, spec.range, to_srgb=True).image)


def _channels_first(values: AnyArray, spec: InputSpec) -> AnyArray:
    if values.ndim < 3:
        return np.atleast_3d(values.T).T
    if len(values) == spec.channels and values.shape[-1] not in (*_COLORS, len(values)):
        return values
    return np.moveaxis(values, -1, 0)


def _of_array(values: AnyArray, spec: InputSpec, is_input: bool = False) -> Frame:
    """The same of an array (C, H, W)."""
    if not is_input:
        _check_units(values, spec)
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
    return _as_file(values, spec)


def _as_file(values: AnyArray, spec: InputSpec) -> Frame:
    """The same of an array (C, H, W), as a file of it is read."""
    file = io.BytesIO()
    np.save(file, values)
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


def _check_units(values: AnyArray, spec: InputSpec) -> None:
    """Raise ImageError if floats from 0 to 1 are far too small for the range."""
    if spec.range is None or values.dtype.kind != "f" or not values.size:
        return
    low, high = spec.range
    is_scaled = values.min() >= 0 and 0 < values.max() <= 1
    if is_scaled and high - low > _WIDEST_OF_SCALED:
        problem = f"its values are floats from 0 to 1, but range is {low:g} to {high:g}"
        raise ImageError(f"{problem}: pass values in these units, or drop range from the preprocessing")
