"""Results' names, which never collide and never leave the output directory, and what the files hold."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ebcli.errors import ImageError
from ebcli.files.naming import (
    encode_arrays,
    encode_picture,
    is_own,
    output_relpath,
    panel_place,
    parse_result_name,
    picture_place,
    raw_place,
    slug,
)


def test_the_name_holds_the_input_and_the_class() -> None:
    place = picture_place(Path("photos/photo.jpg"), 282, "tiger cat")
    assert place == Path("photos/photo.jpg.282-tiger-cat.png")
    assert picture_place(Path("a.png"), 7, None, "webp") == Path("a.png.7.webp")
    assert picture_place(Path("a.png"), 7, "cat", "webp", "features.11") == Path("a.png.7-cat@features-11.webp")
    assert panel_place(Path("a.png"), "jpg") == Path("a.png.panel.jpg")
    assert raw_place(Path("a.png")) == Path("a.png.npz")


@pytest.mark.parametrize(
    "name", ["a.jpg", "a.jpg.5-cat.png", "a", "a.npz", "line\nbreak.png", "a.1", "a.panel", "a@b.5@c"]
)
@pytest.mark.parametrize(("index", "category"), [(0, None), (282, "tiger cat"), (7, "猫")])
def test_a_result_s_name_leads_back_to_its_input(name: str, index: int, category: str | None) -> None:
    place = Path("photos", name)
    for suffix in ("png", "jpg", "webp"):
        assert parse_result_name(picture_place(place, index, category, suffix)) == (place, index)
        assert parse_result_name(picture_place(place, index, category, suffix, "features.11")) == (place, index)
        assert parse_result_name(panel_place(place, suffix)) == (place, None)
    assert parse_result_name(raw_place(place)) == (place, None)


@pytest.mark.parametrize("name", ["a.jpg", "records.jsonl", "a.jpg.cat.png", "a.jpg.5_cat.png", ".npz", "a.5-Cat.png"])
def test_other_names_are_no_results(name: str) -> None:
    assert parse_result_name(Path(name)) is None


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
        "absolute/absolute/a.jpg", " a.jpg", ".a.jpg", "a.jpg.panel", "a.jpg.1-cat@b", "a.jpg@b", "a.jpg.1-cat@a",
    ]  # fmt: skip
    # `../../a.jpg` and the like are the very same files as some absolute path, but not as another of these
    assert len({os.path.normpath(tmp_path / name) for name in inputs}) == len(inputs)
    output = tmp_path / "out"
    mirrors = [output_relpath(Path(name)) for name in inputs]
    places = [output / picture_place(place, index, "cat") for place in mirrors for index in (1, 11)]
    places += [output / picture_place(place, 1, "cat", "png", layer) for place in mirrors for layer in ("a.1", "b")]
    places += [output / function(place) for place in mirrors for function in (panel_place, raw_place)]
    assert len(set(places)) == len(places)
    assert all(os.path.normpath(place).startswith(f"{output}{os.sep}") for place in places)


def test_a_relative_path_keeps_its_place_however_it_is_spelt() -> None:
    assert output_relpath(Path("./x/../photos/a.jpg")) == Path("photos/a.jpg")
    assert output_relpath(Path("/data/a.jpg")) == Path("absolute/data/a.jpg")


def test_names_at_the_limit_of_the_file_system_stay_writable_and_apart(tmp_path: Path) -> None:
    long = ["ü" * 120 + ending for ending in (".jpg", "1.jpg", "2.jpg")]
    long += [os.fsdecode(b"\xff" * 250 + b".png"), "x" * 255]
    for name in long:
        (tmp_path / picture_place(output_relpath(Path(name)), 21_999, "c" * 100, "webp")).touch()
    assert len(set(tmp_path.iterdir())) == len(long)


def test_two_points_mean_what_the_file_system_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real/sub").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    (tmp_path / "here/link").symlink_to(tmp_path / "real/sub")
    monkeypatch.chdir(tmp_path / "here")
    assert output_relpath(Path("link/../a.jpg")) == Path("absolute", *tmp_path.parts[1:], "real/a.jpg")
    assert output_relpath(Path("../here/a.jpg")) == Path("a.jpg")


@pytest.mark.parametrize(("suffix", "format"), [("png", "PNG"), ("jpg", "JPEG"), ("webp", "WEBP")])
def test_pictures_are_of_their_format_and_say_who_made_them(suffix: str, format: str, tmp_path: Path) -> None:
    picture = Image.linear_gradient("L").convert("RGB")
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(encode_picture(picture, suffix))
    with Image.open(path) as read:
        assert (read.format, read.mode, read.size) == (format, "RGB", picture.size)
        error = np.abs(np.asarray(read).astype(int) - np.asarray(picture)).max()
        assert error <= (0 if suffix == "png" else 6)
    assert is_own(path)
    picture.save(path, format=format)
    assert not is_own(path)


def test_what_a_format_cannot_hold_is_that_image_s_failure() -> None:
    with pytest.raises(ImageError, match=r"17000 x 1 pixels does not fit into the format webp.*use png"):
        encode_picture(Image.new("RGB", (17_000, 1)), "webp")


def test_arrays_are_readable_without_pickle_and_say_who_made_them(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(encode_arrays({"maps": np.eye(3), "layer": np.array("features.11")}))
    assert is_own(path)
    with np.load(path, allow_pickle=False) as arrays:
        assert np.array_equal(arrays["maps"], np.eye(3))
        assert str(arrays["layer"]) == "features.11"
    np.savez(path, maps=np.eye(3))
    assert not is_own(path)


def test_what_is_no_file_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "own.png"
    path.write_bytes(encode_picture(Image.new("RGB", (1, 1)), "png"))
    (tmp_path / "link.png").symlink_to(path)
    (tmp_path / "empty.png").touch()
    (tmp_path / "directory.png").mkdir()
    os.mkfifo(tmp_path / "pipe.png")
    assert [p.name for p in sorted(tmp_path.iterdir()) if is_own(p)] == ["own.png"]
