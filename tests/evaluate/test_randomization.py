"""Parameter randomization: what is shuffled, in which order, and how maps are compared."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy
import torch
from click.testing import CliRunner
from color_net import COLORS, color_images
from torch import nn

import ebcli
from ebcli.cli.benchmark import benchmark as main
from ebcli.evaluate.benchmark import ModelUnderTest
from ebcli.evaluate.faithfulness import layers_from_the_top, shuffle_parameters
from ebcli.models import ModelSpec


def table(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    common = *COLORS, "-o", str(folder.with_name("kept")), "--json"
    result = CliRunner().invoke(main, ("sanity", str(folder), *common, *arguments))
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_each_parameter_is_shuffled() -> None:
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))[0]
    before = copy.deepcopy(layer)
    shuffle_parameters(layer, "a")
    for name, values in layer.named_parameters():
        old = before.get_parameter(name)
        assert not torch.equal(values, old)
        assert torch.equal(values.flatten().sort().values, old.flatten().sort().values)
    same, other = copy.deepcopy(before), copy.deepcopy(before)
    shuffle_parameters(same, "a")
    shuffle_parameters(other, "b")
    assert torch.equal(same.weight, layer.weight)
    assert not torch.equal(other.weight, layer.weight)


def test_only_a_layers_own_parameters_are_shuffled() -> None:
    whole = nn.Sequential(nn.Linear(4, 4))
    before = whole[0].weight.clone()
    shuffle_parameters(whole, "a")
    assert torch.equal(whole[0].weight, before)


def test_layers_come_from_the_classifier_down() -> None:
    names = layers_from_the_top(ModelUnderTest(ModelSpec("resnet18", weights="none"), [], ["center"], "cpu"))
    assert names[:5] == ["fc", "layer4.1.bn2", "layer4.1.conv2", "layer4.1.bn1", "layer4.1.conv1"]
    assert names[-2:] == ["bn1", "conv1"]
    assert len(names) == 41  # 20 convolutions with their normalizations, and the classifier


@pytest.mark.usefixtures("colors")
def test_fixed_maps_stay_the_same_and_noise_always_changes(tmp_path: Path) -> None:
    color_images(tmp_path / "photos", 4)
    found = table(tmp_path / "photos", "--method", "center", "--method", "random", "--steps", "5")
    # The network has two layers, so there are two steps, not five
    assert [(row["method"], row["randomized"], row["down to"]) for row in found] == [
        ("center", 1, "5"),
        ("center", 2, "0"),
        ("random", 1, "5"),
        ("random", 2, "0"),
    ]
    for row in found[:2]:
        assert row["rank correlation"] == pytest.approx(1)
        assert row["SSIM"] == pytest.approx(1)
        assert row["images"] == 4
    for row in found[2:]:
        assert abs(row["rank correlation"]) < 0.05
        assert abs(row["SSIM"]) < 0.2


def test_maps_are_compared_with_those_of_the_intact_network(tmp_path: Path) -> None:
    """Step by step for one image, with networks shuffled here."""
    shown, layer = ebcli.load_model("squeezenet1_1", "none"), "features.7"
    color_images(tmp_path / "photos", 1)
    common = (
        "--model",
        "squeezenet1_1",
        "--weights",
        "none",
        "--layer",
        layer,
        "-o",
        str(tmp_path / "kept"),
        "--json",
    )
    result = CliRunner().invoke(
        main, ("sanity", str(tmp_path / "photos"), *common, "--steps", "2", "--method", "marginal")
    )
    half, whole = map(json.loads, result.stdout.splitlines())
    assert (half["randomized"], whole["randomized"], whole["down to"]) == (13, 26, "features.0")

    from PIL import Image

    inputs = shown.transforms(Image.open(tmp_path / "photos" / "0.png"))[None]
    with torch.no_grad():
        likely = int(shown.net(inputs).argmax())
    names = layers_from_the_top(
        ModelUnderTest(ModelSpec("squeezenet1_1", weights="none"), [], ["center"], "cpu")
    )
    intact = ebcli.excitation_backprop(shown.net, inputs, likely, layer=layer).maps[0]
    for row in (half, whole):
        net = copy.deepcopy(shown.net)
        for name in names[: row["randomized"]]:
            shuffle_parameters(net.get_submodule(name), name)
        changed = ebcli.excitation_backprop(net, inputs, likely, layer=layer).maps[0]
        expected = scipy.stats.spearmanr(np.ravel(intact), np.ravel(changed)).statistic
        assert row["rank correlation"] == pytest.approx(expected, abs=1e-6)
        assert row["rank correlation"] < 0.99
