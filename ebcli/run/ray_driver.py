"""A run on a Ray cluster, where each part of the list is a task that runs the local pipeline.

The driver lists the files as a local run does, and appends the records. Images stay with the tasks.
"""

import math
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ebcli.errors import ConfigurationError
from ebcli.files.directory import OutputFolder
from ebcli.files.records import Record
from ebcli.files.sink import Sink
from ebcli.models.device import default_batch_size
from ebcli.run import ray_process
from ebcli.run.plan import RunPlan
from ebcli.run.plan_parts import InputOptions
from ebcli.run.plan_text import as_settings
from ebcli.run.prepare import prepare
from ebcli.run.ray_process import StopFile, make_pipeline
from ebcli.workers import DiedError, Process

# Of a part, enough batches to make Ray's overhead small, few enough to repeat when a machine is lost.
_BATCHES_PER_PART = 8
_STOP_TIMEOUT, _END_TIMEOUT = 5, 10  # seconds for the images in progress, and for Ray to end its processes


class Cluster:
    """A run that is ready to start on a Ray cluster.

    The cluster is the one at ``RAY_ADDRESS``; without it, Ray is started on this machine.

    Raises:
        ConfigurationError: there is no such cluster, it has too few CPUs or GPUs, or as ``prepare``.

    Attributes:
        run: the run, whose results come in the order in which the parts of the list finish.
    """

    def __init__(self, plan: RunPlan, sink: Sink) -> None:
        if not isinstance(sink, OutputFolder):
            raise ConfigurationError(
                "other machines cannot write one file: name a directory with -o, or drop --engine ray"
            )
        self._folder, self._settings = sink, as_settings(plan)
        self._ray = Process(_END_TIMEOUT)
        self._end = weakref.finalize(self, self._ray.end)
        self._count, self._gpus, self._cpus = self._call(ray_process.connect, plan.execution)
        device = "cuda" if self._gpus else "cpu"
        batch_size = plan.execution.batch_size or default_batch_size(device)
        # this machine may have no GPU
        local = replace(plan, execution=replace(plan.execution, device="cpu", batch_size=batch_size))
        self.run = prepare(local, sink)
        self.run.explainer = None  # the tasks have the network
        self.run.device, self.run.results = f"{self._count} x {device}", self._results()
        total = len(self.run.sources)
        batch_size = max(1, min(batch_size, total + len(self.run.skipped)))
        execution = replace(plan.execution, device=device, batch_size=batch_size)
        # tasks need none of the images, which can be millions
        self._plan = replace(plan, inputs=InputOptions((Path(),)), execution=execution)
        # at least four parts per network, so that all finish at about the same time
        self._part = batch_size * max(1, min(_BATCHES_PER_PART, total // (4 * self._count * batch_size)))

    def _results(self) -> Generator[Record]:
        """The record of each file.

        Ends a few seconds after a stop is requested, whatever is still in hand.

        Raises:
            ConfigurationError: a machine of the cluster cannot write to the output directory.
            OutputError: a result cannot be written; finished records are yielded first.
            UnfinishedError: the cluster is lost.
            EbcliError: the network cannot continue; likewise.
        """
        sources, stages, stopping = self.run.sources, self.run.stages, self.run.stopping
        parts = deque(sources[start : start + self._part] for start in range(0, len(sources), self._part))
        started, deadline, error = 0, math.inf, None
        with self._folder as folder, ExitStack() as stack:
            stack.callback(self._end)
            folder.start(self._settings)
            running = folder.private / "running"
            running.touch()
            stop = StopFile(running)
            make = partial(make_pipeline, Path.cwd(), self._plan, stages, folder, stop, self._cpus)
            while (parts or started) and time.monotonic() < deadline:
                if deadline == math.inf and (stopping.is_set() or stop.is_set()):
                    deadline = time.monotonic() + _STOP_TIMEOUT
                    stopping.set()
                    stop.set()
                    parts.clear()
                while parts and started < self._count:
                    self._call(ray_process.submit, self._cpus, self._gpus, make, parts.popleft())
                    started += 1
                for records, failure in self._call(ray_process.finished) if started else ():
                    started -= 1
                    for record in records:
                        if record.status != "not an image":
                            folder.record(record)
                            self.run.recorded[record.status] += 1
                        yield record
                    if failure is not None:
                        error = error or failure
                        stop.set()
        if error is not None:
            raise error

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function returns in Ray's process."""
        try:
            return self._ray.call(function, arguments)
        except DiedError as death:
            raise ray_process.lost(death) from death
