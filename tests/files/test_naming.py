"""Names of results never collide, never leave the output directory, and lead back to their input."""

import os
from dataclasses import replace
from itertools import starmap
from pathlib import Path

import pytest
from PIL import Image

from ebcli.files.naming import (
    MapName,
    ResultNames,
    distinct_slug,
    figure_relpath,
    name_marks,
    output_relpath,
    parse_result_name,
    picture_relpath,
    raw_relpath,
    slug,
)
from ebcli.files.paths import path_of


def test_the_name_holds_the_input_and_the_class() -> None:
    place = picture_relpath(Path("photos/photo.jpg"), 282, "tiger cat")
    assert place == Path("photos/photo.jpg.282-tiger-cat.png")
    assert picture_relpath(Path("a.png"), 7, None, "webp") == Path("a.png.7.webp")
    assert picture_relpath(Path("a.png"), 7, "cat", "webp", "@features-11") == Path(
        "a.png.7-cat@features-11.webp"
    )
    assert figure_relpath(Path("a.png"), "panel", "jpg") == Path("a.png.panel.jpg")
    assert raw_relpath(Path("a.png")) == Path("a.png.npz")


@pytest.mark.parametrize(
    "name",
    ["a.jpg", "a.jpg.5-cat.png", "a", "a.npz", "line\nbreak.png", "a.1", "a.panel", "a@b.5@c", "a.maps@b~"],
)
@pytest.mark.parametrize(("index", "category"), [(0, None), (282, "tiger cat"), (7, "猫")])
def test_a_result_s_name_leads_back_to_its_input(name: str, index: int, category: str | None) -> None:
    place = Path("photos", name)
    for suffix in ("png", "jpg", "webp"):
        assert parse_result_name(picture_relpath(place, index, category, suffix)) == (place, index)
        assert parse_result_name(picture_relpath(place, index, category, suffix, "@features-11")) == (
            place,
            index,
        )
        assert parse_result_name(figure_relpath(place, "panel", suffix)) == (place, None)
    for mark in ("", "@features-11", "@a@b+marginal", "+marginal"):
        place = output_relpath(Path("photos", name))
        assert parse_result_name(raw_relpath(place, mark)) == (place, None)
        assert parse_result_name(figure_relpath(place, "panel", "png", mark)) == (place, None)
        assert parse_result_name(figure_relpath(place, "layers", "png", mark)) == (place, None)
        assert parse_result_name(picture_relpath(place, index, category, "png", mark)) == (place, index)


def test_described_classes_are_told_apart_by_their_names() -> None:
    texts = [
        "a red car",
        "a red-car",
        "A red car",
        "a red car!",
        "猫",
        "犬",
        "x" * 300,
        "x" * 299,
        "a  b",
        "",
        "a b",
    ]
    for mark in ("", "@features-11", "+against-" + "y" * 47):
        found = [picture_relpath(Path("a.jpg"), 0, text, mark=mark, described=True) for text in texts]
        assert len(set(found)) == len(texts)
        for path in found:
            assert parse_result_name(path) == (Path("a.jpg"), 0)
            assert len(path.name) <= 255 - 160 + len("a.jpg")
    assert found[0] == Path("a.jpg.0-a-red-car" + mark + ".png")
    names = [distinct_slug(text) for text in texts]
    assert len(set(names)) == len(texts)
    assert names[0] == "a-red-car"


MAPS = [
    (5, "tiger cat", "features.11"),
    (5, "tiger cat", "input"),
    (9, None, "features.11"),
    (9, None, "input"),
]
LAYERS = ("features.11", "input")
PLAIN = ResultNames(format="png", layers=("input",), default_layer="input")
RAW = replace(PLAIN, format="jpg", raw=True)


