"""The command with nothing behind it: what stands in for a run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ebcli.cli.saliency import main
from ebcli.files.records import ClassRecord, Record
from ebcli.run.engine import Run

PICTURE = "saliency/a.jpg.282-tiger-cat.jpg"
DONE = Record(
    "a.jpg",
    "done",
    output=(PICTURE,),
    output_bytes=(1234,),
    classes=(ClassRecord(282, "tiger cat", 0.5, mass=0.75, blank=False, losses=None, layer="features.23", peak=3.5),),
)


COMMON = Record("", "planned", model="vgg16", weights="none", layer="features.23")


def finished(*results: Record, already: tuple[Path, ...] = ()) -> Run:
    return Run(common=COMMON, device="cpu", total=len(results), skipped=already, results=(record for record in results))


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
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120).stdout


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
