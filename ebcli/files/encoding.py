"""The bytes of result files, which say that this program made them: pictures and arrays."""

import html
import io
import json
import math
import re
import zipfile
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import ArrayLike
from PIL import Image
from PIL.PdfParser import PdfParser
from PIL.PngImagePlugin import PngInfo

from ebcli.datatypes.arrays import AnyArray
from ebcli.datatypes.explanation import JsonObject
from ebcli.errors import EbcliError, ImageError, import_optional, sides
from ebcli.files.images import open_container, open_image
from ebcli.files.paths import safe_open

Facts = Mapping[str, str]

SOFTWARE = "eb-saliency"
_FACT_NAMES = (
    "input model weights head dtype layer fit tiles method style scale class score output value strength "
    "sufficiency version versions"
)
FACTS = tuple(_FACT_NAMES.split())

_NO_FACTS: Facts = {}
_SOFTWARE_TAG = 0x0131  # EXIF's Software
_DESCRIPTION_TAG = 0x010E  # EXIF's ImageDescription
_LONGEST_FACT = 300  # characters
_CLASS_ARRAYS = {"classes", "names", "scores"}
_LARGEST_ARRAY = 1 << 28  # bytes
_BEGINNING = 1 << 17  # bytes, in which an SVG file or a page says how it was made
_DESCRIPTION = re.compile(
    rf"<dc:description>([^<]*)</dc:description>.*?<dc:title>{SOFTWARE}</dc:title>"
    rf'|<meta name="generator" content="{SOFTWARE}">.*?<meta name="description" content="([^"]*)">',
    re.DOTALL,
)
_SAVING: dict[str, JsonObject] = {
    # run-length coding takes a quarter of the default's time for files 2% larger
    "png": {"format": "PNG", "compress_type": Image.RLE},
    "jpg": {"format": "JPEG", "quality": 90},
    "webp": {"format": "WEBP", "quality": 90},
}


def encode_picture(picture: Image.Image, suffix: str, facts: Facts = _NO_FACTS) -> bytes:
    """The content of a picture file; its EXIF data names this program.

    Args:
        picture: what to encode.
        suffix: ``png``, ``jpg`` or ``webp``.
        facts: how it was made, some of ``FACTS``; stored as text in PNG, as JSON in EXIF's description of other
            formats.

    Raises:
        ImageError: the format cannot hold the picture.
    """
    buffer = io.BytesIO()
    options = dict(_SAVING[suffix])
    if suffix == "png":
        options["pnginfo"] = as_texts(facts)
        facts = _NO_FACTS
    if "dpi" in picture.info:
        options["dpi"] = picture.info["dpi"]
    try:
        picture.save(buffer, exif=made_by(facts), **options)
    except (OSError, ValueError) as error:
        raise ImageError(
            f"its map of {sides(picture.size)} pixels does not fit into the format {suffix} ({error}): use png"
        ) from error
    return buffer.getvalue()


def as_texts(facts: Facts) -> PngInfo:
    """How a picture was made, as PNG has it."""
    texts = PngInfo()
    for name, value in shorten(facts).items():
        texts.add_text(name, value)
    return texts


def made_by(facts: Facts) -> Image.Exif:
    """EXIF data that name this program, and say how a picture was made."""
    exif = Image.Exif()
    exif[_SOFTWARE_TAG] = SOFTWARE
    if facts:
        exif[_DESCRIPTION_TAG] = json.dumps(shorten(facts))
    return exif


def shorten(facts: Facts) -> Facts:
    """The facts that fit into a file's metadata."""
    return {name: value[:_LONGEST_FACT] for name, value in facts.items()}


