"""Ray, in a process of its own: when the cluster is lost, Ray ends the process that uses it without a word.

And what runs on the machines of the cluster: the local pipeline, on a part of the list.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from multiprocessing.util import Finalize
from pathlib import Path
from tempfile import TemporaryFile
from threading import Event
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ebcli.errors import ConfigurationError, EbcliError, UnfinishedError, import_optional
from ebcli.files.directory import OutputFolder
from ebcli.files.records import Record
from ebcli.files.sources import Source
from ebcli.run.pipeline import Run, workers_for
from ebcli.run.plan_parts import ExecutionOptions
from ebcli.workers import processors

PartResult = tuple[list[Record], EbcliError | None]  # of a part of the list, and the error that ended it


class Allocation(NamedTuple):
    """The number of workers, and the GPUs and CPUs of each."""

    workers: int
    gpus: float
    cpus: int


_RETRIES = 2  # of a part whose process or machine is lost
_CONNECT_TIMEOUT = 30  # seconds
_POLL = 0.1
_HEAD_TIMEOUT = "30"
_OWN_HEAD_TIMEOUT = "2"  # an own head is not started again
_LONGEST_REASON = 200  # characters

_started_parts: list[Any] = []  # those that are waited for
_jobs: list[Run] = []  # that of this process, which Ray keeps for other parts


def connect(execution: ExecutionOptions) -> Allocation:
    """Connect to the cluster at RAY_ADDRESS, or start one on this machine.

    Raises:
        ConfigurationError: there is no such cluster, or it is too small.
    """
    address = os.environ.get("RAY_ADDRESS") or "local"
    _check_address(address)
    options: dict[str, Any] = {}
    timeout = _HEAD_TIMEOUT
    problem = f"no Ray cluster answers at '{address}'"
    if address == "local":
        options = {"num_cpus": max(2, processors()), "include_dashboard": False}  # one CPU more than workers
        timeout = _OWN_HEAD_TIMEOUT
        problem = "Ray does not start on this machine"
    # no reports to Ray's developers; when the cluster's head has been away for so long, Ray ends its processes
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_gcs_rpc_server_reconnect_timeout_s": timeout}
    ray = import_optional("ray")
    os.chdir(sys.prefix)  # Ray lets its workers import from the directory in which it is called
    nowhere = os.open(os.devnull, os.O_WRONLY)  # for Ray's logs
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.CRITICAL, **options)
    except Exception as error:  # Ray also raises plain ones
        raise ConfigurationError(f"{problem}: {' '.join(str(error).split())}") from error
    import psutil  # that of Ray

    Finalize(None, _leave, [psutil.Process().children(recursive=True)], exitpriority=1)
    return allocation(execution, [node["Resources"] for node in ray.nodes() if node["Alive"]])


def _check_address(address: str) -> None:
    """Raise ConfigurationError if nothing answers at an address: Ray itself would try for ten minutes."""
    if address.startswith("ray://"):
        raise ConfigurationError(
            f"RAY_ADDRESS is '{address}', an address of Ray Client: give the cluster's own, such as host:6379"
        )
    url = urlsplit(f"//{address}")
    try:
        if url.port is not None:
            socket.create_connection((url.hostname, url.port), timeout=_CONNECT_TIMEOUT).close()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"no Ray cluster answers at '{address}': {error}") from error


def _leave(processes: Sequence[Any]) -> None:
    """Leave the cluster, and end what was started of it here: some processes would go on for a minute."""
    import ray

    ray.shutdown()
    for process in processes:
        with suppress(Exception):  # it has ended
            process.kill()


def allocation(execution: ExecutionOptions, nodes: Sequence[dict[str, float]]) -> Allocation:
    """What each worker gets of machines with such resources.

    Raises:
        ConfigurationError: the cluster is too small.
    """
    cpus = int(sum(node.get("CPU", 0) for node in nodes))
    all_gpus = sum(node.get("GPU", 0) for node in nodes)
    gpus = execution.gpus_per_worker
    if execution.device == "cpu":
        gpus = 0.0
    elif gpus is None:
        gpus = float(all_gpus > 0 or execution.device == "cuda")
    maximum = min(cpus - 1, _room(nodes, gpus, 1))
    # without GPUs, the networks take about as long as everything else
    count = execution.workers or (maximum if gpus else max(1, cpus // 2))
    if not 0 < count <= maximum:
        raise ConfigurationError(
            f"the cluster has {cpus} CPUs and {all_gpus:g} GPUs, but {max(1, count)} workers need "
            f"{gpus:g} GPUs each and at least one more CPU than workers: "
            "lower --workers or EB_SALIENCY_GPUS_PER_WORKER"
        )
    share = cpus // count
    while _room(nodes, gpus, share) < count:
        share -= 1
    return Allocation(count, gpus, share)


def _room(nodes: Sequence[dict[str, float]], gpus: float, cpus: int) -> int:
    """The number of workers with so many GPUs and CPUs each that fit on machines with such resources."""
    count = 0
    for node in nodes:
        limit = node.get("CPU", 0) // cpus
        if gpus:
            limit = min(limit, math.floor(node.get("GPU", 0) / gpus))
        count += int(limit)
    return count


@cache
def _remote(allocation: Allocation) -> Any:
    """``explain_part`` as a task of Ray; a part whose process or machine is lost is repeated wherever there is room."""
    import ray

    _, gpus, cpus = allocation
    remote = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=_RETRIES, scheduling_strategy="SPREAD")
    return remote(explain_part)


def start_parts(
    allocation: Allocation, cwd: Path, job: Run, parts: Iterable[Sequence[Source]]
) -> list[PartResult]:
    """Start some parts of the list, and wait a moment for any that were started.

    Args:
        allocation: what each gets.
        cwd, job: see ``explain_part``.
        parts: their files.

    Returns:
        The results of those that have finished since the last call.

    Raises:
        UnfinishedError: see ``lost``.
    """
    import ray

    try:
        _started_parts.extend(_remote(allocation).remote(cwd, job, sources) for sources in parts)
        finished, _started_parts[:] = ray.wait(_started_parts, timeout=_POLL)
        return list(ray.get(finished))
    except ray.exceptions.RayTaskError:  # unexpected, like any such error in this process
        raise
    except ray.exceptions.RayError as error:
        raise lost(error) from error


def lost(error: Exception) -> UnfinishedError:
    """The error for a cluster that is lost, or a part that ends all processes that work on it."""
    reason = " ".join(str(error).split())[:_LONGEST_REASON]
    return UnfinishedError(
        f"the Ray cluster is lost ({reason}): repeat the command with --skip-existing, "
        "and with fewer --workers if memory was short"
    )


@dataclass(frozen=True)
class SharedEvent(Event):
    """An event for all machines. Its file exists until it is set: network file systems may hide a new file for long."""

    path: Path

    def __post_init__(self) -> None:
        self.path.touch()

    def is_set(self) -> bool:
        try:
            self.path.open("rb").close()
        except FileNotFoundError:
            return True
        return False

    def set(self) -> None:
        self.path.unlink(missing_ok=True)


def explain_part(cwd: Path, job: Run, sources: Sequence[Source]) -> PartResult:
    """The records of a part of the list, and the error that ended it.

    Errors are returned, because Ray cannot raise one that names a path which is not UTF-8.

    Args:
        cwd: the working directory.
        job: the run, without files and network.
        sources: the files.
    """
    records: list[Record] = []
    try:
        if not _jobs:
            _jobs.append(_ready(cwd, job))
        for record in _jobs[0].process(sources):
            records.append(record)  # what comes before an error counts
    except EbcliError as error:
        return records, error
    return records, None


def _ready(cwd: Path, job: Run) -> Run:
    """The run with its network and its processes.

    Raises:
        ConfigurationError: this machine lacks one of the directories, or the network cannot be loaded.
    """
    import torch

    from ebcli.run.explainer import Explainer

    assert isinstance(job.sink, OutputFolder)
    try:
        os.chdir(cwd)
        TemporaryFile(dir=job.sink.private).close()
    except OSError as error:
        raise ConfigurationError(
            f"the machine {socket.gethostname()} cannot use '{cwd}' and write to '{job.sink.directory}' "
            f"in it ({error.strerror}): all machines of the cluster must share these directories"
        ) from error
    torch.set_num_threads(1)  # the other CPUs decode and draw
    torch.manual_seed(0)  # an untrained network must be the same on all machines
    job.explainer = Explainer(job.plan)
    job.workers = workers_for(job.plan, 1)
    return job
