"""What runs on the machines of a cluster: the local pipeline, on a part of the list. Imports no Ray."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from threading import Event
from typing import TYPE_CHECKING

from ebcli.errors import ConfigurationError, EbcliError
from ebcli.files.directory import OutputFolder
from ebcli.files.images import decoding_memory
from ebcli.files.records import Record
from ebcli.files.sources import Source
from ebcli.run.plan import RunPlan
from ebcli.run.stages import ImageStages
from ebcli.workers import Workers

if TYPE_CHECKING:
    from ebcli.run.pipeline import Pipeline

_pipelines: list[Pipeline] = []  # that of this process, which Ray keeps for other parts


class StopFile(Event):
    """An event for all machines: it is set when a file is gone. Network file systems may hide a new file for long."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def __reduce__(self) -> tuple[type[StopFile], tuple[Path]]:
        return StopFile, (self._path,)

    def is_set(self) -> bool:
        try:
            self._path.open("rb").close()
        except FileNotFoundError:
            return True
        return False

    def set(self) -> None:
        self._path.unlink(missing_ok=True)


def explain_part(make: Callable[[], Pipeline], sources: Sequence[Source]) -> tuple[list[Record], EbcliError | None]:
    """The records of a part of the list, and the error that ended it.

    Errors are returned, because Ray cannot raise one that names a path which is not UTF-8.

    Args:
        make: loads the network, unless this process has it.
        sources: the files.
    """
    records: list[Record] = []
    try:
        if not _pipelines:
            _pipelines.append(make())
        for record in _pipelines[0].run(sources):
            records.append(record)  # what comes before an error counts
    except EbcliError as error:
        return records, error
    return records, None


def make_pipeline(
    cwd: Path, plan: RunPlan, stages: ImageStages, folder: OutputFolder, stopping: StopFile, cpus: int
) -> Pipeline:
    """Load the network.

    Args:
        cwd: the working directory.
        plan: the run; its images do not matter.
        stages: what is done for each image.
        folder: writes results.
        stopping: ends all parts.
        cpus: the network takes one, processes that decode and draw the others.

    Raises:
        ConfigurationError: this machine lacks one of the directories, or the network cannot be loaded.
    """
    import torch

    from ebcli.run.explainer import Explainer
    from ebcli.run.pipeline import Pipeline

    try:
        os.chdir(cwd)
        TemporaryFile(dir=folder.private).close()
    except OSError as error:
        raise ConfigurationError(
            f"the machine {socket.gethostname()} cannot use '{cwd}' and write to '{folder.directory}' in it "
            f"({error.strerror}): all machines of the cluster must share these directories"
        ) from error
    torch.set_num_threads(1)  # the other CPUs decode and draw
    torch.manual_seed(0)  # an untrained network must be the same on all machines
    workers = Workers(max(1, cpus - 1), plan.execution.image_timeout, decoding_memory(plan.inputs.max_pixels))
    return Pipeline(
        explainer=Explainer(plan),
        sink=folder,
        workers=workers,
        stages=stages,
        fail_fast=plan.execution.fail_fast,
        stopping=stopping,
    )
