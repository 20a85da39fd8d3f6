"""Checkpoint files: reading one without running anything in it, and fitting it to a network."""

from __future__ import annotations

import argparse
import importlib
import pickle
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ebcli.errors import ConfigurationError

# Where training scripts keep the weights among optimizer states and the like
WRAPPERS = ("state_dict", "model_state_dict", "model")
# What DataParallel, torch.compile and Lightning put before every name
PREFIXES = ("module.", "_orig_mod.", "model.")
# Inception's auxiliary classifiers act in training only and are not built
AUXILIARY = ("aux1.", "aux2.", "AuxLogits.")

# What torch.load is known to raise for a file that is not a checkpoint, or a damaged one
UNREADABLE = (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, AttributeError)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The state dict in a file of ``torch.save`` or of safetensors, freed of wrappers and prefixes.

    Only tensors and plain containers are read (``weights_only=True``): a hostile file cannot run code.

    Raises:
        ConfigurationError: the file cannot be read, or holds no state dict.
    """
    try:
        content = _read_safetensors(path) if path.suffix == ".safetensors" else _read_pickle(path)
    except (*UNREADABLE, OSError) as error:
        raise ConfigurationError(
            f"checkpoint {path} cannot be read ({first_line(error)}): "
            "save the network's state_dict() alone with torch.save, or as safetensors"
        ) from error
    return _unwrap(content, path)


def load_checkpoint(net: nn.Module, state: dict[str, Any], source: str) -> None:
    """Fill a network with a state dict, completely.

    Args:
        net: the network, changed in place.
        state: names to tensors; the names of older torchvision versions are brought up to date in place.
        source: what to call the state dict in an error.

    Raises:
        ConfigurationError: keys are missing or unexpected, or a tensor has another shape; all are named.
    """
    _modernise(state)
    own = net.state_dict()
    # A plain dict says nothing about its layout's version; MNASNet insists on one
    if getattr(state, "_metadata", None) is None:
        state = _with_metadata(state, own)
    try:
        result = net.load_state_dict(state, strict=False)
    except (RuntimeError, ValueError) as error:
        shapes = [
            f"{key} is {tuple(state[key].shape)} in place of {tuple(tensor.shape)}"
            for key, tensor in own.items()
            if isinstance(state.get(key), Tensor) and state[key].shape != tensor.shape
        ]
        reason = _counted(shapes, "tensor of another shape", "tensors of another shape") or first_line(error)
        raise ConfigurationError(f"{source} does not fit the network: {reason}") from error
    # Counters of batches steer training alone, and old files have none
    missing = [key for key in result.missing_keys if not key.endswith(".num_batches_tracked")]
    problems = [
        _counted(missing, "missing key", "missing keys"),
        _counted(result.unexpected_keys, "unexpected key", "unexpected keys"),
    ]
    if any(problems):
        raise ConfigurationError(f"{source} does not fit the network: {' and '.join(filter(None, problems))}")


def classes_in(state: Mapping[str, Any], net: nn.Module) -> int | None:
    """How many classes a state dict was trained for, or None where it has no classifier of this network.

    Args:
        state: names to tensors.
        net: a network of the same architecture, with any number of classes.
    """
    weighted = [name for name, module in net.named_modules() if isinstance(module, (nn.Linear, nn.Conv2d))]
    weight = state.get(f"{weighted[-1]}.weight")
    return weight.shape[0] if isinstance(weight, Tensor) else None


def first_line(error: BaseException) -> str:
    """An error's own words, cut to their first line; its type where it has none."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".:") if lines else type(error).__name__


def _read_pickle(path: Path) -> Any:
    # torchvision's reference scripts store their command line beside the weights: a bag of attributes
    with torch.serialization.safe_globals([argparse.Namespace]):
        return torch.load(path, map_location="cpu", weights_only=True)


def _read_safetensors(path: Path) -> Any:
    try:
        safetensors = importlib.import_module("safetensors.torch")
    except ImportError as error:
        raise ConfigurationError(f"{path} takes another package: pip install safetensors") from error
    try:
        return safetensors.load_file(path)
    except importlib.import_module("safetensors").SafetensorError as error:
        raise ValueError(first_line(error)) from error


def _unwrap(content: Any, path: Path) -> dict[str, Any]:
    while isinstance(content, dict) and not any(isinstance(value, Tensor) for value in content.values()):
        inner = next((content[key] for key in WRAPPERS if isinstance(content.get(key), dict)), None)
        if inner is None:
            break
        content = inner
    if not (isinstance(content, dict) and any(isinstance(value, Tensor) for value in content.values())):
        keys = f" with {', '.join(map(repr, content))}" if isinstance(content, dict) and content else ""
        raise ConfigurationError(
            f"checkpoint {path} holds no state dict but a {type(content).__name__}{keys}: "
            "save the network's state_dict() alone"
        )
    while prefix := next((p for p in PREFIXES if all(str(key).startswith(p) for key in content)), None):
        content = {key[len(prefix) :]: value for key, value in content.items()}
    return content


def _modernise(state: dict[str, Any]) -> None:
    for key in list(state):
        # torchvision's published DenseNets still say norm.1 for what is norm1 today
        today = re.sub(r"(denselayer\d+)\.(norm|conv)\.(\d)\.", r"\1.\2\3.", key)
        value = state.pop(key)
        if not key.startswith(AUXILIARY):
            state[today] = value


def _with_metadata(state: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    dressed = type(own)(state)
    dressed._metadata = own._metadata  # type: ignore[attr-defined]
    return dressed


def _counted(names: Iterable[str], one: str, many: str) -> str:
    listed = list(names)
    if not listed:
        return ""
    shown = ", ".join(listed[:3]) + (", ..." if len(listed) > 3 else "")
    return f"{len(listed)} {one if len(listed) == 1 else many} ({shown})"
