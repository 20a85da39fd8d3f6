"""Names that never collide and never leave the output directory; files that are whole or absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from PIL import Image

from ebcli.errors import OutputError
from ebcli.output import mirrored, picture_path, slug, write_picture


def test_the_name_holds_the_input_and_the_class() -> None:
    path = picture_path(Path("saliency"), Path("photos/photo.jpg"), 282, "tiger cat")
    assert path == Path("saliency/photos/photo.jpg.282-tiger-cat.png")
    assert picture_path(Path("o"), Path("a.png"), 7, None) == Path("o/a.png.7.png")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tiger cat", "tiger-cat"),
        ("../../etc/passwd", "etc-passwd"),
        ("Crêpe\n<b>", "crepe-b"),
        ("猫", ""),
        ("x" * 500, "x" * 60),
    ],
)
def test_class_names_are_data(name: str, expected: str) -> None:
    assert slug(name) == expected


def test_different_inputs_have_different_places_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    inputs = [
        "a.jpg", "a.png", "a", "b/a.jpg", "../a.jpg", "../../a.jpg", "b/../../a.jpg.png",
        "/a.jpg", "/b/a.jpg", "absolute/a.jpg", "/absolute/a.jpg",
        "absolute/absolute/a.jpg", " a.jpg", ".a.jpg",
    ]  # fmt: skip
    # `../../a.jpg` and the like are the very same files as some absolute path, but not as another of these
    assert len({os.path.normpath(tmp_path / name) for name in inputs}) == len(inputs)
    output = tmp_path / "out"
    places = [picture_path(output, Path(name), index, "cat") for name in inputs for index in (1, 11)]
    assert len(set(places)) == len(places)
    assert all(os.path.normpath(place).startswith(f"{output}{os.sep}") for place in places)


def test_a_relative_path_keeps_its_place_however_it_is_spelt() -> None:
    assert mirrored(Path("./x/../photos/a.jpg")) == Path("photos/a.jpg")
    assert mirrored(Path("/data/a.jpg")) == Path("absolute/data/a.jpg")


def test_names_at_the_limit_of_the_file_system_stay_writable_and_apart(tmp_path: Path) -> None:
    long = ["ü" * 120 + ending for ending in (".jpg", "1.jpg", "2.jpg")]
    long += [os.fsdecode(b"\xff" * 250 + b".png")]
    places = [picture_path(tmp_path, Path(name), 999, "c" * 100) for name in long]
    for place in places:
        write_picture(Image.new("RGB", (1, 1)), place)
    assert len(set(tmp_path.iterdir())) == len(long)


def test_a_write_that_fails_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sub/a.png"
    write_picture(Image.new("RGB", (2, 2), "red"), path)
    before = path.read_bytes()

    def half(self: Image.Image, file: Path, format: str) -> None:
        file.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", half)
    with pytest.raises(OutputError, match=r"a\.png.*No space left"):
        write_picture(Image.new("RGB", (2, 2), "blue"), path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_file_in_the_way_of_a_directory_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    with pytest.raises(OutputError, match="cannot write"):
        write_picture(Image.new("RGB", (1, 1)), tmp_path / "out/a.png")


def test_a_picture_obeys_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        write_picture(Image.new("RGB", (1, 1)), tmp_path / "a.png")
    finally:
        os.umask(old)
    assert (tmp_path / "a.png").stat().st_mode & 0o777 == 0o640
