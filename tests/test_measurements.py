"""What the files beside docs/evidence.md were measured with is what the code does today."""

import functools
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import ebcli
from benchmarks import evidence
from benchmarks.speed import ROWS, Row, measure
from benchmarks.trained import captions, sentence_maps
from benchmarks.trained.__main__ import classifier, two_towers
from benchmarks.trained.dense_maps import DEFAULT, LAYERS, task_of
from benchmarks.trained.dense_networks import SEGMENTATION
from benchmarks.trained.dense_training import NETWORKS
from benchmarks.trained.methods import JOINT, rule_for, rule_of
from benchmarks.trained.networks import FAMILIES
from benchmarks.trained.pictures import SIDE, TASKS
from ebcli.models.loaded import LoadedModel
from ebcli.run.tasks.task import REGISTRY

BUNDLED = "efficientnet_lite0"
TIMED = evidence.unique(evidence.read("cost"), "network")
LARGE = {"vgg16", "vit_b_16"}
SIDES = {"vit_b_16": 224}  # others take any


@pytest.mark.parametrize("name", ["fits", "tiles", "perturbation", "randomization"])
def test_they_were_measured_at_the_default_layer(name: str) -> None:
    assert {(row["network"], row["layer"]) for row in evidence.read(name)} == {
        (BUNDLED, default_layer(BUNDLED))
    }


def test_sufficiency_was_measured_at_the_default_layer_and_the_last_one() -> None:
    layers = {row["layer"] for row in evidence.read("sufficiency")}
    assert layers == {"-", default_layer(BUNDLED), "features.17"}


def test_the_grid_has_the_default_layer_and_the_strides_of_all() -> None:
    strides = {row["layer"]: row["stride"] for row in evidence.read("grid") if row["layer"] != "-"}
    assert default_layer(BUNDLED) in strides
    listed = {layer.name: layer.stride for layer in ebcli.layers(ebcli.load_model())}
    assert {layer: float(stride) for layer, stride in strides.items()} == {
        layer: listed[layer] for layer in strides
    }


def test_works_whose_cost_was_measured_are_those_of_the_script() -> None:
    of_script = {
        (
            row.model,
            row.layer or "input",
            "contrastive" if row.contrastive else "marginal",
            row.batch,
            row.classes,
        )
        for row in ROWS
        if not row.file  # in units of the original
    }
    own = [row for row in evidence.read("cost") if row["by"] == "ebcli"]
    found = {
        (row["network"], row["layer"], row["map"], int(row["batch"]), int(row["classes"])) for row in own
    }
    assert found == of_script


def test_the_unit_of_cost_runs_in_the_memory_layout_of_the_map(monkeypatch: pytest.MonkeyPatch) -> None:
    load_model = ebcli.load_model
    layouts: dict[str, set[bool]] = {"unit": set(), "map": set()}

    def note_layout(_module: nn.Module, _args: object, output: torch.Tensor) -> None:
        work = "unit" if torch.is_inference_mode_enabled() else "map"
        layouts[work].add(output.is_contiguous(memory_format=torch.channels_last))

    def load_watched(name: str, **options: str) -> LoadedModel:
        loaded = load_model(name, **options)
        convolution = next(module for module in loaded.net.modules() if isinstance(module, nn.Conv2d))
        convolution.register_forward_hook(note_layout)
        return loaded

    row = Row(BUNDLED, default_layer(BUNDLED), contrastive=True, batch=1, side=64)
    monkeypatch.setattr(ebcli, "load_model", load_watched)
    assert [timed.by for timed in measure(row, rounds=1, peers=False, clock=time.perf_counter)] == ["ebcli"]
    assert layouts == {"unit": {True}, "map": {True}}


@pytest.mark.release
@pytest.mark.parametrize("network", TIMED)
def test_cost_is_that_of_the_default_layer_or_of_the_pixels(network: str) -> None:
    layers = {row["layer"] for row in evidence.read("cost") if row["network"] == network}
    assert layers - {"input"} == {default_layer(network)}


