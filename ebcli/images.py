"""Paths -> decoded, upright RGB images, the network's input, and where in the image the network looked."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from ebcli.errors import ImageError

if TYPE_CHECKING:
    import torch

# Formats that Pillow can only name, or that it hands to other programs, such as EPS to Ghostscript.
_NEVER_DECODED = {"BUFR", "EPS", "GRIB", "HDF5", "MPEG", "WMF"}


class Preset(Protocol):
    """The part of ``torchvision.transforms._presets.ImageClassification`` that geometry needs."""

    resize_size: list[int]
    crop_size: list[int]

    def __call__(self, img: Image.Image) -> torch.Tensor: ...


@dataclass(frozen=True)
class Source:
    """One file to work on; ``named`` if the user named it, False if it was found in a directory."""

    path: Path
    named: bool = True


@dataclass(frozen=True)
class Placement:
    """The rectangle of an image that the network saw, in that image's own pixel coordinates.

    ``(0, 0)`` is the top left *corner* of the top left pixel. Where the crop was larger than the resized
    image and had to be padded, the rectangle reaches beyond the image.
    """

    left: float
    top: float
    right: float
    bottom: float


def find(paths: Iterable[Path], without: Path | None = None) -> Iterator[Source]:
    """Every file of ``paths`` once: files as they come, directories recursively in sorted order.

    The directory ``without`` (where the results go) is left out where it lies inside one of ``paths``. A
    directory that cannot be listed comes back as a source, for ``decode`` to say so.
    """
    seen: set[Path] = set()
    for path in paths:
        found = _walk(path, without) if _is_directory(path) else [Source(path)]
        for source in found:
            if source.path not in seen:
                seen.add(source.path)
                yield source


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # out of reach: for ``decode`` to say
        return False


def _walk(root: Path, without: Path | None) -> Iterator[Source]:
    unlisted: list[Source] = []
    excluded = None if without is None else os.path.realpath(without)
    for folder, folders, files in os.walk(root, onerror=lambda e: unlisted.append(Source(Path(e.filename)))):
        folders[:] = sorted(f for f in folders if os.path.realpath(Path(folder, f)) != excluded)
        for name in sorted(files):
            path = Path(folder, name)
            if path.is_file():  # not a pipe, a socket or a link that leads nowhere
                yield Source(path, named=False)
    yield from unlisted


def has_image_suffix(path: Path) -> bool:
    """Whether the name claims to be an image, by the suffixes that Pillow can open."""
    return Image.registered_extensions().get(path.suffix.lower()) in _formats()


def is_recognised(path: Path) -> bool:
    """Whether the first bytes are those of a format that Pillow reads, whatever the name says."""
    try:
        with Image.open(path, formats=_formats()):
            return True
    except UnidentifiedImageError:
        return False
    except Exception:  # recognised, but broken or out of reach: for ``decode`` to say
        return True


def decode(path: Path) -> Image.Image:
    """The image upright (EXIF orientation applied) and in RGB, the first frame where there are several.

    Transparent pixels are laid on white, 16-bit values scaled to 8 bits.

    Raises:
        ImageError: the file is missing, is no image, is broken, or would unpack to more than Pillow's
            ``Image.MAX_IMAGE_PIXELS`` allows.
    """
    try:
        _check_regular(path)
        with Image.open(path, formats=_formats()) as image:
            return to_rgb(ImageOps.exif_transpose(image))
    except ImageError:
        raise
    except UnidentifiedImageError as error:
        raise ImageError("it is not an image in a format that Pillow reads") from error
    except Image.DecompressionBombError as error:
        raise ImageError("it would unpack to too many pixels") from error
    except OSError as error:
        raise ImageError(error.strerror or str(error)) from error
    except Exception as error:  # broken files make Pillow's decoders raise nearly anything
        raise ImageError(f"it is broken: {error or type(error).__name__}") from error


def _check_regular(path: Path) -> None:
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise ImageError("the directory cannot be listed")
    if not stat.S_ISREG(mode):  # opening a pipe would wait for ever
        raise ImageError("it is not a regular file")


def to_rgb(image: Image.Image) -> Image.Image:
    """Any Pillow mode -> ``RGB``, transparency laid on white.

    32-bit integers that fit into 16 bits are read as 16-bit values; other 32-bit integers and floats have no
    fixed white, so they are stretched from their least to their greatest value.
    """
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        values = np.asarray(image, dtype=np.float64)
        values = np.nan_to_num(values, posinf=values[np.isfinite(values)].max(initial=0.0), neginf=0.0)
        low, high = float(values.min()), float(values.max())
        if image.mode != "F" and low >= 0 and high <= 0xFFFF:
            low, high = 0.0, float(0xFFFF)
        scaled = (values - low) * (255 / ((high - low) or 1.0))
        return Image.fromarray(scaled.round().astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


def placement(size: tuple[int, int], preset: Preset) -> Placement:
    """Where the network looks in an upright image of ``size`` (width, height).

    Undoes torchvision's ``resize`` of the smaller side and its ``center_crop``, both with their own rounding.
    """
    width, height = size
    resize, crop = preset.resize_size[0], preset.crop_size[0]
    shorter = min(size)
    resized = [resize if side == shorter else int(resize * side / shorter) for side in size]
    edges = []
    for side, new in zip((width, height), resized, strict=True):
        start = round((new - crop) / 2) if new >= crop else -((crop - new) // 2)
        edges.append((start * side / new, (start + crop) * side / new))
    (left, right), (top, bottom) = edges
    return Placement(left, top, right, bottom)


def _formats() -> list[str]:
    Image.init()
    return [name for name in Image.OPEN if name not in _NEVER_DECODED]
