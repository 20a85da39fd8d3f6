"""Torchvision's networks: classifiers, detectors, and networks for segmentation and video."""

import contextlib
import hashlib
import io
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import torch
from torch.nn import Module
from torchvision import models

from ebcli.datatypes.input_spec import InputSpec
from ebcli.errors import ConfigurationError, closest, first_line
from ebcli.models.checkpoint import StateDict, classes_in, load_checkpoint
from ebcli.models.classes import Names
from ebcli.models.detection import DetectionScores
from ebcli.models.keywords import BUNDLED, CLASSIFICATION, DETECTION, SEGMENTATION, TASKS, VIDEO
from ebcli.models.names import torchvision_names
from ebcli.models.sources.base import USUAL_CLIP, ModelSource

# the weights of a detector's classifier, with one row for each class, or for each class and anchor
_CLASS_WEIGHT = re.compile(r"cls_(score|logits)\.weight$|classification_head\.module_list\..*weight$")

# Frames per clip and frames per second, by which torchvision measured its weights:
# https://docs.pytorch.org/vision/stable/models.html#video-classification
_CLIPS = {
    "s3d": (128, 15.0),
    "mvit_v1_b": (16, 7.5),
    "mvit_v2_s": (16, 7.5),
    "swin3d_t": (32, 15.0),
    "swin3d_s": (32, 15.0),
    "swin3d_b": (32, 15.0),
}


class Torchvision(ModelSource):
    """A network of ``torchvision.models``.

    A checkpoint gets the preprocessing of the weights with the same file name, otherwise of the default weights.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name.lower())  # torchvision's own lookup ignores case
        valid: dict[str, str] = {}
        for task in TASKS:
            valid |= dict.fromkeys(torchvision_names(task), task)
        if self.name not in valid:
            hint = closest(name, valid) or f"give a torchvision model such as vgg16, or {BUNDLED}"
            raise ConfigurationError(f"unknown model {name!r}: {hint}")
        self._task = valid[self.name]
        self._enum = models.get_model_weights(self.name)

    def task(self, net: Module) -> str:
        return self._task

    def build(self, num_classes: int | None = None) -> Module:
        return self._built(self._enum["DEFAULT"], num_classes)

    def weights(self) -> Sequence[str]:
        return list(self._enum.__members__)

    def published(self, weights: str) -> str | None:
        member = weights.removeprefix(f"{self._enum.__name__}.")
        if member not in self._enum.__members__:
            return None
        return self._enum[member].name

    def pretrained(self, weights: str) -> Module:
        preset = self._enum[weights]
        state = published_state(self.name, preset)
        if self._task != CLASSIFICATION:
            # torchvision adapts layers to these weights; it finds them in the cache now
            return models.get_model(self.name, weights=preset, progress=False)
        net = self._built(preset, None)
        load_checkpoint(net, state, f"{weights} for {self.name}")
        return net

    def restored(self, state: StateDict, title: str) -> Module:
        if self._task != DETECTION:
            return super().restored(state, title)
        net = self.build()
        network_state = net.state_dict()
        name = next(filter(_CLASS_WEIGHT.search, network_state))
        rows = classes_in(state, net, name)
        own_rows = classes_in(network_state, net, name)
        if rows and own_rows and rows != own_rows:
            net = self.build(max(1, DetectionScores(net).num_classes * rows // own_rows))
        load_checkpoint(net, state, title)
        return net

    def transforms(self, net: Module, weights: str) -> InputSpec:
        preset = self._preset(weights).transforms()
        if self._task != VIDEO:
            return InputSpec.from_preset(preset)
        return InputSpec.from_preset(preset, *_CLIPS.get(self.name, USUAL_CLIP))

    def categories(self, net: Module, weights: str) -> Names:
        # VGG-16's IMAGENET1K_FEATURES have no class names because their classifier is untrained
        return self._preset(weights).meta["categories"]

    def _preset(self, weights: str) -> models.WeightsEnum:
        if weights in self._enum.__members__:
            return self._enum[weights]
        by_file = {_file_name(preset): preset for preset in self._enum}
        return by_file.get(Path(weights).name, self._enum["DEFAULT"])

    def _built(self, preset: models.WeightsEnum, num_classes: int | None) -> Module:
        """The network with random weights, configured as for the weights ``preset``."""
        options: dict[str, Any] = {}
        if num_classes is not None:
            options["num_classes"] = num_classes
        if self._task in (DETECTION, SEGMENTATION):
            options["weights_backbone"] = None
        if self.name in ("googlenet", "inception_v3"):
            # with transform_input, these two normalize their input themselves
            options |= {"transform_input": True, "aux_logits": False, "init_weights": False}
        if self.name.startswith("vit_"):  # one position embedding per token
            options["image_size"] = preset.transforms().crop_size[0]
        return models.get_model(self.name, weights=None, **options)


def published_state(name: str, preset: models.WeightsEnum) -> StateDict:
    """Load the state dict of torchvision's weights from the cache of torch.hub, downloading it if necessary.

    Raises:
        ConfigurationError: the file cannot be downloaded, or is damaged.
    """
    file = Path(torch.hub.get_dir(), "checkpoints", _file_name(preset))

    # torch.hub announces downloads on stdout, which is for results only; show them on a terminal's stderr
    is_terminal = sys.stderr.isatty()

    def fetch(**options: bool) -> StateDict:
        with contextlib.redirect_stdout(sys.stderr if is_terminal else io.StringIO()):
            return preset.get_state_dict(progress=is_terminal, check_hash=True, map_location="cpu", **options)

    try:
        return fetch(weights_only=True)
    except Exception as error:  # servers, the disk, and damaged pickles raise anything
        reason = first_line(error).removeprefix("<urlopen error ").removesuffix(">")
        if not os.path.isfile(file):  # a download with a wrong hash leaves no file either
            raise ConfigurationError(
                f"cannot download weights {preset.name} of {name} from {preset.url} ({reason}): "
                f"put that file into {file.parent}, pass --weights FILE or --weights none, "
                "or omit --model for the bundled network"
            ) from error
        digits = re.search(r"-([0-9a-f]{8,})\.", file.name)  # of the SHA-256, as in vgg16-397923af.pth
        if digits is None or not hashlib.sha256(file.read_bytes()).hexdigest().startswith(digits[1]):
            problem = f"{file} is damaged ({reason})"
            raise ConfigurationError(f"{problem}: delete it to download it again") from error
    # weights_only=True refuses the format of some of torchvision's oldest files. This file has the published hash, so
    # it is as trustworthy as torchvision's code.
    return fetch(weights_only=False)


def _file_name(preset: models.WeightsEnum) -> str:
    return Path(urlparse(preset.url).path).name
