"""Checkpoint files: reading one without running anything in it, and fitting it to a network."""

from __future__ import annotations

import argparse
import pickle
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ebcli.errors import ConfigurationError
from ebcli.imports import import_optional

# Where training scripts keep the weights among optimizer states and the like
WRAPPERS = ("state_dict", "model_state_dict", "model")
# What DataParallel, torch.compile and Lightning put before every name
PREFIXES = ("module.", "_orig_mod.", "model.")
# Inception's auxiliary classifiers act in training only and are not built
AUXILIARY = ("aux1.", "aux2.", "AuxLogits.")

# What torch.load is known to raise for a file that is not a checkpoint, or a damaged one
UNREADABLE = (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, AttributeError)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The state dict in a file of ``torch.save`` or of safetensors, freed of what training scripts wrap it in.

    Only tensors and plain containers are read (``weights_only=True``): a hostile file cannot run code.

    Raises:
        ConfigurationError: the file cannot be read, or holds no state dict.
    """
    try:
        content = _read_safetensors(path) if path.suffix == ".safetensors" else _read_pickle(path)
    except (*UNREADABLE, OSError) as error:
        # torch's own words go on to tell how to execute what is in it
        is_more = str(error).startswith("Weights only load failed")
        reason = "it holds more than tensors and plain containers" if is_more else first_line(error)
        raise ConfigurationError(
            f"checkpoint {path} cannot be read ({reason}): "
            "save the network's state_dict() alone with torch.save, or as safetensors"
        ) from error
    return _unwrap(content, path)


def without_prefixes(state: Mapping[str, Any], own: Collection[str]) -> dict[str, Any]:
    """A state dict without what wrappers put before every name, as far as that makes the names the network's own.

    Args:
        state: names to tensors.
        own: the network's names; that of a network whose only module is called ``model`` rightly begin with it.
    """
    best, candidate = dict(state), dict(state)
    while prefix := next((p for p in PREFIXES if state and all(str(key).startswith(p) for key in candidate)), None):
        candidate = {key[len(prefix) :]: value for key, value in candidate.items()}
        if len(candidate.keys() & own) > len(best.keys() & own):
            best = candidate
    return best


def load_checkpoint(net: nn.Module, state: Mapping[str, Any], source: str) -> None:
    """Fill a network with a state dict, completely.

    Args:
        net: the network, changed in place.
        state: names to tensors; prefixes and the names of older torchvision versions are understood.
        source: what to call the state dict in an error.

    Raises:
        ConfigurationError: keys are missing or unexpected, or a tensor has another shape; all are named.
    """
    own = net.state_dict()
    state = _modernised(without_prefixes(state, own))
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
        refuse_misfits(source, shapes or [first_line(error)])
        raise
    refuse_misfits(source, [], result.missing_keys, result.unexpected_keys)


def refuse_misfits(
    source: str, misshapen: Sequence[str], missing: Sequence[str] = (), unexpected: Sequence[str] = ()
) -> None:
    """Raise ConfigurationError if anything of a state dict does not fit its network.

    Args:
        source: what to call the state dict.
        misshapen: tensors of another shape, in words.
        missing, unexpected: names that only the network has, and that only the state dict has.
    """
    # Counters of batches steer training alone, and old files have none
    missing = [key for key in missing if not key.endswith(".num_batches_tracked")]
    problems = [
        _counted(misshapen, "tensor of another shape", "tensors of another shape"),
        _counted(missing, "missing key", "missing keys"),
        _counted(unexpected, "unexpected key", "unexpected keys"),
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
    if not weighted:
        return None
    weight = without_prefixes(state, net.state_dict()).get(f"{weighted[-1]}.weight")
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
    library = import_optional("safetensors")
    try:
        return import_optional("safetensors.torch").load_file(path)
    except library.SafetensorError as error:
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
    return content


def _modernised(state: Mapping[str, Any]) -> dict[str, Any]:
    # torchvision's published DenseNets still say norm.1 for what is norm1 today
    return {
        re.sub(r"(denselayer\d+)\.(norm|conv)\.(\d)\.", r"\1.\2\3.", key): value
        for key, value in state.items()
        if not key.startswith(AUXILIARY)
    }


def _with_metadata(state: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    dressed = type(own)(state)
    dressed._metadata = own._metadata  # type: ignore[attr-defined]
    return dressed


def _counted(names: Sequence[str], one: str, many: str) -> str:
    if not names:
        return ""
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return f"{len(names)} {one if len(names) == 1 else many} ({shown})"