@pytest.mark.parametrize(
    ("names", "maps", "expected"),
    [
        (PLAIN, MAPS[1::2], ["d/a.jpg.5-tiger-cat.png", "d/a.jpg.9.png"]),
        (replace(PLAIN, format="auto"), MAPS[1::2], ["d/a.jpg.5-tiger-cat.jpg", "d/a.jpg.9.jpg"]),
        (replace(PLAIN, format="auto", figure="panel"), MAPS[1:2], ["d/a.jpg.panel.jpg"]),
        (RAW, MAPS[1:2], ["d/a.jpg.5-tiger-cat.jpg", "d/a.jpg.npz"]),
        (
            replace(RAW, method="marginal"),
            MAPS[1:2],
            ["d/a.jpg.5-tiger-cat+marginal.jpg", "d/a.jpg.maps+marginal.npz"],
        ),
        (
            replace(RAW, figure="panel", layers=LAYERS[:1], method="marginal"),
            MAPS[:1],
            ["d/a.jpg.panel@features-11+marginal.jpg", "d/a.jpg.maps@features-11+marginal.npz"],
        ),
        (
            ResultNames(format="png", layers=LAYERS),
            MAPS[1:3],
            ["d/a.jpg.5-tiger-cat@input.png", "d/a.jpg.9@features-11.png"],
        ),
        (
            replace(RAW, format="webp", figure="panel", layers=LAYERS),
            MAPS,
            ["d/a.jpg.panel@features-11@input.webp", "d/a.jpg.maps@features-11@input.npz"],
        ),
        (
            ResultNames(format="jpg", figure="layers", layers=LAYERS, method="marginal"),
            MAPS,
            ["d/a.jpg.layers+marginal.jpg"],
        ),
    ],
)
def test_the_results_of_an_image_and_no_other_files_match(
    names: ResultNames, maps: list[tuple[int, str | None, str]], expected: list[str]
) -> None:
    assert names.relpaths(Path("d/a.jpg"), starmap(MapName, maps)) == [Path(name) for name in expected]
    others = "5-tiger-cat.png 5-cat.png 5-tiger-cat@x.png 7.png 5-tiger-cat.jpg npz panel.png panel.webp png".split()
    others += [
        "5-tiger-cat@input.png",
        "9@features-11.png",
        "9.png",
        "5-tiger-cat@features-11.png",
        "9@input.png",
    ]
    others += (
        "9.jpg panel.jpg 5-tiger-cat+marginal.jpg panel@features-11@input.webp panel+marginal.jpg".split()
    )
    others += ["maps+marginal.npz", "layers.jpg", "layers+marginal.jpg"]
    matching = {
        f"d/a.jpg.{end}" for end in others if names.matches(Path(f"d/a.jpg.{end}"), {5: "tiger cat", 9: None})
    }
    every = [
        MapName(index, name, layer) for index, name in ((5, "tiger cat"), (9, None)) for layer in names.layers
    ]
    assert matching == {str(path) for path in names.relpaths(Path("d/a.jpg"), every)} & {
        f"d/a.jpg.{end}" for end in others
    }
    assert matching >= set(expected) & {f"d/a.jpg.{end}" for end in others}


@pytest.mark.parametrize(
    "name", ["a.JPG", "a.jpeg", "a.jfif", "a.png", "a.tiff", "a.webp", "a", "jpg", "a.jpg.bmp"]
)
def test_pictures_are_jpeg_where_pillow_reads_the_suffix_as_jpeg(name: str) -> None:
    Image.init()
    is_jpeg = Image.registered_extensions().get(Path(name).suffix.lower()) == "JPEG"
    assert ResultNames(format="auto", layers=("input",)).suffix(Path(name)) == ("jpg" if is_jpeg else "png")


def test_a_directory_that_is_named_like_a_result_does_not_take_its_place() -> None:
    raw = raw_relpath(output_relpath(Path("a.jpg")))
    inside = [output_relpath(Path(f"a.jpg.npz{tildes}", "b.jpg")) for tildes in ("", "~", "~~")]
    assert raw == Path("a.jpg.npz")
    assert [path.parent for path in inside] == [Path("a.jpg.npz~"), Path("a.jpg.npz~~"), Path("a.jpg.npz~~~")]
    for name in ("records.jsonl", "report/index.html", ".eb-saliency-0"):
        assert output_relpath(Path(name, "b.jpg")) == Path(f"{name}~/b.jpg")
    assert output_relpath(Path("a.jpg/b~/c.jpg")) == Path("a.jpg/b~/c.jpg")


@pytest.mark.parametrize(
    "name", ["a.jpg", "records.jsonl", "a.jpg.cat.png", "a.jpg.5_cat.png", ".npz", "a.5-Cat.png"]
)
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


def test_different_inputs_have_different_places_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    inputs = [
        "a.jpg", "a.png", "a", "b/a.jpg", "../a.jpg", "../../a.jpg", "b/../../a.jpg.png",
        "/a.jpg", "/b/a.jpg", "absolute/a.jpg", "/absolute/a.jpg",
        "parent/a.jpg", "parent-2/a.jpg", "../parent/a.jpg", "../parent-2/a.jpg", "../../parent/a.jpg", "parent",
        "absolute/absolute/a.jpg", " a.jpg", ".a.jpg", "a.jpg.panel", "a.jpg.1-cat@b", "a.jpg@b", "a.jpg.1-cat@a",
        "a.jpg.maps@b", "a.jpg.maps@b~", "a.jpg.maps", "a.jpg.maps@a-1+marginal",
    ]  # fmt: skip
    # `../../a.jpg` and the like are the very same files as some absolute path, but not as another of these
    assert len({os.path.normpath(tmp_path / name) for name in inputs}) == len(inputs)
    output = tmp_path / "out"
    mirrors = [output_relpath(Path(name)) for name in inputs]
    places = [output / picture_relpath(place, index, "cat") for place in mirrors for index in (1, 11)]
    places += [
        output / picture_relpath(place, 1, "cat", "png", mark) for place in mirrors for mark in ("@a-1", "@b")
    ]
    for mark in ("", "@b", "@a-1+marginal"):
        places += [output / figure_relpath(place, "panel", "png", mark) for place in mirrors]
        places += [output / raw_relpath(place, mark) for place in mirrors]
    assert len(set(places)) == len(places)
    assert all(os.path.normpath(place).startswith(f"{output}{os.sep}") for place in places)


