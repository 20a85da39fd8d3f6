"""Proofs: the smallest part of an image that keeps half of the score, in the order of its map and of others."""

from __future__ import annotations

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
from ebcli.drawing.ranks import ranks
from ebcli.files.records import Record
from ebcli.nouns.proof import Proof
from ebcli.run.explainer import Explainer

LAYER = "--layer", "1"


@pytest.fixture(autouse=True)
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def explainer(**options: Any) -> Explainer:
    loaded = ebcli.load_model(f"{stripe_net.__file__}:stripes")
    return Explainer(make_plan("a.jpg", **{"layer": ("1",), "prove": True, **options}), loaded=loaded)


def proofs(network: Explainer, *images: Image.Image) -> list[Proof]:
    found = network.explain([seen(np.asarray(image)) for image in images])
    assert all(map_.proof is None for one in found for map_ in one.maps[1:])
    return [one.maps[0].proof for one in found]


def invoke(*arguments: str, model: str = f"{stripe_net.__file__}:stripes", layer: tuple[str, ...] = LAYER) -> Result:
    return CliRunner().invoke(main, ["--model", model, *layer, "--workers", "0", *arguments])


def proof_of(*arguments: str, **network: Any) -> dict[str, Any]:
    result = invoke("--prove", "--json", *arguments, **network)
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)["classes"][0]["proof"]
    return found


def test_the_smallest_part_is_found() -> None:
    """Every part of a ladder from 0.01 to 1 is tried here, pixel by pixel in the order of the map."""
    network, image = explainer(target=("rows",)), striped()
    (found,) = network.explain([seen(np.asarray(image))])
    map_, proof = found.maps[0], found.maps[0].proof
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
    assert proof.part == pytest.approx(part, abs=1e-4)
    assert proof.score == pytest.approx(whole)
    assert proof.without == pytest.approx(score(torch.where(kept(part), blurred, inputs)), rel=1e-4)
    assert proof.blurred == pytest.approx(score(blurred), rel=1e-4)


def test_the_map_needs_no_more_than_the_patch_and_chance_much_more() -> None:
    (proof,) = proofs(explainer(), striped())
    patch = (PATCH[2] - PATCH[0]) * (PATCH[3] - PATCH[1]) / SIDE**2
    assert proof.holds
    assert proof.part <= patch
    assert proof.gradient >= proof.part
    assert proof.shuffled > 3 * proof.part
    assert patch < proof.center  # the patch is above the center
    assert proof.without < proof.score / 2
    assert proof.words == (
        f"{proof.part:.2f} of the image suffices; in random order {proof.shuffled:.2f} would be needed; "
        f"without it the score falls from {proof.score:.2f} to {proof.without:.2f}"
    )


def test_each_image_passes_24_times_with_its_map_and_alone_as_in_any_batch() -> None:
    images = [striped(seed, columns=seed % 2 == 1) for seed in range(4)]
    network, passed = explainer(batch_size=2, top_k=2), []
    network.loaded.net.register_forward_hook(lambda _net, inputs, _output: passed.append(len(inputs[0])))
    together = proofs(network, *images)
    assert sum(passed) == 24 * len(images)
    assert set(passed) == {2}
    assert [proofs(network, image)[0] for image in images] == together
    assert len(set(together)) == 4


def test_it_says_so_if_it_fails() -> None:
    start = "0.20 of the image suffices; in random order 0.50 would be needed; without it the score"
    for change, holds, words in (
        ({}, True, f"{start} falls from 0.95 to 0.07"),
        ({"score": 0.004, "without": 3e-4, "blurred": 0.0}, True, f"{start} falls from 0.004 to 0.0003"),
        ({"without": 0.97}, True, f"{start} is 0.97 instead of 0.95"),
        ({"blurred": 0.9}, False, "not proved: the score is still 0.90 of 0.95 if all of the image is blurred"),
        ({"part": 1.0, "shuffled": 1.0}, False, "not proved: no part of the image keeps half of the score 0.95"),
        (
            {"shuffled": 0.2},
            False,
            "not proved: 0.20 of the image is needed; in random order 0.20 suffices; without the former the score "
            "falls from 0.95 to 0.07",
        ),
    ):
        known = {"part": 0.2, "shuffled": 0.5, "center": 0.4, "gradient": 0.6, "score": 0.95, "without": 0.07}
        proof = Proof(**{**known, "blurred": 0.01, **change})
        assert (proof.holds, proof.words) == (holds, words)


