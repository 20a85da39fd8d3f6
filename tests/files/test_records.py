"""Lines of JSON that are whole, whoever writes at the same time and whatever was left by a killed run."""

from __future__ import annotations

import cProfile
import dataclasses
import json
import multiprocessing
import os
import pstats
import resource
import tracemalloc
from pathlib import Path

import pytest

from ebcli.datatypes.explanation import Box
from ebcli.errors import OutputError
from ebcli.files.naming import RECORDS
from ebcli.files.paths import FileState
from ebcli.files.records import ClassRecord, Record, Result, append_lines
from ebcli.files.results import Results
from ebcli.files.sources import Source
from ebcli.models.loaded import configuration_hash, content_hash


def done(name: str, configuration: str, output: Path, size: int = 4, suffix: str = "1-cat.png") -> Record:
    """A record that is true: the input and the result exist."""
    source = Path(name)
    source.parent.mkdir(parents=True, exist_ok=True)
    if not source.exists():
        source.write_bytes(b"photo")
    result = output / f"{name}.{suffix}"
    result.parent.mkdir(parents=True, exist_ok=True)
    result.write_bytes(b"x" * size)
    stamp = Source(source).stamp()
    return Record(
        name,
        "done",
        output=(str(result),),
        output_bytes=(size,),
        classes=(ClassRecord(1, "cat", 0.5, mass=1.0, blank=False),),
        place=name,
        output_sha256=("",),
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
    append_lines(OUT / RECORDS, *(record.line() for record in records))


def test_a_record_is_one_line_of_json_whatever_it_holds() -> None:
    name = os.fsdecode(b"line\nbreak caf\xe9 \xe2\x82\xac.jpg")
    record = Record(
        name, "done", classes=(ClassRecord(1, 'a "b"', float("nan"), mass=float("inf"), blank=True),)
    )
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
            "value": None,
            "layer": "",
            "method": "",
            "peak": None,
            "region": None,
            "at_border": False,
            "box": None,
            "voxel": None,
            "world": None,
            "strength": None,
            "times_noise": None,
            "evidence": None,
            "sufficiency": None,
            "position": None,
            "span": None,
            "share": None,
            "unplaced": None,
            "share_at": None,
            "window_score": None,
            "against": None,
            "channels": [],
            "inputs": {},
            "columns": {},
        }
    ]
    assert entry["schema"] == 1


def test_a_record_reads_what_it_wrote() -> None:
    region = {"box": Box.from_xywh(1, 2, 3, 4), "area": 5.5, "polygon": (1, 2, 3.5, 4)}
    shown = ClassRecord(
        1,
        "cat",
        0.5,
        mass=1.0,
        blank=False,
        losses={"Linear": 0.25},
        layer="2",
        peak=3.5,
        region=region,
        at_border=True,
        box=Box.from_xywh(0, 1, 2, 3),
        strength=0.25,
        evidence="weak",
    )
    record = dataclasses.replace(
        done("a.jpg", "A", OUT), classes=(shown,), against=(7,), label=1, predicted=2
    )
    found = Record.parse(record.line().encode())
    assert found is not None
    assert json.loads(found.line()) == json.loads(record.line())
    (one,) = json.loads(record.line())["classes"]
    assert (one["box"], one["region"]["box"]) == (
        [0, 1, 2, 3],
        [1, 2, 3, 4],
    )  # in files: left, top, width and height
    assert (found.classes[0].region, found.against, found.results) == (
        {"box": Box(1, 2, 4, 6), "area": 5.5, "polygon": [1, 2, 3.5, 4]},
        (7,),
        [Result("a.jpg.1-cat.png", 4, "", "A")],
    )


def test_records_of_earlier_versions_are_read() -> None:
    """They lack what an answer has."""
    written = json.loads(done("a.jpg", "A", OUT).line())
    found = Record.parse(
        json.dumps({k: v for k, v in written.items() if k not in ("question", "answer")}).encode()
    )
    assert found == done("a.jpg", "A", OUT)
    assert Record.parse(json.dumps({k: v for k, v in written.items() if k != "model"}).encode()) is None


def test_finished_takes_the_record_and_the_file_and_the_configuration_and_the_same_input() -> None:
    append(done("a.jpg", "A", OUT), done("d/b.jpg", "A", OUT))

    def finished(name: str, configuration: str = "A") -> bool:
        return Results.read(OUT).is_finished(Source(Path(name)), configuration)

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
    append(first, Record("a.jpg", "failed", place="a.jpg", configuration="A", error="it is broken"))
    results = Results.read(OUT)
    assert not results.is_finished(Source(Path("a.jpg")), "A")
    assert "a.jpg.1-cat.png" in results.files  # the file is still ours


def test_a_file_belongs_to_the_configuration_that_wrote_it_last() -> None:
    append(done("a.jpg", "A", OUT), done("a.jpg", "B", OUT), done("a.jpg", "C", OUT, suffix="1-cat.jpg"))
    results = Results.read(OUT)
    assert [results.is_finished(Source(Path("a.jpg")), name) for name in "ABC"] == [False, True, True]


