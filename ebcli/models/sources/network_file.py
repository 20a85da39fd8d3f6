"""What sources of networks in files have in common."""

import os
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from ebcli.errors import ConfigurationError
from ebcli.models.keywords import CROP, DEFAULT, IN_FILE, PAD, SQUASH
from ebcli.models.sources.base import ModelSource
from ebcli.nouns.input_spec import InputSpec

_USUAL_SIDE = 224  # pixels, of networks that take any


class NetworkFile(ModelSource):
    """A network in a file, with its weights, that does not say how pixels are scaled."""

    _spec: InputSpec

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.path = Path(name)
        if not os.path.isfile(self.path):
            raise ConfigurationError(f"the file {name} does not exist")

    @abstractmethod
    def network(self) -> nn.Module:
        """The network in the file."""

    def build(self, num_classes: int | None = None) -> nn.Module:
        if num_classes is not None:
            raise ConfigurationError(f"{self.name} cannot be built for {num_classes} classes: drop --weights")
        return self.network()

    def published(self, weights: str) -> str | None:
        return IN_FILE if weights == DEFAULT else None

    def transforms(self, net: nn.Module, weights: str) -> InputSpec:
        return self._spec

    def files(self, weights: str) -> Sequence[Path]:
        return [self.path]

    def take(self, shape: Sequence[Any], rank: int) -> None:
        """Set the preprocessing.

        Args:
            shape: of the input, (B, C, H, W); what is no number is free.
            rank: number of dimensions of the output.

        Raises:
            ConfigurationError: the network does not take images, or takes several at once.
        """
        if len(shape) != 4:
            shown = ", ".join(map(str, shape))
            raise ConfigurationError(f"{self.name} takes an input ({shown}), but images (B, C, H, W) are needed")
        batch, channels, *sides = (one if isinstance(one, int) and one > 0 else None for one in shape)
        if batch not in (None, 1):
            raise ConfigurationError(f"{self.name} takes {batch} images at once: export it for one, or for any number")
        self.one_by_one, self.takes_any_size = batch == 1, None if None in sides else False
        height, width = (side or _USUAL_SIDE for side in sides)
        fit, resize = (CROP, (height,)) if height == width else (SQUASH, (height, width))
        self._spec = InputSpec((height, width), resize=resize, fit=fit)
        scaling = "0 to 1, normalized by ImageNet's mean and standard deviation"
        if rank == 3:  # of the YOLO kind
            scaling, fit = "0 to 1", PAD if fit == CROP else fit
            self._spec = replace(self._spec, fit=fit, mean=(0.0,) * 3, std=(1.0,) * 3)
        if channels not in (None, 3):
            scaling, self._spec = "0 to 1", self._spec.with_channels(channels)
        self.assumption = f"does not say how pixels are scaled: assuming {scaling}; --mean and --std set that"
