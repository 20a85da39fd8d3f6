"""What runs on the machines of a cluster: the tasks and actors of ``ebcli.run.ray_driver``. Knows nothing of Ray."""

from __future__ import annotations

import os
import pickle
import socket
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ebcli.drawing.explanation import Explanation
from ebcli.errors import ConfigurationError, EbcliError, OutputError
from ebcli.files.directory import ResultFiles
from ebcli.files.naming import output_relpath, parse_result_name
from ebcli.files.records import Record
from ebcli.files.sources import Source
from ebcli.gallery.page import write_report
from ebcli.run.explainer import Explainer
from ebcli.run.plan import RunPlan
from ebcli.run.prepare import Prepared, prepare
from ebcli.run.stages import ImageStages, NetworkInput
from ebcli.run.workers import Workers

Row = dict[str, Any]

CHUNK = 10_000  # how many names go from one process to another at a time


@dataclass(frozen=True)
class TaskContext:
    """What all tasks need to know."""

    cwd: Path
    steps: ImageStages
    files: ResultFiles

    @property
    def stop(self) -> Path:
        """Where this file is, nothing else begins."""
        return self.files.private / "stop"


@dataclass(frozen=True)
class WorkItem:
    """A file to work on, and the results beside its place that are recorded as this program's."""

    source: Source
    known: set[str]


class Coordinator:
    """An actor: finds the files, and holds their list until it is dealt out."""

    def __init__(self, cwd: Path) -> None:
        self._cwd = cwd
        self._prepared: Prepared

    def prepare(self, plan: RunPlan) -> tuple[ImageStages, int, int, int, list[str]]:
        """The steps, the size of batches, how many files are left and how many done, and warnings."""
        _enter(self._cwd)
        with warnings.catch_warnings(record=True) as caught:
            prepared = self._prepared = prepare(plan)
        messages = [str(warning.message) for warning in caught if issubclass(warning.category, UserWarning)]
        return prepared.steps, prepared.network.batch_size, len(prepared.rest), len(prepared.already), messages

    def already(self, start: int) -> list[Path]:
        return self._prepared.already[start : start + CHUNK]

    def deal(self, files: ResultFiles, size: int) -> int:
        """Write the list of files in parts of a size; how many there are."""
        known: dict[str, set[str]] = {}
        for result in self._prepared.history.written:
            came = parse_result_name(Path(result))
            if came is not None:
                known.setdefault(str(came[0]), set()).add(result)
        dealt = [WorkItem(source, known.get(str(output_relpath(source.path)), set())) for source in self._prepared.rest]
        starts = range(0, len(dealt), size)
        for number, start in enumerate(starts):
            _part(files, number).write_bytes(pickle.dumps(dealt[start : start + size]))
        return len(starts)


class ExplainerActor:
    """An actor of Ray Data's: holds a network."""

    def __init__(self, plan: RunPlan, there: TaskContext) -> None:
        self._plan, self._there = plan, there

    @cached_property
    def _network(self) -> Explainer:  # here and not at once: Ray tries again and again where an actor cannot begin
        import torch

        _enter(self._there.cwd)
        torch.manual_seed(0)  # an untrained network must be the same one everywhere
        return Explainer(self._plan)

    def __call__(self, batch: Row) -> Row:
        if self._there.stop.exists():  # what only was load_part at has not begun
            known = [isinstance(item, Record) for item in batch["seen"]]
            batch = {name: values[known] for name, values in batch.items()}
        pixels = [item.pixels for item in batch["seen"] if isinstance(item, NetworkInput)]
        explained: Iterator[Explanation | EbcliError]
        try:
            explained = iter(self._network.explain(pixels) if pixels else ())
        except EbcliError as error:
            explained = repeat(error)
        none = np.empty(0, np.uint8)  # what is behind the network needs no pixels
        found = [
            (replace(item, pixels=none), next(explained)) if isinstance(item, NetworkInput) else (item, None)
            for item in batch["seen"]
        ]
        return {
            "file": batch["file"],
            "seen": _objects(seen for seen, _ in found),
            "explained": _objects(said for _, said in found),
        }


def _part(files: ResultFiles, number: int) -> Path:
    return files.private / f"part-{number}"


def load_part(there: TaskContext, row: Row) -> Iterator[Row]:
    """The files of a part, each with what the network gets, or with its record if that is all there is to it."""
    if there.stop.exists():  # or it may be gone, with the run
        return
    _enter(there.cwd)
    for file in pickle.loads(_part(there.files, row["part"]).read_bytes()):
        if there.stop.exists():
            return
        yield {"file": file, "seen": there.steps.look(file.source, _process().call)}


def render_row(there: TaskContext, row: Row) -> Row:
    """The record of a file, or what keeps the run from going on."""
    seen, explained = row["seen"], row["explained"]
    if isinstance(seen, Record):
        return {"record": seen}
    if isinstance(explained, EbcliError):
        return {"record": explained}
    _enter(there.cwd)
    try:
        write = partial(there.files.write, known=row["file"].known)
        return {"record": there.steps.finish(row["file"].source, seen, explained, _process().call, write)}
    except OutputError as error:
        return {"record": error}


def write_page(cwd: Path, plan: RunPlan, steps: ImageStages) -> None:
    _enter(cwd)
    write_report(plan.output, steps.drawing.look, overwrite=plan.overwrite)


@lru_cache
def _process() -> Workers:
    """A process for Ray's worker process: should an image kill it, that is a failure of one image."""
    return Workers(1)


def _objects(values: Iterable[object]) -> NDArray[np.object_]:
    """An array of objects, whatever they are."""
    found = list(values)
    array = np.empty(len(found), object)
    array[:] = found
    return array


def _enter(cwd: Path) -> None:
    """Relative paths mean what they mean to the driver."""
    try:
        os.chdir(cwd)
    except OSError as error:
        raise ConfigurationError(
            f"the machine {socket.gethostname()} does not see the working directory '{cwd}': "
            "start from one that all machines of the cluster share"
        ) from error


def check_here(cwd: Path, files: ResultFiles) -> None:
    _enter(cwd)
    try:
        with tempfile.TemporaryFile(dir=files.private):
            pass
    except OSError as error:
        raise ConfigurationError(
            f"the machine {socket.gethostname()} cannot write to the output directory '{files.directory}' "
            f"({error.strerror}): choose one that all machines of the cluster share"
        ) from error
