"""Sufficiency: the smallest part of an image that keeps half of the score, in the order of its map and of others."""

import json
import shutil
from pathlib import Path
from typing import Any

import color_tasks
import numpy as np
import pytest
import stripe_net
import torch
from bright_nets import NETS
from click.testing import CliRunner, Result
from color_net import GREEN, RED, painted
from PIL import Image
from plans import make_plan
from runs import seen
from stripe_net import PATCH, SIDE, striped
from torchvision.transforms import functional

import ebcli
from ebcli.cli.saliency import main
from ebcli.datatypes.explanation import Sufficiency
from ebcli.drawing.overlay import ranks
from ebcli.files.records import Record
from ebcli.run.explainer import Explainer

LAYER = "--layer", "1"


@pytest.fixture(autouse=True)
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def explainer(**options: Any) -> Explainer:
    loaded = ebcli.load_model(f"{stripe_net.__file__}:stripes")
    return Explainer(make_plan("a.jpg", **{"layer": ("1",), "sufficiency": True, **options}), loaded=loaded)


def measured(network: Explainer, *images: Image.Image) -> list[Sufficiency]:
    found = network.explain([seen(np.asarray(image)) for image in images])
    assert all(map_.sufficiency is None for one in found for map_ in one.maps[1:])
    return [one.maps[0].sufficiency for one in found]


def invoke(
    *arguments: str, model: str = f"{stripe_net.__file__}:stripes", layer: tuple[str, ...] = LAYER
) -> Result:
    return CliRunner().invoke(main, ["--model", model, *layer, "--workers", "0", *arguments])


def sufficiency_of(*arguments: str, **network: Any) -> dict[str, Any]:
    result = invoke("--sufficiency", "--json", *arguments, **network)
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)["classes"][0]["sufficiency"]
    return found


def test_the_smallest_part_is_found() -> None:
    """Every part of a ladder from 0.01 to 1 is tried here, pixel by pixel in the order of the map."""
    network, image = explainer(target=("rows",)), striped()
    (found,) = network.explain([seen(np.asarray(image))])
    map_, test = found.maps[0], found.maps[0].sufficiency
    inputs = functional.to_tensor(image)
    blurred = functional.gaussian_blur(inputs, [9, 9], [2.0, 2.0])  # a sixteenth of the side

    @torch.no_grad()
    def score(pixels: torch.Tensor) -> float:
        return float(network.loaded.net(pixels[None]).softmax(1)[0, 1])

    cells = np.asarray(Image.fromarray(map_.values).resize((SIDE, SIDE), Image.Resampling.BICUBIC))
    assert cells.shape == (SIDE, SIDE)
    best = np.argsort(-cells.ravel(), kind="stable")

    def kept(share: float) -> torch.Tensor:
        mask = np.zeros(SIDE * SIDE, bool)
        mask[best[: round(share * SIDE * SIDE)]] = True
        return torch.from_numpy(mask.reshape(SIDE, SIDE))

    whole, ladder = score(inputs), [0.01 * 100 ** (step / 31) for step in range(32)]
    part = next(share for share in ladder if score(torch.where(kept(share), inputs, blurred)) >= whole / 2)
    assert test.part == pytest.approx(part, abs=1e-4)
    assert test.score == pytest.approx(whole)
    assert test.without == pytest.approx(score(torch.where(kept(part), blurred, inputs)), rel=1e-4)
    assert test.blurred == pytest.approx(score(blurred), rel=1e-4)


def test_the_map_needs_no_more_than_the_patch_and_chance_much_more() -> None:
    (test,) = measured(explainer(), striped())
    patch = (PATCH[2] - PATCH[0]) * (PATCH[3] - PATCH[1]) / SIDE**2
    assert test.suffices
    assert test.part <= patch
    assert test.gradient >= test.part
    assert test.shuffled > 3 * test.part
    assert patch < test.center  # the patch is above the center
    assert test.without < test.score / 2
    assert test.words == (
        f"{test.part:.0%} of the image suffices; a blob at the center needs {test.center:.0%}, "
        f"random order {test.shuffled:.0%}; "
        f"without that part, the score falls from {test.score:.2f} to {test.without:.2f}"
    )


