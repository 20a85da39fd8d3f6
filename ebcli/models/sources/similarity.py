"""Networks that compare images: the last layer's weights are embeddings of texts or of other pictures."""

import textwrap
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import Module
from torch.nn import functional as F

from ebcli.datatypes.input_spec import InputSpec
from ebcli.errors import ConfigurationError, ImageError
from ebcli.files.images import decode
from ebcli.heads import single_tensor
from ebcli.layouts import modules_of
from ebcli.models.classes import Texts
from ebcli.models.keywords import RAW
from ebcli.models.running import hook_modules, probe
from ebcli.models.sources.base import ModelSource


class Similarity(Module):
    """Cosine similarities (B, K) of features (B, D) with K embeddings, which are the weights of a linear layer.

    Args:
        embeddings: (K, D), of any length.
        scale, bias: the similarities are multiplied by the scale, and the bias is added.
    """

    def __init__(self, embeddings: Tensor, scale: Tensor | float = 1.0, bias: Tensor | None = None) -> None:
        super().__init__()
        count, width = embeddings.shape
        self.embeddings = nn.Linear(width, count, bias=bias is not None)
        with torch.no_grad():
            self.embeddings.weight.copy_(F.normalize(embeddings, dim=1) * scale)
            if bias is not None:
                self.embeddings.bias.copy_(bias.expand(count))

    def forward(self, features: Tensor) -> Tensor:
        return self.embeddings(F.normalize(features, dim=-1))


def with_reference_pictures(
    name: str,
    net: Module,
    pictures: Sequence[Path],
    transforms: Callable[[Any], Tensor],
    *,
    is_backbone: bool,
) -> Module:
    """A network from images to their similarities (B, K) with K pictures.

    Args:
        name: the network's name, for messages.
        net: the network, which is changed.
        pictures: files.
        transforms: the preprocessing.
        is_backbone: whether the network returns features (B, D); otherwise they are what its last linear layer reads,
            and the similarities take that layer's place.

    Raises:
        ConfigurationError: a picture cannot be read, or the network has no such features.
    """
    images = [transforms(_read(picture))[None] for picture in pictures]
    net.eval()
    if is_backbone:
        return nn.Sequential(OrderedDict(backbone=net, similarity=Similarity(_features(name, net, images))))
    head = _head(name, net, images[0])
    net.set_submodule(head, nn.Identity())
    net.set_submodule(head, Similarity(_features(name, net, images)))
    return net


def _read(picture: Path) -> Any:
    try:
        return decode(picture)
    except ImageError as error:
        problem = f"cannot read '{picture}', and --similar-to compares pictures"
        raise ConfigurationError(f"{problem}: {error}") from error


def _features(name: str, net: Module, images: Sequence[Tensor]) -> Tensor:
    """The features (B, D) of images, each (1, 3, H, W)."""
    features = [_output(name, net, image) for image in images]
    if features[0].ndim != 2 or len(features[0]) != 1:
        shape = ", ".join(map(str, features[0].shape[1:]))
        problem = f"{name} returns a tensor (B, {shape}), but features (B, D) are needed to compare pictures"
        raise ConfigurationError(f"{problem}: pool them")
    return torch.cat(features)


@torch.no_grad()
def _output(name: str, net: Module, images: Tensor) -> Tensor:
    _, channels, height, width = images.shape
    spec = InputSpec((height, width), channels=channels)
    output = probe(name, net, spec, lambda blank: net(images.to(blank)))
    return single_tensor(output, f"the output of {name}")


class LinearCall(NamedTuple):
    """A call of a linear layer."""

    layer: Module
    features: Any
    output: Any


def _head(name: str, net: Module, images: Tensor) -> str:
    """The name of the linear layer that returns the logits.

    Raises:
        ConfigurationError: there is none.
    """
    calls: list[LinearCall] = []

    def record(layer: Module, inputs: Any, output: Any) -> None:
        calls.append(LinearCall(layer, inputs[0], output))

    with hook_modules(modules_of(net, nn.Linear), record):
        logits = _output(name, net, images)
    heads = [call.layer for call in calls[-1:] if call.output is logits and call.features.ndim == 2]
    if not heads or [call.layer for call in calls].count(heads[0]) > 1:
        raise ConfigurationError(
            f"{name} has no single linear layer that reads features (B, D) and returns the logits, so there are "
            "none to compare pictures by: name a network without a classifier, "
            "or return features from FILE.py:FACTORY"
        )
    return next(layer_name for layer_name, layer in net.named_modules() if layer is heads[0])


class ImageTower(Module):
    """The image tower: images (B, 3, H, W) to embeddings (B, D), or to their similarities.

    Args:
        embed: the embeddings (B, D) of images, given the tower.
        parts: the model's own modules, under their own names.

    Attributes:
        similarity: what compares the embeddings with those of texts.
        with_texts: the same tower, whose embeddings are compared with those of other texts; None if with none.
    """

    def __init__(self, embed: Callable[[Any, Tensor], Tensor], **parts: Module) -> None:
        super().__init__()
        self._embed = embed
        for name, part in parts.items():
            self.add_module(name, part)
        self.similarity: Module = nn.Identity()
        self.with_texts: Callable[[Texts], Module] | None = None

    def forward(self, images: Tensor) -> Tensor:
        return self.similarity(self._embed(self, images))


class TwoTowers(ModelSource):
    """A source of such models."""

    @abstractmethod
    def tower(self, net: Any) -> ImageTower:
        """The image tower of a model."""

    @abstractmethod
    def embeddings(self, net: Any, texts: Texts) -> Tensor:
        """The embeddings (K, D) of texts.

        Raises:
            ConfigurationError: a text is too long.
        """

    def takes_texts(self) -> bool:
        return True

    def with_texts(self, net: Any, texts: Texts, scores: str) -> Module:
        tower = self.tower(net)
        embeddings = self.embeddings(net, texts)
        if scores == RAW:
            tower.similarity = Similarity(embeddings)
        else:  # with the temperature and bias that the model was trained with
            tower.similarity = Similarity(embeddings, net.logit_scale.exp(), getattr(net, "logit_bias", None))
        # a function, which copies of the tower share
        tower.with_texts = lambda other_texts: self.with_texts(net, other_texts, scores)
        return tower

    def with_features(self, net: Any, weights: str) -> Module:
        return self.tower(net)

    def scores(self, net: Any) -> str:
        return RAW


def check_lengths(tokenizer: Any, texts: Texts, longest: int, name: str) -> None:
    """Raise ConfigurationError if a text has more tokens than a network of that name reads."""
    for text in texts:
        count = len(tokenizer(text)["input_ids"])
        if count > longest:
            raise too_long(text, f"has {count} tokens, but {name} reads at most {longest}")


def too_long(text: str, reason: str) -> ConfigurationError:
    """The error for a text that has more tokens than the tower reads."""
    short = textwrap.shorten(text, 60, placeholder=" ...")
    return ConfigurationError(f"the text {short!r} {reason}: shorten it")