def test_an_output_directory_may_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(done("a.jpg", "A", OUT))
    (tmp_path / "far").mkdir()
    OUT.rename("far/moved")
    assert Results.read(Path("far/moved")).is_finished(Source(Path("a.jpg")), "A")


def test_half_a_line_of_a_killed_run_costs_no_other_line() -> None:
    append(done("a.jpg", "A", OUT))
    with (OUT / RECORDS).open("ab") as file:
        file.write(b'{"schema": 1, "input": "b.j')
    append(done("c.jpg", "A", OUT))
    first, torn, third = (OUT / RECORDS).read_bytes().splitlines()
    assert torn == b'{"schema": 1, "input": "b.j'
    assert [json.loads(line)["input"] for line in (first, third)] == ["a.jpg", "c.jpg"]
    results = Results.read(OUT)
    finished = [results.is_finished(Source(Path(name)), "A") for name in ("a.jpg", "b.jpg", "c.jpg")]
    assert finished == [True, False, True]


GOOD: dict[str, object] = {
    **{"schema": 1, "status": "done", "input": "d/b.jpg", "place": "d/b.jpg", "error": None, "seconds": 0.5},
    **{"output": ["elsewhere/b.jpg.1-cat.png", "b.jpg.npz"], "output_bytes": [4, 5], "input_bytes": 1},
    "classes": [{"index": 1, "name": "cat", "score": 0.5, "mass": 1.0, "blank": False, "layer": "2"}],
    **{"input_mtime_ns": 2, "configuration": "A", "model": "m", "weights": "w", "layer": "2", "method": "EB"},
    **{
        "output_sha256": ["ab", "cd"],
        "against": [3],
        "label": None,
        "predicted": 1,
        "image_size": [4, 3],
        "clips": None,
    },
    **{"fit": "crop", "tiles": 0, "seen": 0.5, "pages": 1},
}


def test_a_true_line_is_read() -> None:
    record = Record.parse(json.dumps(GOOD).encode())
    assert record is not None
    assert record.results == [Result("d/b.jpg.1-cat.png", 4, "ab", "A"), Result("d/b.jpg.npz", 5, "cd", "A")]
    assert (record.stamp, record.status, record.seconds) == (FileState(1, 2), "done", 0.5)
    failed = GOOD | {
        "status": "failed",
        "error": "broken",
        "output": [],
        "output_bytes": [],
        "output_sha256": [],
    }
    failed |= {"classes": [], "input_bytes": None}
    assert Record.parse(json.dumps(failed).encode())
    name = os.fsdecode(b"\xff\n.jpg")
    odd = {"input": name, "place": name, "output": [f"{name}.1.png"]}
    assert Record.parse(json.dumps(GOOD | odd | {"output_bytes": [1], "output_sha256": [""]}).encode())


HOSTILE_LINES = [
    *(b"", b"\n", b"[]", b"1", b"null", b"{}", b"\0\xff", b'"text"', b"[" * 200_000, b'{"a":' * 200_000),
    *(b"9" * 5000, json.dumps(GOOD).encode()[:-9], b'{"schema": 1, "place": 3}', json.dumps(GOOD).encode() + b"\xff"),
    *(
        json.dumps(GOOD | change).encode()
        for change in (
            *({"schema": 99}, {"schema": []}, {"status": "planned"}, {"status": []}),
            *({"place": place} for place in ("../b.jpg", "/b.jpg", "d/../b.jpg", "", ".", "d//b.jpg", "d/", 7, None)),
            *({"place": "d/\0/b.jpg"}, {"place": "\ud800/b.jpg"}, {"layer": []}),
            *({"input": "\ud800"}, {"input": None}),
            *({"input_bytes": value} for value in (None, "1", 1.5, True, float("inf"), 2**64)),
            *({"output": value} for value in ([], ["b.jpg.1.png"], 3, ["b.jpg.1.png", 3])),
            {"output": ["c.jpg.1.png", "b.jpg.npz"]},
            *({"output": ["b.jpg.1.png\0", "b.jpg.npz"]}, {"output": ["b.jpg.\ud800.png", "b.jpg.npz"]}),
            *({"output": [path] * n, "output_bytes": [1] * n, "output_sha256": [""] * n} for path, n in (
                ("", 0), ("b.jpg.npz", 1), ("b.jpg.1.png", 3), ("c.jpg.1.png", 1), ("b.jpg.\ud800.png", 1),
            )),
            *({"output": ["b.jpg.1.png"] * 3}, {"output": ["d/b.jpg.1.png/..", "b.jpg.npz"]}),
            *({"output_bytes": [1, "2"]}, {"output_sha256": ["ab"]}, {"output_sha256": [1, 2]}, {"against": [None]}),
            *({"label": "a"}, {"predicted": 1.5}, {"image_size": [1]}, {"image_size": ["1", None]}, {"later": 1}),
            *({"error": "broken"}, {"status": "failed"}),
            *({"classes": value} for value in ([], 3, [3], [{"index": 1}], None)),
            *({"classes": [{**GOOD["classes"][0], **wrong}]} for wrong in (  # type: ignore[index]
                *({"index": "x"}, {"index": -1}, {"index": 10**30}, {"name": 3}, {"score": "high"}, {"blank": "no"}),
                *({"layer": None}, {"layer": "\ud800"}, {"mass": []}, {"at_border": 1}, {"peak": "1"}, {"other": 1}),
                *({"inputs": {"image": "x"}}, {"inputs": [1]}),
                *({"columns": {"table": {"age": [1]}}}, {"columns": {"a": 1}}),
                *({"box": [1, 2, 3]}, {"box": "1234"}, {"region": {"box": "x"}}, {"region": [1]}),
                *({"region": {"box": [1, 2, 3, 4], "area": 5, "polygon": polygon}} for polygon in ("ab", [None])),
            )),
            *({"seconds": "long"}, {"seconds": []}),
            *({"fit": None}, {"tiles": "2"}, {"seen": None}, {"pages": 1.5}),
        )
    ),
    *(json.dumps({key: GOOD[key] for key in GOOD if key != missing}).encode() for missing in GOOD),
]  # fmt: skip


