"""The output directory: whole files or none, nobody else's replaced, nothing left behind."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from galleries import wrote
from rights import no_override

from ebcli.errors import ConfigurationError, OutputError
from ebcli.files.directory import OutputFolder, check_writable, finish_killed_runs, refuse_foreign_files
from ebcli.files.naming import parse_result_name
from ebcli.files.records import ClassRecord, Record
from ebcli.files.sources import Source

OWN = b"own"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "deep/out"


@pytest.fixture
def folder(out: Path) -> Iterator[OutputFolder]:
    with OutputFolder(out, overwrite=False) as opened:
        yield opened


def files(out: Path) -> set[str]:
    paths = (
        path
        for path in out.rglob("*")
        if path.name not in (".eb-saliency", "records.jsonl", "eb-saliency-run")
    )
    return {str(path.relative_to(out)) for path in paths if path.is_file()}


def test_files_are_written_where_they_belong_and_nothing_else_remains(out: Path) -> None:
    with OutputFolder(out, overwrite=False) as folder:
        folder.add({Path("a/b.png"): b"b", Path("c.npz"): b"c"})
    assert files(out) == {"a/b.png", "c.npz"}
    assert (out / "a/b.png").read_bytes() == b"b"
    assert sorted(path.name for path in out.iterdir()) == [".eb-saliency", "a", "c.npz"]


def test_if_one_of_an_image_s_files_has_no_room_none_is_begun(out: Path, folder: OutputFolder) -> None:
    folder.add({Path("a.png"): OWN})
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OutputError, match=r"cannot write '.*b\.png': File too large"):
            folder.add({Path("a.png"): b"new", Path("b.png"): b"x" * 1001})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (out / "a.png").read_bytes() == OWN
    assert files(out) == {"a.png"}


def test_a_file_that_appears_during_a_run_is_replaced_only_if_it_is_ours(
    out: Path, folder: OutputFolder
) -> None:
    with OutputFolder(out, overwrite=False) as other:  # of another run
        other.add({Path("own.png"): OWN})
    folder.add({Path("own.png"): b"new"})
    assert (out / "own.png").read_bytes() == b"new"
    (out / "other.png").write_bytes(b"other")
    with pytest.raises(OutputError, match=r"other\.png' appeared during this run.*did not write it"):
        folder.add({Path("other.png"): b"new"})
    assert (out / "other.png").read_bytes() == b"other"


def test_overwrite_replaces_anything(out: Path) -> None:
    out.mkdir(parents=True)
    (out / "other.png").write_bytes(b"other")
    with OutputFolder(out, overwrite=True) as folder:
        folder.add({Path("other.png"): b"new"})
    assert (out / "other.png").read_bytes() == b"new"


def test_a_link_at_a_result_s_place_does_not_lead_the_result_elsewhere(out: Path, tmp_path: Path) -> None:
    (tmp_path / "precious.png").write_bytes(OWN)
    out.mkdir(parents=True)
    (out / "a.png").symlink_to(tmp_path / "precious.png")
    with OutputFolder(out, overwrite=False) as folder, pytest.raises(OutputError):
        folder.add({Path("a.png"): b"new"})
    with OutputFolder(out, overwrite=True) as folder:
        folder.add({Path("a.png"): b"new"})
    assert (tmp_path / "precious.png").read_bytes() == OWN
    assert (out / "a.png").read_bytes() == b"new"


def test_files_obey_the_umask(out: Path, folder: OutputFolder) -> None:
    old = os.umask(0o027)
    try:
        folder.add({Path("a.png"): b"a"})
    finally:
        os.umask(old)
    assert (out / "a.png").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to("nowhere")])
def test_a_directory_that_cannot_be_made_is_one_clear_error(out: Path, make: Callable[[Path], None]) -> None:
    out.parent.mkdir()
    make(out)
    with pytest.raises(OutputError, match=r"cannot write to '.*out'"):
        OutputFolder(out, overwrite=False).__enter__()


def work_until_killed(out: Path, started: Event) -> None:
    folder = OutputFolder(out, overwrite=False).__enter__()  # noqa: F841 - which holds a lock
    (private,) = out.glob(".eb-saliency-*")
    (private / "7").write_bytes(b"half a pict")
    started.set()
    signal.pause()


def test_what_a_killed_run_left_is_removed_and_what_a_live_one_needs_is_not(out: Path) -> None:
    context = multiprocessing.get_context("fork")
    started = context.Event()
    other = context.Process(target=work_until_killed, args=(out, started))
    other.start()
    try:
        assert started.wait(60)
        finish_killed_runs(out)
        assert files(out) == {f"{next(out.glob('.eb-*')).name}/7"}
    finally:
        other.kill()
        other.join()
    finish_killed_runs(out)
    assert not any(out.iterdir())


def record_until_killed(out: Path, started: Event) -> None:
    folder = OutputFolder(out, overwrite=False).__enter__()

    def killed(*_: Path) -> None:
        started.set()
        signal.pause()

    record = wrote(Record("a.jpg", "done", place="d/a.jpg", input_bytes=1, input_mtime_ns=2), "a.jpg.1.png")
    with mock.patch.object(Path, "replace", killed):
        folder.write(
            {Path("d/a.jpg.1.png"): b"1234"},
            replace(record, classes=(ClassRecord(1, None, 1, mass=1, blank=False),)),
        )


def test_what_a_killed_run_recorded_is_moved_to_its_place(out: Path) -> None:
    context = multiprocessing.get_context("fork")
    for content in (None, b"mine"):
        started = context.Event()
        run = context.Process(target=record_until_killed, args=(out, started))
        run.start()
        assert started.wait(60)
        run.kill()
        run.join()
        if content is not None:
            (out / "d/a.jpg.1.png").write_bytes(content)
        finish_killed_runs(out)
        assert (out / "d/a.jpg.1.png").read_bytes() == (content or b"1234")
        assert files(out) == {"d/a.jpg.1.png"}


def refuse(out: Path, *relpaths: str) -> None:
    def is_result(path: Path) -> bool:
        return path.suffix == ".png" and parse_result_name(path) is not None

    refuse_foreign_files(out, (), False, map(Path, relpaths), is_result)


def test_foreign_files_are_found_before_anything_is_computed(out: Path) -> None:
    refuse(out, "a.jpg")  # no such directory
    (out / "d").mkdir(parents=True)
    for name in ("a.jpg", "a.jpg.1-cat.jpg", "b.jpg.2-dog.png", "notes.txt", "d/a.jpg.3.png"):
        (out / name).write_bytes(b"mine")
    refuse(out, "a.jpg")
    with pytest.raises(
        ConfigurationError, match=r"'.*out/b\.jpg\.2-dog\.png' would be replaced.*write it.*overwrite"
    ):
        refuse(out, "a.jpg", "b.jpg")
    with pytest.raises(
        ConfigurationError, match=r"out/b\.jpg.*d/a\.jpg\.3\.png' would be replaced.*write them"
    ):
        refuse(out, "b.jpg", "d/a.jpg")
    with OutputFolder(out, overwrite=True) as folder:
        folder.add({Path("b.jpg.2-dog.png"): OWN})
    refuse(out, "b.jpg")


def test_a_file_where_a_directory_must_be_is_found_as_well(out: Path) -> None:
    out.mkdir(parents=True)
    (out / "photos").touch()
    with pytest.raises(OutputError, match="photos"):
        refuse(out, "photos/a.jpg")


def test_nothing_is_written_through_a_symbolic_link_inside_the_directory(out: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    out.mkdir(parents=True)
    (out / "photos").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match=r"out/photos' is a symbolic link"):
        refuse(out, "photos/2024/a.jpg")
    for overwrite in (False, True):
        with OutputFolder(out, overwrite) as folder, pytest.raises(OutputError, match="is a symbolic link"):
            folder.add({Path("photos/2024/a.png"): OWN})
    assert not any((tmp_path / "elsewhere").iterdir())
    link = tmp_path / "link"  # the directory itself may be one
    link.symlink_to(out)
    with OutputFolder(link, overwrite=False) as folder:
        folder.add({Path("a.png"): OWN})
    assert (out / "a.png").exists()


def test_directories_of_the_user_are_not_removed_whatever_their_names(out: Path) -> None:
    for name in (".eb-saliency-notes", ".eb-saliency-my_notes", ".eb-saliency-"):
        (out / name).mkdir(parents=True)
        (out / name / "thoughts.txt").write_text("mine")
    before = files(out)
    finish_killed_runs(out)
    assert files(out) == before


def test_a_file_of_the_user_at_the_path_of_a_recorded_result_is_not_replaced(
    out: Path, tmp_path: Path
) -> None:
    with OutputFolder(out, overwrite=False) as folder:
        record = wrote(Record("a.jpg", "done", place="a.jpg"), "a.jpg.1.png", content=OWN)
        folder.write({Path("a.jpg.1.png"): OWN}, record)
    refuse(out, "a.jpg")
    (out / "a.jpg.1.png").write_bytes(b"mine")
    with pytest.raises(ConfigurationError, match="did not write it"):
        refuse(out, "a.jpg")
    with OutputFolder(out, overwrite=False) as folder, pytest.raises(OutputError, match="did not write it"):
        folder.add({Path("a.jpg.1.png"): OWN})
    assert (out / "a.jpg.1.png").read_bytes() == b"mine"


@pytest.mark.parametrize("output", ["out", "deep/out", "."])
def test_a_working_directory_without_access(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root's home is for another user."""
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0)
    try:
        with (
            no_override(),
            pytest.raises(OutputError, match=f"cannot write to '{output}': Permission denied"),
        ):
            check_writable(Path(output))
    finally:
        tmp_path.chmod(0o700)


