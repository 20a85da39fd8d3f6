"""Reading checkpoint files without running code from them, and loading them into networks."""

import argparse
import contextlib
import os
import pickle
import pickletools
import re
import reprlib
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor, nn
from torch.nn import Module

from ebcli.errors import ConfigurationError, first_line, import_optional
from ebcli.files.paths import safe_open

StateDict = dict[str, Any]  # tensors by name, as read
Tensors = dict[str, Tensor]
Keys = Sequence[str]

# Keys under which training scripts store the state dict
WRAPPERS = ("state_dict", "model_state_dict", "model")
# Prefixes that DataParallel, torch.compile and Lightning add to every name
PREFIXES = ("module.", "_orig_mod.", "model.")
# Inception's auxiliary classifiers are used in training only and are not built
AUXILIARY = ("aux1.", "aux2.", "AuxLogits.")

_OF_TENSORS = ("torch", "collections", "argparse")  # modules
_DEEPEST = 10  # wrappers in wrappers; a dictionary may contain itself
_MAX_NAMES, _LONGEST = 3, 100  # how many names a message has, and of how many characters


def read_checkpoint(path: Path) -> StateDict:
    """Read the state dict from a file of ``torch.save`` or safetensors, without the wrappers of training scripts.

    Files are read with ``weights_only=True``: a malicious file cannot run code. Nor can it claim much more memory than
    it has bytes.

    Raises:
        ConfigurationError: the file cannot be read, or contains no state dict.
    """
    try:
        if path.suffix == ".safetensors":
            load_file = import_optional("safetensors.torch").load_file
            safe_open(path).close()  # it is a regular file
            content = load_file(path)
        else:  # torchvision's reference scripts store their parsed arguments beside the weights
            with safe_open(path) as file, torch.serialization.safe_globals([argparse.Namespace]):
                _check_unpacked_size(file)
                content = torch.load(file, map_location="cpu", weights_only=True)
    except ConfigurationError:
        raise
    except OSError as error:
        raise ConfigurationError(f"cannot read checkpoint {path}: {error.strerror or error}") from error
    except Exception as error:  # a damaged pickle is a program for another machine: it raises anything
        reason = "it is damaged, or no checkpoint"
        advice = "copy it again"
        if type(error) is ValueError:
            reason = first_line(error)
        elif "can still be loaded" in str(error):  # and torch goes on to recommend weights_only=False
            reason = "it contains more than tensors and plain containers"
            advice = "save only the state_dict(), with torch.save or as safetensors"
        elif isinstance(error, pickle.UnpicklingError) and _code_in(path):
            reason = f"it contains code, {_code_in(path)}, which is not run"
            advice = "ask whoever made it for the weights alone, as safetensors"
        raise ConfigurationError(f"cannot read checkpoint {path} ({reason}): {advice}") from error
    state = _unwrap(content, path)
    _check_tensors(state, path)
    return state


def without_prefixes(state: StateDict, names: Collection[str]) -> StateDict:
    """Strip wrapper prefixes from the names of a state dict, as long as that makes more of them match the network.

    Args:
        state: tensors by name.
        names: the network's names, which may themselves start with ``model.``.
    """
    best = candidate = dict(state)
    while candidate:
        keys = list(map(str, candidate))
        prefixes = [prefix for prefix in PREFIXES if all(key.startswith(prefix) for key in keys)]
        if not prefixes:
            break
        candidate = {key[len(prefixes[0]) :]: value for key, value in candidate.items()}
        if len(candidate.keys() & names) > len(best.keys() & names):
            best = candidate
    return best


def load_checkpoint(net: Module, state: StateDict, source: str) -> None:
    """Load a state dict into a network; every tensor must match.

    Args:
        net: the network, changed in place.
        state: tensors by name; prefixes and the names of older torchvision versions are accepted.
        source: what to call the state dict in messages.

    Raises:
        ConfigurationError: keys are missing or unexpected, or shapes differ; the message names them.
    """
    network_state: Any = net.state_dict()
    fitting = type(network_state)(_modernize(without_prefixes(state, network_state)))
    fitting._metadata = network_state._metadata  # the version, which MNASNet requires
    try:
        result = net.load_state_dict(fitting, strict=False)
    except (RuntimeError, ValueError) as error:
        misshapen = []
        for key, tensor in network_state.items():
            shape = _shape(fitting.get(key, tensor))
            if shape != _shape(tensor):
                misshapen.append(f"{key[:_LONGEST]} is {shape} instead of {_shape(tensor)}")
        check_match(source, misshapen or [first_line(error)])
        raise
    check_match(source, [], result.missing_keys, result.unexpected_keys)


def _shape(value: Any) -> Any:
    if isinstance(value, Tensor):
        return tuple(value.shape)
    return f"of type {type(value).__name__}"


def check_match(source: str, misshapen: Keys, missing: Keys = (), extra: Keys = ()) -> None:
    """Raise ConfigurationError unless a state dict matches its network.

    Args:
        source: what to call the state dict in messages.
        misshapen: descriptions of tensors with another shape.
        missing, extra: names that only the network, or only the state dict, has.
    """
    # Batch counters matter in training only, and old files lack them
    missing = [key for key in missing if not key.endswith(".num_batches_tracked")]
    kinds = {"tensor{} with another shape": misshapen, "missing key{}": missing, "unexpected key{}": extra}
    problems = _count_names(kinds)
    if problems:
        raise ConfigurationError(f"{source} does not fit the network: {problems}")


