"""Models with a tower for images and one for texts, whose embeddings become the weights of a classifier."""

import textwrap
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from ebcli.errors import ConfigurationError
from ebcli.models.keywords import RAW
from ebcli.models.similarity import Similarity
from ebcli.models.sources.base import ModelSource


class ImageTower(nn.Module):
    """The image tower: images (B, 3, H, W) to embeddings (B, D), or to their similarities.

    Args:
        embed: the embeddings (B, D) of images, given the tower.
        parts: the model's own modules, under their own names.
    """

    def __init__(self, embed: Callable[[Any, Tensor], Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self._embed = embed
        for name, part in parts.items():
            self.add_module(name, part)
        self.similarity: nn.Module = nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.similarity(self._embed(self, images))
        return found


class TwoTowers(ModelSource):
    """A source of such models."""

    @abstractmethod
    def tower(self, net: Any) -> ImageTower:
        """The image tower of a model."""

    @abstractmethod
    def embeddings(self, net: Any, texts: Sequence[str]) -> Tensor:
        """The embeddings (K, D) of texts.

        Raises:
            ConfigurationError: a text is too long.
        """

    def takes_texts(self) -> bool:
        return True

    def with_texts(self, net: Any, texts: Sequence[str], scores: str) -> nn.Module:
        # without RAW, the temperature and bias that the model was trained with
        scaling = () if scores == RAW else (net.logit_scale.exp(), getattr(net, "logit_bias", None))
        tower = self.tower(net)
        tower.similarity = Similarity(self.embeddings(net, texts), *scaling)
        return tower

    def with_features(self, net: Any, weights: str) -> nn.Module:
        return self.tower(net)

    def scores(self, net: Any) -> str:
        return RAW


def too_long(text: str, reason: str) -> ConfigurationError:
    """The error for a text that has more tokens than the tower reads."""
    return ConfigurationError(f"the text {textwrap.shorten(text, 60, placeholder=' ...')!r} {reason}: shorten it")
