"""What the outputs of a network mean: classes, an object and its background, or values."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module
from torch.overrides import TorchFunctionMode

from ebcli.datatypes.explanation import VALUE
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

OBJECT, BACKGROUND = "object", "background"  # the classes of a segmentation network with one channel
_TASKS_OF_VALUES = {CLASSIFICATION: VALUES, SEGMENTATION: VALUE_MAPS}
_LEAST = 1e-6  # a probability of 0 has no finite logit
# operations of autograd that only move or resize what they read
_MOVES = tuple("Alias Clone Permute Select Slice Squeeze ToCopy Transpose Unsqueeze Upsample View".split())
_SIGMOIDS = {torch.sigmoid, torch.sigmoid_, torch.special.expit, Tensor.sigmoid, Tensor.sigmoid_}


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
    """Counts the sigmoids that a network calls, and leaves one of them out.

    Attributes:
        omitted: the number of the one to leave out, from 1; 0 for none.
        count: the number of sigmoids so far.
    """

    def __init__(self, omitted: int = 0) -> None:
        super().__init__()
        self.omitted = omitted
        self.count = 0

    def __torch_function__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in _SIGMOIDS:
            self.count += 1
            if self.count == self.omitted and args:
                return args[0]
        return function(*args, **(kwargs or {}))


def _forward_without_sigmoid(forward: Callable[..., Any], number: int, *inputs: Any, **options: Any) -> Any:
    """What a network returns if one of the sigmoids that it calls is left out."""
    with _Sigmoids(number):
        return forward(*inputs, **options)


def _add_background(_net: Module, _inputs: Any, output: Any) -> Tensor:
    """A forward hook: the logits (B, 2, H, W) of the object and of the background, which are the object's, negated."""
    logits = single_tensor(output, "the output")
    return torch.cat([logits, -logits], 1)


def _add_background_of_probabilities(_net: Module, _inputs: Any, output: Any) -> Tensor:
    """The same for a network that ends with a sigmoid which cannot be left out."""
    return _add_background(_net, _inputs, single_tensor(output, "the output").logit(_LEAST))


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
        _explain_background(net, images)
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


def _explain_background(net: Module, images: Tensor) -> None:
    """Let a segmentation network with one channel return the background as a second one.

    The object is where its logit is above 0. A sigmoid at the network's end is left out.
    """
    with torch.enable_grad(), _Sigmoids() as sigmoids:
        output = single_tensor(net(images.requires_grad_()), "the output")
    if not _ends_with_sigmoid(output):
        net.register_forward_hook(_add_background)
    elif sigmoids.count:
        net.forward = partial(_forward_without_sigmoid, net.forward, sigmoids.count)
        net.register_forward_hook(_add_background)
    else:  # of a scripted network, for example
        net.register_forward_hook(_add_background_of_probabilities)


def _ends_with_sigmoid(output: Tensor) -> bool:
    """Whether the last operation that computes a network's output is a sigmoid."""
    step = output.grad_fn
    while step is not None and step.name().startswith(_MOVES):
        step = step.next_functions[0][0]
    return step is not None and step.name().startswith("SigmoidBackward")
