"""What excitation_backprop() is given: checks of it, and of the numbers it computes, and classes as priors."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn import functional as F

from ebcli.eb.operations import Dims, trailing_axes
from ebcli.errors import ConfigurationError, NonFiniteError
from ebcli.layouts import CONVOLUTIONS

Targets = int | Dims | Sequence[Dims] | Tensor
Where = tuple[int, ...] | Tensor
Against = int | Dims


def priors(targets: Targets, logits: Tensor, where: Where | None = None) -> tuple[Tensor, bool]:
    """Targets as priors (K, *logits.shape), and whether the result has no K axis.

    Args:
        targets: one class for all images, classes (B,) or (B, K), a floating-point prior shaped like the logits, or K
            priors for each image, (B, K, ...).
        logits: (B, num_classes), or (B, num_classes, ...) for dense predictions.
        where: the pixel or the mask of weights, (...) or (B, ...), that the probability of each class starts from;
            None for all pixels.

    Raises:
        ConfigurationError: the targets do not fit the logits, or there are none.
    """
    if not len(logits):
        raise ConfigurationError("the batch is empty")
    try:
        given_targets = torch.as_tensor(targets, device=logits.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigurationError(
            "targets are class indices, the same number for each image, or class weights: use categories.index(name)"
        ) from error
    shape = tuple(given_targets.shape)
    if given_targets.is_floating_point():
        is_single = given_targets.shape == logits.shape
        if not is_single and shape[:1] + shape[2:] != logits.shape:
            raise ConfigurationError(f"the prior has shape {shape}, but the output {tuple(logits.shape)}")
        if where is not None:
            raise ConfigurationError(
                "`where` cannot be combined with a prior, which covers all pixels already"
            )
        priors = given_targets[None] if is_single else given_targets.transpose(0, 1)
        return priors.to(logits.dtype), is_single
    return _one_hot(_classes(given_targets, logits).mT, logits) * _share(where, logits), len(shape) < 2


def _classes(targets: Tensor, logits: Tensor) -> Tensor:
    """Class indices (B, K)."""
    batch = len(logits)
    shape = tuple(targets.shape)
    if targets.dtype == torch.bool:
        raise ConfigurationError(
            "the targets are bool, but class indices are integers and priors are floating-point"
        )
    if len(shape) > 2 or shape[:1] not in ((), (batch,)):
        raise ConfigurationError(
            f"targets of shape {shape} do not fit {batch} images: pass one class, classes ({batch},) or "
            f"({batch}, K), or a prior {tuple(logits.shape)}"
        )
    if not targets.numel():
        raise ConfigurationError("no targets given: pass at least one class for each image")
    classes = targets.long()
    if len(shape) < 2:
        classes = classes.expand(batch)[:, None]
    check_classes(classes.flatten().tolist(), logits.shape[1])
    return classes


def check_classes(classes: Iterable[int], num_classes: int) -> None:
    """Raises ConfigurationError if a class does not exist."""
    for index in classes:
        if not 0 <= index < num_classes:
            raise ConfigurationError(
                f"class {index} does not exist: the network has classes 0 to {num_classes - 1}"
            )


def _one_hot(classes: Tensor, logits: Tensor) -> Tensor:
    """Classes (K, B) as (K, B, num_classes, 1, ...)."""
    return trailing_axes(F.one_hot(classes, logits.shape[1]).to(logits.dtype), logits.ndim + 1)


def _share(where: Where | None, logits: Tensor) -> Tensor:
    """Each pixel's share of the probability, (B or 1, 1, ...), which sums to 1 for each image."""
    pixels = tuple(logits.shape[2:])
    if where is None:
        return logits.new_full((1, 1, *pixels), 1 / logits[0, 0].numel())
    if not pixels:
        raise ConfigurationError(
            "`where` needs dense predictions, but this network makes one prediction per image"
        )
    if isinstance(where, tuple):
        mask = _pixel(where, logits.new_zeros(pixels))
    else:
        mask = torch.as_tensor(where).to(logits)
        shapes = pixels, (len(logits), *pixels)
        if mask.shape not in shapes:
            fitting = " or ".join(map(str, shapes))
            raise ConfigurationError(f"the mask has shape {tuple(mask.shape)}, but it must be {fitting}")
    mask = mask.reshape(-1, 1, *pixels)
    total = mask.sum(tuple(range(1, mask.ndim)), keepdim=True)
    if not (total > 0).all() or (mask < 0).any():
        raise ConfigurationError("the mask must be non-negative, and positive somewhere in each image")
    return mask / total


