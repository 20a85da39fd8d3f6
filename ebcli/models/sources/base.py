"""What a source of networks is."""

from __future__ import annotations

import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import nn
from torchvision.transforms._presets import ImageClassification

from ebcli.errors import ConfigurationError
from ebcli.models.checkpoint import classes_in, first_line, load_checkpoint
from ebcli.models.preprocessing import Preprocessing

DEFAULT = "DEFAULT"


class ModelSource(ABC):
    """One network of a source, before it is built. A subclass is a source: it knows how its networks are made.

    Only ``build`` must be written. What the methods are called with as ``weights`` is ``"none"``, the path of a
    checkpoint, or a name that ``published`` returned.

    Args:
        name: what follows the source's prefix: ``tiny`` in ``acme/tiny``.

    Raises:
        ConfigurationError: there is no such network.

    Examples:
        >>> import ebcli
        >>> from torch import nn
        >>> class Acme(ebcli.ModelSource):
        ...     def build(self, num_classes=None):
        ...         return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, num_classes or 10))
        >>> Acme("tiny").build(num_classes=2)[1].out_features
        2
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @classmethod
    def names(cls) -> Iterable[str]:
        """The networks there are, for ``--list-models``; none where they are too many, or not known."""
        return ()

    @abstractmethod
    def build(self, num_classes: int | None = None) -> nn.Module:
        """The network without a checkpoint: images (B, 3, H, W) to logits (B, num_classes).

        The random numbers are the same in each call.

        Args:
            num_classes: how many classes it is to tell apart; None for as many as it does by itself.

        Raises:
            ConfigurationError: it cannot be built for so many.
        """

    def weights(self) -> Sequence[str]:
        """The names of published weights, the default first."""
        return [DEFAULT]

    def published(self, weights: str) -> str | None:
        """The full name of published weights; None if there are none of that name."""
        return weights if weights in self.weights() else None

    def pretrained(self, weights: str) -> nn.Module:
        """The network with published weights; by itself, what ``build`` gives."""
        return self.build()

    def restored(self, state: dict[str, Any], title: str) -> nn.Module:
        """The network with the weights of a state dict, and as many classes as that is for.

        Args:
            state: names to tensors.
            title: what to call it in messages.

        Raises:
            ConfigurationError: it does not fit.
        """
        net = self.build()
        count = classes_in(state, net)
        if count not in (None, classes_in(net.state_dict(), net)):
            net = self.build(count)
        load_checkpoint(net, state, title)
        return net

    def transforms(self, net: nn.Module, weights: str) -> ImageClassification:
        """The preprocessing; by itself, torchvision's usual one with what ``net.preprocessing`` says otherwise."""
        usual = ImageClassification(crop_size=224)
        own = getattr(net, "preprocessing", None)
        return own.applied_to(usual) if isinstance(own, Preprocessing) else usual

    def categories(self, net: nn.Module, weights: str) -> Sequence[str] | None:
        """The class names in the order of the logits; by itself, ``net.categories`` if there is such a thing."""
        own = getattr(net, "categories", None)
        is_list = isinstance(own, (list, tuple)) and all(isinstance(name, str) for name in own)
        return own if is_list else None

    def num_classes(self, net: nn.Module) -> int | None:
        """How many classes the network tells apart; None if only a forward pass can tell."""
        return None

    def files(self, weights: str) -> Sequence[Path]:
        """The files that the network is made of, a checkpoint aside: maps depend on their content."""
        return ()


@contextlib.contextmanager
def fetching(what: str, advice: str) -> Iterator[None]:
    """One sentence for whatever a library raises that gets a network from somewhere.

    Args:
        what: what is fetched.
        advice: what else can be done.

    Raises:
        ConfigurationError: it could not be had.
    """
    log = logging.getLogger("huggingface_hub")  # tells of each of its attempts
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    except ConfigurationError:
        raise
    except Exception as error:  # files, sockets, HTTP, formats: each release has its own
        raise ConfigurationError(f"{what} could not be had ({first_line(error)}): {advice}") from error
    finally:
        log.setLevel(level)


def square(height: int, width: int, name: str) -> int:
    """The side of a network's square input.

    Raises:
        ConfigurationError: the input is oblong.
    """
    if height != width:
        raise ConfigurationError(f"{name} takes images of {height} x {width} pixels, but only squares are cut out here")
    return height
