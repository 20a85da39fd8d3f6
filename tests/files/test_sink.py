"""Sinks: a directory, one file and stdout take the results of an image alike."""

import subprocess
import sys
from pathlib import Path

import pytest

from ebcli.errors import OutputError
from ebcli.files.directory import OutputFolder
from ebcli.files.records import ClassRecord, Record, read_records
from ebcli.files.sink import OneFile, Sink, Stdout, atomic_write

CAT, DOG = (ClassRecord(index, None, 0.5, mass=1.0, blank=False) for index in (1, 2))
FILES = {Path("a.jpg.1-cat.png"): b"picture"}
RECORD = Record(
    "a.jpg",
    "done",
    place="a.jpg",
    output=("a.jpg.1-cat.png",),
    output_bytes=(7,),
    output_sha256=("",),
    classes=(CAT,),
    input_bytes=1,
    input_mtime_ns=2,
)


def sinks(folder: Path, put: list[bytes]) -> list[Sink]:
    one = OneFile(folder / "one.png", "png", overwrite=False)
    return [OutputFolder(folder / "maps", overwrite=False), one, Stdout(put.append, "png")]


def test_what_a_run_does_is_the_same_for_all(tmp_path: Path) -> None:
    put: list[bytes] = []
    for sink, expected in zip(sinks(tmp_path, put), (["maps/a.jpg.1-cat.png"], ["one.png"], []), strict=True):
        sink.check()
        assert not any(tmp_path.glob("maps/*")) or sink.directory is None
        with sink:
            sink.start(None)
            written = sink.write(FILES, RECORD)
            failed = sink.write({}, Record("b.jpg", "failed", place="b.jpg", error="broken"))
        assert [str(Path(path).relative_to(tmp_path)) for path in written.output] == expected
        assert [Path(path).read_bytes() for path in written.output] == [b"picture"] * len(expected)
        assert (failed.status, failed.output) == ("failed", ())
    assert put == [b"picture"]
    assert [record.status for record in read_records(tmp_path / "maps")] == ["done", "failed"]
    assert {path.name for path in tmp_path.iterdir()} == {"maps", "one.png"}


KILLED = """
import os, signal
from pathlib import Path
from ebcli.files.sink import atomic_write

with atomic_write(Path("one.png")) as file:
    file.write_bytes(b"half of a pict")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_of_one_file_is_removed_with_the_next(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED], cwd=tmp_path, check=False)
    (left,) = tmp_path.iterdir()
    with atomic_write(tmp_path / "one.png") as file:
        assert not left.exists()
        file.write_bytes(b"picture")
    assert [path.name for path in tmp_path.iterdir()] == ["one.png"]


@pytest.mark.parametrize("number", [1, 2])
def test_one_picture_holds_one_map(number: int, tmp_path: Path) -> None:
    put: list[bytes] = []
    sink = sinks(tmp_path, put)[number]
    both = Record("a.jpg", "done", output=("a.jpg.1.png", "a.jpg.2.png"), classes=(CAT, DOG))
    with pytest.raises(OutputError, match=r"a\.jpg has 2 maps: add --panel"):
        sink.write({Path(name): b"1" for name in both.output}, both)
    assert not put
    assert not any(tmp_path.iterdir())
    # a volume has a contact sheet of its slices beside its picture
    volume = Record("a.nii", "done", output=("a.nii.1.png", "a.nii.1.sheet.png"), classes=(CAT,))
    written = sink.write({Path("a.nii.1.png"): b"picture", Path("a.nii.1.sheet.png"): b"sheet"}, volume)
    assert [*put, *(Path(path).read_bytes() for path in written.output)] == [b"picture"]
