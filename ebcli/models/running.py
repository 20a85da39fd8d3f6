"""Running a network: on which device, on a blank image to find what it takes and misfits, and with hooks."""

import io
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from copy import copy
from threading import get_ident
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import Module

from ebcli.datatypes.input_spec import InputSpec
from ebcli.eb.forward import evaluating
from ebcli.errors import ConfigurationError, EbcliError, ImageError, first_line, plural
from ebcli.heads import single_tensor
from ebcli.imports import guard_user_code, printing_to
from ebcli.layouts import CONVOLUTIONS, Shape, modules_of

# Larger batches take more memory for little more speed: on CPUs, at most a tenth beyond 8.
_CPU_BATCH = 8
_GPU_BATCH = 32

T = TypeVar("T")
Hook = Callable[..., Any]

# What a network gets, by its axes, and what that consists of
_NOUNS = {"HW": ("image", "an", ""), "THW": ("clip", "a", "frames"), "DHW": ("volume", "a", "slices")}
# What PyTorch, torchvision, timm and Transformers say of a tensor that does not fit; any other error is a defect
_MISFIT = re.compile(r"shape|size|dimension|height|width|channel|\dd\b", re.IGNORECASE)


def resolve_device(name: str) -> str:
    """Replace ``"auto"`` by a GPU if there is one, else the CPU; return any other name unchanged.

    With several GPUs, each process that torchrun starts gets its own.
    """
    if name != "auto":
        return name
    if not torch.cuda.is_available():
        return "cpu"
    rank = os.environ.get("LOCAL_RANK", "")  # set by torchrun
    if not rank.isdecimal():
        return "cuda"
    return f"cuda:{int(rank) % torch.cuda.device_count()}"


def default_batch_size(device: str) -> int:
    """Number of images per batch on a device."""
    return _CPU_BATCH if device.startswith("cpu") else _GPU_BATCH


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory ran out: CPU allocators and some devices raise no class of their own."""
    words = ("out of memory", "not enough memory", "can't allocate")
    return isinstance(error, MemoryError) or any(phrase in str(error).lower() for phrase in words)


def checked_device(device: str | torch.device) -> torch.device:
    """A device that is there. Raises ConfigurationError if it is not."""
    try:
        result = torch.device(device)
    except RuntimeError as error:
        raise ConfigurationError(f"unknown device {str(device)!r}: use cpu, cuda, cuda:1 or mps") from error
    try:
        torch.empty(0, device=result)
    except (RuntimeError, AssertionError, ImportError) as error:  # torch without CUDA asserts
        reason = re.split(r"[.;] ", first_line(error))[0]  # advice and links follow
        problem = f"device {str(device)!r} is not available: {reason}"
        raise ConfigurationError(f"{problem}; use --device cpu") from error
    return result


def shallow_copy(net: Module) -> Module:
    """The network with hooks of its own; layers, parameters and buffers are those of the one that was given."""
    twin: Module = object.__new__(type(net))
    attributes = vars(twin)
    attributes.update(vars(net), training=False)
    for key, value in attributes.items():
        if "hooks" in key:
            attributes[key] = copy(value)
    return twin


class Script(Module):
    """A network of TorchScript as a module that can have hooks, though its layers cannot."""

    def __init__(self, script: Module) -> None:
        super().__init__()
        self.script = script

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.script(*inputs, **named)


def with_hooks(net: Module) -> Module:
    """The network, as one that can have hooks."""
    return Script(net) if isinstance(net, torch.jit.ScriptModule) else net


class ReachedLayer(Exception):  # noqa: N818 - no error
    """What a hook was for was seen, so the rest of the forward pass is not needed."""


@contextmanager
def hook_modules(modules: Iterable[Module], hook: Hook, *, before: bool = False) -> Iterator[None]:
    """Call a hook in this thread's forward passes through some modules.

    Args:
        modules: the modules.
        hook: gets the module, its operands and its output; what it returns replaces the output.
        before: it gets the module and its operands, before it is called.
    """
    thread = get_ident()

    def run_hook(*arguments: Any) -> Any:
        if get_ident() == thread:
            return hook(*arguments)
        return None

    with ExitStack() as hooks:
        for module in modules:
            register = module.register_forward_pre_hook if before else module.register_forward_hook
            with suppress(RuntimeError):  # scripts can have none
                hooks.callback(register(run_hook).remove)
        yield


def blank(net: Module, spec: InputSpec, batch: int = 1) -> Tensor:
    """Black images (batch, C, H, W), clips or volumes on the network's device and in its data type."""
    parameter = next(net.parameters(), torch.empty(0))
    return torch.zeros(batch, spec.channels, *spec.shape, device=parameter.device, dtype=parameter.dtype)


