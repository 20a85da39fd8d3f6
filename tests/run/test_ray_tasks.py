"""What runs on a Ray cluster, without one: the local pipeline on a part of the list, and how many CPUs it gets."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from plans import make_plan
from runs import photos
from runs import records as recorded

import ebcli.run.explainer
from ebcli.errors import ConfigurationError, EbcliError
from ebcli.files.directory import OutputFolder
from ebcli.files.naming import RECORDS, SETTINGS
from ebcli.files.records import Record
from ebcli.files.results import Results
from ebcli.files.sources import Source
from ebcli.run import engine, ray_process
from ebcli.run.pipeline import Run
from ebcli.run.plan_parts import ExecutionOptions
from ebcli.run.prepare import prepare
from ebcli.run.ray_process import Allocation, SharedEvent, allocation, explain_part

pytestmark = pytest.mark.usefixtures("working_directory")
OUT = Path("out")


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In this process, yet; and none of its processes later on."""
    jobs: list[Run] = []
    monkeypatch.setattr(ray_process, "_jobs", jobs)
    yield
    for job in jobs:
        job.workers.__exit__(None, None, None)


@pytest.fixture
def folder() -> OutputFolder:
    return OutputFolder(OUT, overwrite=False)


def job_for(folder: OutputFolder) -> Run:
    """What is sent to a task."""
    plan = make_plan(Path("photos"), output=OUT, layer=("2",), batch_size=2)
    stop = SharedEvent(folder.private / "running")
    job = replace(prepare(plan, folder), explainer=None, sources=(), skipped=(), stopping=stop)
    sent: Run = pickle.loads(pickle.dumps(job))
    return sent


def test_a_task_writes_files_that_count_as_ours_and_leaves_the_records_to_the_driver(
    folder: OutputFolder,
) -> None:
    photos(Path("photos"), 5)
    Path("photos/0/0000.jpg").write_bytes(b"\xff\xd8\xff no more")
    sources = prepare(make_plan(Path("photos"), output=OUT, layer=("2",)), folder).sources
    with folder:
        job = job_for(folder)
        records, error = explain_part(Path.cwd(), job, sources)
        assert error is None
        assert [record.input for record in records] == [source.name for source in sources]
        assert sorted(record.status for record in records) == ["done"] * 4 + ["failed"]
        assert not (OUT / RECORDS).exists()
        assert all(Path(path) in Results(OUT) for record in records for path in record.output)
        again, _ = explain_part(Path.cwd(), job, sources)  # as after the death of another process
        assert [record.output_sha256 for record in again] == [record.output_sha256 for record in records]
        SharedEvent(folder.private / "running").set()
        assert explain_part(Path.cwd(), job, sources) == ([], None)


def test_errors_are_returned_with_what_came_before(
    folder: OutputFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos(Path("photos"), 6)
    sources = prepare(make_plan(Path("photos"), output=OUT, layer=("2",)), folder).sources
    with folder:
        records, error = explain_part(Path("nowhere"), job_for(folder), sources)
        assert records == []
        assert isinstance(error, ConfigurationError)
        assert "cannot use 'nowhere' and write to 'out' in it (No such file or directory)" in str(error)
        real, calls = ebcli.run.explainer.Explainer.explain, list[int]()

        def explain(*arguments: object) -> object:
            calls.append(1)
            if len(calls) == 3:
                raise ConfigurationError("no memory")
            return real(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(ebcli.run.explainer.Explainer, "explain", explain)
        records, error = explain_part(Path.cwd(), job_for(folder), sources)
        assert str(error) == "no memory"
        assert 1 <= len(records) <= 4  # those that are not drawn yet are dropped
        assert [record.input for record in records] == [source.name for source in sources[: len(records)]]


def test_a_stop_is_seen_by_all_that_know_the_file(tmp_path: Path) -> None:
    stop = SharedEvent(tmp_path / "running")
    remote_stop = pickle.loads(pickle.dumps(stop))
    assert not stop.is_set()
    assert not remote_stop.is_set()
    remote_stop.set()
    assert stop.is_set()
    stop.set()  # again
    assert remote_stop.is_set()
    assert pickle.loads(pickle.dumps(stop)).is_set()


@pytest.mark.parametrize(
    ("options", "machines", "expected"),
    [
        ({}, [(4, 0)], (2, 0, 2)),
        ({"workers": 1}, [(16, 0)], (1, 0, 16)),
        ({"workers": 3}, [(4, 0), (4, 0)], (3, 0, 2)),
        ({"workers": 1}, [(2, 0), (2, 0)], (1, 0, 2)),  # no more than one machine has
        ({"workers": 4}, [(3, 0), (3, 0), (3, 0)], (4, 0, 1)),
        ({}, [(8, 2), (8, 2)], (4, 1, 4)),
        ({"gpus_per_worker": 0.5}, [(8, 2)], (4, 0.5, 2)),
        ({"device": "cpu"}, [(8, 2)], (4, 0, 2)),
        ({"gpus_per_worker": 0.6}, [(8, 1), (8, 1)], (2, 0.6, 8)),  # one on each machine, whatever their sum
    ],
)
def test_tasks_get_equal_shares_of_the_machines(
    options: dict[str, float], machines: list[tuple[int, int]], expected: tuple[int, float, int]
) -> None:
    nodes = [{"CPU": float(cpus), "GPU": float(gpus)} for cpus, gpus in machines]
    assert allocation(ExecutionOptions(**options), nodes) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "machines"),
    [({"workers": 4}, [(4, 0)]), ({"device": "cuda"}, [(4, 0)]), ({"workers": 3}, [(8, 2)])],
)
def test_a_cluster_that_is_too_small_says_so(
    options: dict[str, float], machines: list[tuple[int, int]]
) -> None:
    nodes = [{"CPU": float(cpus), "GPU": float(gpus)} for cpus, gpus in machines]
    with pytest.raises(
        ConfigurationError, match=r"^the cluster has \d CPUs and \d GPUs, but \d workers need"
    ):
        allocation(ExecutionOptions(**options), nodes)  # type: ignore[arg-type]


