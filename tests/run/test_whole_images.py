"""Runs that explain whole images: of any size, padded, and in tiles; and what is said where they do not."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from color_net import BLUE, GREEN, RED, painted
from PIL import Image

import ebcli.run.explainer
from ebcli.cli.saliency import main
from ebcli.datatypes.explanation import Box, Map, Subject
from ebcli.files.encoding import read_facts
from ebcli.run.maps import Tiles

FILE = """
import ebcli
from color_net import color_net
from torch import nn

def colors():
    net = color_net()
    net.preprocessing = ebcli.Preprocessing(resize=40, crop=32, mean=0.0, std=1.0)
    net.categories = ("red", "green", "blue")
    return net

def fixed():  # for images of 32 x 32 pixels only
    net = colors()
    net[3] = nn.AvgPool2d(32)
    return net

def subsampled():  # of the first layer, every second row and column is read
    net = colors()
    first, *rest = net
    preprocessing, categories = net.preprocessing, net.categories
    net = nn.Sequential(first, nn.Conv2d(first.out_channels, first.out_channels, 1, 2, bias=False), *rest)
    net[1].weight.data.fill_(1.0)
    net.preprocessing, net.categories = preprocessing, categories
    return net
"""
WIDE = (96, 32)


@pytest.fixture(autouse=True)
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nets.py").write_text(FILE)
    painted((64, 32), (RED, (0, 4, 6, 10)), (GREEN, (60, 20, 64, 32))).save("a.png")


def invoke(*arguments: str, factory: str = "colors") -> Result:
    model = ("--model", f"nets.py:{factory}", "--layer", "0", "--workers", "0", "--raw")
    return CliRunner().invoke(main, [*model, "--overwrite", *arguments])


def run(*arguments: str, factory: str = "colors") -> tuple[dict[str, Any], np.ndarray]:
    """The record, and the first map."""
    result = invoke("--json", *arguments, factory=factory)
    assert result.exit_code == 0, result.stderr
    record = json.loads(result.stdout)
    with np.load(record["output"][-1]) as arrays:
        return record, arrays["maps"][0]


def test_the_map_covers_the_image_from_end_to_end() -> None:
    for target, columns in (("red", slice(0, 6)), ("green", slice(60, 64))):
        record, map_ = run("--target", target, "--marginal", "a.png")
        assert (record["fit"], record["tiles"], record["seen"]) == ("whole", 0, 1.0)
        assert map_.shape == (32, 64)
        assert map_[:, columns].sum() == pytest.approx(1)
    record, map_ = run("--fit", "crop", "--target", "red", "--marginal", "a.png")
    assert (record["fit"], record["classes"][0]["blank"]) == ("crop", True)
    assert record["seen"] == pytest.approx((32 / 40) ** 2 / 2, abs=1e-3)


@pytest.mark.parametrize("size", [(32, 32), (64, 32)])
def test_a_subsampled_layer_has_no_dots_whatever_the_size(size: tuple[int, int]) -> None:
    """Each cell that is read fills its block of four, so no two neighbors in the picture differ as dots do."""
    painted(size, (RED, (0, 0, *size))).save("red.png")
    heatmap = "--target", "red", "--marginal", "--style", "heatmap", "--format", "png"
    record, map_ = run(*heatmap, "red.png", factory="subsampled")
    assert map_[::2, ::2].sum() == pytest.approx(map_.sum(), rel=1e-5)  # all dots
    picture = np.asarray(Image.open(record["output"][0])).astype(int)[4:-4, 4:-4].sum(2)
    assert np.ptp(picture) < 0.1 * picture.max()


def test_maps_do_not_depend_on_the_images_of_other_sizes_in_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    real, batches = ebcli.methods.excitation.excitation_backprop, []
    Image.new("RGB", (32, 32), "gray").save("gray.png")
    assert invoke("-o", "noise", "gray.png").stdout  # measures the strength of noise, which is kept

    def counted(net: Any, inputs: Any, *rest: Any, **options: Any) -> Any:
        batches.append(len(inputs))
        return real(net, inputs, *rest, **options)

    monkeypatch.setattr(ebcli.methods.excitation, "excitation_backprop", counted)
    generator = np.random.default_rng(0)
    for number, size in enumerate([(32, 48), (48, 32), (32, 32), (48, 32), (32, 48), (64, 32), (48, 32)]):
        Path("photos").mkdir(exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (*size, 3), np.uint8)).save(f"photos/{number}.png")
    result = invoke("--batch-size", "2", "-o", "all", "photos")
    assert [Path(line).name[0] for line in result.stdout.splitlines()[::2]] == [*"0123456"]
    assert batches == [1, 2, 2, 2, 2, 2]  # the first is the check of the layer; the last ones are filled up
    for number in range(7):
        assert invoke(
            "--batch-size", "2", "-o", f"{number}", f"photos/{number}.png", f"photos/{number}.png"
        ).stdout
        name = f"photos/{number}.png.maps@0.npz"
        with np.load(f"all/{Path(name).name}") as one, np.load(f"{number}/{name}") as other:
            np.testing.assert_array_equal(one["relevance"], other["relevance"])


def test_networks_of_one_size_get_a_letterbox_and_it_is_said_once() -> None:
    painted((64, 32), (GREEN, (60, 20, 64, 32))).save("b.png")
    result = invoke("--json", "a.png", "b.png", factory="fixed")
    assert result.exit_code == 0, result.stderr
    records = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(record["fit"], record["seen"]) for record in records] == [("pad", 1.0)] * 2
    said = [line for line in result.stderr.splitlines() if "images of one size only" in line]
    assert said == [
        "nets.py:fixed takes images of one size only, so they are padded (--fit pad); --tiles 1 explains long ones in "
        "squares"
    ]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("factory", ["colors", "fixed"])
@pytest.mark.parametrize("tiles", [1, 2])
def test_tiles_of_a_long_image_become_one_map_of_all_of_it(factory: str, tiles: int) -> None:
    painted((320, 32), (RED, (300, 8, 312, 20)), (GREEN, (4, 8, 16, 20))).save("long.png")
    for target, columns in (("red", slice(296, 316)), ("green", slice(0, 20))):
        record, map_ = run(
            "--tiles", str(tiles), "--target", target, "--marginal", "long.png", factory=factory
        )
        assert (record["fit"], record["seen"], record["image_size"]) == ("whole", 1.0, None)
        assert record["tiles"] == {1: 19, 2: 3 * 39}[tiles]
        assert map_.shape == (32 * tiles, 320 * tiles)
        inside = map_[:, columns.start * tiles : columns.stop * tiles]
        assert 0 < inside.sum() == pytest.approx(map_.sum(), rel=1e-3)


def test_where_memory_is_short_fewer_tiles_are_explained_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    painted((320, 32), (RED, (300, 8, 312, 20))).save("long.png")
    tiled = ("--tiles", "1", "--target", "red", "--marginal", "--batch-size", "8", "long.png")
    _, whole = run(*tiled)
    real, sizes = ebcli.methods.excitation.excitation_backprop, []

    def short(net: Any, inputs: torch.Tensor, *rest: Any, **options: Any) -> Any:
        sizes.append(len(inputs))
        if len(inputs) > 2:
            raise torch.OutOfMemoryError("out of memory")
        return real(net, inputs, *rest, **options)

    monkeypatch.setattr(ebcli.methods.excitation, "excitation_backprop", short)
    result = invoke(*tiled, "-o", "short")
    assert result.exit_code == 0, result.stderr
    said = [line for line in result.stderr.splitlines() if "ran out of memory" in line]
    assert said == [
        f"Warning: cpu ran out of memory: continuing with a batch size of {size}" for size in (4, 2)
    ]
    assert sizes == [1, 8, 4, *[2] * 9, 1]  # the first is the check of the layer
    with np.load(next(Path("short").rglob("*.npz"))) as arrays:
        np.testing.assert_allclose(arrays["maps"][0], whole, atol=1e-6)


def test_very_long_images_are_explained_in_tiles_anyway() -> None:
    painted((320, 32), (BLUE, (300, 8, 312, 20))).save("long.png")
    record, map_ = run("--marginal", "long.png")
    assert (record["tiles"], record["classes"][0]["name"]) == (19, "blue")
    assert map_.shape == (32, 320)
    assert 300 <= map_.max(0).argmax() < 312


def test_a_result_tells_its_fit_and_tiles_and_a_raw_file_of_tiles_that_it_has_no_relevance() -> None:
    painted((320, 32), (BLUE, (300, 8, 312, 20))).save("long.png")
    result = invoke("--marginal", "long.png")
    picture, raw = result.stdout.splitlines()
    assert "long.png: its raw file has the joined maps, but no relevance" in result.stderr
    with np.load(raw) as arrays:
        assert "relevance" not in arrays
    for path in (picture, raw):
        facts = read_facts(Path(path))
        assert (facts["fit"], facts["tiles"]) == ("whole", "19")
    result = invoke("--fit", "crop", "a.png")
    assert "no relevance" not in result.stderr
    facts = read_facts(Path(result.stdout.splitlines()[0]))
    assert facts["fit"] == "crop"
    assert "tiles" not in facts


def subject_map(values: np.ndarray) -> Map:
    return Map(
        subject=Subject(0, None, 0.5),
        layer="2",
        values=values.astype(np.float32),
        mass=1.0,
        placement=Box(0, 0, 1, 1),
    )


@pytest.mark.parametrize("cells", [8, 16, 32])
def test_tiles_that_agree_are_joined_to_what_they_were_cut_from(cells: int) -> None:
    tiles = Tiles.covering((64, 160), 32, 4)
    scale = cells / 32
    whole = np.random.default_rng(0).random((round(64 * scale), round(160 * scale)))
    maps = [whole[round(t * scale) :, round(left * scale) :][:cells, :cells] for t, left in tiles.corners]
    joined = tiles.join(np.full((len(maps), 1), 0.25), [*map(subject_map, maps)])
    np.testing.assert_allclose(joined.values, whole * cells**2 / whole.size, rtol=1e-5)


def test_a_tile_counts_by_its_score() -> None:
    tiles = Tiles([(0, 0), (0, 32)], 32, (32, 64))
    maps = [subject_map(np.full((4, 4), 1 / 16)) for _ in tiles.corners]
    joined = tiles.join([[0.3], [0.1]], maps).values
    assert (joined[:, :4].sum(), joined[:, 4:].sum()) == pytest.approx((0.75, 0.25))
    unlikely = tiles.join([[-1.0], [-2.0]], maps).values  # raw scores
    assert (unlikely[:, :4].sum(), unlikely[:, 4:].sum()) == pytest.approx((0.5, 0.5))


def test_maps_of_other_methods_and_shares_of_channels_are_joined_as_maps_are() -> None:
    tiles, scores = Tiles([(0, 0), (0, 32)], 32, (32, 64)), [[0.3], [0.1]]
    values = np.random.default_rng(0).random((2, 2, 4, 4)).astype(np.float32)
    channels = (0.5, 0.5, 0.0, 0.0), (0.1, 0.2, 0.3, 0.4)
    maps = [
        replace(subject_map(own), method_maps={"gradient": other}, channels=of)
        for (own, other), of in zip(values, channels, strict=True)
    ]
    joined = tiles.join(scores, maps)
    np.testing.assert_allclose(
        joined.method_maps["gradient"], tiles.join(scores, [*map(subject_map, values[:, 1])]).values
    )
    assert joined.channels == pytest.approx(
        [0.75 * one + 0.25 * other for one, other in zip(*channels, strict=True)]
    )


def test_what_tiles_lost_counts_by_their_scores() -> None:
    tiles = Tiles([(0, 0), (0, 32)], 32, (32, 64))
    even = subject_map(np.full((4, 4), 1 / 16))
    losses = {"relu in 1": 0.1}, {"relu in 1": 0.3, "add in 2": 0.2}
    maps = [replace(even, mass=1 - sum(lost.values()), lost_mass=lost) for lost in losses]
    joined = tiles.join([[0.3], [0.1]], maps)
    assert joined.mass == pytest.approx(0.75 * 0.9 + 0.25 * 0.5)
    assert joined.lost_mass == pytest.approx({"relu in 1": 0.75 * 0.1 + 0.25 * 0.3, "add in 2": 0.25 * 0.2})


@pytest.mark.parametrize(
    ("size", "side", "cells"), [((33, 50), 33, 17), ((45, 31), 31, 16), ((75, 75), 33, 9)]
)
def test_tiles_of_odd_sides_cover_the_photo(size: tuple[int, int], side: int, cells: int) -> None:
    """The joined map has a cell wherever a tile has one, none of them empty, and no row more than the photo."""
    tiles = Tiles.covering(size, side, 1)
    joined = tiles.join(
        np.ones((len(tiles.corners), 1)), [subject_map(np.ones((cells, cells)))] * len(tiles.corners)
    )
    assert joined.values.shape == pytest.approx([length * cells / side for length in size], abs=0.5)
    assert np.ptp(joined.values) == pytest.approx(0, abs=1e-6) and joined.values.min() > 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--tiles", "0"), "tiles is 0, but it must be between 1 and 16"),
        (("--tiles", "2", "--fit", "crop"), "tiles cover the whole image: drop --fit crop, or --tiles"),
    ],
)
def test_tiles_that_make_no_sense_are_refused(arguments: tuple[str, ...], said: str) -> None:
    result = invoke(*arguments, "a.png")
    assert (result.exit_code, said in result.stderr) == (2, True)


def test_what_is_left_out_is_said_once() -> None:
    for name in ("one", "other"):
        painted(WIDE, (RED, (0, 0, 96, 32))).save(f"{name}.png")
        pages = [painted((32, 32), (color, (0, 0, 32, 32))) for color in (RED, GREEN, BLUE)]
        pages[0].save(f"{name}.tif", save_all=True, append_images=pages[1:])
    said = invoke("--fit", "crop", "one.png", "other.png", "one.tif", "other.tif").stderr
    assert (
        said.count(
            "one.png: the center crop has 21% of the image; --fit whole explains all of it, which changes"
        )
        == 1
    )
    assert said.count("one.tif: only the first of its 3 pages or frames is explained") == 1
    assert "other" not in said
    assert (
        said.count(
            "nets.py:colors has the weights that its factory returns; --weights FILE loads a checkpoint"
        )
        == 1
    )
    assert "other.tif: only the first of its 3" in invoke("--verbose", "one.tif", "other.tif").stderr
    assert "center crop" not in invoke("one.png").stderr
    quiet = invoke("--quiet", "--fit", "crop", "one.png", "one.tif").stderr
    assert not quiet


@pytest.mark.parametrize("size", [(6000, 3), (3, 6000)])
def test_tiles_are_few_however_long_an_image_is(size: tuple[int, int]) -> None:
    """Red is in the last eighth of an image 2,000 times as long as wide, and so is the map."""
    red = tuple(length if length == 3 else length * 7 // 8 for length in size)
    painted(size, (RED, (*(edge if edge > 3 else 0 for edge in red), *size))).save("long.png")
    result = invoke("--json", "--target", "red", "--marginal", "long.png")
    record = json.loads(result.stdout)
    assert record["tiles"] == 63  # 32 squares, and those that overlap two of them
    assert "one side is 2,000 times as long as the other" in result.stderr
    with np.load(record["output"][-1]) as arrays:
        profile = arrays["maps"][0].sum(axis=size[::-1].index(3))
    assert profile[len(profile) * 27 // 32 :].sum() > 0.95 * profile.sum()


def test_images_that_are_less_long_keep_their_aspect_ratio() -> None:
    painted((96 * 10, 32), (RED, (0, 0, 4, 4))).save("long.png")
    record, map_ = run("--target", "red", "--marginal", "long.png")
    assert map_.shape == (32, 960) and not record["notes"]
