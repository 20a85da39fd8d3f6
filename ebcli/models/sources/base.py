"""The interface of model sources, and what several of them have in common."""

import contextlib
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from PIL import Image
from torch.nn import Module

from ebcli.datatypes.input_spec import InputSpec
from ebcli.errors import ConfigurationError, first_line
from ebcli.heads import HeadChoice
from ebcli.models.checkpoint import StateDict, classes_in, load_checkpoint
from ebcli.models.classes import NamesOfHeads, Texts
from ebcli.models.keywords import (
    CROP,
    DEFAULT,
    IN_FILE,
    OWN_TASKS,
    PAD,
    SCORES,
    SQUASH,
    TASKS,
    VALUE_MAPS,
    VALUES,
    VIDEO,
)
from ebcli.models.loaded import HeadShape
from ebcli.models.spec import Preprocessing

# Frames, frames per second and preset of torchvision's video ResNets
USUAL_CLIP = 16, 15.0
_MEAN, _STD = (0.43216, 0.394666, 0.37645), (0.22803, 0.22145, 0.216989)
_USUAL_SIDE = 224  # pixels, of networks that take any
_USUAL_CLIPS = InputSpec((112, 112), resize=(128,), mean=_MEAN, std=_STD)


class ModelSource(ABC):
    """A network before it is built; each subclass builds the networks of one source, such as timm.

    Subclasses must define ``build`` only. The argument ``weights`` of the methods is ``"none"``, the path of a
    checkpoint, or a name returned by ``published``.

    Args:
        name: the part after the source's prefix: ``tiny`` in ``acme/tiny``.

    Raises:
        ConfigurationError: the source has no such network.

    Examples:
        >>> import ebcli
        >>> from torch import nn
        >>> class Acme(ebcli.ModelSource):
        ...     def build(self, num_classes=None):
        ...         return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, num_classes or 10))
        >>> Acme("tiny").build(num_classes=2)[1].out_features
        2
    """

    default_weights = DEFAULT  # their full name
    takes_any_size: bool | None = None  # whether networks take images of any size; None to find out
    one_by_one = False  # whether the network takes a single image only
    assumption = ""  # what is assumed of the preprocessing if it is unknown, for "NAME ..."
    # set before the network is built: its features are wanted, so a checkpoint may lack the head
    headless = False
    head: str | None = None  # of several that are told apart before the network is built
    heads: Mapping[str, HeadShape] = MappingProxyType({})  # the shapes of these
    _prefix = ""  # of the sources in this package, as users write it

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def _title(self) -> str:
        return self._prefix + self.name

    def _error(self, problem: str) -> ConfigurationError:
        """The error of which the sentence begins with the network's name."""
        return ConfigurationError(f"{self._title} {problem}")

    @classmethod
    def names(cls) -> Iterable[str]:
        """Names of the source's networks for ``eb-saliency models``; empty if unknown or too many."""
        return ()

    @abstractmethod
    def build(self, num_classes: int | None = None) -> Module:
        """Build the network without loading weights: images (B, 3, H, W) to logits (B, num_classes).

        It is called with the same random seed each time.

        Args:
            num_classes: number of classes; None for the network's default.

        Raises:
            ConfigurationError: the network cannot be built for that number of classes.
        """

    def weights(self) -> Sequence[str]:
        """Names of the published weights, the default first."""
        return [DEFAULT]

    def published(self, weights: str) -> str | None:
        """Full name of published weights; None if there are none of that name."""
        if weights not in self.weights():
            return None
        return self.default_weights if weights == DEFAULT else weights

    def pretrained(self, weights: str) -> Module:
        """Build the network with published weights; by default, the same as ``build()``."""
        return self.build()

    def restored(self, state: StateDict, title: str) -> Module:
        """Build the network for a state dict's number of classes and load the state dict.

        Args:
            state: tensors by name.
            title: what to call the state dict in messages.

        Raises:
            ConfigurationError: the state dict does not match the network.
        """
        net = self.build()
        count = classes_in(state, net)
        if count not in (None, classes_in(net.state_dict(), net)):
            net = self.build(count)
        load_checkpoint(net, state, title)
        return net

    def transforms(self, net: Module, weights: str) -> InputSpec:
        """The preprocessing; by default, torchvision's usual one, changed by ``net.preprocessing`` if it exists.

        Sources may also return one of torchvision's presets, such as ``ImageClassification``. The channels are those
        that the first convolution takes, or ``net.channels``; if there are not three, values are not normalized. A
        network whose first convolution is 3-D, or whose preprocessing has a ``depth``, takes volumes.

        For video, ``net.frames`` and ``net.frame_rate`` are the frames per clip and per second; else 16 and 15.
        """
        from ebcli.models.running import fitting_first_layer

        spec = InputSpec((224, 224), network=self.name)
        if self.task(net) == VIDEO:
            frames, rate = USUAL_CLIP
            custom_frames = getattr(net, "frames", None)
            if isinstance(custom_frames, int) and custom_frames > 0:
                frames = custom_frames
            custom_rate = getattr(net, "frame_rate", None)
            if isinstance(custom_rate, (int, float)) and custom_rate > 0:
                rate = float(custom_rate)
            spec = replace(_USUAL_CLIPS, frames=frames, rate=rate, network=self.name)
        settings = getattr(net, "preprocessing", None)
        if isinstance(settings, InputSpec):
            return settings
        if not isinstance(settings, Preprocessing):
            settings = Preprocessing()
        if settings.depth:
            spec = spec.of_volumes
        channels = getattr(net, "channels", None)
        if isinstance(channels, int):
            return settings.apply(spec.with_channels(channels))
        return settings.apply(fitting_first_layer(net, spec))

    def categories(self, net: Module, weights: str) -> NamesOfHeads:
        """Class names in the order of the logits, or a mapping of heads to theirs; by default, ``net.categories``."""
        names = getattr(net, "categories", None)
        if _are_names(names):
            return names
        if isinstance(names, Mapping) and all(map(_are_names, names.values())):
            return names
        return None

    def scores(self, net: Module) -> str | None:
        """How logits become scores; None for the default. By default, ``net.scores`` if it is one of ``SCORES``."""
        return _choice(net, "scores", SCORES)

    def task(self, net: Module) -> str | None:
        """What the network does, one of ``TASKS``; None to find out. By default, ``net.task`` if it is one of them."""
        return _choice(net, "task", (*TASKS, VALUES, VALUE_MAPS, *OWN_TASKS))

    def takes_texts(self) -> bool:
        """Whether the class names are texts, from which ``with_texts`` makes the classifier."""
        return False

    def with_texts(self, net: Module, texts: Texts, scores: str) -> Module:
        """The classifier of images by texts: images (B, 3, H, W) to logits (B, len(texts)).

        Args:
            net: a network of this source.
            texts: at least one.
            scores: what the logits will be turned into; ``"raw"`` for cosine similarities.

        Raises:
            ConfigurationError: the network has no tower for texts, or a text is too long for it.
        """
        raise self._error("has no tower for texts: choose clip/NAME")

    def choose_head(self, choice: HeadChoice) -> HeadChoice:
        """Choose one of the heads that are told apart before the network is built.

        Returns:
            What remains to be chosen of the network's output; by default, the same.

        Raises:
            ConfigurationError: there is no such head.
        """
        return choice

    def with_features(self, net: Module, weights: str) -> Module | None:
        """The network from images to features (B, D); None to take what its last linear layer reads.

        By default, the network itself if it has no class names, as it is no classifier then.
        """
        if self.categories(net, weights) is not None:
            return None
        return net

    def files(self, weights: str) -> Sequence[Path]:
        """Files other than the checkpoint whose content defines the network."""
        return ()

    def _square_spec(self, size: Sequence[int], config: Mapping[str, Any], **options: Any) -> InputSpec:
        """The preprocessing of a library that names its mean, std and interpolation.

        Raises:
            ConfigurationError: the input is not square.
        """
        height, width = size
        if height != width:
            raise self._error(f"expects images of {height} x {width} pixels, but only squares are supported")
        for name in ("mean", "std"):
            options[name] = tuple(config[name])
        options["resample"] = Image.Resampling[config["interpolation"].upper()]
        return InputSpec((height, width), **options)


