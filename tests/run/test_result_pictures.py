"""The pictures of a run: their names, formats and sizes, and what they say about their making."""

import json
import re
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from runs import invoke, photos, tiny_model, tree
from synthetic import noise

from ebcli.cli.saliency import main
from ebcli.drawing.style import STYLES

pytestmark = pytest.mark.usefixtures("working_directory")


def scores(path: str) -> list[float]:
    """The probability of each class in a photo, by the network itself."""
    loaded = tiny_model()
    with torch.no_grad():
        found: list[float] = loaded.net(loaded.transforms(Image.open(path))[None])[0].softmax(0).tolist()
    return found


def test_maps_of_other_layers_and_methods_stand_side_by_side() -> None:
    photos(Path("photos"), 1)
    runs = [[], ["--marginal"], ["--layer", "input"]]
    before: dict[str, bytes] = {}
    for options in [*runs, *([*options, "--panel"] for options in runs)]:
        assert invoke("--raw", "--target", "3", *options, "photos").exit_code == 0
        after = tree(Path("saliency"))
        assert {name: after[name] for name in before} == before
        before = after
    assert (
        sum(name.endswith(".jpg") for name in before) == 7
    )  # "2" again beside "input", where names tell layers
    assert sum(name.endswith(".npz") for name in before) == 3
    assert invoke("--target", "3", "saliency").exit_code == 2  # all of them are known as results


@pytest.mark.parametrize(("suffix", "panel"), [("png", False), ("jpg", False), ("webp", True)])
def test_pictures_say_how_they_were_made(suffix: str, panel: bool) -> None:
    photos(Path("photos"), 1)
    options = ["--panel", "--layer", "input", "--target", "5"] if panel else []
    result = invoke("--format", suffix, "--marginal", "--target", "3", *options, "photos")
    assert result.exit_code == 0, result.output
    shown = CliRunner().invoke(main, ["info", result.stdout.strip()]).stdout
    facts = dict(re.findall(r"^(\w+): +(.*)$", shown, re.MULTILINE))
    expected = scores("photos/0/0000.jpg")
    assert facts == {
        "input": "0000.jpg",
        "model": "tiny",
        "weights": "seeded",
        "layer": "2, input" if panel else "2",
        "fit": "whole",
        "method": "marginal EB",
        "style": "overlay",
        "scale": "0 to each map's maximum" if panel else "0 to maximum",
        "class": "3 class d; 5 class f" if panel else "3 class d",
        "score": f"{expected[3]:.4f}, {expected[5]:.4f}" if panel else f"{expected[3]:.4f}",
        "version": f"eb-saliency {version('eb-saliency')}, torch {version('torch')}",
    }
    as_json = CliRunner().invoke(main, ["info", "--json", result.stdout.strip()]).stdout
    assert json.loads(as_json) == facts
    named = invoke("--raw", "--top-k", "2", "photos").stdout.split()[-1]
    with np.load(named) as raw:
        shown_by_arrays = [
            "; ".join(f"{index} {name}" for index, name in zip(raw["classes"], raw["names"], strict=True)),
            ", ".join(f"{score:.4f}" for score in raw["scores"]),
        ]
    arrays = json.loads(CliRunner().invoke(main, ["info", "--json", named]).stdout)
    assert [arrays["class"], arrays["score"]] == shown_by_arrays
    photo = CliRunner().invoke(main, ["info", "photos/0/0000.jpg"])
    assert (photo.exit_code, photo.stdout) == (2, "")
    assert "contains no eb-saliency metadata" in photo.stderr


def test_results_in_another_type_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    photos(Path("photos"), 1)
    monkeypatch.setenv("EB_SALIENCY_DTYPE", "bfloat16")
    result = invoke("--raw", "--target", "3", "photos")
    assert result.exit_code == 0, result.output
    picture, raw = result.stdout.split()
    for path in (picture, raw):
        facts = json.loads(CliRunner().invoke(main, ["info", "--json", path]).stdout)
        assert facts["dtype"] == "bfloat16"
        assert f"torch {version('torch')}" in facts.get("version", "") + facts.get("versions", "")


