"""Rules of users: the registry, and what their rules are made of."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ebcli.eb.operations import AnyFunction, Args, Kwargs, Op, TensorFunction, Tensors, quiet
from ebcli.eb.products import LinearMap, vjp
from ebcli.eb.rules import RULES
from ebcli.eb.rules.activations import Activation, Unary
from ebcli.eb.rules.arithmetic import Sum
from ebcli.eb.rules.decompositions import FUNCTIONS
from ebcli.eb.rules.layers import Layer, all_axes
from ebcli.eb.rules.rule import Rule
from ebcli.eb.tape import Tape
from ebcli.eb.torch_private import tree_map
from ebcli.errors import ArgumentError, ConfigurationError, MissingRuleError

FunctionOrName = AnyFunction | str

CUSTOM_RULES: dict[FunctionOrName, AnyFunction] = {}

_RuleT = TypeVar("_RuleT", bound=AnyFunction)


@dataclass(frozen=True)
class Call:
    """A call of a function on the signal's path, as passed to a rule.

    Attributes:
        func: the function called.
        args, kwargs: its arguments.
        tape: of the forward pass.
    """

    func: AnyFunction
    args: Args
    kwargs: Kwargs
    tape: Tape

    def compute(self) -> Any:
        """Call the function itself. Returns the value that the network would get without the mode."""
        with quiet():
            return self.func(*self.args, **self.kwargs)

    def function_of(self, *operands: Tensor) -> AnyFunction:
        """The function of these operands, which are among its arguments or made of them."""

        def repeat(*tensors: Tensor) -> Any:
            copies = (tensor.clone() for tensor in tensors)  # which it may overwrite
            by_id = dict(zip(map(id, operands), copies, strict=True))
            args, kwargs = tree_map(lambda a: by_id.get(id(a), a), (self.args, self.kwargs))
            return self.func(*args, **kwargs)

        return repeat

    def record(self, rule: Rule, *signals: Tensor) -> Any:
        """The value, recorded with a rule."""
        return self.tape.call(name_of(self.func), self.compute, self.function_of(*signals), signals, rule)


@dataclass(eq=False, kw_only=True)
class Affine(Unary):
    """y = M a + c, of any form, which passes probability as a scale does.

    Args:
        apply: a -> M a + c.
    """

    elementwise: int = 0
    apply: TensorFunction

    def slope(self, op: Op, G: Tensor) -> Tensor:
        return vjp(self.apply, op.signal.empty(), G)


def pass_through(
    call: Call,
    signal: Tensor,
    *,
    nonnegative: bool = False,
    keeps_zero: bool = False,
    gate: int | None = None,
    affine: bool | TensorFunction = False,
) -> Tensor:
    """One input, one output: the signal gets all of each neuron's probability.

    Args:
        call: the call to answer.
        signal: the operand that carries the signal. Its shape must broadcast to the value's.
        nonnegative: the value is never negative.
        keeps_zero: zero maps to zero, so inactive neurons stay inactive.
        gate: how clearly the value is meant to be a factor, 0 to 5: in a product, the factor with the lower number is
            the signal. None: as clearly as `signal`.
        affine: the value is the signal times a constant, plus a constant, and no activation; or, if other operands
            of the call are not constant, a function from the signal to the value in which they are.

    Examples:
        >>> import ebcli, torch
        >>> from torch.overrides import wrap_torch_function
        >>> @wrap_torch_function(lambda a: (a,))
        ... def squared(a):
        ...     return a * a
        >>> @ebcli.rule(squared)
        ... def squared_rule(call, a):
        ...     return ebcli.pass_through(call, a, nonnegative=True, keeps_zero=True)
        >>> ebcli.check_rule(squared, torch.randn(2, 3, requires_grad=True))
        True
    """
    promises: Kwargs = {"nonnegative": nonnegative, "keeps_zero": keeps_zero, "gate": gate or 0}
    if affine is False:
        return call.record(Activation(**promises), signal)
    apply = call.function_of(signal) if affine is True else affine
    return call.record(Affine(apply=apply, **promises), signal)


def weighted_sum(call: Call, signal: Tensor, linear: LinearMap) -> Any:
    """A layer y = W a + b: splits probability by the contributions with the sign of the response (Eq. 4, 10).

    Args:
        call: the call to answer.
        signal: a, of any shape.
        linear: W. The bias takes no share, so it is not passed.

    Examples:
        >>> import ebcli, torch
        >>> from torch.nn import functional as F
        >>> from torch.overrides import wrap_torch_function
        >>> @wrap_torch_function(lambda a, weight: (a, weight))
        ... def scores(a, weight):
        ...     return a @ weight.T
        >>> @ebcli.rule(scores)
        ... def scores_rule(call, a, weight):
        ...     return ebcli.weighted_sum(call, a, ebcli.LinearMap(F.linear, weight))
        >>> ebcli.check_rule(scores, (torch.randn(2, 4, requires_grad=True), torch.randn(3, 4)))
        True
    """
    if linear.weight is not None and not isinstance(call.tape.value_of(linear.weight), Tensor):
        return NotImplemented  # the rule is for fixed weights
    is_learned = linear.weight is not None
    layer = Layer(
        linear=lambda _: linear, axes=all_axes, is_learned=is_learned, has_no_negatives=not is_learned
    )
    return call.record(layer, signal)


def residual_sum(call: Call, signals: Tensors, scales: Sequence[float]) -> Tensor:
    """A sum of scaled signals: splits probability by the contributions with the sign of the result.

    Args:
        call: the call to answer.
        signals: the operands that carry the signal; parameters and constants are biases.
        scales: the factor of each signal.

    Raises:
        ValueError: the numbers of signals and scales differ.

    Examples:
        >>> import ebcli, torch
        >>> from torch.overrides import wrap_torch_function
        >>> @wrap_torch_function(lambda a, b: (a, b))
        ... def difference(a, b):
        ...     return a - 2 * b
        >>> @ebcli.rule(difference)
        ... def difference_rule(call, a, b):
        ...     return ebcli.residual_sum(call, (a, b), (1, -2))
        >>> ebcli.check_rule(difference, (torch.randn(5, requires_grad=True), torch.randn(5, requires_grad=True)))
        True
    """
    if len(signals) != len(scales):
        raise ConfigurationError(f"{name_of(call.func)}: got {len(signals)} signals but {len(scales)} scales")
    return call.record(Sum(lambda _: scales), *signals)


def rule(*functions: FunctionOrName) -> Callable[[_RuleT], _RuleT]:
    """Register an excitation rule for functions.

    When an argument carries the signal, the rule is called as ``rule(call, *args, **kwargs)`` with the function's own
    arguments. It returns the function's value, made with `pass_through`, `weighted_sum` or `residual_sum`.

    Args:
        functions: functions of PyTorch, functions wrapped with ``torch.overrides.wrap_torch_function``, or names of
            operators in ``torch.ops``, such as ``"torchvision.roi_align"``.

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
        if function in CUSTOM_RULES:
            raise ConfigurationError(
                f"{name_of(function)} already has the rule {CUSTOM_RULES[function].__name__}"
            )
        if not isinstance(function, str):
            _refuse_if_hidden(function)
        if has_rule(function):
            raise ConfigurationError(f"{name_of(function)} already has the rule for its operations")

    def register(custom: _RuleT) -> _RuleT:
        CUSTOM_RULES.update(dict.fromkeys(functions, custom))
        return custom

    return register