def test_records_pictures_and_messages_have_it(written: list[tuple[float, float, str]]) -> None:
    striped(size=(SIDE, 48)).save("stripes.png")
    result = invoke("stripes.png", "--prove", "--verbose", "-o", "maps")
    (line,) = Path("maps/records.jsonl").read_bytes().splitlines()
    record = Record.parse(line)
    assert record is not None
    proof = record.classes[0].proof
    assert proof is not None and proof["holds"]
    assert f"stripes.png: {proof['words']}\n" in result.stderr
    assert Image.open(record.output[0]).size == (SIDE, 48)
    assert f"proof:    {proof['words']}" in CliRunner().invoke(main, ["info", record.output[0]]).stdout
    for damaged in (b'"holds": 1', b'"holds": true, "part": "x"'):
        assert Record.parse(line.replace(b'"holds": true', damaged)) is None
    # another setting
    assert invoke("stripes.png", "--prove", "--skip-existing", "-o", "maps").stdout == ""
    assert f"stripes.png: {proof['words']}\n" in invoke("stripes.png", "--prove", "-o", "quiet").stderr
    assert invoke("stripes.png", "--skip-existing", "-o", "maps").stdout
    written.clear()
    assert invoke("stripes.png", "--prove", "--panel", "-o", "panels").exit_code == 0
    assert proof["words"] in " ".join(text for *_, text in written)


def test_a_picture_whose_proof_fails_says_so(written: list[tuple[float, float, str]]) -> None:
    """Blur does not change mean colors."""
    Path("colors.py").write_text("from color_net import color_net as net\n")
    painted((256, 256), (RED, (32, 32, 224, 224))).save("red.png")
    shutil.copy("red.png", "again.png")
    small = ("--resize", "32", "--crop", "32")
    result = invoke("red.png", "again.png", "--prove", "-o", "maps", *small, model="colors.py:net")
    assert result.exit_code == 0, result.stderr
    assert "2 of 2 proofs fail" in result.stderr
    assert "not proved: the score" in " ".join(text for *_, text in written)
    assert Image.open(next(Path("maps").glob("red*"))).height > 256


@pytest.mark.parametrize("columns", [False, True])
def test_padding_is_no_part_of_the_image(columns: bool) -> None:
    """A narrow image is a quarter of what the network gets of it."""
    left, top, right, bottom = PATCH
    striped(columns=columns).crop((left, 0, right, SIDE)).save("narrow.png")
    proof = proof_of("narrow.png", "--fit", "pad")
    patch = (bottom - top) / SIDE
    assert patch / 4 < proof["part"] <= patch
    assert proof["shuffled"] > proof["part"]


def test_detections_and_segments_are_proved_by_their_own_score() -> None:
    for factory, side in (("yolo", 16), ("Queries", 16), ("detector", 8)):  # of a cell
        squares = (32, 16, 32 + side, 16 + side), (128, 64, 128 + side, 64 + side)
        painted((192, 96), (RED, squares[0]), (GREEN, squares[1])).save("squares.png")
        model = f"{color_tasks.__file__}:{factory}"
        result = invoke("squares.png", "--prove", "--json", "-o", factory, model=model, layer=())
        assert result.exit_code == 0, result.stderr
        first, second = json.loads(result.stdout)["classes"]
        assert first["proof"]["score"] == first["score"]
        assert first["proof"]["holds"]
        assert first["proof"]["part"] < 0.1
        assert first["proof"]["without"] < first["score"] / 2  # although the other one is still there
        assert second["proof"] is None
    model = f"{color_tasks.__file__}:Segmenter"
    painted((128, 128), (RED, (60, 16, 68, 24))).save("spot.png")
    proof = proof_of("spot.png", "--target", "red", model=model, layer=("--layer", "pixels"))
    assert proof["score"] > 0.9  # the mean probability, not the share of the pixels
    assert proof["holds"] and proof["part"] <= 0.01


def test_where_it_cannot_be_measured_it_is_refused() -> None:
    Path("nets.py").write_text(NETS)
    striped().save("stripes.png")
    for arguments, network, message in (
        ((), "nets.py:solid", "--prove blurs parts of images, but nets.py:solid is for volumes: drop it"),
        (("--scores", "raw"), "", "--prove halves probabilities, but the scores of "),
        (("--tiles", "2"), "", "--prove needs the score of a whole image, but --tiles cuts it: drop one of them"),
    ):
        more = {"model": network, "layer": ()} if network else {}
        result = invoke("stripes.png", "--prove", *arguments, **more)
        assert result.exit_code == 2
        assert message in result.stderr
    striped(size=(4 * SIDE, SIDE)).save("long.png")
    (record,) = map(json.loads, invoke("long.png", "--prove", "--json", "--fit", "whole").stdout.splitlines())
    assert record["tiles"] and record["classes"][0]["proof"] is None


def test_equal_values_are_ranked_in_any_order_and_others_in_theirs() -> None:
    assert ranks([[0.5, -1.0], [2.0, 0.0]]).tolist() == [[1, 3], [0, 2]]
    flat = ranks(np.zeros((4, 4)), np.random.default_rng(1))
    assert sorted(flat.ravel()) == [*range(16)] and flat.ravel().tolist() != [*range(16)]