def read_facts(path: Path) -> Facts:
    """How a result was made: those of ``FACTS`` that this program wrote into it; empty for other files.

    Raises:
        OSError: it cannot be read.
        ConfigurationError: it is a video, and the package for videos is missing.
    """
    readers = {
        **{".npz": _of_arrays, ".pdf": _of_pdf, ".svg": _of_text, ".html": _of_text},
        **{".mp4": _of_video, ".webm": _of_video, ".gif": _of_gif},
    }
    read = readers.get(path.suffix.lower(), _of_picture)
    with safe_open(path, follow=False) as file:
        try:
            software, facts = read(file)
            if software != SOFTWARE:
                return {}
            if isinstance(facts, str):
                facts = json.loads(facts)
            return {name: str(facts[name]) for name in FACTS if name in facts}
        except EbcliError:
            raise
        except Exception:  # somebody else's file can be broken in any way
            return {}


# What made a file, and the facts or their JSON; KeyError and the like if it does not say
_Facts = tuple[Any, Any]


def _of_arrays(file: BinaryIO) -> _Facts:
    arrays = _arrays(file, ("software", *FACTS, *_CLASS_ARRAYS))
    facts = {name: ", ".join(map(str, array.flat)) for name, array in arrays.items()}
    if arrays.keys() >= _CLASS_ARRAYS:
        titles = zip(arrays["classes"].flat, arrays["names"].flat, strict=False)
        facts["class"] = "; ".join(f"{index} {name}".rstrip() for index, name in titles)
        facts["score"] = ", ".join(f"{score:.4f}" for score in arrays["scores"].flat)
    return facts["software"], facts


def _of_video(file: BinaryIO) -> _Facts:
    with open_container(import_optional("av"), file) as container:
        metadata = {name.lower(): text for name, text in container.metadata.items()}  # WebM's are in capitals
        return metadata["description"], metadata["comment"]


def _of_gif(file: BinaryIO) -> _Facts:
    with open_image(file) as image:
        metadata = json.loads(image.info["comment"])
        return metadata["description"], metadata["comment"]


def _of_pdf(file: BinaryIO) -> _Facts:
    info = PdfParser(f=file).info
    return info.Creator, str(info.Subject)


def _of_text(file: BinaryIO) -> _Facts:
    """From the beginning of an SVG file or a page, without a parser: somebody else's can be an attack on one."""
    match = _DESCRIPTION.search(file.read(_BEGINNING).decode(errors="replace"))
    if match is None:
        return None, {}
    return SOFTWARE, html.unescape(match[1] or match[2])


def _of_picture(file: BinaryIO) -> _Facts:
    with open_image(file) as image:
        exif = Image.Exif()
        # a PNG file without any would be decoded to look for it behind the pixels
        exif.load(image.info["exif"])
        facts = image.info if image.format == "PNG" else exif[_DESCRIPTION_TAG]
        return exif[_SOFTWARE_TAG], facts


def encode_arrays(arrays: Mapping[str, ArrayLike]) -> bytes:
    """The content of a compressed ``.npz`` file; its array ``software`` names this program."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **{"software": np.array(SOFTWARE), **arrays})  # type: ignore[arg-type]
    return buffer.getvalue()


def read_arrays(path: Path, names: Collection[str]) -> dict[str, AnyArray]:
    """Those of the named arrays that an ``.npz`` file has; what it stores as Python objects is not loaded.

    Raises:
        OSError, ValueError: it is not an intact file of arrays, or they are larger than a map can be.
    """
    try:
        with safe_open(path, follow=False) as file:
            return _arrays(file, names)
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        NotImplementedError,
        RuntimeError,
        MemoryError,
    ) as error:
        raise ValueError(f"it is not an intact .npz file ({error})") from error


def _arrays(file: BinaryIO, names: Collection[str]) -> dict[str, AnyArray]:
    arrays = {}
    with zipfile.ZipFile(file) as archive:
        for name in set(archive.namelist()) & {f"{name}.npy" for name in names}:
            size = archive.getinfo(name).file_size
            if size > _LARGEST_ARRAY:
                raise ValueError(f"{name} is too large")
            with archive.open(name) as member:
                npy.read_magic(member)
                shape, _, kind = npy.read_array_header_1_0(member)
            if math.prod(shape) * kind.itemsize > size:
                raise ValueError(f"{name} is too large")
            with archive.open(name) as member:
                arrays[name.removesuffix(".npy")] = npy.read_array(member, allow_pickle=False)
    return arrays
