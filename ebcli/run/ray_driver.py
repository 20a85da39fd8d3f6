"""A run on a Ray cluster, whose workers run the local pipeline: deals out parts of the list and gathers records.

The driver lists the files as a local run does, and appends the records. Images stay with the workers.
"""

from __future__ import annotations

import io
import logging
import math
import os
import socket
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

from ebcli.errors import ConfigurationError, EbcliError, UnfinishedError
from ebcli.files.directory import OutputFolder
from ebcli.files.records import Record
from ebcli.files.sink import Sink
from ebcli.files.sources import Source
from ebcli.imports import import_optional
from ebcli.models.device import default_batch_size
from ebcli.run.plan import ExecutionOptions, InputOptions, RunPlan
from ebcli.run.plan_text import as_settings
from ebcli.run.prepare import prepare
from ebcli.run.ray_tasks import PARTS_AT_A_TIME, PipelineWorker
from ebcli.run.ray_watcher import watch_this_process
from ebcli.workers import processors

# or Ray's threads would start a new cluster when this run has left its own
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
# Ray ends a process, without a word, once this one is gone; by default its parent, which init may have replaced
os.environ["RAY_RAYLET_PID"] = str(os.getpid())
ray = import_optional("ray")

# Of a part, enough batches to make Ray's overhead small, few enough to repeat when a machine is lost.
_BATCHES_PER_PART = 4
_TRIES = 3  # of a part whose worker died
_CONNECT_TIMEOUT = 30  # seconds
_HEAD_TIMEOUT = 30.0  # seconds
_STOP_TIMEOUT = 5  # seconds for the images in progress
_POLL = 0.1  # seconds
_LONGEST_REASON = 200  # characters
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",  # no reports to Ray's developers
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # no warning about a future default
}