def test_the_place_of_a_url_is_a_name_on_every_system() -> None:
    """Which characters names of files cannot have is Microsoft's list, see "Naming Files" in its documentation."""
    urls = [
        "https://host:80/a.jpg?size=2&b=<c>",
        "s3://bucket/a*b.jpg",
        "s3://bucket/a%2Ab.jpg",
        "hf://datasets/a|b.png",
    ]
    places = [output_relpath(path_of(url)) for url in urls]
    assert len(set(places)) == len(urls)
    assert places[0] == Path("https%3A/host%3A80/a.jpg%3Fsize=2&b=%3Cc%3E")
    assert not any(set('<>:"|?*\\') & set(part) for place in places for part in place.parts)
    assert output_relpath(Path("photos/a:b?.jpg")) == Path("photos/a:b?.jpg")


def test_a_relative_path_keeps_its_place_however_it_is_spelt() -> None:
    assert output_relpath(Path("./x/../photos/a.jpg")) == Path("photos/a.jpg")
    assert output_relpath(Path("/data/a.jpg")) == Path("absolute/data/a.jpg")


def test_a_path_above_keeps_its_place_from_the_folder_that_holds_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "b/c").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "b/c")
    expected = {
        "../photos/a.jpg": "parent/photos/a.jpg",
        "../../photos/a.jpg": "parent-2/photos/a.jpg",
        f"{tmp_path}/photos/a.jpg": "parent-2/photos/a.jpg",
        f"{tmp_path}/b/c/photos/a.jpg": "photos/a.jpg",
    }
    assert {name: output_relpath(Path(name)).as_posix() for name in expected} == expected


def test_names_at_the_limit_of_the_file_system_stay_writable_and_apart(tmp_path: Path) -> None:
    long = ["ü" * 120 + ending for ending in (".jpg", "1.jpg", "2.jpg")]
    long += [os.fsdecode(b"\xff" * 250 + b".png"), "x" * 255]
    for name in long:
        for layers in (
            [],
            ["l" * 300],
            ["l" * 300 + "1"],
            ["layer.1", "layer.2", "layer.3", "layer.4", "layer.5", "input"],
        ):
            mark = name_marks(layers, "against-" + "d" * 100)
            (
                tmp_path / picture_relpath(output_relpath(Path(name)), 999_999_999, "c" * 100, "webp", mark)
            ).touch()
            (tmp_path / raw_relpath(output_relpath(Path(name)), mark)).touch()
    assert len(set(tmp_path.iterdir())) == 2 * 4 * len(long)


def test_two_points_mean_what_the_file_system_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real/sub").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    (tmp_path / "here/link").symlink_to(tmp_path / "real/sub")
    monkeypatch.chdir(tmp_path / "here")
    assert output_relpath(Path("link/../a.jpg")) == Path("parent/real/a.jpg")
    assert output_relpath(Path("../here/a.jpg")) == Path("a.jpg")


@pytest.mark.parametrize(
    "name", ["a.mp4", "a.gif", "frames", "a.mp4.5-cat.mp4", "a.sheet", "x" * 180 + ".mkv"]
)
@pytest.mark.parametrize("suffix", ["mp4", "webp"])
@pytest.mark.parametrize("picture", ["auto", "webp"])
def test_a_video_has_a_video_and_a_sheet_per_map(name: str, suffix: str, picture: str) -> None:
    names = ResultNames(
        format=picture, raw=True, layers=("a", "b"), default_layer="a", method="marginal", video=suffix
    )
    place = output_relpath(Path("d", name))
    maps = [MapName(index, name, layer) for index, name in ((7, "w" * 80), (9, None)) for layer in "ab"]
    results = names.relpaths(place, maps)
    assert len(set(results)) == 2 * len(maps) + 1
    assert [parse_result_name(path) for path in results] == [(place, k) for k in (7, 7, 9, 9)] * 2 + [
        (place, None)
    ]
    assert all(path.suffix == f".{suffix}" for path in results[:4])
    assert all(path.stem.endswith(".sheet") for path in results[4:8])
    assert all(len(path.name.encode()) <= 255 for path in results)
    assert all(names.matches(path, {7: "w" * 80, 9: None}) for path in results)
    assert not names.matches(place.with_name(f"{place.name}.8.{suffix}"), {7: "w" * 80, 9: None})
