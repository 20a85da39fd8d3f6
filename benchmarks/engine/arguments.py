"""Checks of what excitation_backprop() is given, and of the numbers it computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ebcli.errors import ConfigurationError, NonFiniteError


def check_arguments(net: Any, inputs: Any) -> None:
    """Raises ConfigurationError if `net` is not a network or `inputs` not a tensor of finite numbers."""
    if not isinstance(net, nn.Module):
        raise ConfigurationError(f"the network must be a torch.nn.Module or LoadedModel, not a {type(net).__name__}")
    if not isinstance(inputs, Tensor):
        raise ConfigurationError(
            f"the inputs must be a tensor (B, ...), not a {type(inputs).__name__}: preprocess images first, as in "
            "model.transforms(image)[None]"
        )
    if inputs.is_floating_point() and not is_finite(inputs):
        raise ConfigurationError("the inputs contain NaN or infinite values")
    if is_subnormal(inputs):
        raise ConfigurationError(f"the inputs are too close to zero for {inputs.dtype}: use torch.float64")


@contextmanager
def batch_checked(net: nn.Module, inputs: Tensor) -> Iterator[None]:
    """A context for the forward pass. Raises ConfigurationError if it fails because inputs are not a batch."""
    try:
        yield
    except (RuntimeError, ValueError, IndexError):
        _check_batch(net, inputs)
        raise


def _check_batch(net: nn.Module, inputs: Tensor) -> None:
    """Raises ConfigurationError if inputs have the shape of a single input of the first convolution."""
    first = next((module for module in net.modules() if isinstance(module, nn.modules.conv._ConvNd)), None)
    if first is not None and inputs.ndim == first.weight.ndim - 1 and len(inputs) == first.in_channels:
        raise ConfigurationError(
            f"inputs of shape {tuple(inputs.shape)} have no batch dimension: add it with inputs[None]"
        )


def check_logits(net: nn.Module, inputs: Tensor, logits: Tensor) -> None:
    """Check that logits are (B, num_classes, ...) and finite."""
    if logits.ndim < 2 or len(logits) != len(inputs):
        _check_batch(net, inputs)
    if logits.ndim < 2:
        raise ConfigurationError(f"the network's output must be (B, num_classes, ...), not {tuple(logits.shape)}")
    if not is_finite(logits):
        images = (~logits.isfinite()).flatten(1).any(1).nonzero().flatten().tolist()
        raise NonFiniteError(
            f"the network's output contains NaN or infinite values for images {images}, in {logits.dtype}: check its "
            "weights, or use a dtype with a larger range"
        )
    if is_subnormal(logits):
        raise NonFiniteError(f"the network's output is too close to zero for {logits.dtype}: use torch.float64")


def check_relevance(relevance: Tensor) -> None:
    """Raises NonFiniteError if relevance is not finite."""
    if not is_finite(relevance):
        raise NonFiniteError(
            f"the map contains NaN or infinite values: activations are too close to zero for {relevance.dtype}, so use "
            "torch.float64"
        )


def is_finite(value: Tensor) -> bool:
    """Whether all elements are finite. Tensors on the meta device are."""
    return value.is_meta or bool(torch.isfinite(value).all())


def is_subnormal(value: Tensor) -> bool:
    """Whether an item of a batch has no element with full precision, but is not zero. Items on meta have none."""
    is_rescaled = value.dtype == torch.float16
    if is_rescaled or value.is_meta or not (value.is_floating_point() and value.numel()):
        return False
    largest = value.detach().abs().reshape(*value.shape[:1], -1).amax(-1)
    return bool(((largest > 0) & (largest < torch.finfo(value.dtype).tiny)).any())
