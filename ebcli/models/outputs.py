"""What the outputs of a network mean: classes, or an object and its background."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module
from torch.overrides import TorchFunctionMode

from ebcli.heads import single_tensor
from ebcli.models.classes import Names
from ebcli.models.keywords import SEGMENTATION, SIGMOID, SOFTMAX

OBJECT, BACKGROUND = "object", "background"  # the classes of a segmentation network with one channel
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
    """

    task: str
    names: tuple[str, ...] | None
    num_classes: int
    scores: str


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
    net: Module, images: Tensor, task: str, count: int, names: Names, scores: str | None
) -> Outputs:
    """What the outputs of a network mean. One with a single channel for each pixel gets its background as a second one.

    Args:
        net: the network.
        images: blank ones (1, C, ...).
        task: what the network does.
        count: the number of its outputs.
        names: their names; none if they are unknown.
        scores: how logits become scores; None for the usual way.
    """
    known_names = tuple(names or ()) or None
    if task == SEGMENTATION and count == 1:
        _explain_background(net, images)
        (object_name,) = known_names or (OBJECT,)
        return Outputs(task, (object_name, BACKGROUND), 2, SIGMOID)
    usual = SIGMOID if count == 1 else SOFTMAX
    return Outputs(task, known_names, count, scores or usual)


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
