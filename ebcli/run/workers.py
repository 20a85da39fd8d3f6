"""Worker processes: functions called in them, and what happens when one of them dies."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from ebcli.errors import EbcliError, WorkerError

P = ParamSpec("P")
T = TypeVar("T")


class Workers:
    """Threads, each with a worker process of its own, started when it is first needed.

        with Workers(4) as workers:
            future = workers.submit(job)         # in a thread; and there, within job:
            workers.call(decode, path)           # in that thread's process

    As each thread waits for one call in one process, a process that dies is known by the call it died of.

    Args:
        count: how many; 0 for one thread and no process: ``call`` then calls in the thread itself.
    """

    def __init__(self, count: int) -> None:
        self._processes = count > 0
        self._threads = ThreadPoolExecutor(max(1, count), thread_name_prefix="eb-saliency")
        self._own = threading.local()
        self._started: list[_Process] = []
        self._interrupted = False

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Wait for what has begun, unless interrupted, drop what has not, and end the processes."""
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            self._interrupted = True
            for process in self._started:  # a read from a server that does not answer would be waited for for ever
                process.end(at_once=True)
        self._threads.shutdown(wait=True, cancel_futures=True)
        for process in self._started:
            process.end()

    def submit(self, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have a thread run a job, in the order of submission."""
        return self._threads.submit(job, *args, **kwargs)

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """The value of ``function(*arguments)``, computed in the calling thread's process.

        A process that dies is named in a warning, replaced, and the call tried once more.

        Raises:
            WorkerError: the second process died as well.
            CancelledError: the process was ended, as the run was interrupted.
            Exception: whatever the function raises; RuntimeError for what is not an error of this package.
        """
        if not self._processes:
            return function(*arguments)
        for last in (False, True):
            process = getattr(self._own, "process", None)
            if process is None:
                process = self._own.process = _Process()
                self._started.append(process)
            try:
                return process.call(function, arguments)
            except _DiedError as death:
                self._own.process = None
                if self._interrupted:
                    raise CancelledError from None
                if last:
                    raise WorkerError(f"{death}, the second one to do so on this image") from None
                warnings.warn(f"{death}: its image is tried again", stacklevel=2)
        raise AssertionError  # pragma: no cover - the loop returns or raises


class _DiedError(Exception):
    """A process ended in the middle of a call."""


class _Process:
    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would copy the locks of torch's threads
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other,), daemon=True)
        # Ctrl-C goes to all processes of a terminal; only the main one shall act on it
        with _interrupts_blocked():
            self._process.start()
        other.close()

    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        try:
            self._pipe.send((function, arguments))
            returned, value = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(timeout=10)
            code = self._process.exitcode
            self.end()
            how = f"ended with status {code}"
            if code is not None and code < 0:
                how = f"was killed by {signal.Signals(-code).name}"
            raise _DiedError(f"worker process {self._process.pid} {how}") from None
        if not returned:
            raise value
        return value

    def end(self, at_once: bool = False) -> None:
        if at_once:
            self._process.kill()  # which the thread that waits for its answer notices
            return
        self._pipe.close()  # which the process takes as the end of its work
        self._process.join(timeout=10)
        self._process.kill()


@contextlib.contextmanager
def _interrupts_blocked() -> Any:
    """A process started here never gets SIGINT; signals are blocked by thread, so the main one still does."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # a helper of every process started so, which to start unblocks SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: Connection) -> None:
    """A worker process's whole life: calls come in, values or errors go out."""
    for number in (signal.SIGINT, signal.SIGTERM):  # systemd and Slurm send the latter to all processes of a job
        signal.signal(number, signal.SIG_IGN)
    warnings.simplefilter("ignore")  # Pillow's, which would not name the file
    with contextlib.suppress(EOFError, OSError):  # the main process has closed the pipe, or is gone
        while True:
            function, arguments = pipe.recv()
            answer: tuple[bool, Any]
            try:
                answer = True, function(*arguments)
            except (EbcliError, MemoryError) as error:
                answer = False, error
            except Exception as error:  # not every exception survives pickling
                answer = False, RuntimeError(f"{type(error).__name__}: {error}")
            pipe.send(answer)


def processors() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
