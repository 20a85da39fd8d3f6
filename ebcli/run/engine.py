"""One run over many images, on this machine or on a Ray cluster.

On Ray, each part of the list of files is a task, which works on it as a local run does. The driver lists the files and
appends the records. Images stay with the tasks.
"""

import math
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, replace
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
from ebcli.workers import DiedError, Process

# Of a part, enough batches to make Ray's overhead small, few enough to repeat when a machine is lost.
_BATCHES_PER_PART = 8
_STOP_TIMEOUT, _END_TIMEOUT = 5, 10  # seconds for the images in progress, and for Ray to end its processes


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
        raise ConfigurationError("other machines cannot write one file: name a directory with -o, or drop --engine ray")
    from ebcli.models.running import default_batch_size  # which imports torch

    cluster = Cluster(execution)
    # this machine may have no GPU
    work = prepare(replace(plan, execution=replace(execution, device="cpu")), sink)
    device = "cuda" if cluster.gpus else "cpu"
    maximum = max(1, len(work.sources) + len(work.skipped))
    batch_size = min(execution.batch_size or default_batch_size(device), maximum)
    workers = max(1, cluster.cpus - 1)  # the network takes one
    execution = replace(execution, device=device, batch_size=batch_size, workers=workers)
    # tasks need none of the images, which can be millions, and load the network themselves
    work.explainer = None
    plan = replace(plan, inputs=replace(plan.inputs, images=(Path(),)), execution=execution)
    job = replace(work, plan=plan, sources=(), skipped=())
    fields = vars(work) | {"plan": plan, "device": f"{cluster.count} x {device}"}
    return ClusterRun(**fields, cluster=cluster, job=job)


class Cluster:
    """The Ray cluster at ``RAY_ADDRESS``, or one that is started on this machine, and ends with this object.

    Raises:
        ConfigurationError: there is no such cluster, or it has too few CPUs or GPUs.

    Attributes:
        count: the number of tasks at a time.
        gpus, cpus: those of each task.
    """

    def __init__(self, execution: ExecutionOptions) -> None:
        self._ray = Process(_END_TIMEOUT)
        self.close = weakref.finalize(self, self._ray.end)
        self.count, self.gpus, self.cpus = self.call(ray_process.connect, execution)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function returns in Ray's process.

        Raises:
            UnfinishedError: the cluster is lost.
        """
        try:
            return self._ray.call(function, arguments)
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
        total = len(self.sources)
        count = self.cluster.count
        batch_size = self.job.plan.execution.batch_size or 1
        # at least four parts per network, so that all finish at about the same time
        size = batch_size * max(1, min(_BATCHES_PER_PART, total // (4 * count * batch_size)))
        parts = deque(self.sources[start : start + size] for start in range(0, total, size))
        num_running = 0
        deadline = math.inf
        error = None
        with self.sink as folder, closing(self.cluster) as cluster:
            folder.start(as_settings(self.plan))
            running = folder.private / "running"
            running.touch()
            stop = ray_process.StopFile(running)
            setup = cluster.cpus, cluster.gpus, Path.cwd(), replace(self.job, stopping=stop)
            while (parts or num_running) and time.monotonic() < deadline:
                if deadline == math.inf and (self.stopping.is_set() or stop.is_set()):
                    deadline = time.monotonic() + _STOP_TIMEOUT
                    self.stopping.set()
                    stop.set()
                    parts.clear()
                new = [parts.popleft() for _ in range(min(len(parts), count - num_running))]
                done = cluster.call(ray_process.start_parts, *setup, new)
                num_running += len(new) - len(done)
                for records, failure in done:
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