def test_each_picture_says_its_own_class_layer_and_score() -> None:
    """Of several photos, classes and layers, as the network itself finds them."""
    photos(Path("photos"), 3)
    pictures = invoke("--top-k", "3", "--layer", "0", "--batch-size", "2", "photos").stdout.splitlines()
    assert len(pictures) == 3 * 3 * 2
    told = []
    for picture in pictures:
        facts = json.loads(CliRunner().invoke(main, ["info", "--json", picture]).stdout)
        told.append((facts["input"], facts["class"], facts["layer"], facts["score"]))
    expected = []
    for path in sorted(Path("photos").rglob("*.jpg")):
        found = scores(str(path))
        for index in sorted(range(7), key=lambda k: -found[k])[:3]:
            line = path.name, f"{index} class {'abcdefg'[index]}"
            expected += [(*line, layer, f"{found[index]:.4f}") for layer in ("2", "0")]
    assert told == expected
    assert len({score for *_, score in told}) == 3 * 3


@pytest.mark.parametrize(("name", "format"), [("jpg", "JPEG"), ("webp", "WEBP"), ("PNG", "PNG")])
def test_formats(name: str, format: str) -> None:
    photos(Path("photos"), 1)
    (path,) = invoke("--format", name, "photos").stdout.splitlines()
    assert path.endswith(f".{name.lower()}")
    with Image.open(path) as picture:
        assert picture.format == format


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        ([], {"a.jpg": "JPEG", "b.JPEG": "JPEG", "c.png": "PNG", "d.tif": "PNG", "e.webp": "PNG"}),
        (["--panel", "--format", "auto"], {"a.jpg": "JPEG", "b.JPEG": "JPEG", "c.png": "PNG"}),
        (["--style", "mask"], {"a.jpg": "PNG", "c.png": "PNG"}),  # JPEG has no transparency
        (["--style", "mask", "--panel"], {"a.jpg": "JPEG", "c.png": "PNG"}),
    ],
)
def test_without_a_format_the_picture_is_a_jpeg_if_its_photo_is(
    options: list[str], kinds: dict[str, str]
) -> None:
    for name in kinds:
        Image.new("RGB", (60, 50), "red").save(name)
    records = [json.loads(line) for line in invoke("--json", *options, *kinds).stdout.splitlines()]
    found = {}
    for record in records:
        (path,) = record["output"]
        with Image.open(path) as picture:
            found[record["input"]] = picture.format
        assert Path(path).suffix == {"JPEG": ".jpg", "PNG": ".png"}[found[record["input"]]]
    assert found == kinds
    again = invoke("--skip-existing", *options, *kinds)
    assert (again.exit_code, again.stderr) == (0, f"{len(kinds)} images: {len(kinds)} up to date\n")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("style", STYLES)
def test_a_smaller_picture_is_that_of_the_smaller_photo(style: str) -> None:
    """Of the same map: the network still sees the whole photo, and boxes are in its pixels."""
    noise((40, 20), 90).resize((800, 400)).save("a.png")
    options = ("--json", "--style", style, "--target", "3", "--annotations", "boxes", "--raw")
    whole = json.loads(invoke(*options, "-o", "whole", "a.png").stdout)
    small = json.loads(invoke(*options, "-o", "small", "--max-side", "200", "a.png").stdout)
    assert small["classes"] == whole["classes"]
    assert Path(small["output"][1]).read_bytes() == Path(whole["output"][1]).read_bytes()
    with Image.open(whole["output"][0]) as picture, Image.open(small["output"][0]) as found:
        assert found.height == 100
        assert abs(found.width - picture.width / 4) <= 1
        pictures = [one.convert("RGBA") for one in (picture, found)]
        large, small_one = [
            Image.alpha_composite(Image.new("RGBA", one.size, "white"), one) for one in pictures
        ]
        reduced = large.resize(small_one.size, Image.Resampling.LANCZOS)
    difference = np.abs(np.asarray(small_one).astype(int) - np.asarray(reduced))
    assert difference.mean() < (8 if style == "contour" else 2)  # lines have a width in pixels
    larger = json.loads(invoke(*options, "-o", "larger", "--max-side", "801", "a.png").stdout)
    assert Path(larger["output"][0]).read_bytes() == Path(whole["output"][0]).read_bytes()