def test_a_run_that_was_killed_before_its_marker_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / ".eb-saliency-abcd1234").mkdir()
    (tmp_path / ".eb-saliency-mine").mkdir()
    (tmp_path / ".eb-saliency-efgh5678").mkdir()
    (tmp_path / ".eb-saliency-efgh5678" / "photo.jpg").touch()  # somebody's
    finish_killed_runs(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {".eb-saliency-mine", ".eb-saliency-efgh5678"}


def test_a_photo_is_finished_until_other_settings_write_its_results_or_it_fails(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if these results are of the same size."""
    monkeypatch.chdir(tmp_path)
    Path("a.jpg").write_bytes(b"a photo")
    source, name = Source(Path("a.jpg")), "a.jpg.1.png"
    stamp, classes = source.stamp(), (ClassRecord(1, None, 0.5, mass=None, blank=False),)
    state = {"input_bytes": stamp.bytes, "input_mtime_ns": stamp.mtime_ns}
    written = {"output": (name,), "output_bytes": (3,), "output_sha256": (sha256(OWN).hexdigest(),)}

    def finished(**options: Any) -> list[str]:
        with OutputFolder(out, overwrite=False) as folder:
            files = {Path(name): OWN} if "output" in options else {}
            folder.write(files, Record("a.jpg", place="a.jpg", **options))
        return [
            one for one in ("first", "second") if OutputFolder(out, overwrite=False).has_finished(source, one)
        ]

    done = {"status": "done", "classes": classes, **state, **written}
    assert finished(configuration="first", **done) == ["first"]
    assert finished(configuration="second", **done) == ["second"]
    assert finished(configuration="second", status="failed", error="it is broken") == []
