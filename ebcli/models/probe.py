"""Trying a network on a blank image, so that misfits are reported before any work starts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ebcli.eb.capture import single_tensor
from ebcli.errors import ConfigurationError, EbcliError
from ebcli.imports import contained
from ebcli.models.checkpoint import first_line
from ebcli.models.device import is_out_of_memory

T = TypeVar("T")

# What PyTorch, torchvision, timm and Transformers say of a tensor that does not fit; any other error is a defect
_MISFIT = re.compile(r"shape|size|dimension|height|width|channel|\dd\b", re.IGNORECASE)


def probe(name: str, net: nn.Module, size: tuple[int, ...], run: Callable[[Tensor], T], batch: int = 1) -> T:
    """Call ``run`` with blank images (batch, 3, *size) on the network's device and in its data type.

    Args:
        name: the network's name, for messages.
        net: the network.
        size: (height, width) in pixels, or (frames, height, width) for a video.
        run: a forward pass, or anything that contains one.
        batch: number of images.

    Raises:
        ConfigurationError: ``run`` failed. Errors of this package are passed on unchanged.
    """
    parameter = next(net.parameters(), torch.empty(0))
    try:
        blank = torch.zeros(batch, 3, *size, device=parameter.device, dtype=parameter.dtype)
        with contained(name):
            return run(blank)
    except EbcliError:
        raise
    except Exception as error:  # user-defined networks can raise anything
        reason, pixels = f"{type(error).__name__}: {first_line(error)}", f"{' x '.join(map(str, size[-2:]))} pixels"
        images, image = f"images of {pixels}", f"an image of {pixels}"
        if len(size) == 3:
            images, image = (f"{what} of {size[0]} frames of {pixels}" for what in ("clips", "a clip"))
        if is_out_of_memory(error):
            raise ConfigurationError(
                f"there is not enough memory for {name} on {image}: choose a smaller --resize and --crop"
            ) from error
        if isinstance(error, (RuntimeError, ValueError, AssertionError)) and _MISFIT.search(str(error)):
            raise ConfigurationError(f"{name} does not accept {images} ({reason})") from error
        raise ConfigurationError(f"{name} failed on {image} ({reason}; --debug shows the traceback)") from error


@contextmanager
def strides_of_cells(net: nn.Module) -> Iterator[dict[tuple[int, ...], int]]:
    """Find the layers of which a network reads only every second cell, as 1 x 1 convolutions with stride 2 do.

    Yields:
        How many cells apart those are that are read, by the layer's (height, width); filled by forward passes in this
        context.
    """
    found: dict[tuple[int, ...], int] = {}

    def note(convolution: nn.Conv2d, operands: tuple[Tensor, ...]) -> None:
        found[tuple(operands[0].shape[-2:])] = max(convolution.stride)

    convolutions = [one for one in net.modules() if isinstance(one, nn.Conv2d) and one.kernel_size < one.stride]
    hooks = [one.register_forward_pre_hook(note) for one in convolutions]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def output_shape(name: str, output: Any, *, is_dense: bool = False) -> tuple[int, ...]:
    """Shape of a network's logits for one image.

    Args:
        name: the network's name, for messages.
        output: what it returned.
        is_dense: allow a prediction for every pixel, (1, num_classes, height, width).

    Raises:
        ConfigurationError: the network does not return logits (B, num_classes).
    """
    logits = single_tensor(output, f"the output of {name}")
    if len(logits) != 1 or not (logits.ndim == 2 or (is_dense and logits.ndim == 4)):
        shape = "(B, " + ", ".join(map(str, logits.shape[1:])) + ")"
        raise ConfigurationError(f"{name} returns a tensor {shape}, but logits (B, num_classes) are needed")
    return tuple(logits.shape)