@pytest.mark.release
@pytest.mark.parametrize(
    "network", [pytest.param(one, marks=[pytest.mark.slow] * (one in LARGE)) for one in TIMED]
)
def test_cost_is_that_of_the_rule(network: str) -> None:
    rows = [row for row in evidence.read("cost") if (row["network"], row["by"]) == (network, "ebcli")]
    net, side = ebcli.load_model(network, weights="none").net, SIDES.get(network, 64)
    layers = evidence.unique(rows, "layer")
    results = ebcli.excitation_backprop(net, torch.randn(1, 3, side, side), 1, [*map(at, layers)])
    decided = dict(zip(layers, map(rule_of, results), strict=True))
    assert {(row["layer"], row["rule"]) for row in rows} == {*decided.items()}


@pytest.mark.release
@pytest.mark.parametrize("network", [*FAMILIES, *captions.FAMILIES])
def test_trained_networks_have_their_default_layer_and_rules(network: str, tmp_path: Path) -> None:
    rows = [row for row in evidence.read("trained") if row["network"] == network]
    assert rows
    task = TASKS.get(rows[0]["task"], captions.TASK)
    torch.manual_seed(0)
    if network in FAMILIES:
        save(FAMILIES[network].build(task.num_classes), tmp_path / f"{task.name}-{network}.pt", rounds=1)
        found = classifier(network, task, tmp_path, rounds=0)
    else:
        save(captions.build(network), tmp_path / f"{task.name}-{network}.pt")
        found = two_towers(network, tmp_path)
    assert {row["layer"] for row in rows if row["default"] == "True"} == {found.default}
    assert {row["layer"] for row in rows} == {"input", *found.layers, found.default}
    layers = [*{row["layer"] for row in rows}]
    results = ebcli.excitation_backprop(found.net, torch.rand(1, 3, SIDE, SIDE), 0, [*map(at, layers)])
    check_rules(rows, dict(zip(layers, map(rule_of, results), strict=True)))


@pytest.mark.parametrize("network", evidence.unique(evidence.read("dense"), "network"))
def test_dense_maps_are_those_of_the_command(network: str) -> None:
    rows = [row for row in evidence.read("dense") if row["network"] == network]
    task = task_of(network)
    assert {row["task"] for row in rows} == {task}
    assert {row["layer"] for row in rows if row["default"] == "True"} == {DEFAULT[network]}
    assert {row["layer"] for row in rows} <= {"input", *LAYERS[network]}
    layers = evidence.unique(rows, "layer")
    if network in SEGMENTATION:
        assert REGISTRY[task].joint is None
        torch.manual_seed(0)
        net, everywhere = NETWORKS[network]().eval(), torch.ones(SIDE, SIDE, dtype=torch.bool)
        inputs = torch.rand(1, 3, SIDE, SIDE)
        results = ebcli.excitation_backprop(net, inputs, 1, [*map(at, layers)], where=everywhere)
        check_rules(rows, dict(zip(layers, map(rule_of, results), strict=True)))
    else:
        assert REGISTRY[task].joint
        assert {row["rule"] for row in rows if row["method"] == "contrastive"} == {JOINT}


def test_maps_of_words_are_those_of_the_script() -> None:
    rows = evidence.read("sentences")
    names = {"input" if layer is None else layer.removeprefix("net.model.") for layer in sentence_maps.LAYERS}
    assert {row["layer"] for row in rows} == names
    assert {row["layer"] for row in rows if row["default"] == "True"} == {sentence_maps.DEFAULT}
    check_rules(rows, dict.fromkeys(names, JOINT))


def check_rules(rows: list[evidence.Row], decided: dict[str, str]) -> None:
    for row in rows:
        assert row["rule"] == rule_for(row["method"], decided[row["layer"]]), row


def at(layer: str) -> str | None:
    return None if layer == "input" else layer


@functools.cache
def default_layer(network: str) -> str:
    with torch.device("meta"):  # shapes need no weights
        return ebcli.default_layer(ebcli.load_model(network, weights="none", device="meta"))


def save(net: nn.Module, path: Path, **more: object) -> None:
    """As a network that was trained."""
    torch.save({"state": net.state_dict(), "accuracy": 1.0, **more}, path)