def unregister(*functions: FunctionOrName) -> None:
    """Remove the rules of functions.

    Raises:
        MissingRuleError: a function has no rule that was registered.

    Examples:
        >>> import ebcli, torch
        >>> ebcli.unregister(torch.cumprod)
        Traceback (most recent call last):
        ebcli.errors.MissingRuleError: "there is no rule for 'cumprod'"
    """
    for function in functions:
        if CUSTOM_RULES.pop(function, None) is None:
            raise MissingRuleError(f"there is no rule for {getattr(function, '__name__', function)!r}")


def custom_rule(function: AnyFunction) -> AnyFunction | None:
    """The rule of a user for a function."""
    if not CUSTOM_RULES:
        return None
    operator = str(function).rpartition(".")[0]  # by its name
    return CUSTOM_RULES.get(function) or CUSTOM_RULES.get(operator)


def name_of(func: FunctionOrName) -> str:
    """A function's name in messages."""
    if isinstance(func, str):
        return func.rpartition(".")[2]
    return getattr(func, "__name__", "").partition(".")[0] or repr(func)  # without an operator's overload


def has_rule(function: FunctionOrName) -> bool:
    """Whether it is PyTorch's own, and explained by the operations that it is made of."""
    if inspect.isfunction(function):
        return function.__module__ in (F.__name__, torch.functional.__name__)
    name = (
        function.removeprefix("aten.") if isinstance(function, str) else name_of(function).removesuffix("_")
    )
    return function in FUNCTIONS or name in RULES


def _refuse_if_hidden(function: AnyFunction) -> None:
    """Raise TypeError if function modes do not see calls of a function."""
    if inspect.isclass(function) and issubclass(function, torch.autograd.Function):
        raise ArgumentError(
            f"{function.__name__} is an autograd.Function, and function modes do not see calls of apply(): wrap it, "
            f"op = torch.overrides.wrap_torch_function(lambda *args: args)({function.__name__}.apply), "
            "call op in the network and register op"
        )
    is_native = inspect.isbuiltin(function) and (function.__module__ or "").startswith("torch")
    hands_over = "handle_torch_function" in getattr(getattr(function, "__code__", None), "co_names", ())
    if not (is_native or hands_over or function in torch.overrides.get_testing_overrides()):
        name, wrap = name_of(function), "torch.overrides.wrap_torch_function"
        raise ArgumentError(f"function modes do not see calls of {name}: wrap it with {wrap}")
