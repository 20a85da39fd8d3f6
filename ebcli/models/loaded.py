"""A loaded network, and the hashes that identify it and its settings. Imports no torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from ebcli.datatypes.input_spec import InputSpec
from ebcli.errors import ConfigurationError, plural
from ebcli.files.paths import file_digest
from ebcli.imports import installed_version
from ebcli.models.classes import Texts, check_texts, printable
from ebcli.models.keywords import BUNDLED, CLASSIFICATION, DEFAULT, RAW, SIGMOID, SOFTMAX, UNTRAINED
from ebcli.models.spec import Preprocessing

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

    from ebcli.models.several_inputs import SeveralInputs

HeadShape = tuple[int | str, ...]

# What is known of the bundled network before it is loaded
NAME = "IMAGENET1K_V1"  # of its weights, as torchvision would call them
DEFAULT_LAYER = "features.11"  # as ``default_layer`` finds it
STRENGTH_ON_NOISE = 0.0018  # of contrastive maps at that layer, as ``ebcli.run.controls`` measures it
# (x - 127) / 128 for pixels of 0 to 255
PRESET = InputSpec(
    (224, 224),
    mean=(127 / 255,) * 3,
    std=(128 / 255,) * 3,
    resample=Image.Resampling.BICUBIC,
    network=BUNDLED,
)


@dataclass(frozen=True)
class LoadedModel:
    """A network with its preprocessing and its class names.

    Attributes:
        name: the name it was loaded by, such as ``"vgg16"``.
        net: maps images (B, 3, H, W) to logits (B, num_classes); detectors and segmentation networks to
            (B, num_classes, ...); networks for video map clips (B, 3, T, H, W). In evaluation mode, on its device. A
            detector is wrapped by ``DetectionScores``.
        transforms: the preprocessing, which maps an image to the network's input (3, H, W): its ``size``, ``resize``,
            ``fit``, ``mean``, ``std`` and ``resample``. For video, it maps 8-bit frames (T, 3, H, W) to a clip
            (3, T, H, W), of ``frames`` frames at ``rate`` per second.
        categories: class names in the order of the logits; None if unknown.
        weights: name of the weights, path of the checkpoint, ``"factory"`` for those that a factory returned,
            ``"file"`` for those in the file of a network, or ``"none"``.
        num_classes: number of classes.
        head: the name of the head that the network returns; None if it has only one.
        heads: the shapes of all heads by name, without the batch, where a side that is free has a name; empty if there
            is only one.
        scores: how logits become scores: ``"softmax"``, ``"sigmoid"`` or ``"raw"``.
        has_values: whether scores are values on a scale of their own, which can be any numbers.
        files: files whose content defines the network: a checkpoint, a model file.
        task: ``"classification"``, ``"detection"``, ``"segmentation"``, ``"video"``; or ``"values"`` or ``"maps of
            values"`` of networks that return numbers.
        one_by_one: whether the network takes a single image only.
        preprocessing: the settings that replaced those of the network's own preprocessing.
        fit: the preprocessing with other settings; None if there is no other.
        inputs: what a network of several inputs gets beside the picture; None for networks of one input.

    Examples:
        >>> import ebcli
        >>> from PIL import Image
        >>> loaded = ebcli.load_model()
        >>> loaded.transforms(Image.open("sample_images/coffee.jpg")).shape
        torch.Size([3, 224, 224])
        >>> loaded.categories[967]
        'espresso'
    """

    name: str
    net: Module
    _: KW_ONLY
    transforms: InputSpec
    categories: tuple[str, ...] | None = None
    weights: str = DEFAULT
    num_classes: int = 0
    files: tuple[Path, ...] = ()
    scores: str = SOFTMAX
    has_values: bool = False
    task: str = CLASSIFICATION
    one_by_one: bool = False
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    fit: Callable[[Preprocessing], InputSpec] | None = field(default=None, compare=False)
    head: str | None = None
    heads: Mapping[str, HeadShape] = field(default_factory=dict, compare=False)
    inputs: SeveralInputs | None = field(default=None, compare=False)

    def __repr__(self) -> str:  # a network in full would fill screens
        words = [self.name, f"weights {self.weights}"]
        if self.head is not None:
            words.append(f"head {self.head}")
        return f"<{', '.join(words)}, for {self.task}, {self._num_outputs}>"

    @property
    def _num_outputs(self) -> str:
        if self.has_values:
            return plural(self.num_classes, "output")
        return f"{self.num_classes} classes"

    def category(self, index: int) -> str | None:
        """The name of a class; None if it is unknown."""
        if not self.categories:
            return None
        return self.categories[index]

    def with_preprocessing(self, settings: Preprocessing) -> LoadedModel:
        """The same network, which gets images otherwise."""
        if settings == self.preprocessing or self.fit is None:
            return self
        return replace(self, transforms=self.fit(settings), preprocessing=settings)

    @property
    def compares_texts(self) -> bool:
        """Whether the network compares images with texts, which other texts can replace."""
        return getattr(self.net, "with_texts", None) is not None

    def with_texts(self, texts: Texts) -> LoadedModel:
        """The same network, which compares images with other texts; it is not loaded again.

        Raises:
            ConfigurationError: it compares images with no texts, or one of these is empty or too long.
        """
        if not self.compares_texts:
            raise ConfigurationError(f"{self.name} compares images with no texts: choose clip/NAME")
        check_texts(self.name, texts)
        net: Any = self.net
        new_net = net.with_texts(texts).eval().to(next(net.parameters()))  # its device and type
        names = tuple(map(printable, texts))
        return replace(self, net=new_net, categories=names, num_classes=len(names))

    @property
    def trained(self) -> bool:
        """Whether weights were loaded, or a factory returned the network with ``"DEFAULT"`` weights."""
        return self.weights != UNTRAINED

    def to_scores(self, logits: Tensor) -> Tensor:
        """Scores (..., num_classes) of logits: their softmax, their sigmoid, or the logits themselves."""
        if self.scores == RAW:
            return logits
        if self.scores == SIGMOID:
            return logits.sigmoid()
        return logits.softmax(-1)


def configuration_hash(settings: Mapping[str, object]) -> str:
    """Hash settings; equal settings give equal hashes, in any order."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def network_settings(loaded: LoadedModel) -> dict[str, object]:
    """Everything about this program and the network that results depend on, for ``configuration_hash``.

    Checkpoints and model files count by their content, not their path.
    """
    settings: dict[str, object] = {
        "version": installed_version().split(".")[:2],  # patch releases compute the same
        "model": loaded.name,
        "weights": None if Path(loaded.weights) in loaded.files else loaded.weights,
        "files": [content_hash(file) for file in loaded.files],
        "preprocessing": repr(loaded.transforms),
        "categories": loaded.categories,
    }
    if loaded.scores != SOFTMAX:
        settings["scores"] = loaded.scores
    if loaded.head is not None:
        settings["head"] = loaded.head
    return settings


def content_hash(path: Path) -> str:
    """SHA-256 of a file. Raises ConfigurationError if it cannot be read."""
    try:
        return file_digest(path, follow=True)
    except OSError as error:
        raise ConfigurationError(f"cannot read '{path}': {error.strerror}") from error
