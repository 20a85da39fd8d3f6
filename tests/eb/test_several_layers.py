"""Several layers at once: each as it is alone, by one forward pass and one way down."""

from typing import Any

import pytest
import torch
from nets import NETS, unsettle
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ebcli import ConfigurationError, LayerError, excitation_backprop


def all_layers(net: nn.Module, x: torch.Tensor, contrastive: bool) -> dict[str | None, Any]:
    """Each layer's result in a run of its own."""
    found: dict[str | None, Any] = {}
    for name in (None, *(name for name, _ in net.named_modules() if name)):
        try:
            found[name] = excitation_backprop(net, x, [[1, 3]], name, contrastive, track_lost_mass=True)
        except LayerError:  # above the classifier, a gate's, or called twice
            continue
    return found


def assert_equal(results: Any, alone: dict[str | None, Any]) -> None:
    assert len(results) == len(alone) >= 1
    for result, (name, expected) in zip(results, alone.items(), strict=True):
        assert result.layer == expected.layer == name
        for field in ("relevance", "mass", "logits"):
            torch.testing.assert_close(
                getattr(result, field), getattr(expected, field), rtol=1e-9, atol=1e-12
            )
        assert result.logits is results[0].logits
        for site in result.lost_mass.keys() | expected.lost_mass.keys():
            lost, known = (r.lost_mass.get(site, torch.zeros(1, 2).double()) for r in (result, expected))
            torch.testing.assert_close(lost, known, rtol=1e-9, atol=1e-12)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("contrastive", [True, False], ids=["contrastive", "marginal"])
@pytest.mark.parametrize("name", NETS)
def test_each_layer_is_as_it_is_alone(name: str, contrastive: bool) -> None:
    torch.manual_seed(0)
    build, shape, _ = NETS[name]
    net = unsettle(build().double())
    x = torch.randn(1, *shape[1:], dtype=torch.double)
    alone = all_layers(net, x, contrastive)
    assert_equal(excitation_backprop(net, x, [[1, 3]], [*alone], contrastive, track_lost_mass=True), alone)


class Branches(nn.Module):
    """A layer past which probability goes, one that hands on what it gets, and two folds onto one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.one, self.other = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 6, 1), nn.Conv2d(6, 6, 1)
        self.norm, self.same, self.fc = nn.BatchNorm2d(6), nn.Identity(), nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        y = self.norm(x).relu() + self.same(x)
        return self.fc((self.one(y).relu_() + self.other(y)).mean((2, 3)))


@pytest.mark.parametrize("contrastive", [True, False], ids=["contrastive", "marginal"])
def test_what_goes_past_a_layer_is_not_counted_there(contrastive: bool) -> None:
    torch.manual_seed(0)
    net = unsettle(Branches().double())
    x = torch.randn(2, 3, 8, 8, dtype=torch.double)
    names = ["stem", "norm", "same", "one", "other", None]
    arguments = {"contrastive": contrastive, "track_lost_mass": contrastive}
    alone = {name: excitation_backprop(net, x, [[1, 3], [1, 3]], name, **arguments) for name in names}
    together = excitation_backprop(net, x, [[1, 3], [1, 3]], names, **arguments)
    for result, (name, expected) in zip(together, alone.items(), strict=True):
        torch.testing.assert_close(
            result.relevance, expected.relevance, msg=lambda m, name=name: f"{name}: {m}"
        )
        torch.testing.assert_close(result.mass, expected.mass)
    masses = {name: result.mass for name, result in alone.items()}
    assert (masses["one"] < 0.9).any()
    torch.testing.assert_close(masses["one"] + masses["other"], torch.ones(2, 2, dtype=torch.double))


class Counted(nn.Sequential):
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x)


@pytest.mark.parametrize("contrastive", [True, False], ids=["contrastive", "marginal"])
def test_one_forward_pass_and_one_way_down_serve_all(contrastive: bool) -> None:
    torch.manual_seed(0)
    parts = [
        nn.Conv2d(3, 6, 3),
        nn.ReLU(),
        nn.Conv2d(6, 6, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    ]
    net = Counted(*parts, nn.Linear(6, 5))
    with FlopCounterMode(display=False) as alone:
        excitation_backprop(net, torch.rand(2, 3, 8, 8), 1, None, contrastive)
    with FlopCounterMode(display=False) as together:
        results = excitation_backprop(net, torch.rand(2, 3, 8, 8), 1, ["1", "2", "3", None], contrastive)
    assert net.calls == 2
    assert together.get_total_flops() <= alone.get_total_flops()
    assert len(results) == 4


def test_several_layers_come_in_the_order_asked_for_and_one_in_a_list_is_a_tuple() -> None:
    net = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, 5))
    x = torch.rand(2, 3, 8, 8)
    asked: list[Any] = [None, "1", net[0], "1"]
    assert [result.layer for result in excitation_backprop(net, x, 1, asked)] == [None, "1", "0", "1"]
    (only,) = excitation_backprop(net, x, 1, ["1"])
    torch.testing.assert_close(only.relevance, excitation_backprop(net, x, 1, "1").relevance)


@pytest.mark.parametrize(
    ("layer", "message"), [("3", "layer '3' is not below the classifier"), ("9", "no layer '9'")]
)
def test_one_wrong_layer_among_several_is_named(layer: str, message: str) -> None:
    net = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, 5))
    with pytest.raises(LayerError, match=message):
        excitation_backprop(net, torch.rand(2, 3, 8, 8), 1, [None, "1", layer], contrastive=True)


def test_no_layer_and_a_layer_of_the_command_line() -> None:
    net, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(64, 5)), torch.rand(1, 3, 6, 6)
    with pytest.raises(ConfigurationError, match="no layer given"):
        excitation_backprop(net, x, 1, [])
    with pytest.raises(LayerError, match="use layer=None for the input"):
        excitation_backprop(net, x, 1, "input")


class Keeping(nn.Module):
    """Its head reads two layers, one of them as a hook of its own has kept it, as backbones of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 4), nn.Linear(4, 4), nn.Linear(4, 5)
        self.kept: list[torch.Tensor] = []
        self.first.register_forward_hook(lambda _module, _args, output: self.kept.append(output))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept.clear()
        return self.head(self.second(self.first(x).relu()).relu() + self.kept[0].relu())


def test_what_a_hook_of_the_network_keeps_is_the_layer() -> None:
    torch.manual_seed(0)
    net, x = Keeping(), torch.rand(2, 6)
    found = (
        excitation_backprop(net, x, 1, "first", joint=True).mass,
        excitation_backprop(net, x, 1, "first").mass,
    )
    torch.testing.assert_close(found, (torch.ones(2), torch.ones(2)))
