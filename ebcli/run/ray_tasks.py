"""What runs on the machines of a cluster: the local pipeline, on parts of the list. Imports no Ray."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from ebcli.errors import ConfigurationError, EbcliError
from ebcli.files.directory import OutputFolder
from ebcli.files.records import Record
from ebcli.files.sources import Source
from ebcli.run.plan import RunPlan
from ebcli.run.stages import ImageStages
from ebcli.workers import Workers

if TYPE_CHECKING:
    from ebcli.run.pipeline import Pipeline

PARTS_AT_A_TIME = 2  # while one part's last images are drawn, the next part's first ones are decoded


class PipelineWorker:
    """An actor that holds a network.

    Args:
        cwd: the working directory.
        plan: the run; its images do not matter.
        stages: what is done for each image.
        files: writes results.
        cpus: the number of CPUs: the network takes one, processes that decode and draw the others.
    """

    def __init__(self, cwd: Path, plan: RunPlan, stages: ImageStages, files: OutputFolder, cpus: int) -> None:
        self._cwd, self._plan, self._files, self._stopping = cwd, plan, files, Event()
        self._workers, self._stages = Workers(max(1, cpus - 1), plan.execution.image_timeout), stages
        self._pipeline: Pipeline

    def start(self) -> EbcliError | None:
        """Load the network, unless this machine lacks the run's directories.

        Errors are returned: Ray cannot raise one that names a path which is not UTF-8.
        """
        import torch

        from ebcli.run.explainer import Explainer
        from ebcli.run.pipeline import Pipeline

        try:
            _check_machine(self._cwd, self._files)
            torch.set_num_threads(1)  # the other CPUs decode and draw
            torch.manual_seed(0)  # an untrained network must be the same in every actor
            explainer, fail_fast = Explainer(self._plan), self._plan.execution.fail_fast
        except EbcliError as error:
            return error
        self._pipeline = Pipeline(
            explainer=explainer,
            sink=self._files,
            workers=self._workers,
            stages=self._stages,
            fail_fast=fail_fast,
            stopping=self._stopping,
        )
        return None

    def run(self, sources: Sequence[Source]) -> tuple[list[Record], EbcliError | None]:
        """The records of a part of the list, and the error that ended it."""
        records: list[Record] = []
        try:
            for record in self._pipeline.run(sources):
                records.append(record)  # what comes before an error counts
        except EbcliError as error:
            return records, error
        return records, None

    def stop(self) -> None:
        """Finish the images in progress and start no others."""
        self._stopping.set()


def _check_machine(cwd: Path, files: OutputFolder) -> None:
    """Make relative paths mean what they mean to the driver, and check that results can be written.

    Raises:
        ConfigurationError: this machine lacks one of the directories.
    """
    try:
        os.chdir(cwd)
    except OSError as error:
        raise ConfigurationError(
            f"the machine {socket.gethostname()} cannot see the working directory '{cwd}': "
            "start from a directory that all machines of the cluster share"
        ) from error
    try:
        with tempfile.TemporaryFile(dir=files.private):
            pass
    except OSError as error:
        raise ConfigurationError(
            f"the machine {socket.gethostname()} cannot write to the output directory '{files.directory}' "
            f"({error.strerror}): choose one that all machines of the cluster share"
        ) from error