def check_finite(net: Module, source: str) -> None:
    """Raise ConfigurationError if a parameter or a running statistic of a network has NaN or infinity.

    Args:
        net: the network.
        source: what to call its weights in messages.
    """
    tensors: Tensors = dict(net.named_parameters())
    tensors |= {name: buffer for name, buffer in net.named_buffers() if ".running_" in f".{name}"}
    broken = []
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not tensor.is_meta and not tensor.isfinite().all():
            broken.append(name)
    problem = _count_names({"tensor{} with NaN or infinity": broken})
    if problem:
        raise ConfigurationError(f"{source} cannot be used: {problem}")


def classes_in(state: StateDict, net: Module, name: str = "") -> int | None:
    """Number of classes of a state dict; None if it has no classifier that fits this network.

    Args:
        state: tensors by name.
        net: a network of the same architecture, with any number of classes.
        name: of the classifier's weight, which has a row for each class; empty for that of the last weighted layer.
    """
    network_state = net.state_dict()
    if not name:
        for layer, module in net.named_modules():
            if isinstance(module, (nn.Linear, nn.Conv2d)):
                name = f"{layer}.weight"
    weight = without_prefixes(state, network_state).get(name)
    if not isinstance(weight, Tensor) or weight.shape[1:] != network_state[name].shape[1:]:
        return None
    if weight.numel() == 0:
        return None
    return len(weight)


def _code_in(path: Path) -> str:
    """The first function or class that a pickle names, besides those of tensors; empty if there is none."""
    with safe_open(path) as file, contextlib.ExitStack() as stack:
        stream: Any = file
        if zipfile.is_zipfile(file):
            archive = stack.enter_context(zipfile.ZipFile(file))
            stream = archive.open(next(name for name in archive.namelist() if name.endswith("data.pkl")))
        stream.seek(0)
        for name in _names_in(stream):
            if name.partition(".")[0] not in _OF_TENSORS:
                return name[:_LONGEST]
    return ""


def _names_in(stream: Any) -> Iterator[str]:
    """The functions and classes that the pickles in a stream look up; nothing is loaded."""
    texts = ["", ""]
    with contextlib.suppress(ValueError, IndexError):  # it is damaged from here on
        while stream.peek(1):
            for operation, argument, _ in pickletools.genops(stream):
                if operation.name in ("GLOBAL", "INST"):
                    yield str(argument).replace(" ", ".")
                elif operation.name == "STACK_GLOBAL":
                    yield ".".join(texts)
                elif isinstance(argument, str):
                    texts = [texts[-1], argument]


def _check_unpacked_size(file: IO[bytes]) -> None:
    """Raise ValueError for a ZIP bomb: torch.save compresses nothing, but torch.load unpacks what is compressed."""
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > 4 * os.fstat(file.fileno()).st_size:
            raise ValueError(f"it unpacks to {size} bytes")
    file.seek(0)


def _check_tensors(state: Mapping[Any, Any], path: Path) -> None:
    """Raise ConfigurationError if a state dict has other keys than text, or tensors that no network can take."""
    max_bytes = path.stat().st_size + (1 << 28)  # an expanded buffer is larger than what the file has of it
    bad_keys = [reprlib.repr(key) for key in state if not isinstance(key, str)]
    special_keys = []
    for key, tensor in state.items():
        if isinstance(tensor, Tensor):
            is_plain = tensor.layout == torch.strided and not (tensor.is_quantized or tensor.is_meta)
            if not is_plain or tensor.is_complex() or tensor.nbytes > max_bytes:
                special_keys.append(str(key))
    kinds = {
        "key{} that must be text": bad_keys,
        "sparse, quantized, complex or expanded tensor{}": special_keys,
    }
    problems = _count_names(kinds)
    if problems:
        raise ConfigurationError(f"checkpoint {path} has {problems}: save only the state_dict()")


def _unwrap(content: Any, path: Path, deepest: int = _DEEPEST) -> StateDict:
    noun = type(content).__name__
    if isinstance(content, dict):
        if any(isinstance(value, Tensor) for value in content.values()):
            return content
        for inner in map(content.get, WRAPPERS):
            if deepest and isinstance(inner, dict):
                return _unwrap(inner, path, deepest - 1)
        if content:
            noun += f" with {_first_names([*map(reprlib.repr, content)])}"
    problem = f"checkpoint {path} contains no state dict but a {noun}"
    raise ConfigurationError(f"{problem}: save only the state_dict()")


def _modernize(state: StateDict) -> StateDict:
    # torchvision's published DenseNet weights still use norm.1 for today's norm1
    return {
        re.sub(r"(denselayer\d+)\.(norm|conv)\.(\d)\.", r"\1.\2\3.", key): value
        for key, value in state.items()
        if not key.startswith(AUXILIARY)
    }


def _count_names(kinds: Mapping[str, Keys]) -> str:
    """The number of names of each kind, and the first ones; ``{}`` in a kind is where the plural's s belongs.

    Empty if there are none.
    """
    counts = []
    for kind, names in kinds.items():
        if names:
            noun = kind.format("s" if len(names) > 1 else "")
            counts.append(f"{len(names)} {noun} ({_first_names(names)})")
    return " and ".join(counts)


def _first_names(names: Keys) -> str:
    short = [name if len(name) <= _LONGEST else f"{name[:_LONGEST]}..." for name in names[:_MAX_NAMES]]
    if len(names) > _MAX_NAMES:
        short.append("...")
    return ", ".join(short)
