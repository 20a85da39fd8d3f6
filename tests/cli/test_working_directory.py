"""Commands in a folder of a stranger, whose files are called like modules of Python and of packages."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from pkgutil import iter_modules

import markupsafe._speedups
import pytest
from asking import entered, until_loaded
from runs import photos

ROOT = Path(__file__).parents[2]
COMMAND = """
from ebcli.__main__ import main

if __name__ == "__main__":
    main()
"""
LIST_LOADED = """
import atexit
from pathlib import Path

maps = Path("/proc/self/maps")
if maps.exists():  # in Linux
    atexit.register(lambda: Path({file!r}).write_text(maps.read_text()))
"""
NETWORK = """
from torch import nn


def network():
    layers = nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)
    return nn.Sequential(*layers)
"""
MODULE = """
import os

os.open({marker!r}, os.O_CREAT)
raise ImportError("this is the file of a stranger")
"""


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command as it is installed: a script."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    script = tmp_path / "command.py"
    script.write_text(LIST_LOADED.format(file=str(tmp_path / "loaded")) + COMMAND)
    return [sys.executable, str(script)]


@pytest.fixture
def options(tmp_path: Path) -> list[str]:
    """The options of a small network, which is not in the folder."""
    (tmp_path / "net.py").write_text(NETWORK)
    model = f"{tmp_path / 'net.py'}:network"
    return ["--model", model, "--resize", "24", "--crop", "24", "--device", "cpu"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A photo, settings for matplotlib, a library, and a file for each module of Python and the installed packages."""
    folder = tmp_path / "stranger"
    photos(folder / "photos", 2)
    source = MODULE.format(marker=str(tmp_path / "ran"))
    (folder / "matplotlibrc").write_text("this is the file of a stranger")
    # where PyTorch has NVIDIA's libraries, one of them looks there for the driver
    shutil.copy(markupsafe._speedups.__file__, folder / "libcuda.so.1")
    for name in {*sys.stdlib_module_names, *(module.name for module in iter_modules()), "ebcli"}:
        (folder / f"{name}.py").write_text(source)
    return folder


def check_run(command: list[str], folder: Path, *options: str) -> None:
    """Explain the photos of the folder, in which nothing is run."""
    command = [*command, "photos", *options, "--layer", "0", "-o", "maps", "--panel"]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert run.returncode == 0, run.stderr
    assert len(run.stdout.splitlines()) == 2
    assert "matplotlibrc" not in run.stderr
    assert not (folder.parent / "ran").exists(), run.stderr


@pytest.mark.parametrize(
    "engine",
    [["--workers", "1"], pytest.param(["--engine", "ray"], marks=pytest.mark.release)],
    ids=["workers", "ray"],
)
def test_a_run_imports_nothing_from_the_working_directory(
    engine: list[str], command: list[str], folder: Path, options: list[str]
) -> None:
    check_run(command, folder, *options, *engine)
    if sys.platform == "linux":
        loaded = (folder.parent / "loaded").read_text()
        assert "torch/lib/" in loaded
        assert str(folder) not in loaded


@pytest.mark.release
def test_python_m_imports_nothing_either_if_its_path_is_safe(
    command: list[str], folder: Path, options: list[str]
) -> None:
    check_run([command[0], "-P", "-m", "ebcli"], folder, *options, "--workers", "2")


@pytest.mark.release
def test_the_live_page_imports_nothing_from_the_working_directory(
    command: list[str], folder: Path, options: list[str]
) -> None:
    command = [*command, "serve", "photos", *options, "--port", "0", "--no-open"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            with entered(server.stdout.readline().strip()) as client:
                until_loaded(client)
                assert (
                    client.get("/photo", params={"photo": "photos/0/0000.jpg"}).status_code == 200
                )  # a worker decodes it
        finally:
            server.send_signal(signal.SIGTERM)
    assert not (folder.parent / "ran").exists()
