"""Networks of users' own code, in processes of their own."""

import json
from pathlib import Path

import pytest
from runs import Forked, photos

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
    cwd = tmp_path / "run"
    photos(cwd / "photos", 6)
    (cwd / "nets.py").write_text(NETS)
    return cwd


def command(cwd: Path, *arguments: str) -> tuple[int, str, str]:
    """The exit status, stdout and stderr."""
    run = Forked(cwd, "photos", "-o", "maps", "--batch-size", "1", *arguments)
    return run.wait(), run.out.read_text(), run.err.read_text()


def test_what_a_network_prints_while_it_runs_goes_to_stderr(cwd: Path) -> None:
    status, out, err = command(cwd, "--model", "nets.py:Net", "--json")
    assert status == 0, err
    assert len([json.loads(line) for line in out.splitlines()]) == 6
    assert err.count("call ") >= 6


def test_a_network_that_exits_in_the_middle_ends_the_run_with_a_reason(cwd: Path) -> None:
    status, _, err = command(cwd, "--model", "nets.py:quits")
    assert status == 2
    assert err.splitlines()[-1] == "Error: nets.py:quits called sys.exit(0)"
    done = (cwd / "maps/records.jsonl").read_text().splitlines()
    assert len(done) == 2  # what was explained before; the first call was with noise
    assert all((cwd / json.loads(line)["output"][0]).is_file() for line in done)
