"""The layers whose relevance is asked for: where it arrives, and their outputs."""

from __future__ import annotations

import copy
import dataclasses
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from torch import Tensor, nn

from benchmarks.engine.facts import Facts
from benchmarks.engine.record import Record, Value, aten
from ebcli.errors import LayerError, closest

LayerChoice = str | nn.Module | None


class Capture(ExitStack):
    """Forward hooks that find the values of several layers in the record.

    Numbers are kept from the first layer on: what is recorded before is only asked for facts.
    """

    def __init__(self, net: nn.Module, layers: Sequence[LayerChoice], record: Record) -> None:
        super().__init__()
        self._record = record
        modules = dict(net.named_modules(remove_duplicate=False))
        found = [_find(modules, layer) for layer in layers]
        self.names = [name for name, _ in found]
        self._values: dict[int, Value] = {}
        self._thread = threading.get_ident()
        for i, (_, module) in enumerate(found):
            if module is not None:  # before the network's own hooks, which may keep the output for another layer
                self.callback(module.register_forward_hook(partial(self._output, i), prepend=True).remove)

    def enter(self, inputs: Tensor) -> Tensor:
        """The tensor to call the network with."""
        inputs = inputs.detach().clone()  # which the network may overwrite
        self.source = self._record.start(inputs, Facts())
        self._record.keeps = None in self.names
        for i, name in enumerate(self.names):
            if name is None:
                self._capture(i, inputs)
        return inputs

    def values(self) -> list[Value]:
        """The layers' values, in order. Raises LayerError if one was not called."""
        for i, name in enumerate(self.names):
            if i not in self._values:
                raise LayerError(f"{label_of(name)} was not called during the forward pass")
        return [self._values[i] for i in range(len(self.names))]

    def _capture(self, i: int, tensor: Tensor) -> Tensor:
        label = label_of(self.names[i])
        if i in self._values:
            raise LayerError(
                f"{label} is called more than once during the forward pass: choose a layer that is called once"
            )
        if not tensor.is_floating_point():
            raise LayerError(f"{label} has dtype {tensor.dtype}, but only floating-point tensors have relevance")
        value = self._record.value_of(tensor)
        if not isinstance(value, Value):
            raise LayerError(f"{label} does not depend on the input: choose another layer")
        if value.reads or value in self._values.values():  # what read it before is not behind the layer
            with self._record:
                tensor = aten.alias.default(tensor)
            value = self._record.value_of(tensor)
        self._record.keeps = True
        self._record.keep(value)
        value.facts.is_layer = True
        value.reads += 1  # so that it stays
        self._values[i] = value
        return tensor

    def _output(self, i: int, _module: nn.Module, args: Any, output: Any) -> Any:
        if threading.get_ident() != self._thread:
            return output  # another thread's forward pass
        if isinstance(output, Tensor):
            return self._capture(i, output)
        tensors = [k for k, v in _items(output) if isinstance(v, Tensor) and v.is_floating_point()]
        if len(tensors) != 1:
            raise LayerError(
                f"{label_of(self.names[i])} returns a {type(output).__name__} with {len(tensors)} floating-point "
                "tensors, not a single one: choose a layer inside or after it"
            )
        return _replaced(output, tensors[0], self._capture(i, dict(_items(output))[tensors[0]]))


def label_of(name: str | None) -> str:
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
    if dataclasses.is_dataclass(output) and not isinstance(output, dict):
        return list(vars(output).items())
    if isinstance(output, dict):
        return list(output.items())
    return list(enumerate(output)) if isinstance(output, (list, tuple)) else []


def _replaced(output: Any, key: Any, value: Tensor) -> Any:
    """A copy of a container with one item replaced."""
    if isinstance(output, tuple):
        items = [value if i == key else item for i, item in enumerate(output)]
        return type(output)(*items) if hasattr(output, "_fields") else tuple(items)
    output = copy.copy(output)
    if isinstance(output, (dict, list)):
        output[key] = value
    else:
        object.__setattr__(output, key, value)
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
