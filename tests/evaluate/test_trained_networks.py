"""Two trained networks with known places: Excitation Backprop keeps its lead. `benchmarks/trained` has all families.

The weights are those of `python -m benchmarks.trained --task letters`, rounded to 8 bits per output.
"""

from pathlib import Path

import pytest
import torch
from torch import nn

import ebcli
from benchmarks.trained.methods import Maps, excitation, gradients
from benchmarks.trained.networks import FAMILIES
from benchmarks.trained.pictures import SIDE, TASKS, Pictures
from benchmarks.trained.rounded import restored
from benchmarks.trained.scores import score

WEIGHTS = Path(__file__).with_name("weights")
SHARES = {"ViT": 0.85, "DenseNet": 0.97}  # 0.89 and 0.99 of the contrastive map are on the right object


def trained(family: str) -> nn.Module:
    net = FAMILIES[family].build(TASKS["letters"].num_classes)
    net.load_state_dict(restored(torch.load(WEIGHTS / f"{family}.pt", weights_only=True)))
    return net.eval()


@pytest.fixture(scope="module", params=SHARES)
def measured(request: pytest.FixtureRequest) -> tuple[str, Pictures, dict[str, Maps], str]:
    """A family, pictures of two letters each, the maps of all methods, and the default layer."""
    net = trained(request.param)
    pictures = TASKS["letters"].pictures(16, 2, torch.Generator().manual_seed(2))
    with torch.inference_mode():
        single = TASKS["letters"].pictures(64, 1, torch.Generator().manual_seed(1))
        assert (net(single.images).argmax(1) == single.labels[:, 0]).float().mean() > 0.95
    layer = ebcli.default_layer(net, SIDE)
    maps = excitation(net, pictures.images, pictures.labels, [layer])
    grids = {layer: tuple(maps["contrastive"][layer].shape[2:])}
    return request.param, pictures, maps | gradients(net, pictures.images, pictures.labels, grids), layer


@pytest.mark.one_in(2)
def test_the_default_map_is_on_the_right_object(measured: tuple[str, Pictures, dict[str, Maps], str]) -> None:
    family, pictures, maps, layer = measured
    found = {method: score(by_layer[layer], pictures.boxes) for method, by_layer in maps.items()}
    assert found["contrastive"].share > SHARES[family]
    assert found["contrastive"].blank == 0
    for other in ("Grad-CAM", "LayerCAM", "gradient x activation", "marginal"):
        assert found["contrastive"].share > found[other].share, other
    assert found["against the other"].share > found["contrastive"].share - 0.01


@pytest.mark.one_in(2)
def test_the_network_decides_for_the_better_rule(
    measured: tuple[str, Pictures, dict[str, Maps], str],
) -> None:
    family, pictures, maps, layer = measured
    by_rule = {rule: maps[rule][layer] for rule in ("step by step", "joint")}
    chosen = "joint" if family == "ViT" else "step by step"
    torch.testing.assert_close(maps["contrastive"][layer], by_rule[chosen])
    shares = {rule: score(found, pictures.boxes).share for rule, found in by_rule.items()}
    assert shares[chosen] > max(shares.values()) - 0.01


def test_a_late_layer_of_a_class_token_network_has_no_blank_maps() -> None:
    """Before the maps were normalized over the patches, 70% of these were blank."""
    net = trained("ViT")
    pictures = TASKS["letters"].pictures(16, 2, torch.Generator().manual_seed(2))
    late = "encoder.layers.encoder_layer_4"
    for joint in (True, False):
        result = ebcli.excitation_backprop(net, pictures.images, pictures.labels, late, True, joint=joint)
        assert (result.maps.amax((2, 3)) > 0).all()
