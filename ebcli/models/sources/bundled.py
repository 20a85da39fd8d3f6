"""The bundled network, whose weights are installed with this program. Imports no torchvision."""

from collections.abc import Sequence

from torch import nn

from ebcli.models.checkpoint import load_checkpoint
from ebcli.models.efficientnet_lite import EfficientNetLite
from ebcli.models.efficientnet_lite_weights import NAME, PRESET, published_state
from ebcli.models.keywords import BUNDLED, DEFAULT
from ebcli.models.names import imagenet_classes
from ebcli.models.sources.base import ModelSource
from ebcli.nouns.input_spec import InputSpec


class Bundled(ModelSource):
    """EfficientNet-Lite0. Checkpoints get the preprocessing and, if there are 1000, the classes of its weights."""

    takes_any_size = True

    def __init__(self, _name: str = BUNDLED) -> None:
        super().__init__(BUNDLED)

    def build(self, num_classes: int | None = None) -> nn.Module:
        return EfficientNetLite(num_classes or len(imagenet_classes()))

    def weights(self) -> Sequence[str]:
        return [NAME]

    def published(self, weights: str) -> str | None:
        return NAME if weights in (DEFAULT, NAME, f"EfficientNet_Lite0_Weights.{NAME}") else None

    def pretrained(self, weights: str) -> nn.Module:
        net = self.build()
        load_checkpoint(net, published_state(net.state_dict()), f"{weights} for {self.name}")
        return net

    def transforms(self, net: nn.Module, weights: str) -> InputSpec:
        return PRESET

    def categories(self, net: nn.Module, weights: str) -> Sequence[str] | None:
        return imagenet_classes()
