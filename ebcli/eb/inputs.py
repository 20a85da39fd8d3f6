"""What a network is called with: one tensor, several, or tensors by the names of its arguments."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.nn import Module

from ebcli.eb.arguments import is_finite
from ebcli.eb.operations import Value
from ebcli.eb.tape import Tape
from ebcli.errors import ConfigurationError, LayerError
from ebcli.layouts import OF_INPUT

Inputs = Tensor | Sequence[Tensor] | Mapping[str, Tensor]


def argument_names(net: Any) -> list[str]:
    """The names of the arguments of a network or a function that can be given in order."""
    try:
        parameters = inspect.signature(getattr(net, "forward", net)).parameters.values()
    except (TypeError, ValueError):  # some that are compiled
        return []
    return [
        parameter.name
        for parameter in parameters
        if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    ]


class NetworkInputs:
    """The arguments of a call.

    Those of floating-point numbers are signals, and the others are constants, unless there are no other ones.

    Args:
        inputs: one tensor (B, ...), several, or tensors by name.

    Attributes:
        tensors: by their names, or by their numbers if they have none.
        picture: the name of the first signal that looks like a picture: with the most axes, of which more than four
            count as four.

    Raises:
        ConfigurationError: they are no tensors, are not finite, or there are none.
    """

    def __init__(self, inputs: Any) -> None:
        self._has_names = isinstance(inputs, Mapping)
        if isinstance(inputs, Mapping):
            self.tensors: dict[str, Tensor] = dict(inputs)
        elif isinstance(inputs, (list, tuple)):
            self.tensors = {str(index): tensor for index, tensor in enumerate(inputs)}
        else:
            self.tensors = {"0": inputs}
        for tensor in self.tensors.values():
            if not isinstance(tensor, Tensor):
                kind = type(tensor).__name__
                hint = "pass model.transforms(image)[None], or several tensors"
                raise ConfigurationError(f"the inputs must be tensors, not a {kind}: {hint}")
            if not is_finite(tensor):
                raise ConfigurationError("the inputs contain NaN or infinite values")
        if not self.tensors:
            raise ConfigurationError("no inputs given: pass at least one tensor")
        floating = [name for name, tensor in self.tensors.items() if tensor.is_floating_point()]
        self._signals = floating or [*self.tensors]
        self.picture = max(self._signals, key=lambda name: min(self.tensors[name].ndim, 4))

    @property
    def main(self) -> Tensor:
        """The picture."""
        return self.tensors[self.picture]

    def names_in(self, net: Module) -> list[str]:
        """What a network calls several inputs, in their order."""
        if self._has_names:
            return [*self.tensors]
        return argument_names(net)[: len(self.tensors)]

    def layer_of(self, name: str | None, names: Sequence[str] = ()) -> str | None:
        """The layer that an input is, from what a user calls it: None for the picture.

        Args:
            name: the input's name or number, perhaps behind the prefix; None for the picture.
            names: what the network calls the inputs.

        Raises:
            LayerError: there is no such input, or it is a constant.
        """
        if name is None:
            return None
        key = name.removeprefix(OF_INPUT)
        if key in names and not self._has_names:
            key = str(names.index(key))
        if key not in self._signals:
            problem = f"the network gets no input {key!r}"
            if key in self.tensors:
                problem = f"input {key!r} has whole numbers, which carry no signal"
            raise LayerError(f"{problem}: choose one of {', '.join(self._signals)}")
        if key == self.picture:
            return None
        return OF_INPUT + key

    def start(self, tape: Tape) -> tuple[dict[str | None, Value], dict[str, Tensor]]:
        """Make the inputs signals: the values, by the layers that they are, and the tensors to call a network with."""
        values: dict[str | None, Value] = {}
        tensors = {}
        for name, tensor in self.tensors.items():
            copy = tensor.detach().clone()  # which the network may overwrite
            if name in self._signals:
                values[self.layer_of(OF_INPUT + name)] = tape.start(copy)
            tensors[name] = copy
        return values, tensors

    def call(self, net: Module, tensors: dict[str, Tensor]) -> Any:
        """The network's output for other tensors of the same names."""
        if self._has_names:
            return net(**tensors)
        return net(*tensors.values())
