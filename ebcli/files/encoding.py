"""The bytes of result files, which say that this program made them."""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from ebcli.errors import ImageError
from ebcli.files.naming import COCO, COCO_MARK, SETTINGS, SETTINGS_MARK
from ebcli.files.regular import open_regular

SOFTWARE = "eb-saliency"
FACTS = ("input", "model", "weights", "layer", "method", "style", "class", "score", "version")

_SOFTWARE_TAG = 0x0131  # EXIF's Software
_DESCRIPTION_TAG = 0x010E  # EXIF's ImageDescription
_TIFF = b"MM\0*\0\0\0\x08"  # how EXIF data starts as Pillow writes it, in big endian
_SOFTWARE_VALUE = SOFTWARE.encode() + b"\0"
_SOFTWARE_ENTRY = struct.pack(">HHL", _SOFTWARE_TAG, 2, len(_SOFTWARE_VALUE))  # followed by the value's offset
_LONGEST_FACT = 300  # characters; all facts must fit into _MARK_WITHIN
# The description of an MP4 file, the last entry of its metadata, which are the last box of the file
_MP4_MARK = struct.pack(">L4sL4sLL", 24 + len(SOFTWARE), b"desc", 16 + len(SOFTWARE), b"data", 1, 0) + SOFTWARE.encode()
_COMMENT_WITHIN = 1 << 16  # bytes from the end
_MARK_WITHIN = 4096  # bytes from either end: PNG and JPEG have EXIF before the pixels, WebP behind them
_ZIP_HEADER = struct.Struct("<4s22xHH")
_FIRST_ARRAY = b"software.npy"
_CLASS_ARRAYS = {"classes", "names", "scores"}
_LARGEST_ARRAY = 1 << 28  # bytes
_SAVING: dict[str, dict[str, Any]] = {
    # run-length coding takes a quarter of the default's time for files 2% larger
    "png": {"format": "PNG", "compress_type": Image.RLE},
    "jpg": {"format": "JPEG", "quality": 90},
    "webp": {"format": "WEBP", "quality": 90},
}


def encode_picture(picture: Image.Image, suffix: str, facts: Mapping[str, str] | None = None) -> bytes:
    """The content of a picture file; its EXIF data names this program.

    Args:
        picture: what to encode.
        suffix: ``png``, ``jpg`` or ``webp``.
        facts: how it was made, some of ``FACTS``; stored as text in PNG, else as JSON in EXIF's description.

    Raises:
        ImageError: the format cannot hold the picture.
    """
    buffer, exif, texts = io.BytesIO(), made_by({} if suffix == "png" else facts or {}), PngInfo()
    if suffix == "png":
        for name, value in shortened(facts or {}).items():
            texts.add_text(name, value)
    try:
        picture.save(buffer, exif=exif, pnginfo=texts, **_SAVING[suffix])
    except (OSError, ValueError) as error:
        size = f"{picture.width} x {picture.height} pixels"
        raise ImageError(f"its map of {size} does not fit into the format {suffix} ({error}): use png") from error
    return buffer.getvalue()


def made_by(facts: Mapping[str, str]) -> Image.Exif:
    """EXIF data that name this program, and say how a picture was made."""
    exif = Image.Exif()
    exif[_SOFTWARE_TAG] = SOFTWARE
    if facts:
        exif[_DESCRIPTION_TAG] = json.dumps(shortened(facts))
    return exif


def shortened(facts: Mapping[str, str]) -> dict[str, str]:
    """The facts that fit into a file's metadata."""
    return {name: value[:_LONGEST_FACT] for name, value in facts.items()}