class Cluster:
    """A run that is ready to start on a Ray cluster.

    The cluster is the one at ``RAY_ADDRESS``; without it, Ray is started on this machine.

    Raises:
        ConfigurationError: there is no such cluster, it has too few CPUs or GPUs, or as ``prepare``.

    Attributes:
        prepared: the run, as on this machine.
        device: the devices of the networks, in words.
    """

    def __init__(self, plan: RunPlan, sink: Sink) -> None:
        if not isinstance(sink, OutputFolder):
            raise ConfigurationError(
                "other machines cannot write one file: name a directory with -o, or drop --engine ray"
            )
        self._folder = sink
        _connect()
        self._settings = as_settings(plan)
        self._count, self._gpus, self._cpus = _allocation(plan.execution)
        device = "cuda" if self._gpus else "cpu"
        batch_size = plan.execution.batch_size or default_batch_size(device)
        # this machine may have no GPU
        local = replace(plan, execution=replace(plan.execution, device="cpu", batch_size=batch_size))
        self.prepared = replace(prepare(local, sink), explainer=None)  # the workers have the network
        self.device = f"{self._count} x {device}"
        total = len(self.prepared.sources)
        batch_size = max(1, min(batch_size, total + len(self.prepared.skipped)))
        execution = replace(plan.execution, device=device, batch_size=batch_size)
        # workers need none of the images, which can be millions
        self._plan = replace(plan, inputs=InputOptions((Path(),)), execution=execution)
        # at least four parts per network, so that all finish at about the same time
        self._part = batch_size * max(1, min(_BATCHES_PER_PART, total // (4 * self._count * batch_size)))

    def results(self, stopping: Event, recorded: Counter[str]) -> Generator[Record]:
        """The record of each file, in the order in which their parts finish.

        Args:
            stopping: set it, from any thread, to finish the images in progress and start no others.
            recorded: counts the records written, by status.

        Raises:
            ConfigurationError: a machine of the cluster cannot write to the output directory.
            OutputError: a result cannot be written; finished records are yielded first.
            UnfinishedError: the cluster is lost.
            EbcliError: the network cannot continue; likewise.
        """
        error = None
        # Ray prints its logs to stdout
        with self._folder as folder, redirect_stdout(_Nowhere()):
            folder.start(self._settings)
            sources, stages = self.prepared.sources, self.prepared.stages
            worker: Any = ray.remote(PipelineWorker)  # an actor class has no static type
            resources = {"num_cpus": self._cpus, "num_gpus": self._gpus, "max_concurrency": PARTS_AT_A_TIME + 1}
            worker = worker.options(scheduling_strategy="SPREAD", **resources)
            create = partial(worker.remote, Path.cwd(), self._plan, stages, folder, self._cpus)
            parts = [sources[start : start + self._part] for start in range(0, len(sources), self._part)]
            hands = _Hands(min(self._count, len(parts)), create, parts)
            with closing(hands.gathered(stopping)) as gathered:
                for records, failure in gathered:
                    for record in records:
                        if record.status != "not an image":
                            folder.record(record)
                            recorded[record.status] += 1
                        if self._plan.execution.fail_fast and record.status == "failed":
                            stopping.set()
                        yield record
                    error = error or failure
                    if error is not None:
                        stopping.set()
            if error is not None:
                raise error


class _Nowhere(io.TextIOBase):
    """Discards what is written to it."""

    def write(self, text: str) -> int:
        return len(text)


class _Hands:
    """Workers with parts of the list in hand.

    Args:
        count: the number of workers.
        create: starts one, a ``PipelineWorker``.
        parts: what they work on.
    """

    def __init__(self, count: int, create: Callable[[], Any], parts: Iterable[Sequence[Source]]) -> None:
        self._create, self._parts, self._tries = create, deque(parts), Counter[str]()
        # by what is awaited: the worker that does it, and the part; None until the worker has its network
        self._waiting: dict[Any, tuple[Any, Sequence[Source] | None]] = {}
        for _ in range(count):
            self._start()

    def gathered(self, stopping: Event) -> Generator[tuple[Sequence[Record], EbcliError | None]]:
        """The records of each part, in the order in which they finish, and the error that ended it.

        Ends a few seconds after a stop is requested, whatever is still in hand.

        Raises:
            UnfinishedError: the cluster is lost.
        """
        pulse, deadline = _Pulse(), math.inf
        try:
            while time.monotonic() < deadline and (self._parts or any(part for _, part in self._waiting.values())):
                if stopping.is_set() and deadline == math.inf:
                    deadline = time.monotonic() + _STOP_TIMEOUT
                    self._parts.clear()
                    for worker, _ in self._waiting.values():
                        worker.stop.remote()
                pulse.check()
                for done in ray.wait(list(self._waiting), timeout=_POLL)[0]:
                    yield self._taken(done)
        except ray.exceptions.RayTaskError:  # unexpected, like any such error in this process
            raise
        except ray.exceptions.RayError as error:
            raise UnfinishedError(_lost(error)) from error
        finally:
            ray.shutdown()  # ends the workers

    def _start(self) -> None:
        worker = self._create()
        self._waiting[worker.start.remote()] = worker, None

    def _taken(self, done: Any) -> tuple[Sequence[Record], EbcliError | None]:
        """What a worker answers, which then gets another part; nothing if it died."""
        worker, part = self._waiting.pop(done)
        try:
            answer = ray.get(done)
        except ray.exceptions.RayActorError as death:
            self._retry(worker, part, death)
            return (), None
        if part is not None:
            self._deal(worker)
            return answer
        for _ in range(0 if answer else PARTS_AT_A_TIME):
            self._deal(worker)
        return (), answer

    def _deal(self, worker: Any) -> None:
        if self._parts:
            part = self._parts.popleft()
            self._waiting[worker.run.remote(part)] = worker, part

    def _retry(self, worker: Any, part: Sequence[Source] | None, death: Exception) -> None:
        """Put a part back, and start another worker, once for each that died."""
        what = f"the images from {part[0].name} on" if part else "the network"
        self._tries[what] += 1
        if self._tries[what] == _TRIES:
            reason = " ".join(str(death).split())[:_LONGEST_REASON]
            raise UnfinishedError(f"{_TRIES} workers died of {what} ({reason}): repeat with fewer --workers")
        if part is not None:
            self._parts.appendleft(part)
        if all(other is not worker for other, _ in self._waiting.values()):
            self._start()


class _Pulse:
    """Notices that Ray's process here or the cluster's head has died: Ray would end this process without a word."""

    def __init__(self) -> None:
        context = ray.get_runtime_context()
        here = context.get_node_id()
        node = next(node for node in ray.nodes() if node["NodeID"] == here)
        host, _, port = context.gcs_address.rpartition(":")
        # how long each may be silent: a head can be started again, and Ray waits a minute for it
        self._patience = {
            (node["NodeManagerAddress"], node["NodeManagerPort"]): 0.0,
            (host.strip("[]"), int(port)): _HEAD_TIMEOUT,
        }
        self._next = time.monotonic()
        self._heard = dict.fromkeys(self._patience, self._next)

    def check(self) -> None:
        """Raise UnfinishedError if one has."""
        if time.monotonic() < self._next:
            return
        for address, patience in self._patience.items():
            try:
                socket.create_connection(address, timeout=_CONNECT_TIMEOUT).close()
                self._heard[address] = time.monotonic()
            except OSError as error:
                if time.monotonic() - self._heard[address] >= patience:
                    raise UnfinishedError(_lost(error)) from error
        self._next = time.monotonic() + 1


def _lost(error: Exception) -> str:
    reason = " ".join(str(error).split())[:_LONGEST_REASON]
    return f"the Ray cluster is lost ({reason}): repeat the command with --skip-existing"


def _allocation(execution: ExecutionOptions) -> tuple[int, float, int]:
    """The number of workers, and the GPUs and CPUs of each.

    Raises:
        ConfigurationError: the cluster is too small.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cpus = int(sum(node.get("CPU", 0) for node in nodes))
    all_gpus = sum(node.get("GPU", 0.0) for node in nodes)
    gpus = execution.gpus_per_worker
    if execution.device == "cpu":
        gpus = 0.0
    elif gpus is None:
        gpus = 1.0 if all_gpus or execution.device == "cuda" else 0.0
    most = math.floor(all_gpus / gpus) if gpus else cpus - 1
    # without GPUs, the networks take about as long as everything else
    count = execution.workers or (min(most, cpus - 1) if gpus else max(1, cpus // 2))
    if not 0 < count <= min(most, cpus - 1):
        raise ConfigurationError(
            f"the cluster has {cpus} CPUs and {all_gpus:g} GPUs, but {max(1, count)} workers need {gpus:g} GPUs each "
            "and at least one more CPU than workers: lower --workers or --gpus-per-worker"
        )

    def room(share: int) -> int:
        """For how many workers with so many CPUs there is room."""
        fitting = [(int(node.get("CPU", 0)) // share, node.get("GPU", 0.0)) for node in nodes]
        return sum(min(n, math.floor(on_node / gpus)) if gpus else n for n, on_node in fitting)

    return count, gpus, next((share for share in range(cpus // count, 1, -1) if room(share) >= count), 1)


def _connect() -> None:
    """Connect to the cluster at RAY_ADDRESS, or start one on this machine."""
    if ray.is_initialized():
        return
    address = os.environ.get("RAY_ADDRESS") or "local"
    if address.startswith("ray://"):
        raise ConfigurationError(
            f"RAY_ADDRESS is '{address}', an address of Ray Client: give the cluster's own, such as host:6379"
        )
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal():  # Ray itself would try for ten minutes
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT).close()
        except (OSError, OverflowError) as error:
            raise ConfigurationError(f"no Ray cluster answers at '{address}': {error}") from error
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    # two CPUs, as there must be more than workers
    is_own = address == "local"
    own: dict[str, Any] = {"num_cpus": max(2, processors()), "include_dashboard": False} if is_own else {}
    try:
        if is_own:
            watch_this_process()
        with _silent_stderr():
            ray.init(address, log_to_driver=False, logging_level=logging.CRITICAL, **own)
    except Exception as error:  # Ray also raises plain ones
        reason = " ".join(str(error).split())
        what = "Ray does not start on this machine" if is_own else f"no Ray cluster answers at '{address}'"
        raise ConfigurationError(f"{what}: {reason}") from error


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """Discard stderr at the level of the file descriptor, which Ray's core writes to directly."""
    sys.stderr.flush()
    before = os.dup(2)
    with Path(os.devnull).open("wb") as null:
        os.dup2(null.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
