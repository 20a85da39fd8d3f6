"""Signals that end a command while its network loads: a status, a sentence, and nothing left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from runs import Forked, photos

from ebcli.files.private import private_directory

NET = """
import os
from pathlib import Path

import torch
from torch import nn


def network():
    if Path("signal").exists():
        os.kill(os.getpid(), int(Path("signal").read_text()))
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)
    return nn.Sequential(*layers)
"""
MODEL = ("--model", "net.py:network", "--resize", "24", "--crop", "24")
COMMANDS = {
    "a run": ("photos", *MODEL, "-l", "0", "-o", "others", "--workers", "0"),
    "check": ("check", "maps"),
    "benchmark": ("benchmark", "deletion", "photos", *MODEL, "--layer", "0"),
}


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    photos(folder / "photos", 1)
    (folder / "net.py").write_text(NET)
    run = Forked(folder, "photos", *MODEL, "-l", "0", "-o", "maps", "--raw", "--workers", "0")
    assert run.wait() == 0, run.err.read_text()
    return folder


@pytest.mark.one_in(3)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_every_command_is_interrupted_by_any_signal(number: signal.Signals, cwd: Path) -> None:
    (cwd / "signal").write_text(str(int(number)))
    before = set(cwd.parent.iterdir()) | {cwd.with_name("temporary")}
    for name, arguments in COMMANDS.items():
        command = Forked(cwd, *arguments)
        assert command.wait() == 128 + number, name
        assert (command.out.read_text(), command.err.read_text()) == ("", "Interrupted.\n")
        assert not list(cwd.with_name("temporary").iterdir()), name
    assert set(cwd.parent.iterdir()) == before


DESTRUCTOR = """
import os, signal, sys, time
from ebcli.cli.console import plain_errors

class Closed:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)

with plain_errors(debug=False):
    one = Closed()
    del one
    time.sleep(10)
"""


def test_a_signal_in_a_destructor_is_not_lost() -> None:
    """There, Python prints exceptions and goes on."""
    done = subprocess.run([sys.executable, "-c", DESTRUCTOR], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (128 + signal.SIGTERM, "Interrupted.\n")


IMPORTED = """
import os, runpy, signal, sys

class Finder:
    def find_spec(self, name, *_):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
runpy.run_module("ebcli", run_name="__main__")
"""


@pytest.mark.parametrize("module", ["ebcli.cli.saliency", "click"])
def test_ctrl_c_while_the_command_is_imported_ends_it_without_a_word(module: str) -> None:
    command = [sys.executable, "-c", IMPORTED, module]
    # as a shell starts it: a background process of a test may have been told to ignore it
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=_listening)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def _listening() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_what_a_killed_command_left_is_removed_by_the_next(cwd: Path) -> None:
    temporary = cwd.with_name("temporary")
    (cwd / "signal").write_text(str(int(signal.SIGKILL)))
    assert Forked(cwd, *COMMANDS["check"]).wait() == -signal.SIGKILL
    assert list(temporary.iterdir())
    (cwd / "signal").unlink()
    assert Forked(cwd, *COMMANDS["check"]).wait() == 0
    assert not list(temporary.iterdir())


def test_only_what_nobody_uses_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "records.jsonl").write_text("\n")  # of anybody: all may write among the temporary files
    (tmp_path / ".eb-saliency-foreign0").mkdir()
    (tmp_path / ".eb-saliency-foreign0/file").touch()
    planted = tmp_path / ".eb-saliency-planted0"  # by somebody else, with a link to a file of this user
    planted.mkdir()
    (planted / "eb-saliency-run").hardlink_to(tmp_path / "records.jsonl")
    with private_directory() as first:
        (first / "file").touch()
        with private_directory() as second:
            assert (first / "file").exists()
            assert second != first
        assert not second.exists()
    assert not first.exists()
    assert (tmp_path / ".eb-saliency-foreign0/file").exists()
    assert (tmp_path / "records.jsonl").read_text() == "\n"