def read_facts(path: Path) -> dict[str, str]:
    """How a result was made: those of ``FACTS`` that this program wrote into it; empty for other files.

    Raises:
        OSError: it cannot be read.
    """
    if path.suffix.lower() == ".npz":
        try:
            arrays = read_arrays(path, (*FACTS, *_CLASS_ARRAYS)) if is_own(path) else {}
        except ValueError:
            return {}
        found = {name: ", ".join(map(str, np.atleast_1d(arrays[name]))) for name in FACTS if name in arrays}
        if arrays.keys() >= _CLASS_ARRAYS:
            indices, names, scores = (np.atleast_1d(arrays[name]) for name in ("classes", "names", "scores"))
            found["class"] = "; ".join(f"{index} {name}".rstrip() for index, name in zip(indices, names, strict=False))
            found["score"] = ", ".join(f"{float(score):.4f}" for score in scores)
        return {name: found[name] for name in FACTS if name in found}
    with open_regular(path, follow=False) as file:
        if not is_own(path):
            return {}
        if path.suffix.lower() == ".mp4":
            found = _comment(file)
            return {name: str(found[name]) for name in FACTS if name in found}
        with Image.open(file) as image:
            found = image.info
            if image.format != "PNG":
                try:
                    found = json.loads(image.getexif().get(_DESCRIPTION_TAG, "{}"))
                except ValueError:
                    found = {}
    return {name: str(found[name]) for name in FACTS if name in found}


def encode_arrays(arrays: Mapping[str, ArrayLike]) -> bytes:
    """The content of a compressed ``.npz`` file; its first array, ``software``, names this program."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **{"software": np.array(SOFTWARE), **arrays})  # type: ignore[arg-type]
    return buffer.getvalue()


def read_arrays(path: Path, names: Collection[str]) -> dict[str, NDArray[Any]]:
    """Those of the named arrays that an ``.npz`` file has; what it stores as Python objects is not loaded.

    Raises:
        OSError, ValueError: it is not an intact file of arrays, or they are larger than a map can be.
    """
    arrays = {}
    try:
        with open_regular(path, follow=False) as file, zipfile.ZipFile(file) as archive:
            for name in set(archive.namelist()) & {f"{name}.npy" for name in names}:
                if archive.getinfo(name).file_size > _LARGEST_ARRAY:
                    raise ValueError(f"{name} is too large")
                with archive.open(name) as member:
                    arrays[name.removesuffix(".npy")] = np.lib.format.read_array(member, allow_pickle=False)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, MemoryError) as error:
        raise ValueError(f"it is not an intact .npz file ({error})") from error
    return arrays


def is_own(path: Path) -> bool:
    """Whether a file's content says that this program made it; reads at most a few kilobytes of it."""
    try:
        with open_regular(path, follow=False) as file:
            head = file.read(_MARK_WITHIN)
            if path.name == SETTINGS.name:
                return head.startswith(SETTINGS_MARK.encode())
            if path.name == COCO.name:
                return head.startswith(COCO_MARK)
            if head.startswith(b"PK"):
                return _names_software(head)
            file.seek(max(0, file.seek(0, io.SEEK_END) - _MARK_WITHIN))
            tail = file.read()
            if head[4:8] == b"ftyp":
                return tail.endswith(_MP4_MARK)
            return _says_software(head) or _says_software(tail)
    except (OSError, ValueError, struct.error, zlib.error):
        return False


def _comment(file: BinaryIO) -> dict[str, Any]:
    """The JSON object in the comment of an MP4 file of this program, which stands before the description."""
    file.seek(max(0, file.seek(0, io.SEEK_END) - _COMMENT_WITHIN))
    tail = file.read()
    start = tail.rfind(b"\xa9cmt") + 4
    (size,) = struct.unpack_from(">L", tail, start)
    try:
        found = json.loads(tail[start + 16 : start + size])
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _says_software(data: bytes) -> bool:
    """Whether EXIF data somewhere in these bytes names this program as the software."""
    start = data.find(_TIFF)
    entry = data.find(_SOFTWARE_ENTRY, start)
    if min(start, entry) < 0 or len(data) < entry + 12:
        return False
    (offset,) = struct.unpack_from(">L", data, entry + 8)
    return data[start + offset :].startswith(_SOFTWARE_VALUE)


def _names_software(head: bytes) -> bool:
    """Whether the first file of a zip archive is the array ``software``, and it names this program."""
    _, name_size, extra_size = _ZIP_HEADER.unpack_from(head)
    name, content = head[_ZIP_HEADER.size :][:name_size], head[_ZIP_HEADER.size + name_size + extra_size :]
    if name != _FIRST_ARRAY:
        return False
    array = zlib.decompressobj(-zlib.MAX_WBITS).decompress(content, _MARK_WITHIN)
    return str(np.lib.format.read_array(io.BytesIO(array), allow_pickle=False)) == SOFTWARE
