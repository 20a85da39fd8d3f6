"""User-defined networks: ``path/to/file.py:factory`` and ``package.module:factory``.

The file or module runs as Python code.
"""

import importlib
import inspect
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from torch.nn import Module

from ebcli.eb.forward import unwrap
from ebcli.errors import ConfigurationError, closest
from ebcli.imports import execute_file, importing_beside
from ebcli.models.keywords import FACTORY
from ebcli.models.sources.answers import AnswerOnly
from ebcli.models.sources.base import ModelSource

_DECLARED = {
    "preprocessing",
    "categories",
    "scores",
    "task",
    "channels",
    "frames",
    "frame_rate",
}  # by networks


class Factory(ModelSource):
    """A function or class that returns a network, optionally with attributes ``preprocessing`` and ``categories``.

    The network can also be a function from images to logits, see `AnswerOnly`.

    It is called with ``num_classes`` if a checkpoint requires that, otherwise without arguments.
    """

    default_weights = FACTORY

    def __init__(self, name: str) -> None:
        super().__init__(name)
        path, _, function = name.rpartition(":")
        self._path: Path | None = None
        if path.endswith(".py"):
            self._path = Path(path)
            if not os.path.isfile(path):
                raise ConfigurationError(f"the file {path} does not exist")
        with self._beside_file():
            module = execute_file(self._path) if self._path else importlib.import_module(path)
        factory = getattr(module, function, None)
        if not callable(factory):
            functions = [key for key, value in vars(module).items() if callable(value)]
            names = [key for key in functions if not key.startswith("_")]
            hint = closest(function, names) or "name a function or class that returns a network"
            raise ConfigurationError(f"{path} has no factory {function!r}: {hint}")
        self._make = factory
        self._file = getattr(module, "__file__", None)

    def build(self, num_classes: int | None = None) -> Module:
        if num_classes is not None and "num_classes" not in inspect.signature(self._make).parameters:
            problem = f"has no parameter num_classes, so it cannot be built for {num_classes} classes"
            raise self._error(f"{problem}: add one")
        options = {}
        if num_classes is not None:
            options["num_classes"] = num_classes
        with self._beside_file():
            net = self._make(**options)
        if isinstance(net, Module):
            network: Module = unwrap(net)
            declared = _DECLARED & vars(net).keys()
        elif callable(net):
            network = AnswerOnly(net, self.name)
            declared = {name for name in _DECLARED if hasattr(net, name)}
        else:
            kind = type(net).__name__
            raise self._error(f"returned a {kind}, but a torch.nn.Module or a function of images is needed")
        for name in declared:
            setattr(network, name, getattr(net, name))
        return network

    def files(self, weights: str) -> Sequence[Path]:
        if not self._file:
            return []
        return [Path(self._file)]

    def _beside_file(self) -> AbstractContextManager[None]:
        return nullcontext() if self._path is None else importing_beside(self._path)
