"""Where results go, and their writing. Nothing else in this package writes."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import unicodedata
from pathlib import Path

from PIL import Image

from ebcli.errors import OutputError

_LONGEST_NAME = 255  # bytes, on every common file system
_LONGEST_SLUG = 60
_OUTSIDE = "absolute"


def mirrored(path: Path) -> Path:
    """The place of an input below the output directory: relative, without ``..``, its own for every path.

    A relative path is kept: ``a/b.jpg`` -> ``a/b.jpg``. An absolute one, or one that climbs out of the
    working directory, is kept whole below ``absolute/``: ``/data/b.jpg`` -> ``absolute/data/b.jpg``.
    """
    plain = Path(os.path.normpath(path))
    if not plain.is_absolute() and plain.parts[:1] not in ((os.pardir,), (_OUTSIDE,)):
        return plain
    whole = Path(os.path.abspath(path))  # noqa: PTH100 - Path.resolve would follow links
    drive = re.sub(r"[:\\/]+", " ", whole.drive).split()
    return Path(_OUTSIDE, *drive, *whole.parts[1:])


def slug(name: str) -> str:
    """A class name for file names, in lower-case ASCII letters, digits and single dashes: ``tiger-cat``."""
    ascii_name = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", "-", ascii_name.lower())[:_LONGEST_SLUG].strip("-")


def picture_path(output: Path, source: Path, index: int, category: str | None) -> Path:
    """``output/photos/cat.jpg`` + class 282 -> ``output/photos/cat.jpg.282-tiger-cat.png``.

    The whole input name and the class index stand in it, so that different inputs and classes never meet. A
    name too long for a file system loses its end to a hash of itself.
    """
    place = output / mirrored(source)
    ending = "-".join(filter(None, (f".{index}", slug(category or "")))) + ".png"
    name = os.fsencode(place.name)
    if len(name) + len(ending) > _LONGEST_NAME:
        mark = "~" + hashlib.sha256(name).hexdigest()[:16]
        room = _LONGEST_NAME - len(ending) - len(mark)
        name = name[:room].decode(errors="ignore").encode() + mark.encode()
    return place.with_name(os.fsdecode(name) + ending)


def write_picture(picture: Image.Image, path: Path) -> None:
    """Write a PNG so that ``path`` is at every moment either absent, what it was before, or whole.

    Raises:
        OutputError: the directory or the file cannot be written.
    """
    temporary = path.with_name(f".eb-saliency-{secrets.token_hex(8)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            picture.save(temporary, format="PNG")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write '{path}': {error.strerror or error}") from error