def test_each_image_passes_24_times_with_its_map_and_alone_as_in_any_batch() -> None:
    images = [striped(seed, columns=seed % 2 == 1) for seed in range(4)]
    network, passed = explainer(batch_size=2, top_k=2), []
    network.loaded.net.register_forward_hook(lambda _net, inputs, _output: passed.append(len(inputs[0])))
    together = measured(network, *images)
    assert sum(passed) == 24 * len(images)
    assert set(passed) == {2}
    assert [measured(network, image)[0] for image in images] == together
    assert len(set(together)) == 4


def test_it_says_so_if_it_fails() -> None:
    others = "a blob at the center needs 40%, random order"
    start = f"20% of the image suffices; {others} 50%; without that part, the score"
    for change, suffices, words in (
        ({}, True, f"{start} falls from 0.95 to 0.07"),
        ({"score": 0.004, "without": 3e-4, "blurred": 0.0}, True, f"{start} falls from 0.004 to 0.0003"),
        ({"without": 0.97}, True, f"{start} is 0.97 instead of 0.95"),
        (
            {"blurred": 0.9},
            False,
            "sufficiency not shown: the score is still 0.90 of 0.95 if all of the image is blurred",
        ),
        (
            {"part": 1.0, "shuffled": 1.0},
            False,
            "sufficiency not shown: no part of the image keeps half of the score 0.95",
        ),
        ({"shuffled": 0.2}, False, f"sufficiency not shown: the map needs 20% of the image; {others} 20%"),
        (
            {"center": 0.15},
            False,
            "sufficiency not shown: the map needs 20% of the image; a blob at the center needs 15%, random order 50%",
        ),
    ):
        known = {"part": 0.2, "shuffled": 0.5, "center": 0.4, "gradient": 0.6, "score": 0.95, "without": 0.07}
        test = Sufficiency(**{**known, "blurred": 0.01, **change})
        assert (test.suffices, test.words) == (suffices, words)


def test_records_pictures_and_messages_have_it(written: list[tuple[float, float, str]]) -> None:
    striped(size=(SIDE, 48)).save("stripes.png")
    result = invoke("stripes.png", "--sufficiency", "--verbose", "-o", "maps")
    (line,) = Path("maps/records.jsonl").read_bytes().splitlines()
    record = Record.parse(line)
    assert record is not None
    test = record.classes[0].sufficiency
    assert test is not None and test["suffices"]
    assert f"stripes.png: {test['words']}\n" in result.stderr
    assert Image.open(record.output[0]).size == (SIDE, 48)
    assert f"sufficiency: {test['words']}" in CliRunner().invoke(main, ["info", record.output[0]]).stdout
    for damaged in (b'"suffices": 1', b'"suffices": true, "part": "x"'):
        assert Record.parse(line.replace(b'"suffices": true', damaged)) is None
    # another setting
    assert invoke("stripes.png", "--sufficiency", "--skip-existing", "-o", "maps").stdout == ""
    assert f"stripes.png: {test['words']}\n" in invoke("stripes.png", "--sufficiency", "-o", "quiet").stderr
    assert invoke("stripes.png", "--skip-existing", "-o", "maps").stdout
    written.clear()
    assert invoke("stripes.png", "--sufficiency", "--panel", "-o", "panels").exit_code == 0
    assert test["words"] in " ".join(text for *_, text in written)


