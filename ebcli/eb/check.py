"""check_rule(): compares an excitation rule with the definition, as ``gradcheck`` does for gradients."""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.nn import functional as F

from ebcli.eb.mode import RecordingMode, refuse, tensors_in
from ebcli.eb.operations import (
    AnyFunction,
    Args,
    TensorFunction,
    Tensors,
    Value,
    flatten_all,
    quiet,
    same,
    split_like,
)
from ebcli.eb.paths import descend, is_learned, walk, without_rule
from ebcli.eb.products import Signs, ratio
from ebcli.eb.rules.moves import is_floating_constant
from ebcli.eb.rules.rule import BackwardContext
from ebcli.eb.stepwise import Explains, Stepwise, total
from ebcli.eb.tape import Tape
from ebcli.errors import ArgumentError, ConfigurationError, RuleError

_LARGEST = 1000  # elements of the signal
_PLAIN = BackwardContext()
_STEP = 1e-6  # of the finite differences


def _carries_signal(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad and not isinstance(value, Parameter)


@dataclass(frozen=True)
class Trial:
    """An operation and its arguments, of which those that require grad and are no parameters carry the signal.

    Attributes:
        name, fn, arguments: of the operation.
        passes_through, tolerance: as in `check_rule`.
        below, above: other operations on its signals and on its results.
    """

    name: str
    fn: AnyFunction
    arguments: Args
    passes_through: bool
    tolerance: float
    below: TensorFunction = same
    above: TensorFunction = same

    @property
    def signals(self) -> Tensors:
        """Copies of them, which an operation may overwrite."""
        return [a.detach().clone() for a in filter(_carries_signal, self.arguments)]

    def outputs(self, signals: Iterable[Tensor] | None = None) -> Tensors:
        """The floating-point results, perhaps for other signals."""
        if signals is None:
            signals = self.signals
        remaining = map(self.below, signals)

        def argument(a: Any) -> Any:
            if _carries_signal(a):
                return next(remaining)
            if isinstance(a, Tensor):
                return a.detach().clone()
            return a

        results = tensors_in(self.fn(*map(argument, self.arguments)))
        return [self.above(result) for result in filter(torch.is_floating_point, results)]

    def map(self, change: TensorFunction, selects: Callable[[Any], bool] = _carries_signal) -> "Trial":
        """The operation with some arguments changed: the signals, unless told otherwise."""

        def argument(a: Any) -> Any:
            if selects(a):
                return change(a.detach()).requires_grad_(_carries_signal(a))
            return a

        return replace(self, arguments=tuple(map(argument, self.arguments)))

    def to(self, dtype: torch.dtype) -> "Trial":
        """The same in another precision. Only modules are converted, not the tensors a function refers to."""
        fn = self.fn
        if isinstance(fn, Module):
            fn = copy.deepcopy(fn).eval().to(dtype)
        return replace(self, fn=fn).map(lambda a: a.to(dtype).contiguous(), is_floating_constant)


class Definition:
    """Each output's shares for the inputs of a trial, element by element."""

    def __init__(self, trial: Trial) -> None:
        signals = trial.signals
        point = flatten_all(signals)
        diagonal = torch.eye(len(point), dtype=torch.bool, device=point.device)

        def responses(inputs: Tensor) -> Tensor:
            return flatten_all(trial.outputs(split_like(inputs, signals)))

        def responses_at(other: Tensor) -> Tensor:
            """The responses where one input is as in another point: (N, inputs)."""
            return torch.stack([responses(inputs) for inputs in other.where(diagonal, point)], 1)

        self.response = responses(point.clone())  # (N,)
        slope = (responses_at(point + _STEP) - responses_at(point - _STEP)) / (2 * _STEP)
        depends = slope != 0
        is_straight = torch.ones_like(depends)
        # larger steps, to find out whether and how an output depends on an input
        for other in (torch.zeros_like(point), -point, *(point + step for step in (1.3, -2.7, 11.0, -13.0))):
            change = responses_at(other) - self.response[:, None]
            depends |= change != 0
            error = (change - slope * (other - point)).abs()
            is_straight &= change.isfinite() & (error <= 1e-6 * (1 + change.abs()))
        self.contributions = torch.where(depends, slope * point, 0)  # (N, inputs)
        # one input, one output: it gets everything, whatever the slope, unless that is a weight
        is_weight = is_straight & ((slope - 1).abs() > 1e-6)
        self.single = depends & (depends.sum(1, keepdim=True) == 1) & ~is_weight
        if trial.passes_through:
            self.single = _same_place(signals, trial.outputs())

    def shares(self, sign: Tensor) -> Tensor:
        """P(i | n), (N, inputs), for outputs with signs (N,)."""
        excitation = self._excitation(sign)
        by_contribution = ratio(excitation, excitation.sum(1, keepdim=True))
        return torch.where(self.single.any(1, keepdim=True), self.single.to(excitation), by_contribution)

    def well_conditioned(self) -> Tensor:
        """(N,): outputs whose sign and shares are reliable in low precision."""
        minimum = 0.1 * self.contributions.abs().sum(1)
        excitation = self._excitation(self.response.sign()).sum(1)
        return ((self.response.abs() > minimum) & (excitation > minimum)) | self.single.any(1)

    def _excitation(self, sign: Tensor) -> Tensor:
        return (sign[:, None] * self.contributions).clamp(min=0)


def _same_place(signals: Tensors, outputs: Tensors) -> Tensor:
    """Which output is at the place of which input: (N, inputs)."""
    try:
        (signal,), (output,) = signals, outputs
        places = torch.arange(signal.numel()).reshape(signal.shape).broadcast_to(output.shape)
    except (ValueError, RuntimeError) as error:
        ours, theirs = (" and ".join(str(tuple(t.shape)) for t in tensors) for tensors in (signals, outputs))
        raise ConfigurationError(
            f"passes_through needs a signal that broadcasts to the output, but {ours} does not broadcast to {theirs}"
        ) from error
    return F.one_hot(places.flatten(), signal.numel()).bool()


def check_rule(
    fn: AnyFunction,
    inputs: Tensor | Sequence[Any],
    *,
    passes_through: bool = False,
    tolerance: float = 1e-6,
    raise_exception: bool = True,
) -> bool:
    """Compare the excitation rule of an operation with the definition, built from the operation's values alone.

    The Jacobian J at the inputs a, by central differences, gives the contributions z_ni = a_i J_ni. The shares of an
    output n with response y_n are

        P(i | n) = max(s_n z_ni, 0) / sum_k max(s_n z_nk, 0)          (Zhang et al. 2016, Eq. 4)

    where s_n is the sign of y_n or, for a layer with weights as the classifier, +1 for the class and -1 for its dual
    (Eq. 6 to 8). An output that depends on a single input passes everything to it, unless the two are related by a
    weight and a bias. Outputs of exactly 0 are not compared.

    The comparison covers the inputs as given, with some zeros, non-negative, and behind a ReLU; the operation below a
    ReLU and below a batch norm; non-contiguous memory; single and batched targets; and float32, bfloat16 and float16
    where `fn` supports them. Values must be bit-identical with and without the mode.

    Args:
        fn: the operation, which returns a tensor or a tuple of tensors. Modules are put in evaluation mode.
        inputs: its arguments. Tensors that require grad carry the signal and should be small; other floating-point
            tensors are constants. All are converted to float64.
        passes_through: the operation is a norm, an affine scale or a gate, which by convention passes each output's
            probability to the input at the same position, whatever its Jacobian.
        tolerance: the largest difference allowed between shares, in float64.
        raise_exception: raise if the rule is wrong, instead of returning False.

    Returns:
        True if the rule is right.

    Raises:
        RuleError: the rule is wrong; the message names the case, output, input and element, the expected and the
            actual share.
        UnsupportedOpError: an operation in `fn` has no rule.
        ConfigurationError: no input requires grad, or `passes_through` does not fit the shapes.
        ArgumentError: `fn` is not callable, or `inputs` are not arguments.

    Examples:
        >>> import ebcli, torch
        >>> x = torch.randn(2, 3, 5, 5, requires_grad=True)
        >>> ebcli.check_rule(torch.nn.Conv2d(3, 4, 3, stride=2), x)
        True
    """
    if not callable(fn) or not isinstance(inputs, (Tensor, Sequence)):
        raise ArgumentError("check_rule takes an operation and its arguments: a tensor, or a list or tuple")
    name = getattr(fn, "__name__", type(fn).__name__)
    arguments = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    trial = Trial(name, fn, arguments, passes_through, tolerance).to(torch.float64)
    if not trial.signals:
        raise ConfigurationError(
            "no input requires grad: call requires_grad_() on the inputs that carry the signal"
        )
    size = sum(signal.numel() for signal in trial.signals)
    if not 0 < size <= _LARGEST:
        raise ConfigurationError(
            f"the signal has {size} elements, each evaluated several times: use 1 to {_LARGEST}"
        )
    try:
        _check(trial)
    except RuleError:
        if raise_exception:
            raise
        return False
    return True


@torch.no_grad()
def _check(trial: Trial) -> None:
    try:
        trial.outputs()
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise RuleError(
            f"{trial.name} fails with float64 inputs ({reason}): pass constants as inputs"
        ) from error
    definition = _check_with_others(trial, "as given")
    non_contiguous = trial.map(lambda a: a.movedim(-1, 0).contiguous().movedim(0, -1))
    Run(non_contiguous, "with non-contiguous inputs").compare(definition)
    Run(trial, "with one target at a time", one_by_one=True).compare(definition)
    _check_with_others(trial.map(torch.abs), "with non-negative inputs")
    generator = torch.Generator().manual_seed(0)
    some_zero = trial.map(lambda a: a * (torch.rand(a.shape, generator=generator) < 0.6).to(a))
    _check_with_others(some_zero, "with some inputs zero")
    Run(replace(trial, below=F.relu), "behind a ReLU").compare(Definition(trial.map(F.relu)))
    for dtype, tolerance in ((torch.float32, 1e-3), (torch.bfloat16, 5e-2), (torch.float16, 5e-2)):
        low_precision = replace(trial.to(dtype), tolerance=tolerance)
        try:
            low_precision.outputs()
        except RuntimeError:  # the operation does not support this dtype
            continue
        Run(low_precision, f"in {str(dtype).removeprefix('torch.')}").compare(
            Definition(low_precision.to(torch.float64))
        )


def _check_with_others(trial: Trial, title: str) -> Definition:
    """Compare the shares of an operation alone, as the classifier, and with a norm and a ReLU on top."""
    definition = Definition(trial)
    run = Run(trial, title)
    run.compare(definition)
    if any(map(is_learned, run.ops)):
        above = BackwardContext(above_classifier=True)
        run.compare(definition, ", as the classifier", above)
        run.compare(definition, ", contrastive", above, contrastive=True)

    def compare_with(other: TensorFunction, name: str) -> None:
        """With another operation on top, which may turn the signs of responses."""
        turns = flatten_all((other(y + 1) - other(y)).sign() for y in run.outputs)
        run_above = Run(replace(trial, above=other), f"{title}, with a {name}")
        run_above.compare(definition, context=BackwardContext(skips_zeros=True), turns=turns)

    compare_with(F.relu, "ReLU on top")
    if len(run.outputs) == 1 and run.values[0].facts.is_open and run.outputs[0].ndim > 1:
        norm = _batch_norm(run.outputs[0])
        compare_with(norm, "batch norm on top")
        compare_with(lambda y: F.relu(norm(y)), "batch norm on top and a ReLU")
    return definition


class Run:
    """A trial in the mode.

    Args:
        trial: it.
        title: of the trial, for messages.
        one_by_one: the backward passes of the outputs run one by one.

    Attributes:
        outputs: the floating-point results.
        values: what they hold; constants are no values.
        ops: what probability passes from them.

    Raises RuleError if the rule fails, changes the value, cuts the signal or breaks a promise.
    """

    def __init__(self, trial: Trial, title: str, *, one_by_one: bool = False) -> None:
        self._trial = trial
        self._title = title
        self._tape = Tape()
        rule = f"the rule for {trial.name}"
        leaves = trial.signals
        with RecordingMode(self._tape):
            self._starts = [self._tape.start(leaf) for leaf in leaves]
            try:
                self.outputs = trial.outputs(leaves)
            except (TypeError, ValueError, IndexError, RuntimeError) as error:
                reason = " ".join(str(error).split())
                raise RuleError(f"{rule} failed ({title}): {type(error).__name__}: {reason}") from error
            self._results = [self._tape.value_of(output) for output in self.outputs]
        self.values = [value for value in self._results if isinstance(value, Value)]
        plain = trial.outputs()
        if len(plain) != len(self.outputs) or not all(map(_same_bits, plain, self.outputs)):
            raise RuleError(f"{rule} changes the value ({title})")
        if not self.values:
            raise RuleError(f"{rule} cuts the signal: the value does not depend on the inputs ({title})")
        self.ops = descend(self.values)
        refuse(without_rule(self.ops), "error")
        self._in_batches = not one_by_one and all(op.is_native for op in self.ops)
        keeps_zero = len(self.ops) == 1 and getattr(self.ops[0].rule, "keeps_zero", False)
        if keeps_zero and any(map(_has_numbers, trial.outputs(map(torch.zeros_like, leaves)))):
            raise RuleError(f"{rule} sets keeps_zero=True, but zero does not map to zero ({title})")
        if any(value.facts.nonnegative and (value.tensor < 0).any() for value in self.values):
            raise RuleError(f"{rule} sets nonnegative=True, but the value has negative elements ({title})")

    def compare(
        self,
        definition: Definition,
        case: str = "",
        context: BackwardContext = _PLAIN,
        *,
        turns: Signs = 1,
        contrastive: bool = False,
    ) -> None:
        """Raise RuleError where the shares, or those minus the duals', differ from the definition's.

        The results depend on those of the operation with the signs `turns` (N,).
        """
        response = flatten_all(self.outputs)
        explains = (response != 0) & response.isfinite()
        if self._starts[0].dtype != torch.float64:
            explains &= definition.well_conditioned()
        sign = torch.ones_like(response) if context.above_classifier else response.sign() * turns
        wanted_shares = definition.shares(sign)
        if contrastive:
            wanted_shares = wanted_shares - definition.shares(-sign)
            explains &= ~definition.single.any(1)
        shares = self._shares(context, "difference" if contrastive else "target").to(torch.float64)
        error = (shares - wanted_shares).abs()
        wrong = ~(error <= self._trial.tolerance) & explains[:, None]  # true for NaN, too
        if not wrong.any():
            return
        worst = error.nan_to_num(torch.inf).where(wrong, 0).flatten().argmax()
        n, i = divmod(int(worst), wrong.shape[1])
        raise RuleError(
            f"the rule for {self._trial.name} disagrees with the definition ({self._title}{case}):\n"
            f"  output {_position(self.outputs, n)}, value {response[n]:.6g}\n"
            f"  input {_position(self._trial.signals, i)}\n"
            f"  share: {shares[n, i]:.6g}, expected {wanted_shares[n, i]:.6g}\n"
            f"  sum of all shares: {shares[n].sum():.6g}, expected {wanted_shares[n].sum():.6g}\n"
            f"  {wrong.sum()} of {wrong.numel()} shares differ"
        )

    def _shares(self, context: BackwardContext, explains: Explains) -> Tensor:
        """Each output's share for each input: (N, inputs)."""
        propagate = Stepwise([], explains)

        def down(units: Tensor) -> Tensor:
            parts = zip(self._results, split_like(units, self.outputs), strict=True)
            start = {value: [(part, context)] for value, part in parts if isinstance(value, Value)}
            with quiet():
                messages = walk(start, self.ops, propagate, self._starts)
            return flatten_all(total(messages.get(leaf, []), leaf) for leaf in self._starts)

        count = sum(output.numel() for output in self.outputs)
        units = torch.eye(count, dtype=self.outputs[0].dtype)
        if self._in_batches:
            return torch.vmap(down)(units)
        return torch.stack([*map(down, units)])


def _batch_norm(output: Tensor) -> TensorFunction:
    """A batch norm with scales of both signs, and with means that flip some responses."""
    channels = torch.arange(output.shape[1]).to(output)
    gamma = 1.5 - 3 * (channels % 2)
    mean = (channels % 3 - 1) * output.std().nan_to_num(1.0) / 2
    return lambda y: F.batch_norm(y, mean, torch.ones_like(mean), gamma)


def _position(tensors: Tensors, index: int) -> str:
    """``1, element (0, 2)`` for an index into the concatenation of all flattened tensors."""
    elements = (
        (number, element)
        for number, tensor in enumerate(tensors)
        for element in product(*map(range, tensor.shape))
    )
    number, element = next(islice(elements, index, None))
    return f"{number}, element {element}"


def _has_numbers(output: Tensor) -> bool:
    """Whether an element is neither 0 nor NaN."""
    return bool(output.nan_to_num().any())


def _same_bits(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.detach().nan_to_num())