@pytest.mark.parametrize("line", HOSTILE_LINES, ids=range(len(HOSTILE_LINES)))
def test_a_line_that_cannot_be_true_is_as_if_it_were_not_there(line: bytes) -> None:
    assert Record.parse(line) is None
    (OUT / RECORDS).write_bytes(line + b"\n")
    append(done("a.jpg", "A", OUT))
    results = Results.read(OUT)
    assert set(results.files) == {"a.jpg.1-cat.png"}
    assert results.is_finished(Source(Path("a.jpg")), "A")


@pytest.mark.release
def test_a_line_too_long_to_be_true_is_skipped_without_being_held() -> None:
    with (OUT / RECORDS).open("wb") as file:
        file.truncate(300 << 20)  # NULs without a newline
        file.seek(0, os.SEEK_END)
        file.write(b"\n")
    append(done("a.jpg", "A", OUT))
    tracemalloc.start()
    results = Results.read(OUT)
    assert tracemalloc.get_traced_memory()[1] < 200 << 20
    tracemalloc.stop()
    assert results.is_finished(Source(Path("a.jpg")), "A")


def test_records_are_a_regular_file_or_an_error() -> None:
    Path("mine.txt").write_text("mine\n")
    (OUT / RECORDS).symlink_to(Path("mine.txt").absolute())
    with pytest.raises(OutputError, match=r"records\.jsonl': it is a symbolic link"):
        Results.read(OUT)
    with pytest.raises(OSError, match="symbolic link"):
        append(Record("a.jpg", "failed"))
    assert Path("mine.txt").read_text() == "mine\n"
    (OUT / RECORDS).unlink()
    os.mkfifo(OUT / RECORDS)
    with pytest.raises(OutputError, match="not a regular file"):
        Results.read(OUT)
    with pytest.raises(OSError, match="not a regular file"):
        append(Record("a.jpg", "failed"))


def test_reading_records_takes_few_steps() -> None:
    """Decoding a million lines takes 3 s; a hundred calls for each of them take about as long."""
    template = done("photos/00000000.jpg", "A" * 64, OUT).line()
    with (OUT / RECORDS).open("w") as file:
        file.writelines(template.replace("00000000", f"{number:08}") + "\n" for number in range(1000))
    with cProfile.Profile() as profile:
        results = Results.read(OUT)
    assert len(results.files) == 1000
    assert pstats.Stats(profile).total_calls < 100 * 1000  # type: ignore[attr-defined]


def write_many(output: Path, number: int) -> None:
    for i in range(200):
        record = Record(f"{number}/{i}", "failed", error="x" * (i * 97 % 9000))
        append_lines(output / RECORDS, record.line())


def test_processes_that_write_at_once_do_not_mix_their_lines() -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_many, args=(OUT, number)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    entries = [json.loads(line) for line in (OUT / RECORDS).read_bytes().splitlines()]
    assert sorted(entry["input"] for entry in entries) == sorted(
        f"{n}/{i}" for n in range(4) for i in range(200)
    )
    for number in range(4):  # and each writer's are in its order
        own = [entry["input"] for entry in entries if entry["input"].startswith(f"{number}/")]
        assert own == [f"{number}/{i}" for i in range(200)]


def test_a_line_that_does_not_fit_is_not_begun() -> None:
    append(Record("a.jpg", "failed"))
    before = (OUT / RECORDS).read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 50, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            append(Record("b.jpg", "failed"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (OUT / RECORDS).read_bytes() == before
    append(Record("c.jpg", "failed"))
    assert [json.loads(line)["input"] for line in (OUT / RECORDS).read_bytes().splitlines()] == [
        "a.jpg",
        "c.jpg",
    ]


def test_hashes() -> None:
    assert configuration_hash({"a": 1, "b": [2]}) == configuration_hash({"b": [2], "a": 1})
    assert configuration_hash({"a": 1}) != configuration_hash({"a": 2})
    Path("abc").write_bytes(b"abc")  # the test vector of FIPS 180-4
    assert content_hash(Path("abc")).startswith("ba7816bf8f01cfea414140de5dae2223")