def cluster_run(
    monkeypatch: pytest.MonkeyPatch, *ends: EbcliError | None, **options: Any
) -> engine.ClusterRun:
    """One whose parts, of two photos each, end with these errors, each behind what it has done; without Ray."""
    waiting: list[Sequence[Source]] = []
    errors = iter(ends)

    def call(_: object, function: object, *arguments: Any) -> Any:
        if function is ray_process.connect:
            return Allocation(workers=2, gpus=0, cpus=1)
        waiting.extend(arguments[-1])
        sources, error = waiting.pop(0), next(errors)
        done = sources[: 1 if error else None]
        return [([Record(source.name, "done", place=str(source.relpath)) for source in done], error)]

    monkeypatch.setattr(engine.Cluster, "call", call)
    photos(Path("photos"), 2 * len(ends))
    run = engine.run(
        make_plan(Path("photos"), output=OUT, layer=("2",), batch_size=2, engine="ray", **options)
    )
    assert isinstance(run, engine.ClusterRun)
    return run


def results(run: Run) -> tuple[list[Record], EbcliError | None]:
    found: list[Record] = []
    try:
        found.extend(run.results)
    except EbcliError as error:
        return found, error
    return found, None


def test_the_first_error_of_a_part_ends_the_run_once_the_others_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is done in all of them is recorded, and no other part is started."""
    first, second = ConfigurationError("no memory"), ConfigurationError("no disk")
    found, error = results(cluster_run(monkeypatch, first, second, None, None))
    assert error is first
    assert len(found) == 2
    assert sorted(record["input"] for record in recorded(OUT)) == sorted(record.input for record in found)
    shutil.rmtree(OUT)
    found, error = results(
        cluster_run(monkeypatch, first, None, None, None)
    )  # and a part that ends well forgives nothing
    assert (error, len(found)) == (first, 3)


def test_a_run_on_ray_yields_each_photo_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found, error = results(cluster_run(monkeypatch, None, None, None))
    assert error is None
    assert sorted(record.input for record in found) == sorted(
        str(path) for path in Path("photos").rglob("*.jpg")
    )
    assert not list(OUT.glob(".eb-saliency-*"))
    settings = (OUT / SETTINGS).read_text()  # those of the command, not those of the workers
    assert 'images = ["photos"]' in settings
    assert 'device = "auto"' in settings


def test_a_stop_on_ray_lets_the_parts_in_hand_end_and_starts_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, found = cluster_run(monkeypatch, None, None, None, None), []
    for record in run.results:
        found.append(record)
        run.stopping.set()
    assert len(found) == 4


def test_tasks_explain_photos_for_their_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    run = cluster_run(monkeypatch, None, None, labels=Path("folders"))
    with run.sink:
        records, error = explain_part(Path.cwd(), run.job, run.sources)
    assert error is None
    assert [str(record.label) for record in records] == [Path(record.input).parent.name for record in records]
    expected = [{record.label, record.predicted} for record in records]
    assert [{one.index for one in record.classes} for record in records] == expected
    assert any(len(classes) == 2 for classes in expected)
