"""The layers whose relevance is asked for: where it arrives, and their outputs."""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ebcli.eb.facts import ValueFacts, amend, carries_signal, facts_of, mark_bypass, note, note_depth, tensors_in
from ebcli.eb.graph import neurons_of
from ebcli.eb.nodes import quiet
from ebcli.eb.primitives import cloned, copied, unchanged
from ebcli.eb.recording import Recording
from ebcli.eb.registry import Call
from ebcli.eb.saved_values import Saved
from ebcli.errors import LayerError, closest

LayerChoice = str | nn.Module | None


@dataclass(frozen=True)
class TargetLayer:
    """A layer to explain, in a forward pass.

    Attributes:
        name: the layer's name; None for the network's input.
        edge: where its relevance arrives.
        shape: its output's.
    """

    name: str | None
    edge: GradientEdge
    shape: torch.Size
    _like: Tensor  # without elements
    _saved: Saved

    @property
    def label(self) -> str:
        """The layer's name in messages."""
        return _label(self.name)

    @property
    def value(self) -> Tensor:
        """Its output, as it was before later operations may have overwritten it."""
        return self._saved.get()

    def zeros(self) -> Tensor:
        """Zeros like its output."""
        return self._like.new_zeros(self.shape)


class Capture(ExitStack):
    """Forward hooks that record where relevance arrives at each of several layers.

    A layer whose output does not depend on another of them starts the signal: its output becomes a leaf of the graph,
    and everything before it runs without autograd.
    """

    def __init__(self, net: nn.Module, layers: Sequence[LayerChoice], recording: Recording) -> None:
        super().__init__()
        self._recording = recording
        modules = dict(net.named_modules(remove_duplicate=False))
        found = [_find(modules, layer) for layer in layers]
        self._names = [name for name, _ in found]
        self._layers: dict[int, TargetLayer] = {}
        self._thread = threading.get_ident()
        for i, (_, module) in enumerate(found):
            if module is not None:  # before the network's own hooks, which may keep the output for another layer
                self.callback(module.register_forward_hook(partial(self._output, i), prepend=True).remove)

    def enter(self, inputs: Tensor) -> Tensor:
        """The tensor to call the network with."""
        inputs = inputs.detach()
        for i, name in enumerate(self._names):
            if name is None:
                inputs = self._captured(i, inputs)
        return inputs if None in self._names else mark_bypass(inputs)

    def layers(self) -> list[TargetLayer]:
        """The layers, in order. Raises LayerError if one was not called."""
        for i, name in enumerate(self._names):
            if i not in self._layers:
                raise LayerError(f"{_label(name)} was not called during the forward pass")
        return [self._layers[i] for i in range(len(self._names))]

    def _captured(self, i: int, value: Tensor, is_operand: bool = False) -> Tensor:
        label = _label(self._names[i])
        if i in self._layers:
            raise LayerError(
                f"{label} is called more than once during the forward pass: choose a layer that is called once"
            )
        if not value.is_floating_point():
            raise LayerError(f"{label} has dtype {value.dtype}, but only floating-point tensors have relevance")
        call = Call(cloned, (value,), {}, label, self._recording)
        with quiet():
            if not carries_signal(value):
                value = _start(call, value)
            elif is_operand or value._is_view() or neurons_of(value.grad_fn) is None:
                value = copied(call, value)  # a node that only this layer's readers pass something to
            amend(value, source=None)  # activations of a function of it pass it, not what it is a function of
            edge, like = get_gradient_edge(value), value.detach().new_empty(0)
            self._layers[i] = TargetLayer(self._names[i], edge, value.shape, like, Saved(value, label))
        return value

    def _output(self, i: int, _module: nn.Module, args: Any, output: Any) -> Any:
        if threading.get_ident() != self._thread:
            return output  # another thread's forward pass

        def captured(value: Tensor) -> Tensor:
            return self._captured(i, value, is_operand=any(value is given for given in tensors_in(args)))

        if isinstance(output, Tensor):
            return captured(output)
        tensors = [k for k, v in _items(output) if isinstance(v, Tensor) and v.is_floating_point()]
        if len(tensors) != 1:
            raise LayerError(
                f"{_label(self._names[i])} returns a {type(output).__name__} with {len(tensors)} floating-point "
                "tensors, not a single one: choose a layer inside or after it"
            )
        return _replaced(output, tensors[0], captured(dict(_items(output))[tensors[0]]))


def _start(call: Call, value: Tensor) -> Tensor:
    """The value as the start of the signal: a copy of a leaf, because leaves must not be modified in place."""
    with torch.enable_grad():  # also where the network turns it off
        start = unchanged(call, value.detach().requires_grad_())
    is_nonnegative = not (value.is_meta or bool((value < 0).any()))
    note(start, ValueFacts(is_nonnegative, facts_of(value).gate))
    return note_depth(start, [value])


def _label(name: str | None) -> str:
    return "the input" if name is None else f"layer {name!r}"


def single_tensor(output: Any, what: str) -> Tensor:
    """The first floating-point tensor in a module's output."""
    if isinstance(output, Tensor):
        return output
    tensors = [item for _, item in _items(output) if isinstance(item, Tensor) and item.is_floating_point()]
    if not tensors:
        raise LayerError(f"{what} must contain a floating-point tensor, but it is a {type(output).__name__}")
    return tensors[0]


def _items(output: Any) -> list[tuple[Any, Any]]:
    if isinstance(output, dict):
        return list(output.items())
    return list(enumerate(output)) if isinstance(output, (list, tuple)) else []


def _replaced(output: Any, key: Any, value: Tensor) -> Any:
    """A copy of a container with one item replaced."""
    if isinstance(output, tuple):
        items = [value if i == key else item for i, item in enumerate(output)]
        return type(output)(*items) if hasattr(output, "_fields") else tuple(items)
    output = copy.copy(output)
    output[key] = value
    return output


def _find(modules: dict[str, nn.Module], layer: LayerChoice) -> tuple[str | None, nn.Module | None]:
    """A layer's name and module, from either."""
    if layer is None:
        return None, None
    if isinstance(layer, nn.Module):
        for name, module in modules.items():
            if module is layer:
                return name, layer
        raise LayerError(f"this {type(layer).__name__} is not a module of the network")
    layer = layer.removeprefix("_orig_mod.")  # of a module that torch.compile() compiled
    if not layer or layer not in modules:
        if layer == "input":
            raise LayerError("the network has no layer 'input': use layer=None for the input")
        hint = closest(layer, filter(None, modules))
        raise LayerError(f"the network has no layer {layer!r}" + (f": {hint}" if hint else ""))
    return layer, modules[layer]
