"""Random small networks, each with a description of what it does, node by node.

A :class:`Description` is a list of nodes. Each of them says what it is (`kind` and `facts`), which is all that
:mod:`slow_reference` reads, and how the network spells it (`run`): as a function, method or operator, in place or not.
Networks are in float64, made from a seed, and ordinary autograd can go down them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from fuzz_nets import RandomNet
from torch import Tensor, nn

CLASSES = 4


@dataclass(frozen=True)
class Node:
    """One operation.

    Attributes:
        kind: what it is, for the reference.
        inputs: the nodes it reads.
        run: (step, *values) -> value, where `step` holds the tensors among the facts as its attributes.
        facts: numbers, tensors and functions that define it.
    """

    kind: str
    inputs: tuple[int, ...]
    run: Callable[..., Tensor]
    facts: dict[str, Any] = field(default_factory=dict)


class Step(nn.Module):
    """A node as a module, so that it can be a layer to explain."""

    def __init__(self, node: Node, as_parameters: bool) -> None:
        super().__init__()
        self.run = node.run
        for name, fact in node.facts.items():
            if isinstance(fact, nn.Module):
                setattr(self, name, fact)
            elif (
                isinstance(fact, Tensor)
                and fact.is_floating_point()
                and as_parameters
                and name not in ("mean", "var")
            ):
                setattr(self, name, nn.Parameter(fact.clone()))
            elif isinstance(fact, Tensor):
                self.register_buffer(name, fact.clone())

    def forward(self, *values: Tensor) -> Tensor:
        return self.run(self, *values)


class Network(nn.Module):
    """Runs a description; node i > 0 is the module ``steps.i``."""

    def __init__(self, description: Description) -> None:
        super().__init__()
        self.nodes = description.nodes
        choose = random.Random(description.seed)
        self.steps = nn.ModuleList([Step(node, choose.random() < 0.7) for node in self.nodes])

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        for node, step in zip(self.nodes[1:], list(self.steps)[1:], strict=True):
            values.append(step(*(values[i] for i in node.inputs)))
        return values[-1]


class Description(RandomNet):
    """A random network; the last node is the output (B, CLASSES), node 0 the input.

    Args:
        seed: of everything random.
        in_place: whether operations may overwrite what they read.
    """

    def __init__(self, seed: int, *, in_place: bool = True) -> None:
        self.seed, self.in_place = seed, in_place
        self.random, self.generator = random.Random(seed), torch.Generator().manual_seed(seed)
        self.nodes: list[Node] = []
        self.values: list[Tensor] = []
        self.affine: list[
            bool | None
        ] = []  # made by a layer with weights; None: nobody says what folds there
        self.fresh: list[bool] = []  # nothing else reads the memory
        self.inputs = self.sample()
        self._append(Node("input", (), lambda step: step), self.inputs, None, False)
        self.build(CLASSES)

    def add(
        self,
        kind: str,
        inputs: tuple[int, ...],
        run: Callable[..., Tensor],
        *,
        affine: bool | None = False,
        fresh: bool = True,
        **facts: Any,
    ) -> int:
        """Append a node and return its number; `run` may overwrite its first value."""
        node = Node(kind, inputs, run, facts)
        with torch.no_grad():
            value = Step(node, False)(*(self.values[i].clone() for i in inputs))
        assert value.isfinite().all(), f"{kind} of seed {self.seed} is not finite"
        return self._append(node, value.clone(), affine, fresh)

    def _append(self, node: Node, value: Tensor, affine: bool | None, fresh: bool) -> int:
        self.nodes.append(node)
        self.values.append(value)
        self.affine.append(affine)
        self.fresh.append(fresh and self.in_place)
        return len(self.nodes) - 1

    def network(self) -> Network:
        return Network(self).double().eval()

    def __str__(self) -> str:
        return "\n".join(
            f"{i}: {node.kind} of {node.inputs} {tuple(value.shape)}, {', '.join(node.run.__code__.co_names)}"
            for i, (node, value) in enumerate(zip(self.nodes, self.values, strict=True))
        )

    def draw(self, *shape: int) -> Tensor:
        """Random numbers, normally distributed."""
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)


def random_network(seed: int) -> tuple[Description, Network]:
    """A network that ordinary autograd can go down, so not one that overwrites what a gradient needs."""
    description = Description(seed)
    net, x = description.network(), description.inputs.clone().requires_grad_()
    try:
        torch.autograd.grad(net(x).sum(), x)
    except RuntimeError as error:
        if "inplace operation" not in str(error):
            raise
        description = Description(seed, in_place=False)
        net = description.network()
    return description, net
