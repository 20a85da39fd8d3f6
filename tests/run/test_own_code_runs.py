"""Networks of users' own code, in real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from runs import photos

NETS = """
import sys
from torch import nn

class Net(nn.Sequential):
    def __init__(self, last=10**9):
        super().__init__(nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 7))
        self.calls, self.last = 0, last

    def forward(self, x):
        self.calls += bool(x.any())  # networks are tried on a blank image first
        print("call", self.calls)
        if self.calls == self.last:
            sys.exit(0)
        return super().forward(x)

def quits():
    return Net(last=4)
"""


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    photos(tmp_path / "photos", 6)
    (tmp_path / "nets.py").write_text(NETS)
    return tmp_path


def command(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ebcli", "photos", "-o", "maps", "--batch-size", "1", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)


def test_what_a_network_prints_while_it_runs_goes_to_stderr(cwd: Path) -> None:
    ended = command(cwd, "--model", "nets.py:Net", "--json")
    assert ended.returncode == 0, ended.stderr
    assert len([json.loads(line) for line in ended.stdout.splitlines()]) == 6
    assert ended.stderr.count("call ") >= 6


def test_a_network_that_exits_in_the_middle_ends_the_run_with_a_reason(cwd: Path) -> None:
    ended = command(cwd, "--model", "nets.py:quits")
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1] == "Error: nets.py:quits called sys.exit(0)"
    done = (cwd / "maps/records.jsonl").read_text().splitlines()
    assert 0 < len(done) < 6
    assert all((cwd / json.loads(line)["output"][0]).is_file() for line in done)
