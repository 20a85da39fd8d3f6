"""Devices by name, and what suits them."""

from __future__ import annotations

import os

import torch

# Larger batches take more memory for little more speed: on processors, a tenth at most beyond 8.
_CPU_BATCH, _GPU_BATCH = 8, 32


def device_named(name: str) -> str:
    """A device's name; ``"auto"`` is a GPU if there is one, and of several the one of this process."""
    if name != "auto":
        return name
    if not torch.cuda.is_available():
        return "cpu"
    # torchrun starts a process for each GPU of a machine, and numbers them
    rank = os.environ.get("LOCAL_RANK", "")
    return f"cuda:{int(rank) % torch.cuda.device_count()}" if rank.isdecimal() else "cuda"


def default_batch_size(device: str) -> int:
    """How many images a device gets at a time."""
    return _CPU_BATCH if device.startswith("cpu") else _GPU_BATCH
