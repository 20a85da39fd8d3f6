"""The command ``ask``: a question about a photo, and the map of each word of the answer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import click

from ebcli.cli.console import one_line, put, sign_of_life
from ebcli.drawing.answer import answer_figure
from ebcli.drawing.frames import FrameMaps
from ebcli.drawing.style import DrawingStyle
from ebcli.errors import ConfigurationError, ImageError
from ebcli.files.directory import OutputFolder, refuse_foreign_files
from ebcli.files.images import decode
from ebcli.files.media.medium import Shown
from ebcli.files.naming import AUTO, answer_relpath, output_relpath
from ebcli.files.records import Record
from ebcli.files.sink import check_writable
from ebcli.imports import DISTRIBUTION, installed_version
from ebcli.models.fingerprint import configuration_hash
from ebcli.models.spec import ModelSpec
from ebcli.run.plan import part_of
from ebcli.run.rendering import about, recorded

if TYPE_CHECKING:
    from PIL import Image

    from ebcli.drawing.answer import Answer


def ask(options: Mapping[str, Any]) -> int:
    """Ask as the command's options say, print the answer and what was written, and return the exit status."""
    from ebcli.gallery.answer_page import answer_page

    path, question, directory = options["photo"], options["question"], options["output"]
    if options["against"] is not None and options["all_words"]:
        raise click.UsageError("--against contrasts with one word: drop --all-words")
    try:
        photo, state = decode(path), path.stat()
    except ImageError as error:
        raise ConfigurationError(f"cannot read '{path}': {error}") from error
    suffix = "png" if options["format"] == AUTO else options["format"]
    relpath = output_relpath(path)
    figure, page = (answer_relpath(relpath, question, one) for one in (suffix, "html"))
    check_writable(directory)
    if not options["overwrite"]:
        refuse_foreign_files(directory, others=[figure, page])
    answer = _asked(options, photo)
    style = part_of(DrawingStyle, options)
    against = options["against"]
    maps = [FrameMaps.of(word.map, photo.size, None, style) for word in answer.words]
    made = {
        "model": options["model"],
        "weights": ModelSpec.weights,
        "layer": maps[0].map.layer,
        "method": ("contrastive EB" + f" against {against}" * (against is not None))
        + ", given answer" * (options["answer"] is not None),
    }
    subtitle = f"{made['model']}, {made['layer']}, {made['method']}"
    facts = {
        **made,
        **about([word.map for word in answer.words]),
        "input": path.name,
        "version": f"{DISTRIBUTION} {installed_version()}",
    }
    content = answer_figure(Shown(photo), answer, str(path), subtitle, style).encoded(suffix, facts)
    html = answer_page(photo, answer, str(path), subtitle, style)
    record = Record(
        str(path),
        "done",
        output=(str(figure),),
        output_bytes=(len(content),),
        classes=tuple(
            replace(recorded(one), position=word.position) for one, word in zip(maps, answer.words, strict=True)
        ),
        place=str(relpath),
        input_bytes=state.st_size,
        input_mtime_ns=state.st_mtime_ns,
        configuration=configuration_hash({**facts, "question": question, "answer": answer.text}),
        output_sha256=(sha256(content).hexdigest(),),
        seen=round(maps[0].map.placement.share_of(photo.size), 4),
        **made,
    )
    with OutputFolder(directory, options["overwrite"]) as folder:
        folder.start(None)
        record = folder.write({figure: content}, record)
        folder.add({page: html})
    if options["as_json"]:
        put(record.line())
        return 0
    put(one_line(answer.text.strip()))
    for word in answer.words:
        put(one_line(word.in_words))
    for written in (figure, page):
        put(os.fsencode(directory / written))
    return 0


def _asked(options: Mapping[str, Any], photo: Image.Image) -> Answer:
    with sign_of_life(f"Asking {options['model']} ...", options["quiet"]):
        import torch

        from ebcli.models.device import resolve_device
        from ebcli.models.sources.vision_language import VisionLanguage
        from ebcli.run.ask import ask

        model = VisionLanguage(options["model"], resolve_device(options["device"]), getattr(torch, options["dtype"]))
        named = {"every": options["all_words"], "longest": options["max_tokens"]}
        return ask(model, photo, *(options[name] for name in ("question", "answer", "words", "against")), **named)
