"""The same run on a Ray cluster: one stream of images through all its machines, made of Ray Data's own parts.

files -> load_part at (tasks) -> explained (actors, each with a network) -> drawn and written (tasks) -> records

The driver, which started the run, sees records pass and writes them down. It holds no image, and not the list of
images either: an actor finds them, and leaves them in the output directory in parts, which tasks read.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import socket
import sys
import warnings
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

from ebcli.errors import ConfigurationError, EbcliError
from ebcli.files.directory import OutputFolder, ResultFiles
from ebcli.files.records import History, Record
from ebcli.models.device import default_batch_size
from ebcli.run.plan import RunPlan
from ebcli.run.ray_tasks import (
    CHUNK,
    Coordinator,
    ExplainerActor,
    Row,
    TaskContext,
    check_here,
    load_part,
    render_row,
    write_page,
)
from ebcli.run.workers import processors

try:
    import ray
    import ray.data
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as missing:
    raise ConfigurationError(f"the engine ray needs Ray ({missing}): pip install 'ray[data]'") from missing

# A part of the list goes through as a whole. So many batches are enough for Ray's own work not to count, and few enough
# to be done again where a machine is lost.
_BATCHES = 4
_MOST_PARTS = 4096  # the driver knows them all; beyond, they get larger
# As many tasks decode as draw, or the first would take all processors; where either have nothing to do, the others may
# use all that is left by the networks.
_SHARE = 0.5
_PATIENCE = 30  # seconds
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",  # else Ray reports to its makers
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else it announces that this will be the default
}


class Cluster:
    """A Ray cluster, and a run that is ready to go there.

    Args:
        plan: what to do; ``plan.ray_address`` is the cluster, None for one on this machine.

    Raises:
        ConfigurationError: there is no such cluster, it has too few processors or GPUs, or as ``prepare``.

    Attributes:
        steps: what is done for each image.
        device: what the networks run on, in words.
        total: how many files are to be worked on.
        already: the inputs that are left out because they are done.
    """

    def __init__(self, plan: RunPlan) -> None:
        _connect(plan.ray_address)
        count, gpus, self._tasks = _room(plan)
        device = "cuda" if gpus else "cpu"
        batch_size = plan.batch_size or default_batch_size(device)
        self._here = Path.cwd()
        # here if that can be, so that what the user sees is there
        beside = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        desk: Any = ray.remote(Coordinator)  # which has no type once it is an actor
        self._desk = desk.options(num_cpus=0, scheduling_strategy=beside).remote(self._here)
        # where it is, there may be no GPU
        prepared = self._desk.prepare.remote(replace(plan, device="cpu", batch_size=batch_size))
        self.steps, batch_size, self.total, already, messages = _got(prepared)
        for message in messages:
            warnings.warn(message, stacklevel=2)
        self.already: Collection[Path] = _Already(self._desk, already)
        self.device = f"{count} x {device}"
        # the images are the desk's matter, and may be millions
        self._plan = replace(plan, images=(Path(),), device=device, batch_size=batch_size)
        self._actors = ray.data.ActorPoolStrategy(size=count)
        self._gpus = gpus
        # at least four for each network, for all to come to their end at about the same time
        batches = max(1, min(_BATCHES, self.total // (4 * count * batch_size)))
        self._part = batch_size * max(batches, math.ceil(self.total / (_MOST_PARTS * batch_size)))

    def results(self, stopping: Event) -> Iterator[Record]:
        """What becomes of each file, in the order in which it does.

        Args:
            stopping: set it, from anywhere, and what has begun is render_row and nothing else begins.

        Raises:
            ConfigurationError: a machine of the cluster does not see the output directory.
            OutputError: a result cannot be written; what could be has been handed out before.
            EbcliError: the network cannot go on, likewise.
        """
        plan, error = self._plan, None
        with closing(OutputFolder(plan.output, History(), plan.overwrite)) as folder:
            _check_machines(self._here, folder.files)
            there = TaskContext(self._here, self.steps, folder.files)
            parts = _got(self._desk.deal.remote(folder.files, self._part))
            ray.kill(self._desk)
            for row in _rows(self._stream(there, parts)):
                record: Record | EbcliError = row["record"]
                if isinstance(record, EbcliError):
                    error = error or record
                    stopping.set()
                else:
                    if record.status != "not an image":
                        folder.record(record)
                    if plan.fail_fast and record.status == "failed":
                        stopping.set()
                    yield record
                if stopping.is_set():
                    there.stop.touch()
            if error is not None:
                raise error
        if plan.report:  # in a task, for it reads all records
            _got(ray.remote(write_page).remote(self._here, plan, self.steps))

    def _stream(self, there: TaskContext, parts: int) -> ray.data.Dataset:
        listed = ray.data.from_items([{"part": part} for part in range(parts)], override_num_blocks=max(1, parts))
        return (
            listed.flat_map(partial(load_part, there), num_cpus=_SHARE, concurrency=self._tasks)
            .map_batches(
                ExplainerActor,
                fn_constructor_args=(self._plan, there),
                batch_size=self._plan.batch_size,
                compute=self._actors,
                num_cpus=1,
                num_gpus=self._gpus,
            )
            .map(partial(render_row, there), num_cpus=_SHARE, concurrency=self._tasks)
        )


class _Already(Collection[Path]):
    """The inputs that are done, as the desk knows them."""

    def __init__(self, desk: Any, count: int) -> None:
        self._desk, self._count = desk, count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Path]:
        for start in range(0, self._count, CHUNK):
            yield from _got(self._desk.already.remote(start))

    def __contains__(self, path: object) -> bool:
        return any(path == other for other in self)


def _check_machines(cwd: Path, files: ResultFiles) -> None:
    """Make sure that all machines that may work see the output directory.

    Raises:
        ConfigurationError: one does not.
    """
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    check = ray.remote(num_cpus=0)(check_here)
    at = [NodeAffinitySchedulingStrategy(node, soft=False) for node in nodes]
    _got([check.options(scheduling_strategy=node).remote(cwd, files) for node in at])


def _connect(address: str | None) -> None:
    """Connect to a cluster, or start one here."""
    if ray.is_initialized():
        return
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    if address.startswith("ray://"):
        raise ConfigurationError(
            f"'{address}' is an address of Ray Client: give the cluster's own, such as host:6379, or submit a job"
        )
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal():  # Ray itself would try for ten minutes
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE).close()
        except (OSError, OverflowError) as error:
            raise ConfigurationError(f"no Ray cluster answers at '{address}': {error}") from error
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    # decoding and drawing must go on while a network works
    own: dict[str, Any] = {"num_cpus": max(2, processors()), "include_dashboard": False} if address == "local" else {}
    try:
        with _silent_stderr():
            ray.init(address, log_to_driver=False, logging_level=logging.CRITICAL, **own)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigurationError(f"no Ray cluster answers at '{address}': {reason}") from error
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # what it has to say comes as an error as well
    ray.data.DataContext.get_current().enable_progress_bars = False


def _room(plan: RunPlan) -> tuple[int, float, int]:
    """How many networks there shall be, how much of a GPU for each, and how many tasks before and behind them.

    Raises:
        ConfigurationError: the cluster has no room for them.
    """
    resources = ray.cluster_resources()
    cpus, all_gpus = int(resources.get("CPU", 0)), resources.get("GPU", 0.0)
    gpus = plan.gpus_per_worker
    if plan.device == "cpu":
        gpus = 0.0
    elif gpus is None:
        gpus = 1.0 if all_gpus or plan.device == "cuda" else 0.0
    most = math.floor(all_gpus / gpus) if gpus else cpus - 1
    # without GPUs, networks take about as long as all the rest
    count = plan.num_workers or (min(most, cpus - 1) if gpus else max(1, cpus // 2))
    if not 0 < count <= min(most, cpus - 1):
        raise ConfigurationError(
            f"the cluster has {cpus} processors and {all_gpus:g} GPUs, too few for {max(1, count)} workers with "
            f"{gpus:g} GPUs each and at least one processor besides: lower num-workers or gpus-per-worker"
        )
    return count, gpus, cpus - count


def _got(reference: Any) -> Any:
    """``ray.get``, with the errors of this package as they were raised."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, EbcliError):
            raise error.cause from None
        raise


def _rows(stream: ray.data.Dataset) -> Iterator[Row]:
    """What comes out of a stream; what Ray has to say in the meantime goes to stderr."""
    rows = iter(stream.iter_rows())
    while True:
        with contextlib.redirect_stdout(sys.stderr):
            row = next(rows, None)
        if row is None:
            return
        yield row


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """Ray's core greets on the file descriptor itself."""
    sys.stderr.flush()
    before = os.dup(2)
    with Path(os.devnull).open("wb") as null:
        os.dup2(null.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
