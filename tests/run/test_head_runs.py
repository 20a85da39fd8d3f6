"""Runs of networks with several heads: what is explained, recorded, repeated and drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import two_heads
from click.testing import CliRunner, Result
from PIL import Image, ImageDraw

import ebcli
from ebcli.cli.saliency import main
from ebcli.files.encoding import read_facts

NETS = two_heads.__file__
GREEN = np.s_[:8, :8]  # a quarter of the photo; the rest is blue


@pytest.fixture
def folder(working_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebcli.run.explainer.load_model", ebcli.load_model)
    pixels = np.zeros((16, 16, 3), np.uint8)
    pixels[..., 2] = 255
    pixels[GREEN] = (0, 255, 0)
    Image.fromarray(pixels).save(working_directory / "photo.png")


def explain(*arguments: str, name: str = "two") -> Result:
    """The command, for the layer that has the pixels."""
    photos = [] if arguments[0].endswith(".png") else ["photo.png"]
    words = [*photos, "--model", f"{NETS}:{name}", "--layer", "pixels", "--workers", "0", *arguments]
    return CliRunner().invoke(main, words)


def raw(directory: str) -> Any:
    (path,) = Path(directory).glob("*.npz")
    return np.load(path)


def record_of(directory: str) -> dict[str, Any]:
    *_, line = Path(directory, "records.jsonl").read_text().splitlines()
    return json.loads(line)


@pytest.mark.usefixtures("folder")
def test_the_run_without_a_choice_names_the_heads() -> None:
    result = explain("-o", "maps")
    assert result.exit_code == 2
    assert "choose one of kind (B, 2); color (B, 3), by head= or --head" in result.output
    assert not Path("maps").exists()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("head", ["color", "1"])
def test_the_head_is_explained_recorded_and_repeated(head: str) -> None:
    result = explain("--head", head, "-t", "green", "--raw", "--marginal", "--caption", "-o", "maps")
    assert result.exit_code == 0, result.output
    values = raw("maps")["maps"][0]
    expected = np.zeros((16, 16))
    expected[GREEN] = 1 / 64
    np.testing.assert_allclose(values, expected, atol=1e-7)
    record = record_of("maps")
    assert (record["head"], record["classes"][0]["name"]) == ("color", "green")
    logits = torch.tensor([64, 192, -256]) / 256
    assert record["classes"][0]["score"] == pytest.approx(float(logits.softmax(0)[0]))
    assert read_facts(Path(record["output"][0]))["head"] == "color"
    assert str(raw("maps")["head"]) == "color"
    assert f'head = "{head}"' in Path("maps/settings.toml").read_text()
    repeated = CliRunner().invoke(main, ["--config", "maps/settings.toml", "-o", "again"])
    assert repeated.exit_code == 0, repeated.output
    np.testing.assert_array_equal(raw("again")["maps"][0], values)
    assert CliRunner().invoke(main, ["check", "maps"]).exit_code == 0


@pytest.mark.usefixtures("folder")
def test_another_head_is_not_up_to_date() -> None:
    for head, is_done in (("kind", False), ("kind", True), ("0", True), ("color", False)):
        result = explain("--head", head, "-o", "maps", "--skip-existing", "--verbose", name="twins")
        assert ("up to date" in result.output) == is_done, head
        assert f"head {record_of('maps')['head']}, layer pixels" in result.output
    other = CliRunner().invoke(main, ["check", "maps", "--head", "kind"])
    assert other.exit_code == 2  # it has no raw maps
    explain("--head", "color", "--raw", "-o", "raw")
    assert CliRunner().invoke(main, ["check", "raw"]).exit_code == 0
    assert CliRunner().invoke(main, ["check", "raw", "--head", "kind"]).exit_code == 1


@pytest.mark.usefixtures("folder")
def test_a_head_of_a_usual_name_is_said() -> None:
    result = explain("-o", "maps", name="usual")
    assert "several outputs: out is explained; --head NAME chooses another" in result.output
    assert record_of("maps")["head"] == "out"
    assert "several outputs" not in explain("--head", "out", "-o", "maps", name="usual").output
    result = explain("-o", "one", name="one")
    assert "several outputs" not in result.output
    assert record_of("one")["head"] is None


@pytest.mark.usefixtures("folder")
def test_captions_and_subtitles_name_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    written = []

    def write(draw: ImageDraw.ImageDraw, xy: Any, text: str, *arguments: Any, **options: Any) -> None:
        written.append(text)
        draw_text(draw, xy, text, *arguments, **options)

    draw_text = ImageDraw.ImageDraw.text
    monkeypatch.setattr(ImageDraw.ImageDraw, "text", write)
    Image.open("photo.png").resize((800, 800)).save("large.png")
    for name, words in (("two", "head color"), ("one", "")):
        written.clear()
        options = ("--caption", "--max-side", "800", "-o", f"{name}.png", "--marginal")
        result = explain("large.png", *options, *["--head", "color"] * (name == "two"), name=name)
        assert result.exit_code == 0, result.output
        assert any(text.endswith(words) for text in written)
        assert any("head" in text for text in written) == bool(words)
    saliency = ebcli.explain(f"{NETS}:two", "photo.png", layer="pixels", head="color")
    assert saliency.about == f"{NETS}:two (factory), head color, layer pixels, contrastive EB"


@pytest.mark.usefixtures("folder")
def test_class_names_are_those_of_the_chosen_head() -> None:
    Path("names.txt").write_text("leaf\nsky\nother\n")
    result = explain("--head", "color", "--class-names", "names.txt", "-t", "sky", "-o", "maps")
    assert result.exit_code == 0, result.output
    assert record_of("maps")["classes"][0]["name"] == "sky"
    result = explain("--head", "kind", "--class-names", "names.txt", "-o", "maps")
    assert "there are 3 class names, but head 'kind' of " in result.output


@pytest.mark.usefixtures("folder")
def test_other_methods_and_sufficiency_go_by_the_head() -> None:
    result = explain(
        *("--head", "color", "-t", "green", "--panel", "--sufficiency", "-o", "maps"),
        *("--compare-with", "gradient", "--compare-with", "grad-cam"),
    )
    assert result.exit_code == 0, result.output
    logits = torch.tensor([64, 192, -256]) / 256
    sufficiency = record_of("maps")["classes"][0]["sufficiency"]
    assert sufficiency["score"] == pytest.approx(float(logits.softmax(0)[0]))


@pytest.mark.usefixtures("folder")
def test_layers_lists_the_heads() -> None:
    result = CliRunner().invoke(main, ["layers", "--model", f"{NETS}:two", "--head", "color"])
    lines = [line.split() for line in result.output.splitlines()]
    assert lines[:3] == [["HEAD", "OUTPUT", "EXPLAINED"], ["kind", "2"], ["color", "3", "*"]]
    assert "kind" not in [words[0] for words in lines[4:]]  # a layer of the other head
    result = CliRunner().invoke(main, ["layers", "--model", f"{NETS}:one"])
    assert "HEAD" not in result.output
