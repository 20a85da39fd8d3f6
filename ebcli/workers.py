"""Worker processes: calling functions in them, and replacing those that die."""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from functools import cache
from importlib import import_module
from math import inf
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from ebcli.errors import EbcliError, WorkerError, in_words
from ebcli.imports import import_elsewhere

FEWEST = 1  # processes of a run, however few its files are: what they decode is not trusted
_SAFE_PATH = "PYTHONSAFEPATH"

P = ParamSpec("P")
T = TypeVar("T")


class Workers:
    """Threads, each with a worker process of its own, started when it is first needed.

        with Workers(4) as workers:
            future = workers.submit(job)         # in a thread; and there, within job:
            workers.call(decode, path)           # in that thread's process

    Each thread waits for one call in one process, so when a process dies it is known which call killed it.

    Args:
        count: the number of processes; 0 for one thread without a process, in which ``call`` runs the function.
        timeout: the seconds that a call may take; None for no limit. Without processes there is none.
        memory: the bytes that a process may claim; likewise.
    """

    def __init__(self, count: int, timeout: float | None = None, memory: float = inf) -> None:
        self._processes = count > 0
        self._timeout = timeout
        self._memory = memory
        self._threads = ThreadPoolExecutor(max(1, count), thread_name_prefix="eb-saliency")
        self._local = threading.local()
        self._children: list[Process] = []
        self._interrupted = False

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Finish running jobs (unless interrupted), drop the others, and end the processes."""
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            self._interrupted = True
            for process in self._children:  # one may be reading from a server that does not answer
                process.end(at_once=True)
        self._threads.shutdown(wait=True, cancel_futures=True)
        for process in self._children:
            process.end()

    def submit(self, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a job in one of the threads; jobs start in the order of submission."""
        return self._threads.submit(job, *args, **kwargs)

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call ``function(*arguments)`` in the calling thread's process.

        If the process dies, it is replaced with a warning, and the call is tried once more.

        Raises:
            WorkerError: the call timed out, or the second process died, too.
            CancelledError: the process was ended because the run was interrupted.
            Exception: whatever the function raises; RuntimeError for exceptions from outside this package.
        """
        if not self._processes:
            return function(*arguments)
        for last in (False, True):
            process: Process | None = getattr(self._local, "process", None)
            if process is None or (process.has_ended and not self._interrupted):
                process = self._local.process = _spare.pop() if _spare else Process()
                self._children.append(process)
            try:
                return process.call(function, arguments, self._timeout, self._memory)
            except DiedError as death:
                if self._interrupted:
                    raise CancelledError from None
                if last:
                    raise WorkerError(f"{death}, the second to die on this image") from None
                warnings.warn(f"{death}; retrying its image", stacklevel=2)
        raise AssertionError  # pragma: no cover - the loop returns or raises


def warm(module: str) -> None:
    """Start the process that the next call will take, and import a module there, while something else takes time."""
    if FEWEST and not _spare:
        _spare.append(Process(module=module))
        # unlike what atexit has, it is called in processes of multiprocessing, too
        Finalize(None, _spare[0].end, kwargs={"at_once": True}, exitpriority=1)


_spare: list["Process"] = []


class DiedError(Exception):
    """A process ended in the middle of a call."""


class Process:
    """A process that calls functions, one at a time.

    Args:
        grace: the seconds for which it may finish when this process dies.
        module: what it imports before it is called.

    Attributes:
        has_ended: it cannot be used any more.
    """

    def __init__(self, grace: float = 0, module: str = __name__) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would copy the locks of torch's threads
        self.has_ended = False
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, grace, module), daemon=True)
        with _starting():
            self._process.start()
        other.close()

    def call(
        self,
        function: Callable[..., T],
        arguments: Sequence[Any],
        timeout: float | None = None,
        memory: float = inf,
    ) -> T:
        """As ``Workers.call``, but raises DiedError if the process dies."""
        try:
            self._pipe.send((function, arguments, memory))
            if not self._pipe.poll(timeout):
                self.end(at_once=True)
                raise WorkerError(f"it took longer than {timeout:g} s: raise EB_SALIENCY_IMAGE_TIMEOUT")
            is_value, value = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(timeout=10)
            code = self._process.exitcode
            self.end()
            cause = f"exited with status {code}"
            if code is not None and code < 0:
                cause = f"was killed by {signal.Signals(-code).name}"
            raise DiedError(f"worker process {self._process.pid} {cause}") from None
        if not is_value:
            raise value
        return value

    def end(self, at_once: bool = False) -> None:
        """End the process: it exits when its pipe is closed."""
        self.has_ended = True
        if at_once:
            self._process.kill()  # the thread that waits for its answer notices
            return
        self._pipe.close()
        self._process.join(timeout=10)
        self._process.kill()


_start_lock = threading.Lock()


@contextlib.contextmanager
def _starting() -> Iterator[None]:
    """Processes started here import no module from the working directory, and Ctrl-C does not reach them."""
    with _start_lock, _safe_path(), _interrupts_blocked():
        yield


@contextlib.contextmanager
def _safe_path() -> Iterator[None]:
    """Python starts without the working directory in its path, where any file could be called ``multiprocessing.py``.

    The variable is what Python reads; its children and those of the resource tracker inherit it.
    """
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        os.environ.pop(_SAFE_PATH)
        if before is not None:
            os.environ[_SAFE_PATH] = before


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Processes started here never get SIGINT: it reaches all of a terminal, but only the main one may act on it.

    Signals are blocked per thread, so the main thread still gets them.
    """
    if sys.platform == "win32":
        yield
        return
    resource_tracker.ensure_running()  # spawning starts it if needed, and its start unblocks SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: Connection, grace: float, module: str) -> None:
    """The main loop of a worker process: receive calls, send values or errors."""
    # terminals, systemd and Slurm send these to all processes of a job
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    warnings.simplefilter("ignore")  # Pillow's warnings do not name the file
    threading.Thread(target=_exit_with_parent, args=(grace,), daemon=True).start()
    import_elsewhere()
    import_module(module)
    with contextlib.suppress(EOFError, OSError):  # the main process closed the pipe or died
        while True:
            function, arguments, memory = pipe.recv()  # which may import much
            answer: tuple[bool, Any]
            try:
                _limit_memory(memory)
                answer = True, function(*arguments)
            except (EbcliError, MemoryError) as error:
                answer = False, error
            except Exception as error:  # not every exception survives pickling
                answer = False, RuntimeError(in_words(error))
            pipe.send(answer)


@cache
def _limit_memory(size: float) -> None:
    """Let this process claim so many bytes more than it has, where the system has such a limit."""
    if sys.platform == "linux" and size < inf:
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + int(size)
        _, maximum = resource.getrlimit(resource.RLIMIT_AS)
        if maximum != resource.RLIM_INFINITY:
            limit = min(limit, maximum)
        resource.setrlimit(resource.RLIMIT_AS, (limit, maximum))


def _exit_with_parent(grace: float) -> None:
    """End this process when the main one dies, even in the middle of a call."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    time.sleep(grace)
    os._exit(1)


def enough_for(files: int) -> int:
    """The number of processes for so many files: starting one takes as long as drawing a few photos."""
    return max(FEWEST, min(processors(), files // 2))


def processors() -> int:
    """The number of CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
