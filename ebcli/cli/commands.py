"""What ``eb-saliency`` does instead of a run: lists, checks, and pages of earlier results."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ebcli.cli.console import SOME_FAILED, note, put, shown, sign_of_life
from ebcli.cli.parameters import part
from ebcli.drawing.style import DrawingStyle
from ebcli.errors import ConfigurationError, LayerError
from ebcli.models.preprocessing import Preprocessing
from ebcli.models.spec import ModelSpec
from ebcli.run.plan import ExecutionOptions


def instead_of_a_run(options: Mapping[str, Any]) -> Callable[[Mapping[str, Any], Sequence[Path]], int] | None:
    """The function of the first option that asks for something else than a run; it returns the exit status.

    It is called with all options and the inputs.
    """
    functions = {
        "list_models": _list_models,
        "list_layers": _list_layers,
        "info": _info,
        "doctor": _doctor,
        "verify": _verify,
        "report_only": _report_only,
        "compare": _compare,
    }
    return next((function for name, function in functions.items() if options[name]), None)


def _list_models(_options: Mapping[str, Any], patterns: Sequence[Path]) -> int:
    from ebcli.models.search import matching

    for heading, names in (found for pattern in [*map(str, patterns)] or [""] for found in matching(pattern)):
        if names or not patterns or "not searched" in heading:
            note(heading)
        if names:
            put("\n".join(names))
    others = "timm/NAME, hf/NAME, clip/NAME, open_clip/NAME, FILE.onnx, FILE.pt2 and FILE.py:FACTORY"
    note(f"Also accepted: {others}; see --model in --help")
    return 0


def _list_layers(options: Mapping[str, Any], _images: Sequence[Path]) -> int:
    from ebcli.models import default_layer, layers, load_model
    from ebcli.models.keywords import UNTRAINED
    from ebcli.models.sources import takes_texts

    # layers do not depend on the weights, so none are downloaded
    weights = UNTRAINED if options["weights"] == ModelSpec.weights else options["weights"]
    rows = [("NAME", "TYPE", "OUTPUT", "STRIDE", "DEFAULT")]
    name = options["model"]
    texts = (options["targets"] or ("a photo",)) if takes_texts(name) else None  # layers do not depend on the texts
    preprocessing = part(Preprocessing, options)
    with sign_of_life(f"Loading {name} ...", options["quiet"]):
        loaded = load_model(name, weights, "cpu", class_names=texts, like=options["like"], preprocessing=preprocessing)
    default = None
    with suppress(LayerError):  # none has a map
        default = default_layer(loaded)
    for layer in layers(loaded):
        stride = "-" if layer.stride is None else f"{layer.stride:.3g}"
        rows.append((layer.name, layer.type, "x".join(map(str, layer.shape)), stride, "*" * (layer.name == default)))
    heading, *lines = _aligned(rows)
    note(heading)
    put("\n".join(lines))
    return 0


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _doctor(options: Mapping[str, Any], _images: Sequence[Path]) -> int:
    from ebcli.cli.doctor import examine

    is_well = True
    for finding in examine(options["device"], options["output"]):
        line = f"{'ok' if finding.ok else 'FAILED':<7} {finding.check:<32} {shown(finding.found)}"
        put(json.dumps(asdict(finding)) if options["as_json"] else line)
        is_well = is_well and finding.ok
    return 0 if is_well else SOME_FAILED


def _info(options: Mapping[str, Any], _images: Sequence[Path]) -> int:
    """Print what a result says about its making."""
    from ebcli.files.encoding import read_facts

    path: Path = options["info"]
    try:
        facts = read_facts(path)
    except OSError as error:
        raise ConfigurationError(f"cannot read '{path}': {error.strerror or error}") from error
    if not facts:
        raise ConfigurationError(f"'{path}' contains no eb-saliency metadata: only its own pictures and .npz files do")
    if options["as_json"]:
        put(json.dumps(facts))
    else:
        put("\n".join(f"{name + ':':<10}{shown(value)}" for name, value in facts.items()))
    return 0


def _verify(options: Mapping[str, Any], _images: Sequence[Path]) -> int:
    """Print the results of a directory that are missing or altered."""
    from ebcli.files.verification import verify

    directory: Path = options["verify"]
    found = verify(directory)
    for path, problem in found.problems.items():
        put(os.fsencode(directory / path) + f": {problem}".encode())
    wrong = len(found.problems)
    note(f"{found.results} results: {found.results - wrong} intact, {wrong} altered or missing")
    if wrong:  # an altered file may have its size still, by which --skip-existing would keep it
        note("To repair them, delete those that are altered and repeat the run with --skip-existing")
    return SOME_FAILED if wrong else 0


def _compare(options: Mapping[str, Any], images: Sequence[Path]) -> int:
    """Write the page that compares two runs."""
    from ebcli.evaluate import rank_correlation
    from ebcli.gallery.comparison import write_comparison
    from ebcli.gallery.raw_maps import read_pairs

    one, other = options["compare"]
    page = write_comparison(options["output"], read_pairs(one, other), rank_correlation, images, options["overwrite"])
    put(os.fsencode(page))
    return 0


def _report_only(options: Mapping[str, Any], images: Sequence[Path]) -> int:
    style = part(DrawingStyle, options, name=options["style"], signed=bool(options["signed"]))
    workers = part(ExecutionOptions, options).workers
    put(os.fsencode(gallery_page(options["report_only"], style, workers, options["overwrite"], images)))
    return 0


def gallery_page(
    directory: Path, style: DrawingStyle, workers: int | None, overwrite: bool, images: Sequence[Path]
) -> Path:
    """Write the gallery page of a directory of results; for the arguments, see ``write_gallery``."""
    from ebcli.gallery.page import write_gallery
    from ebcli.run.workers import processors

    return write_gallery(directory, style, processors() if workers is None else workers, overwrite, images)