def _pixel(pixel: tuple[int, ...], mask: Tensor) -> Tensor:
    """A mask of zeros with a 1 at a pixel."""
    if not all(isinstance(index, int) for index in pixel):
        raise ConfigurationError(f"the pixel {pixel} must be integers (row, column)")
    if len(pixel) != mask.ndim or not all(0 <= i < size for i, size in zip(pixel, mask.shape, strict=True)):
        raise ConfigurationError(
            f"the pixel {pixel} is outside the output, {' x '.join(map(str, mask.shape))} pixels"
        )
    mask[pixel] = 1
    return mask


def priors_against(against: Dims, priors: Tensor) -> Tensor:
    """The priors of the classes to contrast with, (N, B, num_classes, ...), on the same pixels as the targets'.

    Args:
        against: their indices.
        priors: (K, B, num_classes, ...), of the targets.

    Raises:
        ConfigurationError: a class does not exist or is a target, or there are none.
    """
    if not against:
        raise ConfigurationError("no class to contrast with: give against at least one class index")
    total = priors.sum(2, keepdim=True)
    for index in against:
        if isinstance(index, bool) or not isinstance(index, int):
            raise ConfigurationError(
                f"against has {index!r}, which is not a class index: use categories.index(name)"
            )
        check_classes([index], priors.shape[2])
        is_target = (priors[:, :, [index]] == total).flatten(2).all(2)
        if not priors.is_meta and bool(is_target.any()):
            raise ConfigurationError(
                f"class {index} is both a target and contrasted with: choose another class"
            )
    if not priors.is_meta and not bool((total == total[:1]).all()):
        raise ConfigurationError(
            "against needs priors on the same pixels: pass those on other pixels one at a time"
        )
    return _one_hot(torch.tensor(against, device=priors.device)[:, None], priors[0]) * total[0]


def check_network(net: Any) -> None:
    """Raises ConfigurationError if `net` is not a network."""
    if not isinstance(net, Module):
        raise ConfigurationError(
            f"the network must be a torch.nn.Module or LoadedModel, not a {type(net).__name__}"
        )


def check_batch(net: Module, inputs: Tensor) -> None:
    """Raises ConfigurationError if inputs have the shape of a single input of the first convolution."""
    first = next((module for module in net.modules() if isinstance(module, CONVOLUTIONS)), None)
    if first is not None and inputs.ndim == first.weight.ndim - 1 and len(inputs) == first.in_channels:
        raise ConfigurationError(
            f"inputs {tuple(inputs.shape)} have no batch dimension: add it with inputs[None]"
        )


def check_logits(net: Module, inputs: Tensor, logits: Tensor) -> None:
    """Check that logits are (B, num_classes, ...) and finite."""
    if logits.ndim < 2 or len(logits) != len(inputs):
        check_batch(net, inputs)
    if logits.ndim < 2:
        raise ConfigurationError(
            f"the network's output must be (B, num_classes, ...), not {tuple(logits.shape)}"
        )
    if not is_finite(logits):
        images = (~logits.isfinite()).flatten(1).any(1).nonzero().flatten().tolist()
        what = f"the network's output contains NaN or infinite values for images {images}"
        raise NonFiniteError(f"{what}: check its weights and dtype")


def check_relevance(relevance: Tensor) -> None:
    """Raises NonFiniteError if relevance is not finite, as where its dtype is too coarse for tiny activations."""
    if not is_finite(relevance):
        raise NonFiniteError(
            f"the map contains NaN or infinite values in {relevance.dtype}: use torch.float64"
        )


def is_finite(value: Tensor) -> bool:
    """Whether all elements are finite. Tensors on the meta device are."""
    return value.is_meta or bool(value.isfinite().all())
