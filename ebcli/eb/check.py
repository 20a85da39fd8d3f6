"""check_rule(): compares an excitation rule with the definition, as ``gradcheck`` does for gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ebcli.eb import graph
from ebcli.eb.definition import Arguments, Definition, Operation, floating
from ebcli.eb.facts import carries_signal, is_nonnegative, step_of
from ebcli.eb.mode import ExcitationMode
from ebcli.eb.neurons import WeightedSum
from ebcli.eb.stepwise import StepwiseWalk
from ebcli.errors import ConfigurationError, RuleError

_LARGEST = 1000  # elements of the signal
_CLASSIFIER, _CONTRAST = "as the classifier", "contrastive"
_RELU, _NORM, _BEHIND_RELU = "with a ReLU on top", "with a batch norm on top", "behind a ReLU"
_ONE_BY_ONE = "with one target at a time"


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
        ValueError: no input requires grad, or `passes_through` does not fit the shapes.

    Examples:
        >>> import ebcli, torch
        >>> x = torch.randn(2, 3, 5, 5, requires_grad=True)
        >>> ebcli.check_rule(torch.nn.Conv2d(3, 4, 3, stride=2), x)
        True
    """
    given = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    if not any(map(carries_signal, given)):
        raise ConfigurationError("no input requires grad: call requires_grad_() on the inputs that carry the signal")
    base = Arguments(tuple(given)).to(torch.float64)
    size = sum(base.values[k].numel() for k in base.signals)
    if not 0 < size <= _LARGEST:
        raise ConfigurationError(
            f"the signal has {size} elements, but each takes several evaluations: use 1 to {_LARGEST}"
        )
    try:
        _check(Operation(fn, passes_through, tolerance).to(torch.float64), base)
    except RuleError:
        if raise_exception:
            raise
        return False
    return True


def _check(operation: Operation, base: Arguments) -> None:
    try:
        operation.plain(base.fresh())
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise RuleError(f"{operation.name} fails with float64 inputs ({reason}): pass constants as inputs") from error
    generator = torch.Generator().manual_seed(0)

    def some_zero(value: Tensor) -> Tensor:
        return value * (torch.rand(value.shape, generator=generator) < 0.6).to(value.device)

    for title, arguments in {
        "": base,
        "with non-negative inputs": base.map(torch.abs),
        "with some inputs zero": base.map(some_zero),
    }.items():
        compare = partial(_compare, operation, Definition(operation, arguments), title)
        for case in ("", _CLASSIFIER, _CONTRAST, _RELU, _NORM):
            compare(arguments, case)
        if not title:
            compare(arguments.map(_non_contiguous), "with non-contiguous inputs")
            compare(arguments, _ONE_BY_ONE)
    rectified = base.map(lambda value: value.clamp(min=0))
    _compare(operation, Definition(operation, rectified), "", base, _BEHIND_RELU)
    for dtype, coarse in {torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 5e-2}.items():
        rounded, other = base.to(dtype), operation.to(dtype)
        try:
            other.plain(rounded.fresh())
        except RuntimeError:  # the operation does not support this dtype
            continue
        definition = Definition(other.to(torch.float64), rounded.to(torch.float64))
        _compare(other, definition, f"in {str(dtype).removeprefix('torch.')}", rounded, "", coarse)


def _compare(
    operation: Operation, definition: Definition, title: str, arguments: Arguments, case: str, coarse: float = 0.0
) -> None:
    """Raise RuleError where the shares in the mode differ from the definition's.

    Args:
        operation: what is checked.
        definition: at these arguments.
        title: how the arguments were made.
        arguments: the arguments.
        case: what is above or below the operation, or how the backward pass runs.
        coarse: for low precision, the largest difference allowed, at outputs that it computes well.
    """
    title = f"{title} {case}".strip() or "as given"
    leaves = [arguments.values[k].detach().requires_grad_() for k in arguments.signals]
    values = arguments.fresh()
    with ExcitationMode() as mode:
        for k, leaf in zip(arguments.signals, leaves, strict=True):
            values[k] = F.relu(leaf) if case == _BEHIND_RELU else leaf.clone()  # fn may work in place
        outputs = tops = _run(operation, title, values, mode)
        mean = torch.zeros(())
        if case == _NORM and not _can_be_normed(outputs):
            return
        if case == _NORM:
            tops, mean = _batch_norm(outputs[0])
        elif case == _RELU:
            tops = [F.relu(output) for output in outputs]
        top = torch.cat([one.flatten() for one in tops])
    plain = operation.plain((arguments.map(F.relu) if case == _BEHIND_RELU else arguments).fresh())
    at_zero = operation.plain(arguments.map(torch.zeros_like).fresh())
    _check_values(f"the rule for {operation.name}", title, outputs, plain, at_zero)
    layers = graph.weighted_below([output.grad_fn for output in tops])
    as_classifier = case in (_CLASSIFIER, _CONTRAST)
    if as_classifier and not layers:
        return
    for node in layers:
        node.step.is_classifier = as_classifier  # otherwise as if another layer followed

    # below a batch norm, the responses are gamma (y - mean) and the weights gamma W
    sign = (definition.response - mean).sign()
    explains = (sign != 0) & definition.response.isfinite()
    if coarse:
        explains &= definition.well_conditioned()
    if case == _RELU:
        explains &= sign > 0
    elif as_classifier:
        sign = torch.ones_like(sign)
    expected = definition.shares(sign)
    if case == _CONTRAST:
        expected = expected - definition.shares(-sign)
        explains = explains & ~definition.single.any(1)
    with mode.recording.walked_by(StepwiseWalk([node.step for node in layers] if case == _CONTRAST else [])):
        found = _actual_shares(top, leaves, one_by_one=case == _ONE_BY_ONE).to(torch.float64)
    wrong = ~((found - expected).abs() <= (coarse or operation.tolerance))  # true for NaN, too
    wrong &= explains[:, None]
    if wrong.any():
        worst = (found - expected).abs().nan_to_num(torch.inf).where(wrong, 0).flatten().argmax()
        n, i = divmod(int(worst), expected.shape[1])
        raise RuleError(
            f"the rule for {operation.name} disagrees with the definition ({title}):\n"
            f"  {_position('output', outputs, n)}, value {float(definition.response[n]):.6g}\n"
            f"  {_position('input', leaves, i)}\n"
            f"  share: {float(found[n, i]):.6g}, expected {float(expected[n, i]):.6g}\n"
            f"  sum of all shares: {float(found[n].sum()):.6g}, expected {float(expected[n].sum()):.6g}\n"
            f"  {int(wrong.sum())} of {wrong.numel()} shares differ"
        )


