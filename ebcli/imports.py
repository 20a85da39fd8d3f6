"""Names imported on first use, plug-ins, and code of users. Imports no torch."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, contextmanager, suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ebcli.errors import DISTRIBUTION, ConfigurationError, EbcliError, in_words

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")

MODELS = "ebcli.models"
RULES = "ebcli.rules"
METHODS = "ebcli.methods"

# Packages, and what they open in the working directory while they are imported. A library of NVIDIA that PyTorch needs
# has an empty entry in its search path, which is the working directory: glibc looks there for the driver, and in these
# directories
_OPENED_BY_IMPORTS = {
    "torch": ("libcuda.so.1", "glibc-hwcaps", "tls", "haswell", "avx512_1", "xeon_phi", "x86_64", "aarch64"),
    "matplotlib": ("matplotlibrc",),
}


def lazily(
    package: str, offers: Mapping[str, str], *extra_names: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__getattr__`` and the ``__dir__`` (PEP 562) of a package that imports its names on first use.

    Also sets its ``__all__``. The names are in the code, as zipped and frozen programs have no stubs to read.

    Args:
        package: its name.
        offers: names, separated by spaces, by the module that they are imported from.
        extra_names: names that it has in another way.
    """
    namespace = vars(sys.modules[package])
    homes: dict[str, str] = {}
    for module, names in offers.items():
        homes |= dict.fromkeys(names.split(), module)
    namespace["__all__"] = sorted({*homes, *extra_names})

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = namespace[name] = getattr(importlib.import_module(homes[name]), name)
        return value

    return get, lambda: sorted({*namespace, *namespace["__all__"]})


def installed_version(name: str = DISTRIBUTION) -> str:
    """The version of a package; ``unknown`` in a zipped or frozen program that has its code alone."""
    # imports all that reads e-mail, which --help can do without
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"


def plugins(group: str) -> list[EntryPoint]:
    """The entry points that installed packages offer in a group, sorted by name; nothing is imported."""
    from importlib.metadata import entry_points

    return sorted(entry_points(group=group), key=lambda point: (point.name, point.value))


def import_elsewhere() -> None:
    """Import from the root directory what would open a file of the working directory, if such a file is there.

    All threads have the same working directory: to be called before there are others.
    """
    for package, names in _OPENED_BY_IMPORTS.items():
        if any(map(os.path.lexists, names)):
            with chdir(Path.cwd().anchor), suppress(ImportError):  # a command may not need it
                importlib.import_module(package)


class _ByThread:
    """Stdout, for which some threads have another file."""

    def __init__(self, stdout: Any) -> None:
        self.local = threading.local()
        self.stdout = stdout
        self.users = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(self.local, "file", self.stdout), name)


_lock = threading.Lock()


@contextmanager
def printing_to(file: Any) -> Iterator[None]:
    """Redirect what this thread prints to stdout; other threads go on printing there."""
    with _lock:
        by_thread = sys.stdout if isinstance(sys.stdout, _ByThread) else _ByThread(sys.stdout)
        sys.stdout = cast(Any, by_thread)
        by_thread.users += 1
    before = getattr(by_thread.local, "file", by_thread.stdout)
    by_thread.local.file = file
    try:
        yield
    finally:
        by_thread.local.file = before
        with _lock:
            by_thread.users -= 1
            if not by_thread.users and sys.stdout is by_thread:
                sys.stdout = by_thread.stdout


@contextmanager
def importing_beside(path: Path) -> Iterator[None]:
    """Let user code import modules next to its file."""
    before = sys.path.copy()
    sys.path.insert(0, str(path.resolve().parent))
    try:
        yield
    finally:
        sys.path[:] = before


class _SourceLoader(SourceFileLoader):
    """Runs the file that was named: Python would prefer a compiled one in ``__pycache__``, which nobody has read."""

    def get_code(self, _fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def execute_file(path: Path) -> ModuleType:
    """Import a file of a user as a module, under a name that shadows no other."""
    name = f"_factory_of_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path, loader=_SourceLoader(name, str(path)))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look it up
    spec.loader.exec_module(module)
    return module


@contextmanager
def guard_user_code(name: str) -> Iterator[None]:
    """Run code of users or plug-ins: redirect its stdout, which is for results only, to stderr, and refuse to exit.

    Args:
        name: what to call the code in messages.

    Raises:
        ConfigurationError: the code called ``sys.exit()``, or raised what no program catches.
    """
    with printing_to(sys.stderr):
        try:
            yield
        except SystemExit as error:
            raise ConfigurationError(f"{name} called sys.exit({error.code!r})") from error
        except (Exception, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise ConfigurationError(f"{name} raised {type(error).__name__}") from error


@contextmanager
def name_in_errors(name: str) -> Iterator[None]:
    """Let any exception of code of users or plug-ins name it.

    Raises:
        ConfigurationError: the code failed.
    """
    try:
        yield
    except (EbcliError, MemoryError):
        raise
    except Exception as error:
        raise ConfigurationError(f"{name} failed ({in_words(error)}; --debug shows the traceback)") from error


def load_plugin(point: EntryPoint, use: Callable[[Any], T] = lambda it: it) -> T | None:
    """Load an entry point and pass it to ``use``; None, with a warning, if either fails."""
    package = point.dist.name if point.dist else point.module
    plugin = f"the plug-in {point.name!r} of the package {package}"
    try:
        with guard_user_code(point.value):
            return use(point.load())
    except KeyboardInterrupt as interrupt:  # by the user, or its own
        raise KeyboardInterrupt(f"while {plugin} was loading") from interrupt
    except Exception as error:  # a plug-in can fail in any way, and must not take anything else with it
        warnings.warn(f"{plugin} is ignored: loading {point.value} failed ({in_words(error)})", stacklevel=2)
        return None


def load_rules() -> None:
    """Import the plug-ins that register excitation rules."""
    for point in plugins(RULES):
        load_plugin(point)
