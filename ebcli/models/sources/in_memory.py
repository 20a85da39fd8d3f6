"""Networks in memory: modules, models and pipelines of Hugging Face, and functions of a tensor."""

import copy
import reprlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from PIL import Image
from torch.nn import Module

from ebcli.datatypes.input_spec import InputSpec, call_transform
from ebcli.eb.forward import unwrap
from ebcli.errors import ConfigurationError, import_optional
from ebcli.models.checkpoint import StateDict
from ebcli.models.keywords import IN_MEMORY, VIDEO
from ebcli.models.running import fitting_first_layer, shallow_copy
from ebcli.models.several_inputs import inputs_of
from ebcli.models.sources.answers import AnswerOnly
from ebcli.models.sources.base import ModelSource
from ebcli.models.sources.huggingface import HuggingFace, spec_of
from ebcli.models.sources.huggingface_heads import HEADS, make_plain
from ebcli.models.spec import Preprocessing

_PRESETS = "torchvision.transforms._presets"
_SAMPLE = 256  # pixels a side, for a transform that says nothing of what it makes


class InMemory(ModelSource):
    """A network in memory, which stays as it is.

    Args:
        net: the network.
        transform: makes its input of an image; None if that is unknown, unless the network says so itself.
    """

    default_weights = IN_MEMORY

    def __init__(self, net: Any, transform: Any) -> None:
        name = type(net).__name__
        if isinstance(net, (FunctionOfTensor, AnswerOnly)):
            name = net.name
        ModelSource.__init__(self, name)
        self.network_given = net
        self._transform = transform

    def build(self, num_classes: int | None = None) -> Module:
        return shallow_copy(self.network_given)

    def pretrained(self, weights: str) -> Module:
        return self.build()

    def restored(self, state: StateDict, title: str) -> Module:
        raise self._error(f"is in memory with its weights: load {title} into it before")

    def transforms(self, net: Module, weights: str) -> InputSpec:
        transform = self._transform
        if transform is None:
            transform = getattr(net, "preprocessing", None)
        if isinstance(transform, Preprocessing):
            return ModelSource.transforms(self, net, weights)
        if isinstance(transform, InputSpec) or type(transform).__module__ == _PRESETS:
            return InputSpec.from_preset(transform)
        if hasattr(transform, "image_mean"):
            return spec_of(transform, self.name)
        if transform is None:
            return fitting_first_layer(net, InputSpec.as_is(function=partial(_refuse, self.name)))
        if not callable(transform):
            problem = f"transform is {reprlib.repr(transform)}"
            raise ConfigurationError(f"{problem}, but a function of an image is needed")
        sample = Image.new("RGB", (_SAMPLE, _SAMPLE), "gray")
        height, width, channels = call_transform(transform, sample).shape
        return InputSpec.as_is((height, width), channels, function=transform)

    def files(self, weights: str) -> Sequence[Any]:
        return ()


class InMemoryHuggingFace(InMemory, HuggingFace):
    """A model of transformers in memory; its preprocessing is that of an image processor."""

    _prefix = ""

    def __init__(self, net: Any, transform: Any) -> None:
        InMemory.__init__(self, net, transform)
        self._library = import_optional("transformers")
        self._config = copy.copy(net.config)
        self._config.architectures = [self.name]
        self._head = self._chosen_head()
        if HEADS[self._head] == VIDEO:
            raise self._error("is for videos: save it, and give the directory as hf/DIRECTORY")

    def build(self, num_classes: int | None = None) -> Module:
        return make_plain(super().build(), self._head)


class FunctionOfTensor(Module):
    """A function from images (B, C, H, W) to logits as a network, whose only known modules are some layers."""

    def __init__(self, function: Callable[..., Any], layers: Sequence[Module]) -> None:
        super().__init__()
        self.name = getattr(function, "__name__", "function")
        self._function = function
        for number, layer in enumerate(layers, 1):
            self.add_module(f"{type(layer).__name__}_{number}", layer)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self._function(*inputs, **named)


def source_given(model: Any, transform: Any) -> InMemory:
    """The source of a network in memory.

    Raises:
        ConfigurationError: it is none.
    """
    if isinstance(getattr(model, "model", None), Module) and hasattr(model, "image_processor"):  # a pipeline
        transform = transform or model.image_processor
        model = model.model
    if callable(model) and not isinstance(model, Module):
        name = getattr(model, "__name__", type(model).__name__)
        model = AnswerOnly(model, name, ", or pass a module that it calls as its layer")
    if not isinstance(model, Module):
        raise ConfigurationError(
            f"model is {reprlib.repr(model)}, but a name, a LoadedModel, a torch.nn.Module, "
            "a pipeline of Hugging Face, or a function from images to logits is needed"
        )
    model = unwrap(model)
    if hasattr(getattr(model, "config", None), "id2label") and inputs_of(model) is None:
        return InMemoryHuggingFace(model, transform)
    return InMemory(model, transform)


def _refuse(name: str, _image: Any) -> Any:
    advice = "pass transform=, such as weights.transforms(), or a tensor of floats"
    raise ConfigurationError(f"the preprocessing of {name} is unknown: {advice}")