def test_a_picture_whose_map_does_not_suffice_says_so(written: list[tuple[float, float, str]]) -> None:
    """Blur does not change mean colors."""
    Path("colors.py").write_text("from color_net import color_net as net\n")
    painted((256, 256), (RED, (32, 32, 224, 224))).save("red.png")
    shutil.copy("red.png", "again.png")
    small = ("--resize", "32", "--crop", "32")
    result = invoke("red.png", "again.png", "--sufficiency", "-o", "maps", *small, model="colors.py:net")
    assert result.exit_code == 0, result.stderr
    reason = "half of the score remains if all of the image is blurred"
    assert f"sufficiency not shown for 2 of 2 maps: {reason}\n" in result.stderr
    assert "sufficiency not shown: the score" in " ".join(text for *_, text in written)
    assert Image.open(next(Path("maps").glob("red*"))).height > 256


@pytest.mark.parametrize("columns", [False, True])
def test_padding_is_no_part_of_the_image(columns: bool) -> None:
    """A narrow image is a quarter of what the network gets of it."""
    left, top, right, bottom = PATCH
    striped(columns=columns).crop((left, 0, right, SIDE)).save("narrow.png")
    test = sufficiency_of("narrow.png", "--fit", "pad")
    patch = (bottom - top) / SIDE
    assert patch / 4 < test["part"] <= patch
    assert test["shuffled"] > test["part"]


def test_detections_and_segments_are_tested_by_their_own_score() -> None:
    for factory, side in (("yolo", 16), ("Queries", 16), ("detector", 8)):  # of a cell
        squares = (32, 16, 32 + side, 16 + side), (128, 64, 128 + side, 64 + side)
        painted((192, 96), (RED, squares[0]), (GREEN, squares[1])).save("squares.png")
        model = f"{color_tasks.__file__}:{factory}"
        result = invoke("squares.png", "--sufficiency", "--json", "-o", factory, model=model, layer=())
        assert result.exit_code == 0, result.stderr
        first, second = json.loads(result.stdout)["classes"]
        assert first["sufficiency"]["score"] == first["score"]
        assert first["sufficiency"]["suffices"]
        assert first["sufficiency"]["part"] < 0.1
        assert first["sufficiency"]["without"] < first["score"] / 2  # although the other one is still there
        assert second["sufficiency"] is None
        where = "--where", ",".join(map(str, first["box"]))  # the same one, if it is asked for
        assert sufficiency_of("squares.png", *where, model=model, layer=()) == first["sufficiency"]
    model = f"{color_tasks.__file__}:Segmenter"
    painted((128, 128), (RED, (60, 16, 68, 24))).save("spot.png")
    test = sufficiency_of("spot.png", "--target", "red", model=model, layer=("--layer", "pixels"))
    assert test["score"] > 0.9  # the mean probability, not the share of the pixels
    assert test["suffices"] and test["part"] <= 0.01


def test_where_it_cannot_be_measured_it_is_refused() -> None:
    Path("nets.py").write_text(NETS)
    striped().save("stripes.png")
    for arguments, network, message in (
        (
            (),
            "nets.py:solid",
            "--sufficiency blurs parts of images, but nets.py:solid is for volumes: drop it",
        ),
        (("--scores", "raw"), "", "--sufficiency halves probabilities, but the scores of "),
        (
            ("--tiles", "2"),
            "",
            "--sufficiency needs the score of a whole image, but --tiles cuts it: drop one of them",
        ),
    ):
        more = {"model": network, "layer": ()} if network else {}
        result = invoke("stripes.png", "--sufficiency", *arguments, **more)
        assert result.exit_code == 2
        assert message in result.stderr
    striped(size=(4 * SIDE, SIDE)).save("long.png")
    (record,) = map(
        json.loads, invoke("long.png", "--sufficiency", "--json", "--fit", "whole").stdout.splitlines()
    )
    assert record["tiles"] and record["classes"][0]["sufficiency"] is None


def test_equal_values_are_ranked_in_any_order_and_others_in_theirs() -> None:
    assert ranks([[0.5, -1.0], [2.0, 0.0]]).tolist() == [[1, 3], [0, 2]]
    flat = ranks(np.zeros((4, 4)), np.random.default_rng(1))
    assert sorted(flat.ravel()) == [*range(16)] and flat.ravel().tolist() != [*range(16)]
