"""User-defined networks: ``path/to/file.py:factory`` and ``package.module:factory``.

The file or module runs as Python code.
"""

import contextlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from ebcli.errors import ConfigurationError, closest, first_line
from ebcli.models.keywords import DEFAULT, FACTORY
from ebcli.models.sources.base import ModelSource


class Factory(ModelSource):
    """A function or class that returns a network, optionally with attributes ``preprocessing`` and ``categories``.

    It is called with ``num_classes`` if a checkpoint requires that, otherwise without arguments.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        path, _, function = name.rpartition(":")
        self._path = Path(path) if path.endswith(".py") else None
        if self._path is not None and not os.path.isfile(self._path):
            raise ConfigurationError(f"the file {path} does not exist")
        with self._user_code("could not be executed" if self._path else "could not be imported"):
            module = importlib.import_module(path) if self._path is None else _executed(self._path)
        factory = getattr(module, function, None)
        if not callable(factory):
            known = [other for other, value in vars(module).items() if callable(value) and not other.startswith("_")]
            hint = closest(function, known) or "name a function or class that returns a network"
            raise ConfigurationError(f"{path} has no factory {function!r}: {hint}")
        self._make, self._file = factory, getattr(module, "__file__", None)

    def build(self, num_classes: int | None = None) -> nn.Module:
        options: dict[str, Any] = {}
        if num_classes is not None:
            if "num_classes" not in inspect.signature(self._make).parameters:
                raise ConfigurationError(
                    f"{self.name} has no parameter num_classes, so it cannot be built for {num_classes} classes: "
                    "add the parameter, or pass a checkpoint with the same number of classes"
                )
            options["num_classes"] = num_classes
        with self._user_code("failed"):
            net = self._make(**options)
        if not isinstance(net, nn.Module):
            raise ConfigurationError(
                f"{self.name} returned an object of type {type(net).__name__}, but a torch.nn.Module is needed"
            )
        return net

    def published(self, weights: str) -> str | None:
        return FACTORY if weights == DEFAULT else None

    def files(self, weights: str) -> Sequence[Path]:
        return [Path(self._file)] if self._file else []

    @contextlib.contextmanager
    def _user_code(self, what: str) -> Iterator[None]:
        """Run user code: it may import modules next to its file, and any exception becomes a ConfigurationError."""
        before = sys.path.copy()
        if self._path is not None:
            sys.path.insert(0, str(self._path.resolve().parent))
        try:
            yield
        except Exception as error:
            raise ConfigurationError(
                f"{self.name} {what} ({type(error).__name__}: {first_line(error)}; --debug shows the traceback)"
            ) from error
        finally:
            sys.path[:] = before


def _executed(path: Path) -> ModuleType:
    """Import a file as a module, under a name that shadows no other."""
    name = f"_factory_of_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # the suffix is .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look it up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
