"""What a killed run leaves behind, without Ray."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is no /proc")

# A child with a child of its own, as Ray's raylet has its agents
SCRIPT = """
import subprocess, sys
from ebcli.run.ray_watcher import watch_this_process
watch_this_process()
command = [sys.executable, "-c", "import subprocess; print(subprocess.Popen(['sleep', '30']).pid, flush=True); input()"]
child = subprocess.Popen(command, stdin=subprocess.PIPE)
child.wait()
"""


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


def test_processes_that_its_children_started_end_with_a_killed_run() -> None:
    other = subprocess.Popen(["sleep", "30"])
    run = subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True)
    try:
        assert run.stdout is not None
        grandchild = int(run.stdout.readline())
        time.sleep(1.2)  # until it was seen
        assert state(grandchild) == "S"
        run.kill()
        time.sleep(0.3)
        assert state(grandchild) in ("gone", "Z")
        assert state(other.pid) == "S"
    finally:
        for process in (run, other):
            process.kill()
            process.communicate()
