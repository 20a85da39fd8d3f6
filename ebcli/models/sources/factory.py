"""Networks of the user's own: ``path/to/file.py:factory`` and ``package.module:factory``.

The file or module is executed, as ``python file.py`` would.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from ebcli.errors import ConfigurationError, closest
from ebcli.models.checkpoint import first_line
from ebcli.models.sources.base import ModelSource


class Factory(ModelSource):
    """A function or class that gives a network, which may tell more in ``preprocessing`` and ``categories``.

    It is called with ``num_classes`` where a checkpoint needs that and the factory has such a parameter, else without
    arguments.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        place, _, function = name.rpartition(":")
        self._path = Path(place) if place.endswith(".py") else None
        if self._path is not None and not self._path.is_file():
            raise ConfigurationError(f"there is no file {place}")
        with self._explained("cannot be executed" if self._path else "cannot be imported"):
            module = importlib.import_module(place) if self._path is None else _executed(self._path)
        made_by = getattr(module, function, None)
        if not callable(made_by):
            known = [other for other, value in vars(module).items() if callable(value) and not other.startswith("_")]
            hint = closest(function, known) or "name a function or class that returns the network"
            raise ConfigurationError(f"{place} has no factory {function!r}: {hint}")
        self._make, self._file = made_by, getattr(module, "__file__", None)

    def build(self, num_classes: int | None = None) -> nn.Module:
        options: dict[str, Any] = {}
        if num_classes is not None:
            if "num_classes" not in inspect.signature(self._make).parameters:
                raise ConfigurationError(
                    f"{self.name} has no parameter num_classes, so it cannot be made for {num_classes} classes: "
                    "give it one, or a checkpoint of the classes it has"
                )
            options["num_classes"] = num_classes
        with self._explained("failed"):
            net = self._make(**options)
        if not isinstance(net, nn.Module):
            raise ConfigurationError(
                f"{self.name} returned an object of type {type(net).__name__}, but a torch.nn.Module is needed"
            )
        return net

    def files(self, weights: str) -> Sequence[Path]:
        return [Path(self._file)] if self._file else []

    @contextlib.contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """The user's code at work: it may import what lies beside it, and raise anything."""
        before = sys.path.copy()
        if self._path is not None:
            sys.path.insert(0, str(self._path.resolve().parent))
        try:
            yield
        except Exception as error:
            raise ConfigurationError(
                f"{self.name} {what} ({type(error).__name__}: {first_line(error)}; --debug shows where)"
            ) from error
        finally:
            sys.path[:] = before


def _executed(path: Path) -> ModuleType:
    """The module in a file; under a name that shadows no other."""
    name = f"_factory_of_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # for the suffix is .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look for it there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
