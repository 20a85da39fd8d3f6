"""The command with nothing behind it: what stands in for a run."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

from ebcli.cli import main
from ebcli.records import ClassRecord, Record
from ebcli.run import Run

PICTURE = "saliency/a.jpg.282-tiger-cat.png"
DONE = Record(
    "a.jpg", "done", (PICTURE,), (1234,), (ClassRecord(282, "tiger cat", 0.5, 0.75, False, None, "features.23", 3.5),)
)


def finished(*results: Record, already: tuple[Path, ...] = ()) -> Run:
    return Run("vgg16", "none", "features.23", "cpu", len(results), already, iter(results))


def invoke(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(main, arguments, env=environment)
