"""Lines of JSON that are whole, whoever writes at the same time and whatever was left by a killed run."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import resource
from pathlib import Path

import pytest

from ebcli.files.records import FILE, ClassRecord, History, Record, RecordFile
from ebcli.files.sources import Source
from ebcli.files.storage import Stamp
from ebcli.models.fingerprint import configuration_hash, content_hash


def done(name: str, configuration: str, output: Path, size: int = 4, suffix: str = "1-cat.png") -> Record:
    """A record that is true: the input and the result exist."""
    source = Path(name)
    source.parent.mkdir(parents=True, exist_ok=True)
    if not source.exists():
        source.write_bytes(b"photo")
    result = output / f"{name}.{suffix}"
    result.parent.mkdir(parents=True, exist_ok=True)
    result.write_bytes(b"x" * size)
    stamp = Stamp.of(source)
    return Record(
        name,
        "done",
        (str(result),),
        (size,),
        (ClassRecord(1, "cat", 0.5, 1.0, blank=False),),
        place=name,
        input_bytes=stamp.bytes,
        input_mtime_ns=stamp.mtime_ns,
        configuration=configuration,
    )


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    return tmp_path


OUT = Path("out")


def append(*records: Record) -> None:
    file = RecordFile(OUT)
    for record in records:
        file.append(record)
    file.close()


def test_a_record_is_one_line_of_json_whatever_it_holds() -> None:
    name = os.fsdecode(b"line\nbreak caf\xe9 \xe2\x82\xac.jpg")
    record = Record(name, "done", classes=(ClassRecord(1, 'a "b"', float("nan"), float("inf"), blank=True),))
    (line,) = record.line().splitlines()
    entry = json.loads(line, parse_constant=pytest.fail)  # NaN and Infinity are not JSON
    assert os.fsencode(entry["input"]) == os.fsencode(name)
    assert entry["classes"] == [
        {
            "index": 1,
            "name": 'a "b"',
            "score": None,
            "mass": None,
            "blank": True,
            "losses": None,
            "layer": "",
            "peak": None,
        }
    ]
    assert entry["schema"] == 1


def test_finished_takes_the_record_and_the_file_and_the_configuration_and_the_same_input() -> None:
    append(done("a.jpg", "A", OUT), done("d/b.jpg", "A", OUT))

    def finished(name: str, configuration: str = "A") -> bool:
        return History.read(OUT).is_finished(OUT, Source(Path(name)), configuration)

    assert finished("a.jpg")
    assert finished("d/b.jpg")
    assert finished("./d/../a.jpg")
    assert not finished("a.jpg", "B")
    assert not finished("c.jpg")
    (OUT / "a.jpg.1-cat.png").write_bytes(b"cut")
    assert not finished("a.jpg")
    (OUT / "d/b.jpg.1-cat.png").unlink()
    assert not finished("d/b.jpg")
    append(done("a.jpg", "A", OUT))
    assert finished("a.jpg")
    Path("a.jpg").write_bytes(b"other")
    assert not finished("a.jpg")


def test_a_failure_undoes_what_was_finished() -> None:
    first = done("a.jpg", "A", OUT)
    append(first, dataclasses.replace(first, status="failed", output=(), output_bytes=()))
    history = History.read(OUT)
    assert not history.is_finished(OUT, Source(Path("a.jpg")), "A")
    assert "a.jpg.1-cat.png" in history.written  # the file is still ours


def test_a_file_belongs_to_the_configuration_that_wrote_it_last() -> None:
    append(done("a.jpg", "A", OUT), done("a.jpg", "B", OUT), done("a.jpg", "C", OUT, suffix="1-cat.jpg"))
    history = History.read(OUT)
    assert [history.is_finished(OUT, Source(Path("a.jpg")), name) for name in "ABC"] == [False, True, True]


def test_an_output_directory_may_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(done("a.jpg", "A", OUT))
    (tmp_path / "far").mkdir()
    OUT.rename("far/moved")
    assert History.read(Path("far/moved")).is_finished(Path("far/moved"), Source(Path("a.jpg")), "A")


def test_half_a_line_of_a_killed_run_costs_no_other_line() -> None:
    append(done("a.jpg", "A", OUT))
    with (OUT / FILE).open("ab") as file:
        file.write(b'{"schema": 1, "input": "b.j')
    append(done("c.jpg", "A", OUT))
    first, torn, third = (OUT / FILE).read_bytes().splitlines()
    assert torn == b'{"schema": 1, "input": "b.j'
    assert [json.loads(line)["input"] for line in (first, third)] == ["a.jpg", "c.jpg"]
    history = History.read(OUT)
    finished = [history.is_finished(OUT, Source(Path(name)), "A") for name in ("a.jpg", "b.jpg", "c.jpg")]
    assert finished == [True, False, True]


@pytest.mark.parametrize("line", ["[]", "1", "null", "{}", '{"schema": 99}', '{"schema": 1, "place": 3}', "\0\xff"])
def test_lines_that_mean_nothing_are_no_obstacle(line: str) -> None:
    (OUT / FILE).write_bytes(line.encode("latin-1") + b"\n")
    append(done("a.jpg", "A", OUT))
    assert History.read(OUT).is_finished(OUT, Source(Path("a.jpg")), "A")


def write_many(output: Path, number: int) -> None:
    file = RecordFile(output)
    for i in range(200):
        file.append(Record(f"{number}/{i}", "failed", error="x" * (i * 97 % 9000)))
    file.close()


def test_processes_that_write_at_once_do_not_mix_their_lines() -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_many, args=(OUT, number)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    entries = [json.loads(line) for line in (OUT / FILE).read_bytes().splitlines()]
    assert sorted(entry["input"] for entry in entries) == sorted(f"{n}/{i}" for n in range(4) for i in range(200))
    for number in range(4):  # and each writer's are in its order
        own = [entry["input"] for entry in entries if entry["input"].startswith(f"{number}/")]
        assert own == [f"{number}/{i}" for i in range(200)]


def test_a_line_that_does_not_fit_is_not_begun() -> None:
    append(Record("a.jpg", "failed"))
    before = (OUT / FILE).read_bytes()
    file = RecordFile(OUT)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 50, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            file.append(Record("b.jpg", "failed"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (OUT / FILE).read_bytes() == before
    file.append(Record("c.jpg", "failed"))
    file.close()
    assert [json.loads(line)["input"] for line in (OUT / FILE).read_bytes().splitlines()] == ["a.jpg", "c.jpg"]


def test_hashes() -> None:
    assert configuration_hash({"a": 1, "b": [2]}) == configuration_hash({"b": [2], "a": 1})
    assert configuration_hash({"a": 1}) != configuration_hash({"a": 2})
    Path("abc").write_bytes(b"abc")  # the test vector of FIPS 180-4
    assert content_hash(Path("abc")).startswith("ba7816bf8f01cfea414140de5dae2223")