def _are_names(names: Any) -> bool:
    return isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)


def _choice(net: Module, attribute: str, words: Sequence[str]) -> str | None:
    """What a network says of itself, if it is one of some words; else None."""
    word = getattr(net, attribute, None)
    if isinstance(word, str) and word in words:
        return word
    return None


class NetworkFile(ModelSource):
    """A network in a file, with its weights, that does not say how pixels are scaled."""

    default_weights = IN_FILE
    _spec: InputSpec

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.path = Path(name)
        if not os.path.isfile(self.path):
            raise ConfigurationError(f"the file {name} does not exist")

    @abstractmethod
    def network(self) -> Module:
        """The network in the file."""

    def build(self, num_classes: int | None = None) -> Module:
        if num_classes is not None:
            raise self._error(f"cannot be built for {num_classes} classes: drop --weights")
        return self.network()

    def transforms(self, net: Module, weights: str) -> InputSpec:
        return self._spec

    def files(self, weights: str) -> Sequence[Path]:
        return [self.path]

    def _check_single(self, inputs: Collection[object], hint: str = "") -> None:
        """Raise ConfigurationError unless there is one input."""
        if len(inputs) != 1:
            names = ", ".join(map(str, inputs))
            raise self._error(f"has {len(inputs)} inputs ({names}), but must have one{hint}")

    def take(self, shape: Sequence[Any], rank: int) -> None:
        """Set the preprocessing.

        Args:
            shape: of the input, (B, C, H, W); what is no number is free.
            rank: number of dimensions of the output.

        Raises:
            ConfigurationError: the network does not take images, or takes several at once.
        """
        if len(shape) != 4:
            axes = ", ".join(map(str, shape))
            raise self._error(f"takes an input ({axes}), but images (B, C, H, W) are needed")
        # 0 where it is free
        batch, channels, *sides = (isinstance(length, int) and max(length, 0) for length in shape)
        if batch > 1:
            raise self._error(f"takes {batch} images at once: export it for one, or for any number")
        self.one_by_one = batch == 1
        if all(sides):
            self.takes_any_size = False
        height, width = size = (sides[0] or _USUAL_SIDE, sides[1] or _USUAL_SIDE)
        is_yolo = rank == 3
        scaling = "0 to 1"
        if is_yolo:
            spec = InputSpec.as_is(size, resize=size[:1], fit=PAD)
        else:
            spec = InputSpec(size, resize=size[:1], fit=CROP)
        if height != width:
            spec = replace(spec, resize=size, fit=SQUASH)
        self._spec = spec.with_channels(channels or 3)
        if any(self._spec.mean):
            scaling += ", normalized by ImageNet's mean and standard deviation"
        self.assumption = f"does not say how pixels are scaled: assuming {scaling}; --mean and --std set that"


@contextlib.contextmanager
def fetch_errors(title: str, advice: str) -> Iterator[None]:
    """Turn any error of a library that downloads or reads a network into a one-sentence ConfigurationError.

    Args:
        title: what is being loaded.
        advice: what the user can do instead.

    Raises:
        ConfigurationError: the block raised an exception.
    """
    try:
        with quiet("huggingface_hub"):  # logs each attempt
            yield
    except ConfigurationError:
        raise
    except Exception as error:  # files, sockets, HTTP, formats: every release raises different types
        raise ConfigurationError(f"cannot load {title} ({first_line(error)}): {advice}") from error


@contextlib.contextmanager
def quiet(*loggers: str) -> Iterator[None]:
    """Let some loggers of libraries tell nothing, where all that matters becomes an error or a warning of our own."""
    with contextlib.ExitStack() as levels:
        for log in map(logging.getLogger, loggers):
            levels.callback(log.setLevel, log.level)
            log.setLevel(logging.CRITICAL)
        yield
