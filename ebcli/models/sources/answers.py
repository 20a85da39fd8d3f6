"""Networks that only answer: functions from images to scores, such as a web service or another runtime."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module

from ebcli.eb.operations import ACTIVE_TAPE
from ebcli.errors import ConfigurationError, EbcliError, ImageError, in_words, plural
from ebcli.models.running import is_out_of_memory


class AnswerOnly(Module):
    """A function from images (B, C, H, W) to logits (B, num_classes) as a network without layers.

    The function gets a tensor of single precision on the CPU. It returns a tensor, an array or nested lists; or several
    heads, in a mapping or a tuple of tensors or arrays.

    Args:
        function: the function.
        name: what to call it in messages.
        advice: what else to do where operations or gradients are needed.
    """

    def __init__(self, function: Callable[[Tensor], Any], name: str, advice: str = "") -> None:
        super().__init__()
        self.name = name
        self._function = function
        self._advice = advice

    def forward(self, images: Tensor) -> Any:
        """What the function answers for images (B, C, ...), as tensors on their device.

        Raises:
            ConfigurationError: operations are recorded, gradients are needed, or there is no answer for each image.
            ImageError: the function failed.
        """
        needs_gradients = images.requires_grad and torch.is_grad_enabled()
        if needs_gradients or ACTIVE_TAPE.get() is not None:
            raise ConfigurationError(
                f"{self.name} only answers and cannot be looked into: choose --method occlusion or rise{self._advice}"
            )
        try:
            answer = self._function(images.detach().cpu().float())
        except (EbcliError, MemoryError):
            raise
        except Exception as error:  # of any kind; a service may answer again for the next image
            if is_out_of_memory(error):
                raise
            raise ImageError(f"{self.name} failed ({in_words(error)})") from error
        return self._tensors(answer, images)

    def _tensors(self, answer: Any, images: Tensor) -> Any:
        """An answer, or each of its heads, as a tensor (B, ...)."""
        if isinstance(answer, Mapping):
            return {name: self._tensors(head, images) for name, head in answer.items()}
        if isinstance(answer, (list, tuple)) and all(
            isinstance(head, (Tensor, np.ndarray)) for head in answer
        ):
            return tuple(self._tensors(head, images) for head in answer)
        if not isinstance(answer, Tensor):
            try:
                answer = torch.from_numpy(np.array(answer, np.float32))
            except (TypeError, ValueError) as error:
                raise self._error(f"a {type(answer).__name__}", images) from error
        if answer.ndim < 2 or len(answer) != len(images):
            raise self._error(f"values of shape {tuple(answer.shape)}", images)
        return answer.detach().to(images.device, torch.float32)

    def _error(self, answer: str, images: Tensor) -> ConfigurationError:
        count = plural(len(images), "image")
        return ConfigurationError(
            f"{self.name} returned {answer} for {count}: return a row of logits for each image"
        )


def only_answers(net: Module) -> bool:
    """Whether a network, or the one inside it, only answers."""
    return any(isinstance(module, AnswerOnly) for module in net.modules())
