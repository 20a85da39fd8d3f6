"""One picture into a named file or to stdout, and an image on stdin."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ebcli.cli.console import put
from ebcli.drawing.style import ATLAS
from ebcli.errors import ConfigurationError
from ebcli.files.naming import AUTO, FIGURE_FORMATS, HTML, STDIN
from ebcli.files.remote import url_of
from ebcli.imports import import_optional
from ebcli.models.keywords import ALL, DETECTION, SEGMENTATION, VIDEO
from ebcli.models.names import torchvision_names

if TYPE_CHECKING:
    from ebcli.files.sink import OneFile, Stdout

_FORMATS = {".png": "png", ".jpg": "jpg", ".jpeg": "jpg", ".webp": "webp"} | {
    f".{name}": name for name in (*FIGURE_FORMATS, HTML)
}
_OTHER_FORMATS = {".avif", ".bmp", ".eps", ".gif", ".heic", ".jp2", ".tif", ".tiff"}
_VIDEO = ".mp4"
_STDOUT = Path("-")


def one_picture(
    options: Mapping[str, Any], images: Sequence[Path], is_given: Mapping[str, bool], out: IO[str]
) -> OneFile | Stdout | None:
    """The sink of the only picture, if ``--output`` names one; None if it is a directory.

    Args:
        options: all options by name.
        images: the inputs.
        is_given: whether the user set ``output`` and ``format``.
        out: stdout.

    Raises:
        ConfigurationError: the run would write more than this picture, the format does not exist, or stdout is a
            terminal.
    """
    output: Path = options["output"]
    needs_directory = options["as_json"] or options["at"] or options["dry_run"] or options["raw"] or options["report"]
    piped = not (is_given["output"] or needs_directory or out.isatty()) and images == (STDIN,)
    if os.path.isdir(output) and not piped:
        return None
    suffix, model = output.suffix.lower(), options["model"]
    if output == _STDOUT or piped:
        usual = HTML if options["interactive"] else "png"
        path, format_, where = None, usual if options["format"] == AUTO else options["format"], "stdout"
    elif suffix in _FORMATS:
        path, format_, where = output, _FORMATS[suffix], f"'{output}'"
        if is_given["format"] and options["format"] not in (AUTO, format_):
            raise ConfigurationError(f"{where} is not {options['format']}: drop --format, or change the name")
    elif suffix == _VIDEO and (model.lower() in torchvision_names(VIDEO) or ":" in model) and not options["panel"]:
        import_optional("av")
        path, format_, where = output, AUTO, f"'{output}'"
    elif suffix in {*_OTHER_FORMATS, _VIDEO}:
        raise ConfigurationError(
            f"pictures cannot be written as {suffix}: choose .png, .jpg or .webp, .pdf or .svg for "
            "a figure, or .html for a page"
        )
    else:
        return None
    several = _several(options, images, format_ == HTML)
    if several is not None:
        raise ConfigurationError(f"{where} takes one picture, but {several}")
    from ebcli.files.sink import OneFile, Stdout

    if path is not None:
        return OneFile(path, format_, options["overwrite"])
    if out.isatty():
        raise ConfigurationError("stdout is a terminal: redirect it, as in > out.png, or name a file with -o")
    return Stdout(partial(put, out=out, nl=False), format_)


def _several(options: Mapping[str, Any], images: Sequence[Path], is_page: bool) -> str | None:
    """Why a run writes more than one picture or page, and what to do about it; None if it does not."""
    directory = "name a directory with -o"
    if len(images) != 1:
        return f"there are {len(images)} inputs: {directory}"
    image = images[0]
    if url_of(image) is None and (os.path.isdir(image) or image.suffix.lower() == ".tar"):
        return f"'{image}' may hold many images: {directory}"
    maps = len(options["target"]) or options["top_k"] or 1
    finds = options["model"].lower() in {*torchvision_names(DETECTION), *torchvision_names(SEGMENTATION)}
    one = options["top_k"] == 1 or options["where"] is not None
    if options["above"] is not None or options["labels"] is not None or (finds and not one):
        maps = 2  # or any other number
    is_figure = options["panel"] or options["style"] == ATLAS or options["at"] is not None or is_page
    if not is_figure and (maps > 1 or len(options["layer"]) > 1 or ALL in options["layer"]):
        return f"there are several maps: add --panel to draw them in one figure, or {directory}"
    for name in ("raw", "report", "annotations", "records", "skip_existing"):
        if options[name]:
            option = "--" + name.replace("_", "-")
            return f"{option} needs a directory: drop {option}, or {directory}"
    for name, what in (("as_json", "--json prints records"), ("at", "--at prints shares")):
        if options[name] and options["output"] == _STDOUT:
            return f"{what} there: drop one of them"
    return None


def read_stdin(images: Sequence[Path], limit: int) -> bytes | None:
    """The bytes on stdin, if one of the inputs is ``-``.

    Raises:
        ConfigurationError: stdin is a terminal, is empty, or holds more than ``limit`` bytes.
    """
    if STDIN not in images:
        return None
    if sys.stdin.buffer.isatty():
        raise ConfigurationError("stdin is a terminal: redirect an image to it, as in eb-saliency - < in.jpg")
    content = sys.stdin.buffer.read(limit + 1)
    if len(content) > limit:
        raise ConfigurationError(f"stdin holds more than {limit} bytes: raise EB_SALIENCY_MAX_BYTES")
    if not content:
        raise ConfigurationError("stdin is empty: redirect an image to it, as in eb-saliency - < in.jpg")
    return content
