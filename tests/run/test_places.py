"""Where results go below the output directory."""

import json
import os
import tarfile
import tempfile
from pathlib import Path

import pytest
from PIL import Image
from runs import invoke, photos, records, tree

from ebcli.files.records import append_lines
from ebcli.gallery.comparison import read_pairs


@pytest.fixture(autouse=True)
def here(working_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("here").mkdir()
    monkeypatch.chdir(working_directory / "here")


def results(directory: str) -> list[str]:
    """The inputs' paths below an output directory, from the names of their pictures."""
    return sorted(name.partition(".jpg")[0] for name in tree(Path(directory)) if name.endswith(".jpg"))


def photo(name: str, color: str = "red") -> None:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (48, 40), color).save(name)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory that is not below the working directory."""
    folder = tmp_path / "elsewhere/photos"
    photo(str(folder / "a.jpg"))
    photo(str(folder / "deep/b.jpg"))
    return folder


def test_a_named_directory_is_the_root_of_its_results(data: Path) -> None:
    for given in (str(data), os.path.relpath(data), f"{data}/"):
        assert invoke(given, "-o", "maps").exit_code == 0
        assert results("maps") == ["a", "deep/b"]
    photo("here/c.jpg")
    assert invoke("here", "-o", "others").exit_code == 0
    assert results("others") == ["c"]
    os.chdir("here")
    assert invoke(".", "-o", "../dotted").exit_code == 0
    assert results("../dotted") == ["c"]


def test_a_tar_file_is_one_as_well(data: Path) -> None:
    with tarfile.open("photos.tar", "w") as tar:
        tar.add(data, "inside")
    assert invoke("photos.tar", "-o", "maps").exit_code == 0
    assert results("maps") == ["inside/a", "inside/deep/b"]


def test_of_several_directories_each_is_below_its_own_name(data: Path) -> None:
    photo("more/a.jpg", "blue")
    photo("single/c.jpg")
    assert invoke(str(data), "more", "./more/", "single/c.jpg", "-o", "maps").exit_code == 0
    assert results("maps") == ["more/a", "photos/a", "photos/deep/b", "single/c"]


@pytest.mark.parametrize("option", [[], ["--overwrite"], ["--shard", "1/1"]])
def test_two_inputs_that_would_meet_are_refused_before_the_run(option: list[str], data: Path) -> None:
    photo("photos/a.jpg", "blue")
    result = invoke(str(data), "photos", "-o", "maps", *option)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"'{data}/a.jpg' and 'photos/a.jpg' would both be written to 'maps/photos/a.jpg'" in result.stderr
    assert not Path("maps").exists()


def test_names_that_differ_in_case_meet_where_case_is_ignored() -> None:
    """As on Windows and macOS. Here, a link gives this directory the same name in capitals."""
    for name, color in (("A.jpg", "red"), ("a.jpg", "blue")):
        photo(f"photos/{name}", color)
    assert invoke("photos", "-o", "maps").exit_code == 0
    assert len(results("maps")) == 2
    Path("../HERE").symlink_to(Path.cwd())
    result = invoke("photos", "-o", "other")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "'photos/A.jpg' and 'photos/a.jpg' would both be written to" in result.stderr


def test_files_that_are_no_images_may_meet(data: Path) -> None:
    photo("photos/c.jpg", "blue")
    for folder in (data, Path("photos")):
        (folder / "notes.txt").write_text("nothing to see")
    assert invoke(str(data), "photos", "-o", "maps").exit_code == 0
    assert results("maps") == ["photos/a", "photos/c", "photos/deep/b"]


def test_inputs_that_would_meet_are_in_one_shard(data: Path) -> None:
    for number in range(20):
        photo(str(data / f"{number}.jpg"))
        photo(f"photos/{number}.jpg", "blue")
    results_ = [invoke(str(data), "photos", "-o", "maps", "--shard", f"{i}/5") for i in range(1, 6)]
    assert [result.exit_code for result in results_] == [2] * 5


def test_another_directory_does_not_replace_the_results_of_the_first(data: Path) -> None:
    assert invoke(str(data), "-o", "maps").exit_code == 0
    before = tree(Path("maps"))
    photo("others/a.jpg", "blue")
    result = invoke("others", "-o", "maps")
    assert (result.exit_code, result.stdout) == (2, "")
    assert (
        f"'maps/a.jpg' has results of '{data}/a.jpg', which those of 'others/a.jpg' would replace"
        in result.stderr
    )
    assert tree(Path("maps")) == before
    # the same files, named from somewhere else, are no others
    os.chdir("others")
    assert invoke(os.path.relpath(data), "-o", "../maps").exit_code == 0
    os.chdir("..")
    assert invoke("others", "-o", "maps", "--overwrite").exit_code == 0
    assert results("maps") == ["a", "deep/b"]


def test_records_from_before_directories_were_roots_go_on_being_read() -> None:
    photos(Path("photos"), 3)
    assert invoke("photos", "-o", "maps", "--raw").exit_code == 0
    old = []
    for record in records(Path("maps")):  # as they were written: each below the path that was given
        places = [Path("maps/photos") / Path(name).relative_to("maps") for name in record["output"]]
        places[0].parent.mkdir(parents=True, exist_ok=True)
        for name, place in zip(record["output"], places, strict=True):
            Path(name).rename(place)
        old.append(json.dumps({**record, "place": record["input"], "output": [*map(str, places)]}))
    Path("maps/records.jsonl").unlink()
    append_lines(Path("maps/records.jsonl"), *old)
    result = invoke("photos", "-o", "maps", "--raw", "--skip-existing")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "3 up to date" in result.stderr
    assert invoke("verify", "maps").exit_code == 0
    assert invoke("photos", "-o", "new", "--raw").exit_code == 0
    assert [pair.input for pair in read_pairs(Path("maps"), Path("new"))] == [
        f"photos/{i}/{i:04}.jpg" for i in range(3)
    ]


def test_one_picture_needs_no_temporary_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    photo("a.jpg")
    monkeypatch.setattr(tempfile, "tempdir", str(Path("nowhere").absolute()))
    result = invoke("a.jpg", "-o", "out.png")
    assert (result.exit_code, result.stdout) == (0, "out.png\n")
    result = invoke("a.jpg", "-o", "-")
    assert (result.exit_code, result.stdout_bytes[:4]) == (0, b"\x89PNG")
