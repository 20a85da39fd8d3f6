"""Ends the processes of a Ray cluster together with the run that started it, even if that is killed.

The system ends those that the run started itself; what these have started would go on for a minute. So another process,
whose script is this file, looks for them every second, and kills them when the run is gone.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

_PAUSE = 1.0  # seconds


def watch_this_process() -> None:
    """Start to watch, on Linux; elsewhere there is no ``/proc``."""
    if sys.platform == "linux":
        end, _ = os.pipe()  # the system closes the other end when this process is gone
        command = [sys.executable, "-I", __file__]
        nowhere = subprocess.DEVNULL
        # its own session: Ctrl-C is not for it
        subprocess.Popen(command, cwd="/", stdin=end, stdout=nowhere, stderr=nowhere, start_new_session=True)
        os.close(end)


def _processes() -> dict[int, tuple[int, str]]:
    """The parent of each process, and when it was started."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
            found[int(stat.parent.name)] = int(fields[1]), fields[19]
    return found


def _main() -> None:
    run, seen = os.getppid(), dict[int, str]()
    while not select.select([sys.stdin], [], [], _PAUSE)[0]:
        processes = _processes()
        parents = {pid for pid, (parent, _) in processes.items() if parent == run}
        while parents := {pid for pid, (parent, _) in processes.items() if parent in parents}:
            seen |= {pid: processes[pid][1] for pid in parents}
    for pid, (_, start) in _processes().items():
        if sys.platform != "win32" and seen.get(pid) == start:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    _main()
