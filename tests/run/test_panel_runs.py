"""Runs with panels or several layers: what they write, record, replace and leave out."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from method_maps import method_maps
from PIL import Image
from plans import make_plan
from runs import finish, invoke, photos, seen, tiny_model, tree
from synthetic import noise
from torchvision.transforms import functional

import ebcli
from ebcli.errors import LayerError
from ebcli.files.encoding import read_facts
from ebcli.run.explainer import Explainer

pytestmark = pytest.mark.usefixtures("working_directory")  # invoke() names layer 2, so one more makes two
LAYERS = ("--layer", "0", "--layer", "input")
MARKS = "@2@0@input"


def names(directory: str) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in Path(directory).rglob("*.*") if path.is_file())


def test_a_panel_stands_in_place_of_the_pictures_and_is_a_result_like_others() -> None:
    photos(Path("photos"), 4)
    first = invoke("--panel", "--top-k", "3", "--raw", *LAYERS, "photos")
    assert first.exit_code == 0, first.output
    expected = [
        f"{i % 3}/{i:04}.jpg.{end}" for i in (0, 3, 1, 2) for end in (f"panel{MARKS}.jpg", f"maps{MARKS}.npz")
    ]
    assert first.stdout.splitlines() == [f"saliency/{name}" for name in expected]
    assert names("saliency") == sorted([*expected, ".eb-saliency", "records.jsonl", "settings.toml"])
    before = tree(Path("saliency"))

    assert invoke("--panel", "--top-k", "3", "--raw", *LAYERS, "--skip-existing", "photos").stdout == ""
    Path(f"saliency/0/0003.jpg.panel{MARKS}.jpg").unlink()
    again = invoke("--panel", "--top-k", "3", "--raw", *LAYERS, "--skip-existing", "photos")
    assert again.stdout.splitlines() == [f"saliency/{name}" for name in expected[2:4]]
    assert tree(Path("saliency")) == before


@pytest.mark.release
def test_workers_make_the_same_panels() -> None:
    photos(Path("photos"), 4)
    assert invoke("--panel", "--top-k", "3", "--raw", *LAYERS, "photos").exit_code == 0
    workers = finish(
        Path.cwd(), "--panel", "--top-k", "3", "--raw", *LAYERS, "-o", "workers", "photos", workers=2
    )
    assert len(workers.out.read_text().splitlines()) == 8
    assert tree(Path("workers")) == tree(Path("saliency"))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("suffix", ["pdf", "svg"])
def test_figures_of_a_directory_are_resumed_and_verified_like_pictures(suffix: str) -> None:
    photos(Path("photos"), 2)
    written = invoke("--panel", "--format", suffix, "photos").stdout.splitlines()
    assert written == [f"saliency/{i}/{i:04}.jpg.panel.{suffix}" for i in (0, 1)]
    assert invoke("--panel", "--format", suffix, "--skip-existing", "photos").stdout == ""
    assert invoke("verify", "saliency").exit_code == 0
    Path(written[0]).unlink()
    again = invoke(
        "--panel", "--format", suffix, "--skip-existing", "photos", written[1]
    )  # a result is no photo
    assert again.stdout.splitlines() == written[:1]
    Path(written[1]).write_bytes(b"altered")
    result = invoke("verify", "saliency")
    assert (result.exit_code, f"1/0001.jpg.panel.{suffix}: " in result.stdout) == (1, True)


@pytest.mark.parametrize("option", ["--cell-size 150", "--dpi 150", "--no-header"])
def test_what_only_figures_have_is_refused_without_one(option: str) -> None:
    photos(Path("photos"), 1)
    result = invoke(*option.split(), "photos")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "--cell-size, --dpi and --no-header are for figures: add --panel" in result.stderr
    assert not Path("saliency").exists()
    assert invoke(*option.split(), "--panel", "photos").exit_code == 0


def test_a_figure_without_its_header_has_the_same_pictures_and_no_path() -> None:
    photos(Path("photos"), 1)
    assert invoke("photos", "-o", "with", "--format", "svg").exit_code == 0
    assert invoke("photos", "-o", "without", "--format", "svg", "--no-header").exit_code == 0
    texts, images = [], []
    for folder in ("with", "without"):
        svg = ElementTree.parse(f"{folder}/0/0000.jpg.panel.svg")
        names = "{http://www.w3.org/2000/svg}text", "{http://www.w3.org/2000/svg}image"
        found = [[*svg.iter(name)] for name in names]
        texts.append({"".join(element.itertext()).strip() for element in found[0]})
        images.append([element.get("{http://www.w3.org/1999/xlink}href") for element in found[1]])
    assert images[0] == images[1]
    header = texts[0] - texts[1]
    assert texts[1] < texts[0] and len(header) == 2  # the name, and how the maps were made
    assert any("photos/0/0000.jpg" in text for text in header)


def test_a_panel_of_somebody_else_is_in_the_way_of_panels_only() -> None:
    photos(Path("photos"), 1)
    foreign = Path("saliency/0/0000.jpg.panel.jpg")
    foreign.parent.mkdir(parents=True)
    foreign.write_bytes(b"precious")
    assert invoke("photos").exit_code == 0
    result = invoke("--panel", "photos")
    assert result.exit_code == 2
    assert f"'{foreign}' would be replaced" in result.stderr
    assert foreign.read_bytes() == b"precious"
    picture = Path("saliency/0/0000.jpg.3-class-d.jpg")
    picture.write_bytes(b"precious")  # which no panel replaces
    assert invoke("--panel", "--format", "webp", "photos").exit_code == 0


def test_several_layers_have_pictures_records_and_arrays_of_their_own() -> None:
    photos(Path("photos"), 2)
    result = invoke("--json", "--raw", "--verbose", "--target", "3", "--target", "5", *LAYERS, "photos")
    assert result.exit_code == 0, result.output
    first, _ = map(json.loads, result.stdout.splitlines())
    order = [(3, "d", "2"), (3, "d", "0"), (3, "d", "input"), (5, "f", "2"), (5, "f", "0"), (5, "f", "input")]
    stem = "saliency/0/0000.jpg"
    raw_file = f"{stem}.maps@2@0@input.npz"
    assert first["output"] == [f"{stem}.{k}-class-{letter}@{layer}.jpg" for k, letter, layer in order] + [
        raw_file
    ]
    assert first["layer"] == "2, 0, input"
    assert [(shown["index"], shown["layer"]) for shown in first["classes"]] == [
        (k, layer) for k, _, layer in order
    ]

    loaded = tiny_model()
    inputs = loaded.transforms(Image.open("photos/0/0000.jpg"))[None]
    with np.load(raw_file) as raw:
        assert raw["layer"].tolist() == ["2", "0", "input"]
        for place, layer in enumerate(("2", "0", "input")):
            single = ebcli.excitation_backprop(
                loaded.net,
                inputs,
                [[3, 5]],
                None if layer == "input" else layer,
                contrastive=True,
                track_lost_mass=True,
            )
            for key, expected in (
                ("maps", single.maps),
                ("mass", single.mass),
                ("relevance", single.relevance),
            ):
                np.testing.assert_allclose(raw[f"{key}@{layer}"], expected[0].numpy(), rtol=1e-4, atol=1e-7)
            for k in (0, 1):
                shown = first["classes"][3 * k + place]
                assert single.mass is not None
                assert shown["mass"] == pytest.approx(float(single.mass[0, k]), rel=1e-4)
                even = 1 / single.maps[0, k].numel()
                assert shown["peak"] == pytest.approx(float(single.maps[0, k].max()) / even, rel=1e-3)
    assert (
        invoke("--skip-existing", "--raw", "--target", "3", "--target", "5", *LAYERS, "photos").stdout == ""
    )


def test_blank_maps_are_told_of_each_layer() -> None:
    photos(Path("photos"), 1)
    record = json.loads(invoke("--json", "--panel", "--top-k", "7", *LAYERS, "photos").stdout)
    assert [shown["layer"] for shown in record["classes"]] == ["2", "0", "input"] * 7
    for shown in record["classes"]:
        assert shown["blank"] == (not shown["peak"] > 0)


def test_marginal_maps_beside_contrastive_ones_do_not_change_these() -> None:
    plan: dict[str, Any] = {"images": (Path("a.jpg"),), "panel": True, "layer": ("2", "input"), "top_k": 2}
    pixels = [np.random.default_rng(0).integers(0, 256, (24, 24, 3), dtype=np.uint8)]
    (both,) = Explainer(make_plan(**plan, compare_with=("marginal",))).explain([*map(seen, pixels)])
    (one,) = Explainer(make_plan(**plan)).explain([*map(seen, pixels)])
    (marginal,) = Explainer(make_plan(**plan, contrastive=False)).explain([*map(seen, pixels)])
    assert len(both.maps) == 4
    for at, contrastive, other in zip(both.maps, one.maps, marginal.maps, strict=True):
        np.testing.assert_allclose(at.values, contrastive.values, rtol=1e-5, atol=1e-8)
        np.testing.assert_allclose(at.method_maps["marginal"], other.values, rtol=1e-5, atol=1e-8)
        assert other.method_maps == {}


def test_layers_that_look_alike_in_file_names_are_refused_but_for_panels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch import nn

    def model(*_: object, **__: object) -> Any:
        loaded = tiny_model()
        loaded.net[3] = nn.Sequential()
        loaded.net[3].add_module("b", nn.ReLU())
        loaded.net.add_module("3_b", nn.Identity())
        return loaded

    monkeypatch.setattr("ebcli.run.explainer.load_model", model)
    photos(Path("photos"), 1)
    result = invoke("--layer", "3.b", "--layer", "3_b", "photos")
    assert result.exit_code == 2
    assert "the layers '3.b' and '3_b' share a file name" in result.stderr


def test_all_is_one_layer_of_each_resolution_and_the_pixels() -> None:
    # of 24 pixels a side, 11 cells are left after the first layer and 9 after the third: both nearest to stride 2
    assert Explainer(make_plan("a.jpg", layer=("all",))).network.layers == ("2", "input")


def test_other_methods_maps_beside_are_those_that_the_benchmark_measures() -> None:
    pixels = [np.asarray(noise((24, 24), 99, seed)) for seed in range(2)]
    plan: dict[str, Any] = {"images": (Path("a.jpg"),), "panel": True, "target": ("3", "5")}
    found = Explainer(make_plan(**plan, layer=("2",), compare_with=("grad-cam", "gradient"))).explain(
        [*map(seen, pixels)]
    )
    loaded = tiny_model()
    for image, explanation in zip(pixels, found, strict=True):
        preset = loaded.transforms
        inputs = functional.normalize(functional.to_tensor(image), preset.mean, preset.std)[None]
        assert [set(map_.method_maps) for map_ in explanation.maps] == [{"grad-cam", "gradient"}] * 2
        for method in ("grad-cam", "gradient"):
            expected = (
                method_maps(method, loaded.net, inputs, torch.tensor([[3, 5]]), "2").clamp(min=0).numpy()
            )
            drawn = [np.maximum(map_.method_maps[method], 0) for map_ in explanation.maps]
            for one, other in zip(drawn, expected, strict=True):  # as Grad-CAM's scale means nothing
                assert one == pytest.approx(other / (other.sum() or 1), abs=1e-5)
                assert one.sum() == pytest.approx(1 if other.any() else 0, abs=1e-4)
    with pytest.raises(LayerError, match="grad-cam needs a layer"):
        Explainer(make_plan(**plan, layer=("input",), compare_with=("grad-cam",)))


def test_a_panel_with_another_method_beside_is_wider() -> None:
    photos(Path("photos"), 1)
    widths = []
    for options in (
        [],
        ["--compare-with", "grad-cam"],
        ["--compare-with", "grad-cam", "--compare-with", "marginal"],
    ):
        result = invoke("--panel", "--target", "3", *options, "photos")
        assert result.exit_code == 0, result.output
        widths.append(Image.open(result.stdout.strip()).width)
        method = read_facts(Path(result.stdout.strip()))["method"]
        assert method == "; beside: ".join(
            ["contrastive EB", *([", ".join(options[1::2])] if options else [])]
        )
    assert widths == sorted(widths)
    assert widths[0] < widths[2]
