"""The command with nothing behind it: what stands in for a run."""

import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ebcli.cli.saliency import main
from ebcli.drawing.style import DrawingStyle
from ebcli.files.records import ClassRecord, Record
from ebcli.files.sources import Source
from ebcli.run.pipeline import Run

_STYLE = DrawingStyle()
PICTURE = "saliency/a.jpg.282-tiger-cat.jpg"
DONE = Record(
    "a.jpg",
    "done",
    output=(PICTURE,),
    output_bytes=(1234,),
    classes=(
        ClassRecord(
            282, "tiger cat", 0.5, mass=0.75, blank=False, losses=None, layer="features.23", peak=3.5
        ),
    ),
)


COMMON = Record("", "planned", model="vgg16", weights="none", layer="features.23")


@dataclass(kw_only=True)
class StubRun(Run):
    given: Generator[Record]

    @property
    def results(self) -> Generator[Record]:
        return self.given


def started(
    results: Generator[Record],
    total: int,
    already: tuple[Path, ...] = (),
    style: DrawingStyle = _STYLE,
    **more: Any,
) -> Run:
    """A run of so many files that yields some results."""
    known: dict[str, Any] = {
        "plan": None,
        "sink": None,
        "explainer": None,
        "reader": SimpleNamespace(unit="image"),
        "options": SimpleNamespace(style=style),
        "common": COMMON,
        "sources": [Source(Path(f"{number}.jpg")) for number in range(total)],
        "skipped": already,
        "configurations": {COMMON.configuration},
        "task": "classification",
        "device": "cpu",
    }
    return StubRun(given=results, **known | more)


def finished(*results: Record, already: tuple[Path, ...] = (), style: DrawingStyle = _STYLE) -> Run:
    return started((record for record in results), len(results), already, style)


def invoke(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(main, arguments, env=environment)


def program(name: str) -> str:
    """A program of the system; without it a test is skipped, but not in continuous integration."""
    found = shutil.which(name)
    if found is None and "CI" not in os.environ:
        pytest.skip(f"{name} is not installed")
    assert found is not None, f"{name} is not installed"
    return found


def run_python(code: str) -> str:
    """What a Python of its own prints."""
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120
    ).stdout


def heavy_imports(module: str, arguments: list[str]) -> str:
    """The large packages that a command has imported when it exits, as a printed line."""
    printed = run_python(
        "import sys\n"
        f"from {module} import main\n"
        "try:\n"
        f"    main({arguments!r})\n"
        "except SystemExit:\n"
        "    pass\n"
        "heavy = {'torch', 'torchvision', 'numpy', 'PIL', 'matplotlib', 'tqdm'}\n"
        "print('imported:', sorted(heavy & set(sys.modules)))\n"
    )
    return printed.splitlines()[-1]
