"""Deletion and insertion on images of one color, whose curves are known."""

import json
import os
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from color_net import COLORS, color_images

from ebcli.cli.benchmark import benchmark as main
from ebcli.evaluate import area_under
from ebcli.evaluate.faithfulness import blur, mean_color, noise

METHODS = ("contrastive", "marginal", "gradient-x-input", "random")


def run(kind: str, folder: Path, *arguments: str) -> Result:
    methods = [part for method in METHODS for part in ("--method", method)]
    common = *COLORS, "-o", str(folder.with_name("kept")), *methods
    return CliRunner().invoke(main, (kind, str(folder), "--json", *common, *arguments))


def rows(result: Result) -> dict[str, dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return {row["method"]: row for row in map(json.loads, result.stdout.splitlines())}


def probability(amount: np.ndarray) -> np.ndarray:
    """Softmax probability of a class given the mean of its color; the two other colors are absent."""
    return np.exp(20 * amount) / (np.exp(20 * amount) + 2)


@pytest.mark.usefixtures("colors")
@pytest.mark.parametrize("kind", ["deletion", "insertion"])
def test_curves_of_colors(tmp_path: Path, kind: str) -> None:
    """An eighth of each image is colored, and perfect maps rank it first."""
    color_images(tmp_path / "photos")
    found = rows(run(kind, tmp_path / "photos", "--baseline", "mean", "--steps", "8"))
    left = np.arange(1, 9) / 8
    if kind == "deletion":  # the color is replaced by the mean, then black is
        curve = [probability(np.array(1 / 8)), *probability(left / 8)]
    else:  # the mean is replaced by the color, then by black
        curve = [probability(np.array(1 / 8)), *probability(1 / 8 + (1 - left) / 8)]
    for method in ("contrastive", "marginal", "gradient-x-input"):
        assert found[method]["area"] == pytest.approx(area_under(curve), abs=1e-5)
        assert found[method]["gain"] > 0.04
        assert found[method]["images"] == 6
    assert abs(found["random"]["gain"]) < 0.02


@pytest.mark.usefixtures("colors")
def test_labels_override_the_predicted_class(tmp_path: Path) -> None:
    color_images(tmp_path / "photos", 1)  # a red one
    (tmp_path / "labels.csv").write_text("0.png,green\n")
    labeled = rows(
        run("deletion", tmp_path / "photos", "--baseline", "mean", "--labels", str(tmp_path / "labels.csv"))
    )
    assert labeled["marginal"]["area"] < 0.3 < rows(run("deletion", tmp_path / "photos"))["marginal"]["area"]


@pytest.mark.skipif(os.name != "posix", reason="file names are text elsewhere")
@pytest.mark.usefixtures("colors")
@pytest.mark.parametrize("kind", ["deletion", "sanity"])
def test_file_names_that_are_not_valid_text(tmp_path: Path, kind: str) -> None:
    color_images(tmp_path / "photos", 1)
    (tmp_path / "photos/0.png").rename(tmp_path / "photos" / os.fsdecode(b"caf\xe9.png"))
    result = run(kind, tmp_path / "photos")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout.splitlines()[0])["images"] == 1


@pytest.mark.usefixtures("colors")
def test_an_interrupt_says_how_to_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    color_images(tmp_path / "photos", 2)
    monkeypatch.setattr("ebcli.evaluate.faithfulness.area_under", mock.Mock(side_effect=KeyboardInterrupt))
    result = run("deletion", tmp_path / "photos")
    assert (result.exit_code, result.stdout) == (130, "")
    kept = tmp_path / "kept"
    assert result.stderr.splitlines()[-1].startswith(f"Interrupted with measurements saved in '{kept}'")
    assert list(kept.iterdir())


@pytest.mark.usefixtures("colors")
def test_each_baseline_has_its_rows(tmp_path: Path) -> None:
    color_images(tmp_path / "photos", 1)
    result = run("insertion", tmp_path / "photos", "--steps", "2")
    assert [json.loads(line)["baseline"] for line in result.stdout.splitlines()] == [
        "blur",
        "mean",
        "noise",
    ] * 4
    refused = run("insertion", tmp_path / "photos", "--baseline", "black")
    assert refused.exit_code == 2
    assert "'black' is not one of 'blur', 'mean', 'noise'" in refused.stderr


def test_baselines() -> None:
    torch.manual_seed(0)
    image = torch.rand(3, 40, 40) * torch.tensor([1.0, 2, 3])[:, None, None]
    assert mean_color(image).shape == image.shape
    torch.testing.assert_close(mean_color(image)[:, 7, 9], image.mean((1, 2)))
    assert torch.equal(noise(image), noise(image))
    torch.testing.assert_close(noise(image).mean((1, 2)), image.mean((1, 2)), rtol=0.1, atol=0)
    torch.testing.assert_close(noise(image).std((1, 2)), image.std((1, 2)), rtol=0.1, atol=0)
    dot = torch.zeros(1, 41, 41)
    dot[0, 20, 20] = 1
    steps = torch.arange(-20, 21)
    bell = torch.where(steps.abs() <= 5, (-(steps**2) / 50).exp(), 0)
    torch.testing.assert_close(blur(dot)[0], torch.outer(bell, bell) / bell.sum() ** 2)
