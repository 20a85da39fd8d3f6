"""A training loop with maps drawn in it is, to the bit, the loop without them; and nothing piles up."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from runs import in_process, number_of_tensors
from torch import nn
from torch.nn import functional as F

import ebcli

PLACES = ("before the forward pass", "before the backward pass", "before the step", "after the step")
Explain = Callable[[nn.Module, torch.Tensor], object]


def network() -> nn.Module:
    """With all that behaves otherwise in training, or keeps something: batch norm, dropout, work in place."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5),
        nn.Conv2d(4, 6, 3),
        nn.Hardswish(inplace=True),
        nn.Flatten(),
        nn.Linear(6 * 4 * 4, 5),
    )


def train(explain: Explain | None, where: str = "", steps: int = 4) -> dict[str, object]:
    """All that a loop leaves, and its losses and gradients on the way."""
    net = network().train()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    data = torch.Generator().manual_seed(1)
    torch.manual_seed(2)
    left: dict[str, object] = {}

    def reached(place: str) -> None:
        if explain is not None and place == where:
            explain(net, images)

    for step in range(steps):
        images, labels = torch.randn(8, 3, 8, 8, generator=data), torch.randint(5, (8,), generator=data)
        reached("before the forward pass")
        optimizer.zero_grad()
        loss = F.cross_entropy(net(images), labels)
        reached("before the backward pass")
        loss.backward()
        reached("before the step")
        left |= {
            f"gradient {step} {name}": p.grad.clone()
            for name, p in net.named_parameters()
            if p.grad is not None
        }
        optimizer.step()
        reached("after the step")
        left[f"loss {step}"] = loss.detach()
    assert all(module.training for module in net.modules())
    moments = {
        f"moment {i} {k}": v for i, state in optimizer.state_dict()["state"].items() for k, v in state.items()
    }
    return {**left, **net.state_dict(), **moments, "random numbers": torch.get_rng_state()}


def marginal_by_hand(net: nn.Module, images: torch.Tensor) -> None:
    """The mode beneath uses the network as it is, so that evaluation mode is the caller's."""
    net.eval()
    x = images.clone().requires_grad_()
    with ebcli.excitation_mode(net):
        logits = net(x)
    torch.autograd.grad(logits, x, F.one_hot(torch.zeros(8, dtype=torch.long), 5).float())
    net.train()


WAYS: dict[str, Explain] = {
    "contrastive": partial(ebcli.excitation_backprop, targets=[[0, 1]] * 8, layer="2", contrastive=True),
    "marginal, at the input": partial(ebcli.excitation_backprop, targets=3),
    "losses": partial(ebcli.excitation_backprop, targets=1, layer=["2", "4"], track_lost_mass=True),
    "by hand": marginal_by_hand,
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("way", WAYS)
def test_training_is_the_same_to_the_bit(way: str, place: str) -> None:
    plain, explained = train(None), train(WAYS[way], place)
    assert plain.keys() == explained.keys()
    assert sum(name.startswith("gradient") for name in plain) == 4 * 8
    for name, value in plain.items():
        assert torch.equal(explained[name], value), name  # type: ignore[arg-type]


def repeat_each_way() -> None:
    for way, explain in WAYS.items():
        net, images = network().train(), torch.randn(8, 3, 8, 8)
        explain(net, images)  # what is cached once for all
        before = number_of_tensors()
        for _ in range(3):
            explain(net, images)
        assert number_of_tensors() == before, way


def test_no_graph_and_no_memory_is_left() -> None:
    in_process(repeat_each_way)


def test_a_result_that_is_kept_holds_no_graph() -> None:
    net, images = network().train(), torch.randn(8, 3, 8, 8)
    result = ebcli.excitation_backprop(net, images, 1, "2", contrastive=True, track_lost_mass=True)
    kept = [result.relevance, result.maps, result.mass, result.logits, *(result.lost_mass or {}).values()]
    assert all(tensor.grad_fn is None and not tensor.requires_grad for tensor in kept)
