"""Atlases from Python and from the command: what is named where, printed, recorded and refused."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image
from runs import invoke

import ebcli
from ebcli.cli.saliency import main
from ebcli.run.plan import RunPlan

SAMPLES = Path(__file__).parents[2] / "sample_images"


@pytest.fixture(scope="module")
def mosaic(tmp_path_factory):
    """A cat on the left and a cup of coffee on the right, 600 x 300."""
    whole = Image.new("RGB", (600, 300))
    for left, (name, box) in enumerate({"chelsea": (0, 0, 300, 300), "coffee": (120, 0, 420, 300)}.items()):
        with Image.open(SAMPLES / f"{name}.jpg") as photo:
            whole.paste(photo.crop(box), (300 * left, 0))
    path = tmp_path_factory.mktemp("mosaic") / "mosaic.png"
    whole.save(path)
    return path


@pytest.fixture(scope="module")
def found(mosaic):
    return ebcli.explain("efficientnet_lite0", mosaic, style="atlas")


def test_each_half_of_a_mosaic_is_named(found):
    cats, cup = {"Egyptian cat", "tabby", "tiger cat"}, {"espresso", "cup", "coffee mug"}
    left, right = found.at(150, 120), found.at(460, 130)
    assert left[0][0] in cats and right[0][0] in cup
    for ranking in (left, right):
        shares = [share for _, share in ranking]
        assert sum(shares) == pytest.approx(1) and shares == sorted(shares, reverse=True)
    names, evidence = found.regions()
    assert names.shape == evidence.shape == found.maps.shape[1:] and evidence.max() == 1
    halves = np.split(names, 2, axis=1)
    for half, right_ones in zip(halves, (cats, cup), strict=True):
        named = half[half != ""]
        assert np.isin(named, [*right_ones]).mean() > 0.85 and len(named) > half.size / 4


def test_nothing_is_named_in_noise():
    noise = np.random.default_rng(0).integers(0, 256, (224, 224, 3), dtype=np.uint8)
    found = ebcli.explain("efficientnet_lite0", noise, candidates="windows")
    assert (found.regions()[0] == "").all() and found.at(100, 100) == []


def test_maps_that_are_only_compared_are_not_said_to_be_weak(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (224, 224, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    for options, is_said in ((["--top-k", "2"], True), (["--style", "atlas"], False)):
        done = CliRunner().invoke(
            main, [str(tmp_path / "noise.png"), *options, "-o", str(tmp_path), "--workers", "0"]
        )
        assert done.exit_code == 0, done.stderr
        assert ("hardly any evidence" in done.stderr) == is_said


@pytest.mark.one_in(2)
@pytest.mark.parametrize("options", [{"contrastive": False}, {"layer": ["features.8", "features.11"]}])
def test_other_maps_are_not_compared(options):
    other = ebcli.explain("efficientnet_lite0", SAMPLES / "coffee.jpg", top_k=2, **options)
    with pytest.raises(
        ebcli.ConfigurationError, match=r"compared by contrastive maps .*: explain classes so"
    ):
        other.at(1, 1)


def test_python_and_the_command_agree(mosaic, found, tmp_path):
    done = CliRunner().invoke(main, [str(mosaic), "--at", "150,120", "-o", str(tmp_path), "--workers", "0"])
    assert done.exit_code == 0, done.stderr
    path, _, ranking = done.stdout.rstrip().partition("  ")
    assert Path(path).name == "mosaic.png.atlas.png"
    assert ranking == ", ".join(f"{name} {share:.2f}" for name, share in found.at(150, 120)[:5])
    record = json.loads((tmp_path / "records.jsonl").read_text())
    shares = {one["name"]: one["share_at"] for one in record["classes"] if one["share_at"]}
    assert shares == pytest.approx(dict(found.at(150, 120)), abs=1e-4)
    assert found.picture.size == Image.open(path).size


@pytest.fixture
def photos(working_directory):
    for name, size in {"a": (30, 20), "b": (20, 30)}.items():
        Image.effect_noise(size, 80).convert("RGB").save(f"{name}.png")


@pytest.mark.usefixtures("photos")
def test_a_network_of_few_classes_has_all_of_them_in_an_atlas():
    result = invoke("a.png", "--style", "atlas", "--json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record["output"] == ["saliency/a.png.atlas.png"] and len(record["classes"]) == 7
    assert {one["share_at"] for one in record["classes"]} == {None}


@pytest.mark.usefixtures("photos")
def test_a_pixel_outside_of_one_image_fails_that_image_only():
    for corner, status in (("29,19", 0), ("30,19", 1), ("29,20", 1)):  # of 30 x 20 pixels
        assert invoke("a.png", "--at", corner).exit_code == status
    result = invoke("a.png", "b.png", "--at", "25,10")
    assert result.exit_code == 1
    assert [line.partition("  ")[0] for line in result.stdout.splitlines()] == ["saliency/a.png.atlas.png"]
    assert "b.png: the pixel 25,10 is outside of it: choose one within 20 x 30 pixels" in result.stderr
    assert invoke("a.png", "b.png", "--at", "25,10", "--dry-run").stdout.split() == ["a.png", "b.png"]
    nul = invoke("a.png", "--at", "25,10", "-0")
    assert nul.stdout == "saliency/a.png.atlas.png\0"


@pytest.mark.one_in(2)
@pytest.mark.usefixtures("photos")
@pytest.mark.parametrize("suffix", ["png", "svg", pytest.param("pdf", marks=pytest.mark.release)])
def test_an_atlas_is_one_file_that_is_resumed(suffix):
    assert invoke("a.png", "--style", "atlas", "-o", f"one.{suffix}").exit_code == 0
    assert Path(f"one.{suffix}").stat().st_size > 1000
    first = invoke("a.png", "b.png", "--style", "atlas", "--format", suffix, "--report")
    assert first.stdout.splitlines()[:2] == [f"saliency/{name}.png.atlas.{suffix}" for name in "ab"]
    again = invoke("a.png", "b.png", "--style", "atlas", "--format", suffix, "--report", "--skip-existing")
    assert "2 up to date" in again.stderr


@pytest.mark.usefixtures("photos")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--style", "atlas", "--marginal"],
            "an atlas compares classes by contrastive maps .*: drop --method, or --marginal",
        ),
        (
            ["--at", "1,1", "--against", "class a"],
            "an atlas compares classes by contrastive maps .*: drop --against",
        ),
        (
            ["--at", "1,1", "--layer", "0"],
            "an atlas shows one layer: name one with --layer",
        ),  # invoke() names another
        (
            ["--at", "1,1", "--compare-with", "grad-cam"],
            "an atlas has no other methods' maps: drop --compare-with",
        ),
        (["--at", "1,1", "--style", "contour"], "--at ranks the classes of an atlas: drop the style contour"),
        (["--at", "1,1", "-o", "-"], "--at prints shares there: drop one of them"),
        (["--at", "1;1"], "'1;1' is not a pixel: 300,200, for example, is in column 300 and row 200, from 0"),
        (["--at=-1,1"], "'-1,1' is not a pixel"),
    ],
)
def test_what_an_atlas_cannot_have_is_refused(options, said):
    result = invoke("a.png", *options)
    assert result.exit_code == 2 and re.search(said, result.stderr), result.output
    assert not Path("saliency").exists()


@pytest.mark.parametrize(
    "model",
    [
        "ssdlite320_mobilenet_v3_large",
        *(pytest.param(name, marks=pytest.mark.release) for name in ("lraspp_mobilenet_v3_large", "mc3_18")),
    ],
)
def test_networks_for_other_tasks_have_no_atlas(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("clip.mp4" if model == "mc3_18" else "a.png").write_bytes((SAMPLES / "coffee.jpg").read_bytes())
    for option, value, said in (
        ("--at", "1,1", "works only with"),
        ("--style", "atlas", "compares the classes of"),
    ):
        result = CliRunner().invoke(main, [".", "--model", model, "--weights", "none", option, value])
        assert result.exit_code == 2, result.output
        assert re.search(f"{option} .*{said} .*, but {model} is for [a-z]+: drop it", result.stderr)


def test_one_map_is_no_atlas():
    with pytest.raises(ebcli.ConfigurationError, match=r"several classes: call explain\(\) with this style"):
        ebcli.draw_map(Image.new("RGB", (9, 9)), np.ones((3, 3)), style="atlas")


@pytest.mark.parametrize(
    "given", [{"at": (3, 4)}, {"style": "atlas"}, {"style": "atlas", "target": ("1", "2")}]
)
def test_a_plan_of_an_atlas_is_told_again(given):
    plan = RunPlan.from_values(images=(Path("a.jpg"),), **given)
    assert plan.style.name == "atlas" and plan.output.panel
    assert plan.maps.candidates == (None if "target" in given else "windows")
    assert RunPlan.from_values(**plan.values) == plan