def _run(operation: Operation, title: str, values: list[Any], mode: ExcitationMode) -> list[Tensor]:
    """The outputs in the mode. Exceptions are the rule's fault."""
    try:
        outputs = floating(operation.fn(*values))
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise RuleError(f"the rule for {operation.name} failed ({title}): {type(error).__name__}: {reason}") from error
    mode.refuse([name for output in outputs for name in graph.BackwardGraph(output).without_rule])
    return outputs


def _can_be_normed(outputs: Sequence[Tensor]) -> bool:
    """Whether the output is that of a layer into which a batch norm would be folded."""
    if len(outputs) != 1 or outputs[0].ndim < 2:
        return False
    node: Any = outputs[0].grad_fn
    step = step_of(node)
    if graph.weighted_below([node]) != [node] or not isinstance(step, WeightedSum):
        return False
    return not step.rectified and step.linear.orientation is None


def _batch_norm(output: Tensor) -> tuple[list[Tensor], Tensor]:
    """The output of a batch norm with scales of both signs and means that flip some responses, and these means."""
    channels = torch.arange(output.shape[1])
    spread = output.detach().std().nan_to_num(1.0)
    gamma, mean = (1.5 - 3.0 * (channels % 2)).to(output), ((channels % 3 - 1) * spread / 2).to(output)
    each = mean.reshape(-1, *[1] * (output.ndim - 2)).expand(output.shape).flatten()
    return [F.batch_norm(output, mean, torch.ones_like(mean), gamma)], each


def _check_values(
    rule: str, title: str, outputs: Sequence[Tensor], plain: Sequence[Tensor], at_zero: Sequence[Tensor]
) -> None:
    if len(plain) != len(outputs) or not all(map(_same_bits, plain, outputs)):
        raise RuleError(f"{rule} changes the value ({title})")
    if not any(map(carries_signal, outputs)):
        raise RuleError(f"{rule} cuts the signal: the value has no grad_fn ({title})")
    for output in outputs:
        node: Any = output.grad_fn
        # every operand is the copy of a signal, or the ReLU behind which it was put
        alone = node is not None and all(
            below.name().endswith("AccumulateGrad") for parent in graph.parents(node) for below in graph.parents(parent)
        )
        if alone and getattr(step_of(node), "keeps_zero", False) and any(value.nan_to_num().any() for value in at_zero):
            raise RuleError(f"{rule} sets keeps_zero=True, but zero does not map to zero ({title})")
    if any(is_nonnegative(output) and (output < 0).any() for output in outputs):
        raise RuleError(f"{rule} sets nonnegative=True, but the value has negative elements ({title})")


def _actual_shares(top: Tensor, leaves: Sequence[Tensor], *, one_by_one: bool) -> Tensor:
    """Each output's share for each input in the mode: (N, inputs)."""
    options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
    down = partial(torch.autograd.grad, top, leaves, **options)
    units = torch.eye(len(top)).to(top)
    shares = map(torch.stack, zip(*map(down, units), strict=True)) if one_by_one else down(units, is_grads_batched=True)
    # zeros for inputs that nothing reaches have no axis of units
    by_leaf = [share.expand(len(top), *leaf.shape) for share, leaf in zip(shares, leaves, strict=True)]
    return torch.cat([share.flatten(1) for share in by_leaf], dim=1)


def _position(what: str, tensors: Sequence[Tensor], flat: int) -> str:
    """``input 1, element (0, 2)`` for an index into the concatenation of all flattened tensors."""
    for number, tensor in enumerate(tensors):
        if flat < tensor.numel():
            where = tuple(int(at) for at in torch.unravel_index(torch.tensor(flat), tensor.shape))
            return f"{what} {number}, element {where}"
        flat -= tensor.numel()
    raise IndexError(flat)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.detach().nan_to_num())


def _non_contiguous(value: Tensor) -> Tensor:
    """The same values with reversed strides."""
    backwards = tuple(reversed(range(value.ndim)))
    return value.permute(backwards).contiguous().permute(backwards)
