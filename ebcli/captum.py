"""Excitation Backprop as a method of captum, which is needed for this module only."""

from typing import Any

from torch import Tensor
from torch.nn import Module

from ebcli.eb import excitation_backprop
from ebcli.errors import import_optional
from ebcli.models.sources.in_memory import FunctionOfTensor


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


class ExcitationBackprop(import_optional("captum.attr", "captum").LayerAttribution):  # type: ignore[misc]
    """Excitation Backprop with captum's interface, so that its NoiseTunnel, infidelity and sensitivity run on it.

    Args:
        forward_func: a network, or a function from inputs (B, ...) to logits (B, num_classes).
        layer: a module of the network; None for the input, which needs a network.
        contrastive: subtract the map of the target's dual.
    """

    def __init__(self, forward_func: Any, layer: Module | None = None, *, contrastive: bool = True) -> None:
        super().__init__(forward_func, layer)
        self.contrastive = contrastive

    @import_optional("captum.log", "captum").log_usage()  # type: ignore[untyped-decorator]  # NoiseTunnel unwraps it
    def attribute(
        self, inputs: Tensor | tuple[Tensor], target: Any = None, additional_forward_args: Any = None
    ) -> Tensor | tuple[Tensor]:
        """The relevance of each element of the layer's output, shaped like it; of a tuple, a tuple.

        Args:
            inputs: (B, ...), or a tuple of that.
            target: the class of all inputs, or the classes (B,); for outputs (B, num_classes, ...) a tuple of the class
                and a place. None for networks with a single output.
            additional_forward_args: what `forward_func` gets behind the inputs.

        Raises:
            LayerError, UnsupportedOpError, ConfigurationError: see `excitation_backprop`.
        """
        tensor, *_ = _as_tuple(inputs)
        extras = _as_tuple(additional_forward_args)
        if extras == (None,):
            extras = ()
        net = function = self.forward_func
        if extras or not isinstance(net, Module):
            parts = [part for part in (function, self.layer) if isinstance(part, Module)]
            net = FunctionOfTensor(lambda images: function(images, *extras), parts)
        index, *position = _as_tuple(0 if target is None else target)
        relevance: Tensor = excitation_backprop(
            net, tensor, index, self.layer, contrastive=self.contrastive, where=tuple(position) or None
        ).relevance
        if isinstance(inputs, tuple):
            return (relevance,)
        return relevance
