"""The tasks and actors of ``ebcli.run.ray_driver``, which run on the machines of a cluster. Imports no Ray."""

from __future__ import annotations

import os
import pickle
import socket
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import repeat
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ebcli.drawing.explanation import Explanation
from ebcli.errors import ConfigurationError, EbcliError, ImageError, OutputError
from ebcli.files.directory import ResultFiles
from ebcli.files.records import Record
from ebcli.run.explainer import Explainer
from ebcli.run.plan import RunPlan
from ebcli.run.stages import ImageStages, NetworkInput
from ebcli.run.workers import Workers

if TYPE_CHECKING:
    from ebcli.run.prepare import Prepared

Row = dict[str, Any]

CHUNK = 10_000  # names sent from one process to another at a time


@dataclass(frozen=True)
class TaskContext:
    """What all tasks need to know."""

    cwd: Path
    stages: ImageStages
    files: ResultFiles
    image_timeout: float | None

    @property
    def stop(self) -> Path:
        """While this file exists, tasks start nothing."""
        return self.files.private / "stop"


class Coordinator:
    """An actor that finds the files, holds their list and deals it out in parts."""

    def __init__(self, cwd: Path) -> None:
        self._cwd = cwd
        self._prepared: Prepared

    def prepare(self, plan: RunPlan) -> tuple[ImageStages, int, int, int, list[str]] | EbcliError:
        """The stages, the batch size, the numbers of files to do and to skip, and warnings.

        An error is returned: Ray cannot raise one that names a path which is not UTF-8.
        """
        from ebcli.run.prepare import prepare  # only the actor that lists the files needs it

        try:
            _enter(self._cwd)
            with warnings.catch_warnings(record=True) as caught:
                prepared = self._prepared = prepare(plan)
        except EbcliError as error:
            return error
        messages = [str(warning.message) for warning in caught if issubclass(warning.category, UserWarning)]
        total = len(prepared.sources) + len(prepared.skipped)
        batch_size = max(1, min(plan.execution.batch_size or 1, total))
        return prepared.stages, batch_size, len(prepared.sources), len(prepared.skipped), messages

    def skipped(self, start: int) -> list[Path]:
        return self._prepared.skipped[start : start + CHUNK]

    def deal(self, files: ResultFiles, size: int) -> int:
        """Write the list of files in parts of a size; returns the number of parts."""
        sources = self._prepared.sources
        starts = range(0, len(sources), size)
        for number, start in enumerate(starts):
            _part(files, number).write_bytes(pickle.dumps(sources[start : start + size]))
        return len(starts)


class ExplainerActor:
    """A Ray Data actor that holds a network."""

    def __init__(self, plan: RunPlan, context: TaskContext) -> None:
        self._plan, self._context = plan, context
        self._idle_since: float | None = None  # not before the first batch: a cluster takes long to start

    @cached_property
    def _explainer(self) -> Explainer:  # not in __init__: Ray restarts an actor that cannot start, again and again
        import torch

        _enter(self._context.cwd)
        torch.manual_seed(0)  # an untrained network must be the same in every actor
        return Explainer(self._plan)

    def __call__(self, batch: Row) -> Row:
        waited = 0.0 if self._idle_since is None else perf_counter() - self._idle_since
        if self._context.stop.exists():  # images that are only loaded do not count as started
            known = [isinstance(item, Record) for item in batch["loaded"]]
            batch = {name: values[known] for name, values in batch.items()}
        pairs = zip(batch["source"], batch["loaded"], strict=True)
        images = [(source, item) for source, item in pairs if isinstance(item, NetworkInput)]
        pixels, sizes = [item.pixels for _, item in images], [item.size for _, item in images]
        labels = [source.label for source, _ in images]
        explanations: Iterator[Explanation | EbcliError]
        try:
            explanations = iter(self._explainer.explain(pixels, labels, sizes) if pixels else ())
        except EbcliError as error:
            explanations = repeat(error)
        none = np.empty(0, np.uint8)  # rendering needs no pixels
        found = [
            (replace(item, pixels=none, waited=waited / len(pixels)), next(explanations))
            if isinstance(item, NetworkInput)
            else (item, None)
            for item in batch["loaded"]
        ]
        self._idle_since = perf_counter()
        return {
            "source": batch["source"],
            "loaded": _objects(loaded for loaded, _ in found),
            "explanation": _objects(explanation for _, explanation in found),
        }


def _part(files: ResultFiles, number: int) -> Path:
    return files.private / f"part-{number}"


def load_part(context: TaskContext, row: Row) -> Iterator[Row]:
    """The files of a part, each with what the network gets, or with the record of one that failed."""
    if context.stop.exists():  # the part may be gone, together with the run
        return
    _enter(context.cwd)
    for source in pickle.loads(_part(context.files, row["part"]).read_bytes()):
        if context.stop.exists():
            return
        yield {"source": source, "loaded": context.stages.load(source, _process(context.image_timeout).call)}


def render_row(context: TaskContext, row: Row) -> Row:
    """The record of a file, or the error that ends the run."""
    loaded, explanation = row["loaded"], row["explanation"]
    if isinstance(loaded, Record):
        if loaded.status != "not an image":
            context.files.record(loaded)
        return {"record": loaded}
    if isinstance(explanation, EbcliError) and not isinstance(explanation, ImageError):
        return {"record": explanation}
    _enter(context.cwd)
    try:
        call = _process(context.image_timeout).call
        record, files = context.stages.render(row["source"], loaded, explanation, call)
        context.files.write(files, record)
    except OutputError as error:
        return {"record": error}
    return {"record": record}


@lru_cache
def _process(timeout: float | None) -> Workers:
    """A process of the task's own: an image that kills it fails alone."""
    return Workers(1, timeout)


def _objects(values: Iterable[object]) -> NDArray[np.object_]:
    """A one-dimensional array of any objects."""
    found = list(values)
    array = np.empty(len(found), object)
    array[:] = found
    return array


def _enter(cwd: Path) -> None:
    """Make relative paths mean what they mean to the driver."""
    try:
        os.chdir(cwd)
    except OSError as error:
        raise ConfigurationError(
            f"the machine {socket.gethostname()} cannot see the working directory '{cwd}': "
            "start from a directory that all machines of the cluster share"
        ) from error


def check_machine(cwd: Path, files: ResultFiles) -> None:
    """Raise ConfigurationError unless this machine can write to the output directory."""
    _enter(cwd)
    try:
        with tempfile.TemporaryFile(dir=files.private):
            pass
    except OSError as error:
        raise ConfigurationError(
            f"the machine {socket.gethostname()} cannot write to the output directory '{files.directory}' "
            f"({error.strerror}): choose one that all machines of the cluster share"
        ) from error
