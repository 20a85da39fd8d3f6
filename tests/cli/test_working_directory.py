"""Commands in a folder of a stranger, whose files are called like modules of Python and of packages."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

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

atexit.register(lambda: print(Path("/proc/self/maps").read_text()))
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
    script.write_text(COMMAND)
    return [sys.executable, str(script)]


@pytest.fixture
def options(tmp_path: Path) -> list[str]:
    """The options of a small network, which is not in the folder."""
    (tmp_path / "net.py").write_text(NETWORK)
    model = f"{tmp_path / 'net.py'}:network"
    return ["--model", model, "--resize", "24", "--crop", "24", "--device", "cpu"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A photo, settings for matplotlib, and a file for every module that Python and the installed packages have."""
    folder = tmp_path / "stranger"
    photos(folder / "photos", 2)
    module = MODULE.format(marker=str(tmp_path / "ran"))
    (folder / "matplotlibrc").write_text("this is the file of a stranger")
    for name in {*sys.stdlib_module_names, *packages_distributions(), "ebcli"}:
        if "/" not in name:
            (folder / f"{name}.py").write_text(module)
    return folder


@pytest.mark.parametrize(
    "engine",
    [["--workers", "2"], pytest.param(["--engine", "ray"], marks=pytest.mark.release)],
    ids=["workers", "ray"],
)
def test_a_run_imports_nothing_from_the_working_directory(
    engine: list[str], command: list[str], folder: Path, options: list[str]
) -> None:
    command = [*command, "photos", *options, "--layer", "0", "-o", "maps", "--panel", *engine]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert run.returncode == 0, run.stderr
    assert len(run.stdout.splitlines()) == 2
    assert "matplotlibrc" not in run.stderr
    assert not (folder.parent / "ran").exists(), run.stderr


@pytest.mark.release
def test_python_m_imports_nothing_either_if_its_path_is_safe(
    command: list[str], folder: Path, options: list[str]
) -> None:
    command = [command[0], "-P", "-m", "ebcli"]
    test_a_run_imports_nothing_from_the_working_directory(["--workers", "2"], command, folder, options)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux, which lists what is loaded")
def test_pytorch_loads_no_library_from_the_working_directory(
    command: list[str], tmp_path: Path, options: list[str]
) -> None:
    """Where PyTorch has NVIDIA's libraries, one of which looks there for the driver."""
    folder = tmp_path / "stranger"
    folder.mkdir()
    shutil.copy(markupsafe._speedups.__file__, folder / "libcuda.so.1")
    script = Path(command[1])
    script.write_text(f"{LIST_LOADED}\n{script.read_text()}")
    run = subprocess.run(
        [*command, "layers", *options[:2]],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert "torch/lib/" in run.stdout
    assert str(folder) not in run.stdout


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
