"""Results' names, which never collide and never leave the output directory, and their bytes."""

from __future__ import annotations

import hashlib
import io
import os
import re
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image

from ebcli.errors import ImageError

PRIVATE = ".eb-saliency-"  # what this program makes for itself in an output directory starts so
SOFTWARE = "eb-saliency"

_SOFTWARE_TAG = 0x0131  # EXIF's name of the program that made a picture
_LONGEST_STEM = 160  # bytes, which leaves room for a class and a suffix in the 255 that file systems take
_LONGEST_SLUG = 60
_OUTSIDE = "absolute"
_RESULT = re.compile(
    r"(?P<stem>.+)\.(?:(?P<index>\d+)(?:-[a-z0-9-]+)?(?:@[a-z0-9-]+)?\.[a-z]+|panel\.[a-z]+|npz)", re.DOTALL
)
_SAVING: dict[str, dict[str, Any]] = {
    # run-length coding takes a quarter of the default's time for files 2 % larger
    "png": {"format": "PNG", "compress_type": Image.RLE},
    "jpg": {"format": "JPEG", "quality": 90},
    "webp": {"format": "WEBP", "quality": 90},
}


def canonical(path: Path) -> Path:
    """One spelling for each file name: no ``.`` and no ``..``, relative to the working directory where it can be."""
    if os.pardir not in path.parts:
        return Path(os.path.normpath(path))
    # `link/..` is not the directory that holds the link, so only the file system knows what `..` means
    whole = Path(os.path.realpath(path.parent), path.name)
    return whole.relative_to(Path.cwd()) if whole.is_relative_to(Path.cwd()) else whole


def output_relpath(path: Path) -> Path:
    """The place of an input below the output directory: relative, without ``..``, its own for every path.

    A relative path is kept: ``a/b.jpg`` -> ``a/b.jpg``. An absolute one, or one that climbs out of the
    working directory, is kept whole below ``absolute/``: ``/data/b.jpg`` -> ``absolute/data/b.jpg``. A name too
    long to take a class as well loses its end to a hash of itself.
    """
    plain = canonical(path)
    if plain.is_absolute() or plain.parts[:1] == (_OUTSIDE,):
        whole = Path(os.path.abspath(plain))  # noqa: PTH100 - Path.resolve would follow links
        drive = re.sub(r"[:\\/]+", " ", whole.drive).split()
        plain = Path(_OUTSIDE, *drive, *whole.parts[1:])
    name = os.fsencode(plain.name)
    if len(name) > _LONGEST_STEM:
        mark = "~" + hashlib.sha256(name).hexdigest()[:16]
        plain = plain.with_name(name[: _LONGEST_STEM - len(mark)].decode(errors="ignore") + mark)
    return plain


def slug(name: str) -> str:
    """A class name for file names, in lower-case ASCII letters, digits and single dashes: ``tiger-cat``."""
    ascii_name = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", "-", ascii_name.lower())[:_LONGEST_SLUG].strip("-")


def picture_place(place: Path, index: int, category: str | None, suffix: str = "png", layer: str | None = None) -> Path:
    """``photos/cat.jpg`` + class 282 -> ``photos/cat.jpg.282-tiger-cat.png``.

    The whole input name and the class index stand in it, so that different inputs and classes never meet. With a
    layer, as where a run has several, it is ``photos/cat.jpg.282-tiger-cat@features-11.png``.
    """
    shown = "-".join(filter(None, (str(index), slug(category or ""))))
    return place.with_name(f"{place.name}.{shown}" + (f"@{slug(layer)}" if layer else "") + f".{suffix}")


def panel_place(place: Path, suffix: str = "png") -> Path:
    """``photos/cat.jpg`` -> ``photos/cat.jpg.panel.png``."""
    return place.with_name(f"{place.name}.panel.{suffix}")


def raw_place(place: Path) -> Path:
    """``photos/cat.jpg`` -> ``photos/cat.jpg.npz``."""
    return place.with_name(f"{place.name}.npz")


def parse_result_name(result: Path) -> tuple[Path, int | None] | None:
    """Where a result's name comes from: the input's place, and the class; None for other names.

    ``a.jpg.282-tiger-cat.png`` -> ``a.jpg``, 282; ``a.jpg.npz`` and ``a.jpg.panel.png`` -> ``a.jpg``, None.
    """
    match = _RESULT.fullmatch(result.name)
    if match is None:
        return None
    index = None if match["index"] is None else int(match["index"])
    return result.with_name(match["stem"]), index


def encode_picture(picture: Image.Image, suffix: str) -> bytes:
    """A picture file's content, ``suffix`` being png, jpg or webp; it says which program made it.

    Raises:
        ImageError: the format cannot hold the picture.
    """
    exif = Image.Exif()
    exif[_SOFTWARE_TAG] = SOFTWARE
    buffer = io.BytesIO()
    try:
        picture.save(buffer, exif=exif, **_SAVING[suffix])
    except (OSError, ValueError) as error:
        size = f"{picture.width} x {picture.height} pixels"
        raise ImageError(f"its map of {size} does not fit into the format {suffix} ({error}): use png") from error
    return buffer.getvalue()


def encode_arrays(arrays: Mapping[str, ArrayLike]) -> bytes:
    """A compressed ``.npz`` file's content, with a ``software`` entry that says which program made it."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **{"software": np.array(SOFTWARE), **arrays})  # type: ignore[arg-type]
    return buffer.getvalue()


def is_own(path: Path) -> bool:
    """Whether a file's own content says that this program made it."""
    try:
        if path.is_symlink() or not path.is_file():
            return False
        if path.suffix == ".npz":
            with np.load(path) as arrays:
                return bool(arrays["software"] == SOFTWARE)
        with Image.open(path) as picture:
            return bool(picture.getexif().get(_SOFTWARE_TAG) == SOFTWARE)
    except Exception:  # whatever it is, it cannot be read as one of ours
        return False
