"""Modules that are recorded twice: for facts as the network runs, and with their numbers when the tape is read.

In between, only their inputs are kept, so the memory of a deep network is that of its largest module. This is gradient
checkpointing (Chen et al. 2016, arXiv:1604.06174) for the tape. It holds for the joint rule.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module, ModuleList

from ebcli.eb.facts import Facts
from ebcli.eb.mode import RecordingMode, refuse
from ebcli.eb.operations import ACTIVE_TAPE, AnyFunction, Op, Tensors, Value, as_tuple
from ebcli.eb.paths import descend, without_rule
from ebcli.eb.places import Marks, Places
from ebcli.eb.rules.rule import RecordingRule
from ebcli.eb.tape import Tape
from ebcli.eb.torch_private import tree_flatten, tree_unflatten
from ebcli.errors import EbcliError


class Recorded(NamedTuple):
    """A recorded call.

    Attributes:
        sources: the values of its inputs.
        results: the values of its results; anything else of those that do not depend on the inputs.
        ops: the operations that probability passes, latest first.
    """

    sources: list[Value]
    results: list[Any]
    ops: list[Op]


class Checkpoint(RecordingRule):
    """The rule of a module's call as one operation, through which `ebcli.eb.joint` propagates."""

    def __init__(self, tape: Tape, signals: Tensors) -> None:
        self._net = tape.net
        self._facts_of_inputs: list[Facts] = [tape.value_of(signal).facts for signal in signals]
        self._facts_of_results: list[Facts] = []
        self._norms: list[Tensor] = []

    def run(self, function: AnyFunction, signals: Tensors) -> Tensors:
        """The results of a call, whose facts are noted."""
        with self._recording(function, signals, saves_numbers=False) as (recorded, tensors):
            refuse(without_rule(recorded.ops), "error")
            self._norms = _norms(tensors)
            values = recorded.results
            self._facts_of_results = [v.facts if isinstance(v, Value) else Facts() for v in values]
        return tensors

    @contextmanager
    def recorded(self, op: Op) -> Iterator[Recorded]:
        """The call, recorded with its numbers, which are freed at the end.

        Raises:
            EbcliError: its results are others than before.
        """
        signals = [value.tensor for value in op.inputs]
        with self._recording(op.function, signals, saves_numbers=True) as (recorded, tensors):
            for before, after in zip(self._norms, _norms(tensors), strict=True):
                if not torch.allclose(before, after, rtol=1e-2):
                    raise EbcliError(
                        f"{op.site} does something else when it is called again, as with a cache"
                    )
            yield recorded

    @contextmanager
    def _recording(
        self, function: AnyFunction, signals: Tensors, *, saves_numbers: bool
    ) -> Iterator[tuple[Recorded, Tensors]]:
        tape = Tape(self._net)
        copies = [signal.detach().clone() for signal in signals]  # which the module may overwrite
        sources = [*map(tape.start, copies)]
        tape.saves_numbers = saves_numbers
        for source, facts in zip(sources, self._facts_of_inputs, strict=True):
            source.facts = replace(facts, is_layer=True)
        try:
            with RecordingMode(tape), torch.enable_grad():
                tensors = as_tuple(function(*copies))
            results = [*map(tape.value_of, tensors)]
            yield Recorded(sources, results, descend(v for v in results if isinstance(v, Value))), tensors
        finally:
            tape.clear()

    def learn(self, op: Op) -> None:
        for out, facts in zip(op.outs, self._facts_of_results, strict=True):
            out.facts = facts

    def places(self, op: Op, places: Places) -> Marks:
        return places.everything(op)


def _norms(tensors: Tensors) -> list[Tensor]:
    return [tensor.float().norm() for tensor in tensors]


@contextmanager
def checkpointed(net: Module) -> Iterator[None]:
    """Record the members of a network's lists of modules, such as the layers of a transformer, twice."""
    with ExitStack() as stack:
        for module in _members_of_lists(net):
            own = vars(module).copy()
            module.forward = partial(_call, type(module).__name__, module.forward)
            if "forward" in own:
                stack.callback(setattr, module, "forward", own["forward"])
            else:
                stack.callback(delattr, module, "forward")
        yield


def _members_of_lists(module: Module) -> Iterator[Module]:
    """The members of lists that are in no other list's members."""
    for child in module.children():
        if isinstance(module, ModuleList):
            yield child
        else:
            yield from _members_of_lists(child)


class ModuleCall:
    """A module's call as a function of some of its arguments, which returns all tensors in its result."""

    def __init__(
        self, forward: AnyFunction, leaves: Sequence[Any], spec: Any, positions: Sequence[int]
    ) -> None:
        self._forward = forward
        self._leaves = leaves
        self._spec = spec
        self._positions = positions

    def __call__(self, *signals: Tensor) -> Tensors:
        leaves = list(self._leaves)
        for position, signal in zip(self._positions, signals, strict=True):
            leaves[position] = signal
        args, kwargs = tree_unflatten(leaves, self._spec)
        results, self._result_spec = tree_flatten(self._forward(*args, **kwargs))
        # a class in the place of each tensor, which would stay in memory
        self._results = [Tensor if isinstance(leaf, Tensor) else leaf for leaf in results]
        return [leaf for leaf in results if isinstance(leaf, Tensor)]

    def result(self, tensors: Tensors) -> Any:
        """What the last call returned, with other tensors."""
        remaining = iter(tensors)
        leaves = [next(remaining) if leaf is Tensor else leaf for leaf in self._results]
        return tree_unflatten(leaves, self._result_spec)


def _call(name: str, forward: AnyFunction, *args: Any, **kwargs: Any) -> Any:
    """What a module returns, recorded as one operation if the tape has values among its arguments."""
    tape: Tape | None = ACTIVE_TAPE.get()
    if tape is None:
        return forward(*args, **kwargs)
    leaves, spec = tree_flatten((args, kwargs))
    positions = [i for i, leaf in enumerate(leaves) if isinstance(tape.value_of(leaf), Value)]
    if not positions:
        return forward(*args, **kwargs)
    call = ModuleCall(forward, leaves, spec, positions)
    signals = [leaves[position] for position in positions]
    rule = Checkpoint(tape, signals)
    return call.result(tape.call(name, partial(rule.run, call, signals), call, signals, rule))
