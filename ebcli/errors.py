"""The exceptions of this package, and what raises them in many places: checks, and packages that are missing.

Each message names what is wrong and says what to do. Exceptions for wrong use are also of the built-in kind, such as
ValueError.
"""

import difflib
import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import Any

DISTRIBUTION = "eb-saliency"
# a requirement, and the extra that has it; `all` has each a second time
_OF_EXTRA = re.compile(r"^([\w.-]+).*;.*\bextra == .(?!all\b)([\w-]+)", re.MULTILINE)


class EbcliError(Exception):
    """The base class of this package's exceptions."""


class ConfigurationError(EbcliError, ValueError):
    """The model, weights, layer, class or an option does not exist or does not fit."""


class UnknownClassError(ConfigurationError):
    """No class has this name.

    Attributes:
        name: the name.
        near: the names that are most like it, best first.
    """

    def __init__(self, name: str, hint: str, near: Iterable[str]) -> None:
        super().__init__(f"unknown class {name!r}: {hint}")
        self.name = name
        self.near = list(near)


class LayerError(ConfigurationError):
    """The layer does not exist, is not called exactly once, or has no map."""


class ArgumentError(ConfigurationError, TypeError):
    """An argument, or the result of a rule, is of the wrong type."""


class MissingRuleError(ConfigurationError, KeyError):
    """There is no such excitation rule."""


class ModeError(EbcliError, RuntimeError):
    """The excitation mode is enabled already, or is not."""


class UnsupportedOpError(EbcliError):
    """Operations between the layer and the output have no excitation rule; the message names all of them."""


class RuleError(EbcliError):
    """An excitation rule violates the definition; the message says where and by how much."""


class NonFiniteError(ConfigurationError):
    """Logits or maps contain NaN or infinite values."""


class ImageError(EbcliError):
    """An image cannot be read or explained; the run continues without it."""


class WorkerError(EbcliError):
    """The worker process died twice on the same image, or timed out; the run continues without that image."""


class OutputError(EbcliError):
    """A result cannot be written, which ends the run."""


class UnfinishedError(EbcliError):
    """A cluster was lost; the same command with ``--skip-existing`` does the rest."""


def first_line(error: BaseException) -> str:
    """First line of an error's message, or its type if the message is empty."""
    line, *_ = str(error).strip().splitlines() or [type(error).__name__]
    return line.rstrip(".:")


def in_words(error: BaseException) -> str:
    """An error's type and message, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def check_value(name: str, value: float | None, is_right: Callable[[float], bool], requirement: str) -> None:
    """Raise ConfigurationError, which says what is needed, if a value is not right; None is."""
    if value is not None and not is_right(value):
        raise ConfigurationError(f"{name} is {value:g}, but it must be {requirement}")


def check_at_least(minimum: float, **options: float | None) -> None:
    """Raise ConfigurationError if one of some options is less, infinite or NaN; None is not."""
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        check_value(option, value, lambda it: minimum <= it < inf, f"at least {minimum:g}")


def plural(count: int, noun: str) -> str:
    """A number and what it counts: ``1 file``, ``2 files``."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun}s"


def sides(shape: Iterable[int]) -> str:
    """Lengths of sides in words: ``640 x 480``."""
    return " x ".join(map(str, shape))


def reason(error: BaseException) -> str:
    """Why something failed, in the words of the system if it has any."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


@contextmanager
def as_output_error(action: str) -> Iterator[None]:
    """Raise OutputError, which says what cannot be done, for any OSError."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot {action}: {reason(error)}") from error


_CLOSE = 0.7  # of 1; below, difflib finds likeness in any two words


def closest(name: str, valid: Iterable[str], count: int = 3) -> str:
    """A hint such as ``did you mean 'vgg16', 'vgg19' or 'vgg11'?``, or ``""`` if no name is really close.

    Names that begin with the given one come first, one of each size: ``efficientnet_b0`` for all up to ``_b7``.
    """
    key = name.casefold()
    by_folded = {candidate.casefold(): candidate for candidate in valid}
    family: dict[str, str] = {}
    for candidate in by_folded:
        if key and candidate.startswith(key):
            family.setdefault(candidate.rstrip("0123456789"), candidate)
    close = difflib.get_close_matches(key, by_folded, n=count, cutoff=_CLOSE)
    return did_you_mean([by_folded[match] for match in dict.fromkeys([*family.values(), *close])][:count])


def did_you_mean(names: Sequence[str]) -> str:
    """A hint that asks for one of some names; empty without names."""
    if not names:
        return ""
    *others, last = map(repr, names)
    if not others:
        return f"did you mean {last}?"
    return f"did you mean {', '.join(others)} or {last}?"


def import_optional(module: str, package: str | None = None) -> Any:
    """Import a module of an optional dependency.

    Args:
        module: the module to import.
        package: the package that provides it on the package index; None if it is named like the module's root.

    Raises:
        ConfigurationError: it is not installed; see ``missing``.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigurationError(missing(package or module.partition(".")[0])) from error


def missing(package: str) -> str:
    """The sentence for a package that is not installed: it names all that is missing of the extra that has it."""
    from importlib.metadata import PackageNotFoundError, distributions, requires

    name = package.replace("_", "-")
    try:
        requirements = "\n".join(requires(DISTRIBUTION) or ()).replace("_", "-")
    except PackageNotFoundError:  # in a zipped or frozen program
        requirements = ""
    extras = dict(_OF_EXTRA.findall(requirements))
    if name not in extras:
        return f"this needs the package {package}: pip install {package}"
    wanted = extras[name]
    present = {distribution.name.replace("_", "-") for distribution in distributions()} - {name}
    names = [package for package, extra in extras.items() if extra == wanted and package not in present]
    noun = "package" if len(names) == 1 else "packages"
    return f"this needs the {noun} {', '.join(names)}: pip install '{DISTRIBUTION}[{wanted}]'"
