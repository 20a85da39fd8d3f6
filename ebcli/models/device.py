"""Devices by name, and the batch size each one gets."""

import os
import re

import torch

from ebcli.errors import ConfigurationError, first_line

# Larger batches take more memory for little more speed: on CPUs, at most a tenth beyond 8.
_CPU_BATCH, _GPU_BATCH = 8, 32


def resolve_device(name: str) -> str:
    """Replace ``"auto"`` by a GPU if there is one, else the CPU; return any other name unchanged.

    With several GPUs, each process that torchrun starts gets its own.
    """
    if name != "auto":
        return name
    if not torch.cuda.is_available():
        return "cpu"
    rank = os.environ.get("LOCAL_RANK", "")  # set by torchrun
    return f"cuda:{int(rank) % torch.cuda.device_count()}" if rank.isdecimal() else "cuda"


def default_batch_size(device: str) -> int:
    """Number of images per batch on a device."""
    return _CPU_BATCH if device.startswith("cpu") else _GPU_BATCH


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory ran out: CPU allocators and some devices raise no class of their own."""
    words = ("out of memory", "not enough memory", "can't allocate")
    return isinstance(error, MemoryError) or any(one in str(error).lower() for one in words)


def checked_device(device: str | torch.device) -> torch.device:
    """A device that is there. Raises ConfigurationError if it is not."""
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise ConfigurationError(f"unknown device {str(device)!r}: use cpu, cuda, cuda:1 or mps") from error
    try:
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, ImportError) as error:  # torch without CUDA asserts
        reason = re.split(r"[.;] ", first_line(error))[0]  # advice and links follow
        raise ConfigurationError(f"device {str(device)!r} is not available: {reason}; use --device cpu") from error
    return found
