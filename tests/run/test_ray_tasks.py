"""A worker of a Ray cluster, without one: the local pipeline on a part of the list."""

from __future__ import annotations

from copy import copy
from pathlib import Path

import pytest
from plans import make_plan
from runs import photos

import ebcli.run.explainer
from ebcli.errors import ConfigurationError
from ebcli.files.directory import OutputFolder
from ebcli.files.naming import RECORDS
from ebcli.files.ownership import OwnFiles
from ebcli.run.prepare import prepare
from ebcli.run.ray_tasks import PipelineWorker

pytestmark = pytest.mark.usefixtures("working_directory")
OUT = Path("out")


@pytest.fixture
def folder() -> OutputFolder:
    return OutputFolder(OUT, overwrite=False)


def made(folder: OutputFolder, cwd: Path) -> PipelineWorker:
    plan = make_plan(Path("photos"), output=OUT, layer=("2",), batch_size=2)
    return PipelineWorker(cwd, plan, prepare(plan, folder).stages, copy(folder), 1)


def test_a_worker_writes_files_that_count_as_ours_and_leaves_the_records_to_the_driver(folder: OutputFolder) -> None:
    photos(Path("photos"), 5)
    Path("photos/0/0000.jpg").write_bytes(b"\xff\xd8\xff no more")
    sources = prepare(make_plan(Path("photos"), output=OUT, layer=("2",)), folder).sources
    with folder:
        worker = made(folder, Path.cwd())
        assert worker.start() is None
        records, error = worker.run(sources)
        assert error is None
        assert [record.input for record in records] == [source.name for source in sources]
        assert sorted(record.status for record in records) == ["done"] * 4 + ["failed"]
        assert not (OUT / RECORDS).exists()
        assert all(Path(path) in OwnFiles(OUT) for record in records for path in record.output)
        again, _ = worker.run(sources)  # as after the death of another worker
        assert [record.output_sha256 for record in again] == [record.output_sha256 for record in records]
        worker.stop()
        assert worker.run(sources) == ([], None)


def test_errors_are_returned_with_what_came_before(folder: OutputFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    photos(Path("photos"), 6)
    sources = prepare(make_plan(Path("photos"), output=OUT, layer=("2",)), folder).sources
    with folder:
        error = made(folder, Path("nowhere")).start()
        assert isinstance(error, ConfigurationError)
        assert "cannot see the working directory 'nowhere'" in str(error)
        worker = made(folder, Path.cwd())
        assert worker.start() is None
        real, calls = ebcli.run.explainer.Explainer.explain, list[int]()

        def explain(*arguments: object) -> object:
            calls.append(1)
            if len(calls) == 3:
                raise ConfigurationError("no memory")
            return real(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(ebcli.run.explainer.Explainer, "explain", explain)
        records, error = worker.run(sources)
        assert str(error) == "no memory"
        assert 1 <= len(records) <= 4  # those that are not drawn yet are dropped
        assert [record.input for record in records] == [source.name for source in sources[: len(records)]]
