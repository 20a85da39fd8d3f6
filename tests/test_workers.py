"""Functions in processes of their own, which may die."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
from runs import until

from ebcli.errors import ImageError, WorkerError
from ebcli.workers import Process, Workers, _spare, warm


def die_at_first(marker: Path) -> str:
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


def die(how: int) -> None:
    if how < 0:
        os.kill(os.getpid(), -how)
    os._exit(how)


def complain(message: str) -> None:
    raise ImageError(message)


class StrangeError(Exception):
    """One that pickle cannot rebuild."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} {two}")


def complain_strangely() -> None:
    raise StrangeError(1, 2)


def test_calls_run_in_other_processes_and_their_errors_come_back() -> None:
    with Workers(2) as workers:
        pids = {workers.submit(workers.call, os.getpid).result() for _ in range(4)}
        assert os.getpid() not in pids
        with pytest.raises(ImageError, match="it is broken"):
            workers.submit(workers.call, complain, "it is broken").result()
        with pytest.raises(RuntimeError, match="StrangeError: 1 2"):
            workers.submit(workers.call, complain_strangely).result()
    assert not multiprocessing.active_children()


def test_without_processes_calls_run_here() -> None:
    with Workers(0) as workers:
        assert workers.submit(workers.call, os.getpid).result() == os.getpid()


def test_a_process_that_dies_is_named_and_its_call_made_again(tmp_path: Path) -> None:
    with Workers(1) as workers, pytest.warns(UserWarning) as caught:
        before = workers.submit(workers.call, os.getpid).result()
        assert workers.submit(workers.call, die_at_first, tmp_path / "marker").result() == "alive"
        assert workers.submit(workers.call, os.getpid).result() != before
    assert [str(warning.message) for warning in caught] == [
        f"worker process {before} was killed by SIGKILL; retrying its image"
    ]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("how", "message"), [(-signal.SIGSEGV, "was killed by SIGSEGV"), (3, "exited with status 3")]
)
def test_a_call_that_kills_twice_fails_and_the_next_one_does_not(how: int, message: str) -> None:
    with Workers(1) as workers, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(WorkerError, match=rf"worker process \d+ {message}, the second to die"):
            workers.submit(workers.call, die, how).result()
        assert workers.submit(workers.call, abs, -1).result() == 1


def test_processes_end_when_the_main_one_is_killed() -> None:
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()

    def main() -> None:
        workers = Workers(1)
        there.send(workers.submit(workers.call, os.getpid).result())
        signal.pause()

    process = context.Process(target=main)
    process.start()
    worker = here.recv()
    os.kill(worker, 0)  # it is there
    process.kill()
    process.join()
    until(lambda: over(worker))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="there is no /proc")
def test_an_interrupt_is_for_the_main_process_alone() -> None:
    """From the very start: an interrupt that comes while a worker still imports may print no traceback."""
    with Workers(1) as workers:
        worker = workers.submit(workers.call, os.getpid).result()
        status = dict(line.split(":", 1) for line in Path(f"/proc/{worker}/status").read_text().splitlines())
        assert int(status["SigBlk"], 16) & 1 << (signal.SIGINT - 1)
        os.kill(worker, signal.SIGINT)
        assert workers.submit(workers.call, os.getpid).result() == worker


def over(pid: int) -> bool:
    """Whether a process has ended, even if nobody has asked how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def started() -> int:
    """Start the process that the next calls will take."""
    process = Process()
    _spare.insert(0, process)
    return int(process.call(os.getpid, ()))  # so that its start does not count, however busy the machine is


def test_a_call_that_takes_too_long_fails_and_its_process_is_replaced() -> None:
    """Even that of a process that listens to nothing."""
    first, second = started(), started()
    with Workers(1, timeout=1) as workers:
        start = time.monotonic()
        with pytest.raises(WorkerError, match="longer than 1 s"):
            workers.submit(workers.call, stop).result()
        assert time.monotonic() - start >= 1
        until(lambda: over(first))
        assert workers.submit(workers.call, os.getpid).result() == second
    assert not multiprocessing.active_children()


def be_busy(pids: Path) -> None:
    pids.write_text(str(os.getpid()))
    time.sleep(600)


def hold(pids: Path) -> None:
    """A main process whose worker is in the middle of a long call."""
    with Workers(1) as workers:
        workers.submit(workers.call, be_busy, pids).result()


def test_a_worker_in_the_middle_of_a_call_ends_with_its_killed_parent(tmp_path: Path) -> None:
    pids = tmp_path / "pid"
    parent = multiprocessing.get_context("spawn").Process(target=hold, args=(pids,))
    parent.start()
    until(lambda: pids.is_file() and pids.read_text())
    parent.kill()
    parent.join()
    until(lambda: over(int(pids.read_text())))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such limit")
def test_a_process_claims_no_more_memory_than_it_may() -> None:
    with Workers(1, memory=1 << 28) as workers:
        with pytest.raises(MemoryError):
            workers.call(bytearray, 1 << 29)
        assert len(workers.call(bytearray, 1 << 20)) == 1 << 20


def test_a_process_that_was_started_before_takes_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebcli.workers.FEWEST", 1)
    warm("wave")
    (started,) = multiprocessing.active_children()
    with Workers(1) as workers:
        assert workers.call(os.getpid) == started.pid
        assert workers.call(_imported, "wave")
    assert not multiprocessing.active_children()


def test_a_process_that_no_call_takes_ends_with_the_program() -> None:
    program = "from ebcli.workers import warm\nif __name__ == '__main__': warm('wave')"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)


def _imported(name: str) -> bool:
    return name in sys.modules


def leave_one() -> None:
    warm("json")
    assert _spare[0].call(len, ("it is ready",)) == 11


def test_a_process_of_multiprocessing_ends_with_the_one_that_it_started_and_did_not_need() -> None:
    process = multiprocessing.get_context("spawn").Process(target=leave_one)
    process.start()
    try:
        process.join(60)
        assert process.exitcode == 0
    finally:
        process.kill()
