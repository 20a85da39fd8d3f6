"""What the outputs of a network mean: classes, an object and its background, or values."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module
from torch.overrides import TorchFunctionMode

from ebcli.datatypes.explanation import VALUE
from ebcli.eb.backprop import RecordedOutput
from ebcli.errors import ConfigurationError
from ebcli.heads import single_tensor
from ebcli.models.keywords import (
    CLASSIFICATION,
    DETECTION,
    RAW,
    SEGMENTATION,
    SIGMOID,
    SOFTMAX,
    VALUE_MAPS,
    VALUES,
    VIDEO,
)
from ebcli.models.sources.answers import only_answers

OBJECT, BACKGROUND = "object", "background"  # the classes of a segmentation network with one channel
_TASKS_OF_VALUES = {CLASSIFICATION: VALUES, SEGMENTATION: VALUE_MAPS}
_SIGMOIDS = {
    *(torch.sigmoid, torch.sigmoid_, torch.special.expit, Tensor.sigmoid, Tensor.sigmoid_),
    *(torch.ops.aten.sigmoid.default, torch.ops.aten.sigmoid_.default),  # in exported programs
}


class Outputs(NamedTuple):
    """What the outputs of a network mean.

    Attributes:
        task: one of ``TASKS``, or one of the user's own.
        names: the classes' names; None if they are unknown.
        num_classes: the number of classes.
        scores: how logits become scores, one of ``SCORES``.
        are_values: whether scores are values on a scale of their own, which can be any numbers.
    """

    task: str
    names: tuple[str, ...] | None
    num_classes: int
    scores: str
    are_values: bool = False


class Declared(NamedTuple):
    """What is said of a network's outputs.

    Attributes:
        task: what the network says that it does; None if it does not.
        names: the outputs' names; none if they are unknown.
        are_own_names: whether the network itself names its outputs.
        own_scores: how the network says that logits become scores; None if it does not.
        scores: how the user wants it; None for the network's way.
        are_similarities: whether the outputs compare images with texts or pictures.
    """

    task: str | None
    names: tuple[str, ...]
    are_own_names: bool
    own_scores: str | None
    scores: str | None
    are_similarities: bool


class _Sigmoids(TorchFunctionMode):
    """Notes what the sigmoids that a network calls return, and leaves one of them out.

    Attributes:
        omitted: the number of the one to leave out, from 0; None for none.
        results: what they returned, in order.
    """

    def __init__(self, omitted: int | None = None) -> None:
        super().__init__()
        self.omitted = omitted
        self.results: list[Tensor] = []

    def __torch_function__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function not in _SIGMOIDS or not args:
            return function(*args, **(kwargs or {}))
        result: Tensor = args[0]
        if len(self.results) != self.omitted:
            result = function(*args, **(kwargs or {}))
        self.results.append(result)
        return result


def _forward_without_sigmoid(forward: Callable[..., Any], number: int, *inputs: Any, **options: Any) -> Any:
    """What a network returns if one of the sigmoids that it calls is left out."""
    with _Sigmoids(number):
        return forward(*inputs, **options)


def _add_background(_net: Module, _inputs: Any, output: Any) -> Tensor:
    """A forward hook: the logits (B, 2, H, W) of the object and of the background, which are the object's, negated."""
    logits = single_tensor(output, "the output")
    return torch.cat([logits, -logits], 1)


def read_outputs(
    name: str, net: Module, images: Tensor, task: str, count: int, declared: Declared
) -> Outputs:
    """What the outputs of a network mean. One with a single channel for each pixel gets its background as a second one.

    Args:
        name: the network's name, for messages.
        net: the network.
        images: blank ones (1, C, ...).
        task: what it does.
        count: the number of its outputs.
        declared: what is said of them.

    Raises:
        ConfigurationError: the scores do not fit the number of outputs.
    """
    scores = declared.scores or declared.own_scores
    names = declared.names if len(declared.names) == count else None
    if declared.are_similarities and task == CLASSIFICATION:
        return Outputs(task, names, count, scores or RAW)
    if count == 1 and declared.scores == SOFTMAX and task != DETECTION:
        raise ConfigurationError(
            f"{name} has a single output, whose softmax is always 1: choose --scores sigmoid or raw"
        )
    if _are_values(task, count, declared):
        return Outputs(_TASKS_OF_VALUES.get(task, task), names or _names_of_values(count), count, RAW, True)
    if task == SEGMENTATION and count == 1:
        ending = _ending_of(net, images)
        if ending.is_never_negative and ending.sigmoid is None and scores is None:  # no logits
            return Outputs(VALUE_MAPS, names or _names_of_values(count), count, RAW, True)
        _explain_background(net, ending.sigmoid)
        (object_name,) = names or (OBJECT,)
        return Outputs(task, (object_name, BACKGROUND), 2, SIGMOID)
    if scores is None:
        scores = SIGMOID if count == 1 else SOFTMAX
    are_values = scores == RAW and task in (CLASSIFICATION, VIDEO)
    return Outputs(task, names, count, scores, are_values)


def _are_values(task: str, count: int, declared: Declared) -> bool:
    """Whether outputs are values, not classes.

    Networks with class names of their own keep them, whatever their scores.
    """
    if task in (VALUES, VALUE_MAPS):
        return True
    if task not in (CLASSIFICATION, VIDEO, SEGMENTATION):
        return False
    if declared.scores is None and declared.own_scores is None:
        return count == 1 and task != SEGMENTATION
    if declared.scores is None:
        return declared.own_scores == RAW and declared.task != SEGMENTATION
    if declared.scores != RAW:
        return False
    is_regression = declared.own_scores == RAW and declared.task != SEGMENTATION
    return is_regression or count == 1 or not declared.are_own_names


def _names_of_values(count: int) -> tuple[str, ...]:
    """What outputs without names are called."""
    if count == 1:
        return (VALUE,)
    return tuple(f"output {index}" for index in range(count))


class _Ending(NamedTuple):
    """How a network computes its output.

    Attributes:
        sigmoid: the number of the sigmoid at its end, of those that it calls; None if there is none.
        is_never_negative: whether no input makes the output negative.
    """

    sigmoid: int | None
    is_never_negative: bool


def _ending_of(net: Module, images: Tensor) -> _Ending:
    if only_answers(net):
        return _Ending(None, is_never_negative=False)
    with _Sigmoids() as sigmoids:
        output = RecordedOutput(net, images)
    numbers = (number for number, result in enumerate(sigmoids.results) if output.holds(result))
    return _Ending(next(numbers, None), output.is_never_negative)


def _explain_background(net: Module, sigmoid: int | None) -> None:
    """Let a segmentation network with one channel return the background as a second one.

    The object is where its logit is above 0, so the sigmoid at the network's end is left out.
    """
    if sigmoid is not None:
        net.forward = partial(_forward_without_sigmoid, net.forward, sigmoid)
    net.register_forward_hook(_add_background)
