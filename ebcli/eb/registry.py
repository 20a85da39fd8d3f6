"""The registry of excitation rules."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ebcli.eb.recording import Recording
from ebcli.errors import ArgumentError, ConfigurationError, MissingRuleError

RULES: dict[Callable[..., Any] | str, Callable[..., Any]] = {}
MAKES_GATES: set[Callable[..., Any]] = set()  # functions whose values are meant to be factors

_RuleT = TypeVar("_RuleT", bound=Callable[..., Any])

_NAMESPACES = (torch, Tensor, F, torch.special, torch.linalg, torch._C._nn)


@dataclass(frozen=True)
class Call:
    """A call of a PyTorch function on the signal's path, as passed to a rule.

    Attributes:
        func: the function called.
        args, kwargs: its arguments.
        operation: the function's name and its module's, as in ``"conv2d in features.0"``.
        recording: of the forward pass.
    """

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    operation: str
    recording: Recording

    def compute(self) -> Any:
        """Call the function itself. Returns the value that the network would get without the mode."""
        return self.func(*self.args, **self.kwargs)

    @property
    def is_in_place(self) -> bool:
        """Whether the call may overwrite its first argument."""
        name = name_of(self.func)
        if name.startswith("__"):
            return name == "__setitem__" or (name.startswith("__i") and name not in {"__invert__", "__index__"})
        given = self.kwargs.get("inplace") or any(arg is True for arg in self.args[_inplace_at(self.func)])
        return name.endswith("_") or bool(given)


@functools.lru_cache(maxsize=1024)
def _inplace_at(func: Callable[..., Any]) -> slice:
    """Where the arguments of a function have `inplace`, as F.relu(x, True) does."""
    try:
        names = list(inspect.signature(func).parameters)
    except (TypeError, ValueError):  # PyTorch's own functions have none, but names that end with _
        return slice(0)
    return slice(names.index("inplace"), names.index("inplace") + 1) if "inplace" in names else slice(0)


def name_of(func: Callable[..., Any] | str) -> str:
    """A function's name in messages: ``shape`` rather than ``__get__`` for a property."""
    if isinstance(func, str):
        return func.rpartition(".")[2]
    if isinstance(func, torch._ops.OpOverload):
        func = func.overloadpacket
    name = getattr(func, "__name__", None) or repr(func)
    return getattr(func.__self__, "__name__", name) if name == "__get__" and hasattr(func, "__self__") else name


@functools.lru_cache(maxsize=1024)
def spelled(func: Callable[..., Any]) -> tuple[Callable[..., Any] | str, ...]:
    """A function and, for an operator of ``torch.ops``, its name and the functions of PyTorch with its name."""
    if not isinstance(func, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return (func,)
    namespace, name = str(func).split(".")[:2]  # aten.add.Tensor
    found = [getattr(space, name) for space in _NAMESPACES if namespace == "aten" and hasattr(space, name)]
    # modes see the getter of a property such as mT
    return (func, f"{namespace}.{name}", *(f.__get__ if inspect.isgetsetdescriptor(f) else f for f in found))


def rule_for(func: Callable[..., Any]) -> Callable[..., Any] | None:
    """The rule that answers calls of a function, whatever its spelling."""
    return next((RULES[name] for name in spelled(func) if name in RULES), None)


def overloads(*names: str) -> list[Callable[..., Any]]:
    """Every function of PyTorch with a name: in torch, in F and as a method. ``add`` includes ``add_`` and ``+=``.

    Raises:
        LookupError: PyTorch has no function with that name.
    """
    found: dict[Callable[..., Any], None] = {}
    for name in names:
        variants = (name,) if name.startswith("__") else (name, f"{name}_", f"__{name}__", f"__i{name}__")
        everywhere = [getattr(space, variant, None) for space in _NAMESPACES for variant in variants]
        here = [function for function in everywhere if function is not None and is_visible(function)]
        if not here:
            raise LookupError(f"PyTorch has no function called {name!r}")
        found.update(dict.fromkeys(here))
    return list(found)


def rule(*functions: Callable[..., Any] | str, makes_gates: bool = False) -> Callable[[_RuleT], _RuleT]:
    """Register an excitation rule for functions.

    When an argument carries the signal, the rule is called as ``rule(call, *args, **kwargs)`` with the function's own
    arguments. It returns the function's value, made with `pass_through`, `weighted_sum` or `residual_sum`.

    Args:
        functions: functions of PyTorch, functions wrapped with ``torch.overrides.wrap_torch_function``, or names of
            operators in ``torch.ops``, such as ``"torchvision.roi_align"``.
        makes_gates: the rule's values may be gates.

    Raises:
        ValueError: a function already has a rule.
        TypeError: function modes do not see calls of a function.

    Examples:
        >>> import ebcli, torch
        >>> from torch.overrides import wrap_torch_function
        >>> @wrap_torch_function(lambda a: (a,))
        ... def cube(a):
        ...     return a**3
        >>> @ebcli.rule(cube)
        ... def cube_rule(call, a):
        ...     return ebcli.pass_through(call, a, keeps_zero=True)
        >>> ebcli.check_rule(cube, torch.randn(4, requires_grad=True))
        True
    """
    for function in functions:
        if function in RULES:
            raise ConfigurationError(f"{name_of(function)} already has the rule {RULES[function].__name__}")
        if not isinstance(function, str):
            _refuse_if_hidden(function)
            MAKES_GATES.update([function] if makes_gates else [])

    def register(own: _RuleT) -> _RuleT:
        RULES.update(dict.fromkeys(functions, own))
        return own

    return register


def unregister(*functions: Callable[..., Any] | str) -> None:
    """Remove the rules of functions, which may be PyTorch's own.

    Raises:
        MissingRuleError: a function has no rule.

    Examples:
        >>> import ebcli, torch
        >>> ebcli.unregister(torch.cumprod)
        Traceback (most recent call last):
        ebcli.errors.MissingRuleError: "there is no rule for 'cumprod'"
    """
    for function in functions:
        if function not in RULES:
            raise MissingRuleError(f"there is no rule for {getattr(function, '__name__', function)!r}")
        del RULES[function]


def _refuse_if_hidden(function: Callable[..., Any]) -> None:
    if inspect.isclass(function) and issubclass(function, torch.autograd.Function):
        raise ArgumentError(
            f"{function.__name__} is an autograd.Function, and function modes do not see calls of apply(): wrap it, "
            f"op = torch.overrides.wrap_torch_function(lambda *args: args)({function.__name__}.apply), "
            "call op in the network and register op"
        )
    if not is_visible(function):
        raise ArgumentError(
            f"function modes do not see calls of {name_of(function)}, because it does not call "
            "torch.overrides.handle_torch_function: wrap it with torch.overrides.wrap_torch_function"
        )


def is_visible(function: Any) -> bool:
    """Whether function modes see calls of `function`."""
    if not callable(function) or inspect.isclass(function):
        return False
    native = inspect.isbuiltin(function) and (function.__module__ or "").startswith("torch")
    hands_over = "handle_torch_function" in getattr(getattr(function, "__code__", None), "co_names", ())
    return native or hands_over or function in _overridable()


@functools.cache
def _overridable() -> frozenset[Callable[..., Any]]:
    return frozenset(torch.overrides.get_testing_overrides())
