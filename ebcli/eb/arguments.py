"""Checks of what excitation_backprop() is given, and of the numbers it computes."""

from typing import Any

import torch
from torch import Tensor, nn

from ebcli.errors import ConfigurationError, NonFiniteError


def check_arguments(net: Any, inputs: Any) -> None:
    """Raises ConfigurationError if `net` is not a network or `inputs` not a tensor of finite numbers."""
    if not isinstance(net, nn.Module):
        raise ConfigurationError(f"the network must be a torch.nn.Module or LoadedModel, not a {type(net).__name__}")
    if not isinstance(inputs, Tensor):
        kind = type(inputs).__name__
        raise ConfigurationError(f"the inputs must be a tensor, not a {kind}: pass model.transforms(image)[None]")
    if not is_finite(inputs):
        raise ConfigurationError("the inputs contain NaN or infinite values")
    if is_subnormal(inputs):
        raise ConfigurationError(f"the inputs are too close to zero for {inputs.dtype}: use torch.float64")


def check_batch(net: nn.Module, inputs: Tensor) -> None:
    """Raises ConfigurationError if inputs have the shape of a single input of the first convolution."""
    first = next((module for module in net.modules() if isinstance(module, nn.modules.conv._ConvNd)), None)
    if first is not None and inputs.ndim == first.weight.ndim - 1 and len(inputs) == first.in_channels:
        raise ConfigurationError(f"inputs {tuple(inputs.shape)} have no batch dimension: add it with inputs[None]")


def check_logits(net: nn.Module, inputs: Tensor, logits: Tensor) -> None:
    """Check that logits are (B, num_classes, ...) and finite."""
    if logits.ndim < 2 or len(logits) != len(inputs):
        check_batch(net, inputs)
    if logits.ndim < 2:
        raise ConfigurationError(f"the network's output must be (B, num_classes, ...), not {tuple(logits.shape)}")
    if not is_finite(logits):
        images = (~logits.isfinite()).flatten(1).any(1).nonzero().flatten().tolist()
        what = f"the network's output contains NaN or infinite values for images {images}"
        raise NonFiniteError(f"{what}: check its weights and dtype")
    if is_subnormal(logits):
        raise NonFiniteError(f"the network's output is too close to zero for {logits.dtype}: use torch.float64")


def check_relevance(relevance: Tensor) -> None:
    """Raises NonFiniteError if relevance is not finite."""
    if not is_finite(relevance):
        raise NonFiniteError(f"the map contains NaN or infinite values in {relevance.dtype}: use torch.float64")


def is_finite(value: Tensor) -> bool:
    """Whether all elements are finite. Tensors on the meta device are."""
    return value.is_meta or bool(value.isfinite().all())


def is_subnormal(value: Tensor) -> bool:
    """Whether an item of a batch has no element with full precision, but is not zero. Items on meta have none."""
    # float16 is rescaled
    if value.is_meta or value.dtype == torch.float16 or not (value.is_floating_point() and value.numel()):
        return False
    largest = value.detach().abs().reshape(*value.shape[:1], -1).amax(-1)
    return bool(((largest > 0) & (largest < torch.finfo(value.dtype).tiny)).any())
