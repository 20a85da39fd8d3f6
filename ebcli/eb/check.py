"""check_rule(): compares an excitation rule with the definition, as ``gradcheck`` does for gradients."""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ebcli.eb.mode import RecordingMode, refuse, tensors_in
from ebcli.eb.operations import Value, quiet
from ebcli.eb.paths import descend, is_learned, walk, without_rule
from ebcli.eb.products import Signs, ratio
from ebcli.eb.rules.rule import BackwardContext
from ebcli.eb.stepwise import Stepwise, total
from ebcli.eb.tape import Tape
from ebcli.errors import ArgumentError, ConfigurationError, RuleError

_LARGEST = 1000  # elements of the signal
_PLAIN = BackwardContext()
_STEP = 1e-6  # of the finite differences


def _is_floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _carries_signal(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad and not isinstance(value, nn.Parameter)


@dataclass(frozen=True)
class Trial:
    """An operation and its arguments, of which those that require grad and are no parameters carry the signal.

    Attributes:
        name, fn, arguments: of the operation.
        passes_through, tolerance: as in `check_rule`.
        below, above: other operations on its signals and on its results.
    """

    name: str
    fn: Callable[..., Any]
    arguments: tuple[Any, ...]
    passes_through: bool
    tolerance: float
    below: Callable[[Tensor], Tensor] = lambda a: a
    above: Callable[[Tensor], Tensor] = lambda a: a

    @property
    def signals(self) -> list[Tensor]:
        return [a.detach() for a in self.arguments if _carries_signal(a)]

    def outputs(self, signals: Iterable[Tensor] | None = None) -> list[Tensor]:
        """The floating-point results, perhaps for other signals, which an operation may overwrite."""
        given = map(self.below, map(torch.clone, self.signals) if signals is None else signals)
        arguments = [
            next(given) if _carries_signal(a) else a.detach().clone() if isinstance(a, Tensor) else a
            for a in self.arguments
        ]
        return [self.above(value) for value in filter(_is_floating, tensors_in(self.fn(*arguments)))]

    def map(self, change: Callable[[Tensor], Tensor], of: Callable[[Any], bool] = _carries_signal) -> "Trial":
        """The operation with some arguments changed: the signals, unless told otherwise."""
        changed = (change(a.detach()).requires_grad_(_carries_signal(a)) if of(a) else a for a in self.arguments)
        return replace(self, arguments=tuple(changed))

    def to(self, dtype: torch.dtype) -> "Trial":
        """The same in another precision. Only modules are converted, not the tensors a function refers to."""
        fn = copy.deepcopy(self.fn).eval().to(dtype) if isinstance(self.fn, nn.Module) else self.fn
        return replace(self, fn=fn).map(lambda a: a.to(dtype).contiguous(), _is_floating)


class Definition:
    """Each output's shares for the inputs of a trial, element by element."""

    def __init__(self, trial: Trial) -> None:
        signals = trial.signals
        here = torch.cat([signal.flatten() for signal in signals])
        alone = torch.eye(len(here), dtype=torch.bool, device=here.device)

        def responses(inputs: Tensor) -> Tensor:
            parts = zip(inputs.split([signal.numel() for signal in signals]), signals, strict=True)
            return torch.cat([y.flatten() for y in trial.outputs(part.view(like.shape) for part, like in parts)])

        def moved(there: Tensor) -> Tensor:
            """The responses where one input is elsewhere: (N, inputs)."""
            return torch.stack([responses(inputs) for inputs in there.where(alone, here)], 1)

        self.response = responses(here.clone())  # (N,)
        slope = (moved(here + _STEP) - moved(here - _STEP)) / (2 * _STEP)
        depends, is_straight = slope != 0, torch.ones_like(slope, dtype=torch.bool)
        # larger steps, to find out whether and how an output depends on an input
        for there in (torch.zeros_like(here), -here, *(here + step for step in (1.3, -2.7, 11.0, -13.0))):
            change = moved(there) - self.response[:, None]
            depends |= change != 0
            error = (change - slope * (there - here)).abs()
            is_straight &= change.isfinite() & (error <= 1e-6 * (1 + change.abs()))
        self.contributions = torch.where(depends, slope * here, 0)  # (N, inputs)
        # one input, one output: it gets everything, whatever the slope, unless that is a weight
        is_weight = is_straight & ((slope - 1).abs() > 1e-6)
        self.single = depends & (depends.sum(1, keepdim=True) == 1) & ~is_weight
        if trial.passes_through:
            self.single = _same_place(signals, trial.outputs())

    def shares(self, sign: Tensor) -> Tensor:
        """P(i | n), (N, inputs), for outputs with signs (N,)."""
        wanted = (sign[:, None] * self.contributions).clamp(min=0)
        by_contribution = ratio(wanted, wanted.sum(1, keepdim=True))
        return torch.where(self.single.any(1, keepdim=True), self.single.to(wanted), by_contribution)

    def well_conditioned(self) -> Tensor:
        """(N,): outputs whose sign and shares are reliable in low precision."""
        size = self.contributions.abs().sum(1)
        total = (self.response.sign()[:, None] * self.contributions).clamp(min=0).sum(1)
        clear = (self.response.abs() > 0.1 * size) & (total > 0.1 * size)
        return clear | self.single.any(1)


def _same_place(signals: list[Tensor], outputs: list[Tensor]) -> Tensor:
    """Which output is at the place of which input: (N, inputs)."""
    try:
        (signal,), (output,) = signals, outputs
        places = torch.arange(signal.numel()).reshape(signal.shape).broadcast_to(output.shape)
    except (ValueError, RuntimeError) as error:
        ours, theirs = (" and ".join(str(tuple(one.shape)) for one in of) for of in (signals, outputs))
        raise ConfigurationError(
            f"passes_through needs a signal that broadcasts to the output, but {ours} does not broadcast to {theirs}"
        ) from error
    return F.one_hot(places.flatten(), signal.numel()).bool()


def check_rule(
    fn: Callable[..., Any],
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
        raise ConfigurationError("no input requires grad: call requires_grad_() on the inputs that carry the signal")
    size = sum(signal.numel() for signal in trial.signals)
    if not 0 < size <= _LARGEST:
        raise ConfigurationError(f"the signal has {size} elements, each evaluated several times: use 1 to {_LARGEST}")
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
        raise RuleError(f"{trial.name} fails with float64 inputs ({reason}): pass constants as inputs") from error
    definition = _check_with_others(trial, "as given")
    scattered = trial.map(lambda a: a.movedim(-1, 0).contiguous().movedim(0, -1))
    Run(scattered, "with non-contiguous inputs").compare(definition)
    Run(trial, "with one target at a time", one_by_one=True).compare(definition)
    _check_with_others(trial.map(torch.abs), "with non-negative inputs")
    generator = torch.Generator().manual_seed(0)
    some_zero = trial.map(lambda a: a * (torch.rand(a.shape, generator=generator) < 0.6).to(a))
    _check_with_others(some_zero, "with some inputs zero")
    Run(replace(trial, below=F.relu), "behind a ReLU").compare(Definition(trial.map(F.relu)))
    for dtype, tolerance in ((torch.float32, 1e-3), (torch.bfloat16, 5e-2), (torch.float16, 5e-2)):
        rounded = replace(trial.to(dtype), tolerance=tolerance)
        try:
            rounded.outputs()
        except RuntimeError:  # the operation does not support this dtype
            continue
        Run(rounded, f"in {str(dtype).removeprefix('torch.')}").compare(Definition(rounded.to(torch.float64)))


def _check_with_others(trial: Trial, title: str) -> Definition:
    """Compare the shares of an operation alone, as the classifier, and with a norm and a ReLU on top."""
    definition, run = Definition(trial), Run(trial, title)
    run.compare(definition)
    if any(map(is_learned, run.ops)):
        run.compare(definition, ", as the classifier", BackwardContext(above_classifier=True))
        run.compare(definition, ", contrastive", BackwardContext(above_classifier=True), contrastive=True)
    above: dict[str, Callable[[Tensor], Tensor]] = {"with a ReLU on top": F.relu}
    if len(run.outputs) == 1 and run.values[0].facts.is_open and run.outputs[0].ndim > 1:
        norm = _batch_norm(run.outputs[0])
        above["with a batch norm on top"] = norm
        above["with a batch norm on top and a ReLU"] = lambda y: F.relu(norm(y))
    for case, other in above.items():
        turned = torch.cat([(other(y + 1) - other(y)).sign().flatten() for y in run.outputs])
        both = Run(replace(trial, above=other), f"{title}, {case}")
        both.compare(definition, context=BackwardContext(skips_zeros=True), turned=turned)
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
        self._trial, self._title, self._tape = trial, title, Tape()
        rule, leaves = f"the rule for {trial.name}", [signal.clone() for signal in trial.signals]
        with RecordingMode(self._tape):
            self._starts = [self._tape.start(leaf) for leaf in leaves]
            try:
                self.outputs = trial.outputs(leaves)
            except (TypeError, ValueError, IndexError, RuntimeError) as error:
                reason = " ".join(str(error).split())
                raise RuleError(f"{rule} failed ({title}): {type(error).__name__}: {reason}") from error
            self._held = [self._tape.value_of(output) for output in self.outputs]
        plain, self.values = trial.outputs(), [value for value in self._held if isinstance(value, Value)]
        if len(plain) != len(self.outputs) or not all(map(_same_bits, plain, self.outputs)):
            raise RuleError(f"{rule} changes the value ({title})")
        if not self.values:
            raise RuleError(f"{rule} cuts the signal: the value does not depend on the inputs ({title})")
        self.ops = descend(self.values)
        refuse(without_rule(self.ops), "error")
        self._in_batches = not one_by_one and all(op.is_native for op in self.ops)
        keeps_zero = len(self.ops) == 1 and getattr(self.ops[0].rule, "keeps_zero", False)
        if keeps_zero and any(zero.nan_to_num().any() for zero in trial.outputs(map(torch.zeros_like, trial.signals))):
            raise RuleError(f"{rule} sets keeps_zero=True, but zero does not map to zero ({title})")
        if any(value.facts.nonnegative and (value.tensor < 0).any() for value in self.values):
            raise RuleError(f"{rule} sets nonnegative=True, but the value has negative elements ({title})")

    def compare(
        self,
        definition: Definition,
        case: str = "",
        context: BackwardContext = _PLAIN,
        *,
        turned: Signs = 1,
        contrastive: bool = False,
    ) -> None:
        """Raise RuleError where the shares, or those minus the duals', differ from the definition's.

        The results depend on those of the operation with the signs `turned` (N,).
        """
        response = torch.cat([output.flatten() for output in self.outputs])
        explains = (response != 0) & response.isfinite()
        if self._starts[0].dtype != torch.float64:
            explains &= definition.well_conditioned()
        sign = torch.ones_like(response) if context.above_classifier else response.sign() * turned
        expected = definition.shares(sign)
        if contrastive:
            expected = expected - definition.shares(-sign)
            explains &= ~definition.single.any(1)
        found = self._shares(context, contrastive=contrastive).to(torch.float64)
        error = (found - expected).abs()
        wrong = ~(error <= self._trial.tolerance) & explains[:, None]  # true for NaN, too
        if wrong.any():
            worst = error.nan_to_num(torch.inf).where(wrong, 0).flatten().argmax()
            n, i = divmod(int(worst), expected.shape[1])
            raise RuleError(
                f"the rule for {self._trial.name} disagrees with the definition ({self._title}{case}):\n"
                f"  output {_position(self.outputs, n)}, value {float(response[n]):.6g}\n"
                f"  input {_position(self._trial.signals, i)}\n"
                f"  share: {float(found[n, i]):.6g}, expected {float(expected[n, i]):.6g}\n"
                f"  sum of all shares: {float(found[n].sum()):.6g}, expected {float(expected[n].sum()):.6g}\n"
                f"  {int(wrong.sum())} of {wrong.numel()} shares differ"
            )

    def _shares(self, context: BackwardContext, *, contrastive: bool) -> Tensor:
        """Each output's share for each input: (N, inputs)."""
        sizes, answer = (
            [output.numel() for output in self.outputs],
            Stepwise([], explains="difference" if contrastive else "target"),
        )

        def down(units: Tensor) -> Tensor:
            parts = zip(self._held, units.split(sizes), strict=True)
            start = {v: [(part.reshape(v.shape), context)] for v, part in parts if isinstance(v, Value)}
            with quiet():
                arrived = walk(start, self.ops, answer, self._starts)
            return torch.cat([total(arrived.get(leaf, []), leaf).flatten() for leaf in self._starts])

        units = torch.eye(sum(sizes), dtype=self.outputs[0].dtype)
        return torch.vmap(down)(units) if self._in_batches else torch.stack([down(unit) for unit in units])


def _batch_norm(output: Tensor) -> Callable[[Tensor], Tensor]:
    """A batch norm with scales of both signs, and with means that flip some responses."""
    channels = torch.arange(output.shape[1]).to(output)
    gamma, mean = 1.5 - 3 * (channels % 2), (channels % 3 - 1) * output.std().nan_to_num(1.0) / 2
    return lambda y: F.batch_norm(y, mean, torch.ones_like(mean), gamma)


def _position(tensors: Sequence[Tensor], flat: int) -> str:
    """``1, element (0, 2)`` for an index into the concatenation of all flattened tensors."""
    elements = ((k, at) for k, tensor in enumerate(tensors) for at in product(*map(range, tensor.shape)))
    number, element = next(islice(elements, flat, None))
    return f"{number}, element {element}"


def _same_bits(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.detach().nan_to_num())
