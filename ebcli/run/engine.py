"""One run over many images, on this machine or on a Ray cluster.

On Ray, each part of the list of files is a task, which works on it as a local run does. The driver lists the files and
appends the records. Images stay with the tasks.
"""

import math
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from ebcli.errors import ConfigurationError
from ebcli.files.directory import OutputFolder
from ebcli.files.records import Record
from ebcli.files.sink import Sink
from ebcli.run import ray_process
from ebcli.run.pipeline import Run
from ebcli.run.plan import RunPlan, as_settings
from ebcli.run.plan_parts import ExecutionOptions
from ebcli.run.prepare import prepare
from ebcli.run.ray_process import Allocation, PartResult, SharedEvent
from ebcli.workers import DiedError, Process

# Of a part, enough batches to make Ray's overhead small, few enough to repeat when a machine is lost.
_BATCHES_PER_PART = 8
_STOP_TIMEOUT = 5  # seconds for the images in progress
_END_TIMEOUT = 10  # seconds for Ray to end its processes


def run(plan: RunPlan, sink: Sink | None = None) -> Run:
    """Check the plan and load what all images share; the images are worked on while ``results`` is iterated.

    Args:
        plan: the run.
        sink: where its results go; None for the output directory.

    Raises:
        ConfigurationError: the model, weights, layer, class, colormap or device does not exist or does not fit, or a
            result would replace a file that this program did not write; the cluster does not exist or is too small.
        UnsupportedOpError: the network has operations without an excitation rule.
        OutputError: (also from ``results``) the output directory cannot be written to.
    """
    sink = sink or OutputFolder(plan.output.directory, plan.output.overwrite)
    execution = plan.execution
    if execution.engine != "ray" or execution.dry_run:
        return prepare(plan, sink)
    if not isinstance(sink, OutputFolder):
        raise ConfigurationError(
            "other machines cannot write one file: name a directory with -o, or drop --engine ray"
        )
    from ebcli.models.running import default_batch_size  # which imports torch

    cluster = Cluster(execution)
    # this machine may have no GPU
    work = prepare(replace(plan, execution=replace(execution, device="cpu")), sink)
    count, gpus, cpus = cluster.allocation
    device = "cuda" if gpus else "cpu"
    work.plan = plan
    work.explainer = None  # each worker loads its own
    work.device = f"{count} x {device}"
    maximum = max(1, len(work.sources) + len(work.skipped))
    batch_size = min(execution.batch_size or default_batch_size(device), maximum)
    # the network takes one CPU
    execution = replace(execution, device=device, batch_size=batch_size, workers=max(1, cpus - 1))
    # workers need none of the images, which can be millions
    inputs = replace(plan.inputs, images=(Path(),))
    job = replace(work, plan=replace(plan, inputs=inputs, execution=execution), sources=(), skipped=())
    return ClusterRun(**vars(work), cluster=cluster, job=job)


class Cluster:
    """The Ray cluster at ``RAY_ADDRESS``, or one that is started on this machine, and ends with this object.

    Raises:
        ConfigurationError: there is no such cluster, or it has too few CPUs or GPUs.

    Attributes:
        allocation: the workers, each of which explains a part of the list at a time.
    """

    def __init__(self, execution: ExecutionOptions) -> None:
        self._process = Process(_END_TIMEOUT)
        self.close = weakref.finalize(self, self._process.end)
        self.allocation: Allocation = self.call(ray_process.connect, execution)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function returns in Ray's process.

        Raises:
            UnfinishedError: the cluster is lost.
        """
        try:
            return self._process.call(function, arguments)
        except DiedError as death:
            raise ray_process.lost(death) from death


@dataclass(kw_only=True)
class ClusterRun(Run):
    """A run on a cluster, whose results come in the order in which the parts of the list finish.

    Attributes:
        cluster: the cluster.
        job: the run as tasks get it, without files.
    """

    sink: OutputFolder
    cluster: Cluster
    job: Run

    @property
    def results(self) -> Generator[Record]:
        """The record of each file; ends a few seconds after a stop is requested, whatever is still in hand.

        Raises:
            ConfigurationError: a machine of the cluster cannot write to the output directory.
            OutputError: a result cannot be written; finished records are yielded first.
            UnfinishedError: the cluster is lost.
            EbcliError: the network cannot continue; likewise.
        """
        error = None
        with self.sink as folder, closing(self.cluster):
            folder.start(as_settings(self.plan))
            stop = SharedEvent(folder.private / "running")
            for records, failure in self._part_results(stop):
                for record in records:
                    if record.status != "not an image":
                        folder.record(record)
                        self.counts[record.status] += 1
                    yield record
                if failure is not None:
                    error = error or failure
                    stop.set()
        if error is not None:
            raise error

    def _part_results(self, stop: SharedEvent) -> Iterator[PartResult]:
        """The results of the parts of the list as they finish; after a stop, only of those that finish soon."""
        allocation = self.cluster.allocation
        setup = allocation, Path.cwd(), replace(self.job, stopping=stop)
        batch_size = self.job.plan.execution.batch_size or 1
        total = len(self.sources)
        # at least four parts per worker, so that all finish at about the same time
        size = batch_size * max(1, min(_BATCHES_PER_PART, total // (4 * allocation.workers * batch_size)))
        parts = (self.sources[start : start + size] for start in range(0, total, size))
        num_running = 0
        deadline = math.inf
        while time.monotonic() < deadline:
            if deadline == math.inf and (self.stopping.is_set() or stop.is_set()):
                deadline = time.monotonic() + _STOP_TIMEOUT
                self.stopping.set()
                stop.set()
                parts.close()
            new_parts = [*islice(parts, allocation.workers - num_running)]
            num_running += len(new_parts)
            if not num_running:
                return
            results = self.cluster.call(ray_process.start_parts, *setup, new_parts)
            num_running -= len(results)
            yield from results
