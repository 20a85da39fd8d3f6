"""Networks of TorchScript: explained down to the input, and a clear sentence where hooks are needed."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ebcli
from ebcli.errors import LayerError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
SENTENCE = "is run by TorchScript .*, which calls no hooks on layers: use the module that it was made from"


def network() -> nn.Sequential:
    torch.manual_seed(0)
    first = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU())
    return nn.Sequential(first, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)).eval()


def image() -> Tensor:
    return torch.rand(3, 24, 32, generator=torch.Generator().manual_seed(1))


def scripted() -> nn.Module:
    return torch.jit.script(network())


def traced() -> nn.Module:
    return torch.jit.trace(network(), image()[None])


@pytest.mark.parametrize("compiled", [scripted, traced])
def test_a_script_has_the_map_of_its_module_at_the_input(compiled) -> None:
    expected = ebcli.explain(network(), image(), 2, layer="input")
    found = ebcli.explain(compiled(), image(), 2, layer="input")
    np.testing.assert_allclose(found.maps, expected.maps, atol=1e-6)
    assert found.scores == pytest.approx(expected.scores)


@pytest.mark.parametrize("compiled", [scripted, traced])
def test_layers_of_a_script_are_refused_in_a_sentence(compiled) -> None:
    net = compiled()
    with pytest.raises(LayerError, match=f"layer '0.1' {SENTENCE}"):
        ebcli.excitation_backprop(net, image()[None], 2, "0.1")
    with pytest.raises(LayerError, match=f"layer '0.1' {SENTENCE}"):
        ebcli.explain(net, image(), 2, layer="0.1")
    with pytest.raises(LayerError, match=f"every layer of .* {SENTENCE}"):
        ebcli.explain(net, image(), 2)


def test_layers_beside_a_script_can_be_explained() -> None:
    net = network()
    expected = ebcli.excitation_backprop(net, image()[None], 2, "0.1")
    net[3] = torch.jit.script(net[3])
    found = ebcli.excitation_backprop(net, image()[None], 2, "0.1")
    torch.testing.assert_close(found.maps, expected.maps)
    assert ebcli.explain(net, image(), 2, layer="0.1").maps.any()
    with pytest.raises(LayerError, match=f"layer '3' {SENTENCE}"):
        ebcli.excitation_backprop(net, image()[None], 2, "3")
