"""A run on a Ray cluster: one Ray Data stream of images through all its machines.

files -> loaded (tasks) -> explained (actors that hold the network) -> rendered and written (tasks) -> records

The driver sees only records, and appends them. It holds neither images nor the list of files: an actor finds the
files and leaves the list in the output directory, in parts that tasks read.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import sys
import time
import warnings
from collections import Counter
from collections.abc import Collection, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import Empty, Queue
from threading import Event, Thread
from typing import Any

from ebcli.errors import ConfigurationError, EbcliError
from ebcli.files.directory import OutputFolder, ResultFiles
from ebcli.files.records import Record
from ebcli.models.device import default_batch_size
from ebcli.run.plan import ExecutionOptions, InputOptions, RunPlan
from ebcli.run.ray_tasks import (
    CHUNK,
    Coordinator,
    ExplainerActor,
    Row,
    TaskContext,
    check_machine,
    load_part,
    render_row,
)
from ebcli.run.workers import processors

# or Ray's threads would start a new cluster when this run has left its own
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
try:
    import ray
    import ray.data
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as missing:
    raise ConfigurationError(f"the engine ray needs Ray ({missing}): pip install 'ray[data]'") from missing

# A part of the list moves through the stream as a whole: enough batches to make Ray's overhead small, few enough to
# repeat when a machine is lost.
_BATCHES_PER_PART = 4
_MAX_PARTS = 4096  # the driver knows them all; longer lists get larger parts
# Loading and rendering get equal shares, or loading would take all CPUs. When one is idle, the other may use all CPUs
# that the networks leave.
_CPUS_PER_TASK = 0.5
_CONNECT_TIMEOUT = 30  # seconds
_STOP_TIMEOUT = 5  # seconds for the images in progress
_POLL = 0.1  # seconds
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
        stages: what is done for each image.
        device: the devices of the networks, in words.
        total: the number of files to work on.
        skipped: the inputs whose results are up to date.
    """

    def __init__(self, plan: RunPlan) -> None:
        _connect()
        count, gpus, self._tasks = _allocation(plan.execution)
        device = "cuda" if gpus else "cpu"
        batch_size = plan.execution.batch_size or default_batch_size(device)
        self._cwd = Path.cwd()
        # on this machine if possible, so that it sees the same files as the user
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        coordinator: Any = ray.remote(Coordinator)  # an actor class has no static type
        self._coordinator = coordinator.options(num_cpus=0, scheduling_strategy=here).remote(self._cwd)
        # the coordinator's machine may have no GPU
        local = replace(plan, execution=replace(plan.execution, device="cpu", batch_size=batch_size))
        prepared = _get(self._coordinator.prepare.remote(local))
        if isinstance(prepared, EbcliError):
            raise prepared
        self.stages, batch_size, self.total, skipped, messages = prepared
        for message in messages:
            warnings.warn(message, stacklevel=2)
        self.skipped: Collection[Path] = _Skipped(self._coordinator, skipped)
        self.device = f"{count} x {device}"
        # only the coordinator needs the images, which can be millions
        execution = replace(plan.execution, device=device, batch_size=batch_size)
        self._plan = replace(plan, inputs=InputOptions((Path(),)), execution=execution)
        self._actors = ray.data.ActorPoolStrategy(size=count)
        self._gpus = gpus
        # at least four parts per network, so that all finish at about the same time
        batches = max(1, min(_BATCHES_PER_PART, self.total // (4 * count * batch_size)))
        self._part = batch_size * max(batches, math.ceil(self.total / (_MAX_PARTS * batch_size)))

    def results(self, stopping: Event, recorded: Counter[str]) -> Generator[Record]:
        """The record of each file, in the order in which they finish.

        Args:
            stopping: set it, from any thread, to finish the images in progress and start no others.
            recorded: counts the records written, by status.

        Raises:
            ConfigurationError: a machine of the cluster cannot write to the output directory.
            OutputError: a result cannot be written; finished records are yielded first.
            EbcliError: the network cannot continue; likewise.
        """
        output, error = self._plan.output, None
        with closing(OutputFolder(output.directory, output.overwrite)) as folder:
            folder.start(output.settings)
            _check_machines(self._cwd, folder.files)
            context = TaskContext(self._cwd, self.stages, folder.files, self._plan.execution.image_timeout)
            parts = _get(self._coordinator.deal.remote(folder.files, self._part))
            ray.kill(self._coordinator)
            for row in _rows(self._stream(context, parts), stopping, context.stop):
                record: Record | EbcliError = row["record"]
                if isinstance(record, EbcliError):
                    error = error or record
                    stopping.set()
                else:
                    if record.status != "not an image":
                        recorded[record.status] += 1
                    if self._plan.execution.fail_fast and record.status == "failed":
                        stopping.set()
                    yield record
            if error is not None:
                raise error

    def _stream(self, context: TaskContext, parts: int) -> ray.data.Dataset:
        listed = ray.data.from_items([{"part": part} for part in range(parts)], override_num_blocks=max(1, parts))
        return (
            listed.flat_map(partial(load_part, context), num_cpus=_CPUS_PER_TASK, concurrency=self._tasks)
            .map_batches(
                ExplainerActor,
                fn_constructor_args=(self._plan, context),
                batch_size=self._plan.execution.batch_size,
                compute=self._actors,
                num_cpus=1,
                num_gpus=self._gpus,
            )
            .map(partial(render_row, context), num_cpus=_CPUS_PER_TASK, concurrency=self._tasks)
        )


class _Skipped(Collection[Path]):
    """The inputs that are skipped, fetched from the coordinator in chunks."""

    def __init__(self, coordinator: Any, count: int) -> None:
        self._coordinator, self._count = coordinator, count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Path]:
        for start in range(0, self._count, CHUNK):
            yield from _get(self._coordinator.skipped.remote(start))

    def __contains__(self, path: object) -> bool:
        return any(path == other for other in self)


def _check_machines(cwd: Path, files: ResultFiles) -> None:
    """Check that every machine that may run tasks can write to the output directory.

    Raises:
        ConfigurationError: one cannot.
    """
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    check = ray.remote(num_cpus=0)(check_machine)
    at = [NodeAffinitySchedulingStrategy(node, soft=False) for node in nodes]
    _get([check.options(scheduling_strategy=node).remote(cwd, files) for node in at])


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
    # two CPUs, or there would be none left to load and render while a network runs
    own: dict[str, Any] = {"num_cpus": max(2, processors()), "include_dashboard": False} if address == "local" else {}
    try:
        with _silent_stderr():
            ray.init(address, log_to_driver=False, logging_level=logging.CRITICAL, **own)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigurationError(f"no Ray cluster answers at '{address}': {reason}") from error
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # its messages arrive as exceptions as well
    ray.data.DataContext.get_current().enable_progress_bars = False


def _allocation(execution: ExecutionOptions) -> tuple[int, float, int]:
    """The number of networks, the GPUs for each, and the number of tasks that load and that render.

    Raises:
        ConfigurationError: the cluster is too small.
    """
    resources = ray.cluster_resources()
    cpus, all_gpus = int(resources.get("CPU", 0)), resources.get("GPU", 0.0)
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
    return count, gpus, cpus - count


def _get(reference: Any) -> Any:
    """``ray.get``, raising this package's errors as they were raised remotely."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, EbcliError):
            raise error.cause from None
        raise


def _rows(stream: ray.data.Dataset, stopping: Event, stop: Path) -> Iterator[Row]:
    """The rows of a stream, until it ends, or until a few seconds after a stop is requested.

    After a stop, Ray would start each remaining task, only for it to find that there is nothing left to do.
    """
    rows: Queue[Row | Exception | None] = Queue(CHUNK)
    Thread(target=_fetch, args=(stream, rows), daemon=True).start()
    deadline = math.inf
    while time.monotonic() < deadline:
        if stopping.is_set() and deadline == math.inf:
            stop.touch()
            deadline = time.monotonic() + _STOP_TIMEOUT
        try:
            row = rows.get(timeout=_POLL)
        except Empty:
            continue
        if row is None:
            return
        if isinstance(row, Exception):
            raise row
        yield row
    ray.shutdown()  # ends the tasks


def _fetch(stream: ray.data.Dataset, rows: Queue[Row | Exception | None]) -> None:
    try:
        for row in stream.iter_rows():
            rows.put(row)
    except Exception as error:
        rows.put(error)
    else:
        rows.put(None)


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