def probe(name: str, net: Module, spec: InputSpec, run: Callable[[Tensor], T], batch: int = 1) -> T:
    """Call ``run`` with blank images (batch, C, H, W) on the network's device and in its data type.

    Args:
        name: the network's name, for messages.
        net: the network.
        spec: what the network gets.
        run: a forward pass, or anything that contains one.
        batch: number of images.

    Raises:
        ConfigurationError: ``run`` failed. Errors of this package are passed on unchanged.
    """
    try:
        images = blank(net, spec, batch)
        with guard_user_code(name):
            return run(images)
    except ImageError as error:  # of no image
        raise ConfigurationError(str(error)) from error
    except EbcliError:
        raise
    except Exception as error:  # user-defined networks can raise anything
        noun, article, parts = _NOUNS[spec.axes]
        *counts, height, width = spec.shape
        size = "".join(f"{count} {parts} of " for count in counts) + f"{height} x {width} pixels"
        if spec.channels != 3:
            size += f" with {plural(spec.channels, 'channel')}"
        reason = f"{type(error).__name__}: {first_line(error)}"
        example = f"{article} {noun} of {size}"
        problem = f"{name} failed on {example} ({reason}; --debug shows the traceback)"
        if is_out_of_memory(error):
            problem = (
                f"there is not enough memory for {name} on {example}: choose a smaller --resize and --crop"
            )
        elif isinstance(error, (RuntimeError, ValueError, AssertionError)) and _MISFIT.search(str(error)):
            problem = f"{name} does not accept {noun}s of {size} ({reason})"
        raise ConfigurationError(problem) from error


def fitting_first_layer(net: Module, spec: InputSpec) -> InputSpec:
    """The preprocessing with as many channels as the first convolution takes, and of volumes if it is 3-D.

    If the network fails before, that is the first one that it defines. Values are then from 0 to 1.
    """
    convolutions = modules_of(net, CONVOLUTIONS)
    if not convolutions:
        return spec
    first = convolutions[0]
    shape = torch.Size()

    def note(module: Any, operands: tuple[Tensor, ...]) -> None:
        nonlocal first, shape
        first = module
        shape = operands[0].shape
        raise ReachedLayer

    # the probe reports what fails, and shows what is printed
    silently = printing_to(io.StringIO())
    hook = hook_modules(convolutions, note, before=True)
    with hook, torch.no_grad(), evaluating(net), suppress(Exception), silently:
        net(blank(net, spec))
        return spec
    if isinstance(first, nn.Conv3d) and spec.axes == "HW":
        spec = spec.of_volumes
    elif shape[1:2] == (first.in_channels,) or (not shape and hasattr(net, "several_inputs")):
        return spec
    return spec.with_channels(first.in_channels)


@contextmanager
def strides_of_cells(net: Module) -> Iterator[dict[Shape, int]]:
    """Find the layers of which a network reads only every second cell, as 1 x 1 convolutions with stride 2 do.

    Yields:
        How many cells apart those are that are read, by the layer's (height, width); filled by forward passes in this
        context.
    """
    strides: dict[Shape, int] = {}

    def note(convolution: nn.Conv2d, operands: tuple[Tensor, ...]) -> None:
        strides[tuple(operands[0].shape[-2:])] = max(convolution.stride)

    convolutions = modules_of(net, nn.Conv2d)
    # a network may have set lists
    sparse = [layer for layer in convolutions if tuple(layer.kernel_size) < tuple(layer.stride)]
    with hook_modules(sparse, note, before=True):
        yield strides


def output_shape(name: str, output: Any, *, is_dense: bool = False) -> Shape:
    """Shape of a network's logits for one image.

    Args:
        name: the network's name, for messages.
        output: what it returned.
        is_dense: allow a prediction for every pixel, (1, num_classes, height, width).

    Raises:
        ConfigurationError: the network does not return logits (B, num_classes).
    """
    logits = single_tensor(output, f"the output of {name}")
    if len(logits) != 1 or logits.ndim not in ((2, 4) if is_dense else (2,)):
        shape = ", ".join(["B", *map(str, logits.shape[1:])])
        problem = f"{name} returns a tensor ({shape}), but logits (B, num_classes) are needed"
        if is_dense and len(logits) == 1 and logits.ndim == 3:
            problem += (
                ": if these are values of pixels (B, H, W), add --scores raw, or scores='raw' in Python"
            )
        raise ConfigurationError(problem)
    return logits.shape
