"""A recorded forward pass: in evaluation mode, with hooks on the layers whose relevance is asked for."""

import dataclasses
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ebcli.eb.arguments import check_batch, check_logits
from ebcli.eb.mode import Listening, refuse
from ebcli.eb.operations import RECORD, Value
from ebcli.eb.paths import Path, Places
from ebcli.eb.record import Record
from ebcli.errors import LayerError, closest

LayerChoice = str | nn.Module | None


class Capture(ExitStack):
    """Forward hooks that find the values of several layers in the record.

    Numbers are kept from the first layer on: what is recorded before is only asked for facts.
    """

    def __init__(self, net: nn.Module, layers: Sequence[LayerChoice], record: Record) -> None:
        super().__init__()
        self._record, self._values = record, dict[str | None, Value]()
        self.names = [_name_of(layer, net, record) for layer in layers]
        for name in dict.fromkeys(self.names):
            if name is not None:  # before the network's own hooks, which may keep the output for another layer
                hook = net.get_submodule(name).register_forward_hook(partial(self._output, name), prepend=True)
                self.callback(hook.remove)

    def enter(self, inputs: Tensor) -> Tensor:
        """The tensor to call the network with."""
        inputs = inputs.detach().clone()  # which the network may overwrite
        self.source = self._record.start(inputs)
        self._record.keeps = False
        if None in self.names:
            self._capture(None, inputs)
        return inputs

    def values(self) -> list[Value]:
        """The layers' values, in order. Raises LayerError if one was not called."""
        for name in self.names:
            if name not in self._values:
                raise LayerError(f"{label_of(name)} was not called during the forward pass")
        return [self._values[name] for name in self.names]

    def _capture(self, name: str | None, tensor: Tensor) -> None:
        label = label_of(name)
        if name in self._values:
            raise LayerError(f"{label} is called more than once during the forward pass: choose another layer")
        if not tensor.is_floating_point():
            raise LayerError(f"{label} has dtype {tensor.dtype}, but only floating-point tensors have relevance")
        value = self._record.value_of(tensor)
        if not isinstance(value, Value):
            raise LayerError(f"{label} does not depend on the input: choose another layer")
        if value.reads:  # what read it before is not behind the layer
            value = self._record.copied(tensor, value)
        self._record.keeps = value.facts.is_layer = True
        self._record.keep(value)
        value.reads += 1  # so that it stays
        self._values[name] = value

    def _output(self, name: str, _module: nn.Module, _args: Any, output: Any) -> None:
        if RECORD.get() is not self._record:
            return  # another thread's forward pass
        tensors = _tensors_in(output)
        if len(tensors) != 1:
            raise LayerError(
                f"{label_of(name)} returns a {type(output).__name__} with {len(tensors)} floating-point "
                "tensors, not a single one: choose a layer inside or after it"
            )
        self._capture(name, tensors[0])


@dataclasses.dataclass(frozen=True)
class Forward:
    """A recorded forward pass.

    Attributes:
        record: of it.
        logits: the network's output, (B, num_classes, ...).
        output: its value.
        paths: from there to each layer, and the layer's name.
        images: which image each element belongs to.
    """

    record: Record
    logits: Tensor
    output: Value
    paths: dict[Path, str | None]
    images: Places

    @classmethod
    def of(cls, net: nn.Module, inputs: Tensor, layers: Sequence[LayerChoice], *, tracks: bool) -> "Forward":
        """Run the network once. Raises LayerError if the output does not depend on a layer."""
        record = Record(net, names_all=tracks)
        with evaluating(net), Listening(record), Capture(net, layers, record) as capture, torch.enable_grad():
            try:
                result = single_tensor(net(capture.enter(inputs)), "the network's output")
            except (RuntimeError, ValueError, IndexError):
                check_batch(net, inputs)
                raise
            output = record.value_of(result)
        check_logits(net, inputs, result.detach())
        first = min(value.maker.index if value.maker else -1 for value in capture.values())
        # numbers that come back are constants for the record, and their maps would be wrong without a word
        refuse([name for name, at in record.left.items() if at > first], "error")
        if not isinstance(output, Value):
            raise LayerError("the network's output does not depend on its input")
        paths = {Path(output, value): name for value, name in zip(capture.values(), capture.names, strict=True)}
        if output.facts.is_softmax:
            warnings.warn("the network ends in a softmax: the map explains the score before it", stacklevel=3)
        cut = [label_of(name) for path, name in paths.items() if not path.ops and path.layer is not output]
        if cut:
            raise LayerError(f"the output does not depend on {cut[0]}, or only in torch.no_grad(): choose a later one")
        return cls(record, result.detach(), output, paths, Places(capture.source, 0, record.ops))


def label_of(name: str | None) -> str:
    return "the input" if name is None else f"layer {name!r}"


def single_tensor(output: Any, what: str) -> Tensor:
    """The first floating-point tensor in a module's output."""
    tensors = _tensors_in(output)
    if not tensors:
        raise LayerError(f"{what} must contain a floating-point tensor, but it is a {type(output).__name__}")
    return tensors[0]


def _tensors_in(output: Any) -> list[Tensor]:
    """A module's output if that is a tensor; else the floating-point tensors in it."""
    if isinstance(output, Tensor):
        return [output]
    named = output if isinstance(output, dict) else vars(output) if dataclasses.is_dataclass(output) else {}
    items = output if isinstance(output, (list, tuple)) else named.values()
    return [a for a in items if isinstance(a, Tensor) and a.is_floating_point()]


def _name_of(layer: LayerChoice, net: nn.Module, record: Record) -> str | None:
    """A layer's name; None for the input."""
    if isinstance(layer, nn.Module):
        if layer not in record.names:
            raise LayerError(f"this {type(layer).__name__} is not a module of the network")
        return record.names[layer]
    if layer is None:
        return None
    layer = layer.removeprefix("_orig_mod.")  # of a module that torch.compile() compiled
    with suppress(AttributeError):
        if net.get_submodule(layer) is not net:
            return layer
    hint = closest(layer, filter(None, record.names.values())) if layer != "input" else "use layer=None for the input"
    raise LayerError(f"the network has no layer {layer!r}" + (f": {hint}" if hint else ""))


_lock = threading.Lock()
_modes: WeakKeyDictionary[nn.Module, list[bool]] = WeakKeyDictionary()  # of each user, if it found a module training


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """Evaluation mode for every module until the last thread is done, which restores each one's mode.

    What `torch.compile` compiled runs as it is written.
    """
    modules = list(net.modules())
    with _lock:
        for module in modules:
            _modes.setdefault(module, []).append(module.training)
            if module.training:  # setting attributes of modules is slow
                module.training = False
    try:
        with torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext():
            yield
    finally:
        with _lock:
            for module in modules:
                if _modes[module].pop():  # what the first user found is left for the last one
                    module.training = True
