"""Networks of Hugging Face: ``hf/microsoft/resnet-50`` on the hub, ``hf/my_model`` in a local directory.

``clip/NAME`` are those with a tower for texts, whose embeddings become the weights of a classifier. No code of a model
is executed: weights are read from safetensors only, and remote code is never downloaded.
"""

import contextlib
import copy
import importlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import Module

from ebcli.datatypes.input_spec import InputSpec, measure_placement
from ebcli.errors import ConfigurationError, import_optional
from ebcli.files.paths import safe_open
from ebcli.models.checkpoint import StateDict, check_match, classes_in, without_prefixes
from ebcli.models.classes import Names, Texts
from ebcli.models.keywords import (
    CROP,
    DEFAULT,
    DETECTION,
    PAD,
    RAW,
    SEGMENTATION,
    SIGMOID,
    SOFTMAX,
    SQUASH,
    VALUE_MAPS,
    VIDEO,
    WHOLE,
)
from ebcli.models.sources import huggingface_heads as heads
from ebcli.models.sources.base import ModelSource, fetch_errors, quiet
from ebcli.models.sources.similarity import ImageTower, TwoTowers, check_lengths
from ebcli.models.spec import Preprocessing

_ADVICE = (
    "give the name of a model on the hub, such as hf/microsoft/resnet-50 or clip/openai/clip-vit-base-patch32, or a "
    "directory written by save_pretrained(); offline, only models in the local cache can be loaded"
)
TWO_TOWERS = ("clip", "siglip")  # types with a tower for images and one for texts
_TOKENIZER_ADVICE = (
    "save the tokenizer beside the model by save_pretrained(), and install the package that it needs"
)
# Frames per second of the clips that the published networks were trained on: of Kinetics, at 30 frames per second,
# every fourth (VideoMAE), 32nd (TimeSformer) or second frame (ViViT)
_RATES = {"videomae": 7.5, "timesformer": 0.94, "vivit": 15.0}
_USUAL_RATE = 15.0  # frames per second
# What configurations name: files for timm to load, and networks and shards, which are addresses or paths if elsewhere
_FILES = ("checkpoint_path", "cache_dir", "base_model_name_or_path")
_SHARDS = "weight_map"
_PARTS = ("architecture", "backbone", "backbone_config", _SHARDS)
_LEADS_ELSEWHERE = re.compile(r"[/\\:]")
_WORDS_ONLY = ("pretrained_cfg", "id2label", "label2id")  # the first says where timm's own weights came from
_MORE_NAMES = ("model.safetensors.index.json", "adapter_config.json")
_HEAD = "classifier."
_POOLER = "pooler."
_TEXTS_AT_ONCE = 64
# by what is seen of an image that is twice as wide as high, across and down, in halves of what is seen of a square
_FITS = {(1, 1): CROP, (2, 2): PAD}
_SIDE = 1024  # pixels of the images that processors are measured by
_UNSIZED = 480  # pixels of the shorter side where a processor keeps that of the image, as GLPN was trained
_LONG = 8  # times as wide as high, more than any limit of the longer side
_SCORES = {"single_label_classification": SOFTMAX, "multi_label_classification": SIGMOID, "regression": RAW}


class HuggingFace(ModelSource):
    """A model on the hub, or in a local directory."""

    _prefix = "hf/"
    patterns: tuple[str, ...] = ("*.json",)  # of the files that define it

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._library = import_optional("transformers")
        self._check_files()
        self._config = self._fetch("AutoConfig", "configuration", _ADVICE)
        self._head = self._chosen_head()
        # transformers needs a list to choose among several heads, and takes the first if it is empty
        self._config.architectures = self._config.architectures or []
        self._auto = getattr(self._library, self._head)

    def _fetch(self, auto_class: str, part: str, advice: str) -> Any:
        """What transformers reads of the model beside its weights, such as its configuration."""
        auto = getattr(self._library, auto_class)
        with fetch_errors(f"the {part} of {self._title}", advice), self._silent():
            return auto.from_pretrained(self.name, trust_remote_code=False)

    def _check_files(self) -> None:
        """Raise ConfigurationError if the model names files, models or servers outside of it, which may be anything.

        The libraries that build it would read them, and wait for pipes.
        """
        for path in self.files(DEFAULT):
            if not path.is_file():
                raise self._error(f"has {path.name!r}, which is no regular file: remove it")
        with fetch_errors(f"the configuration of {self._title}", _ADVICE), self._silent():
            config, _ = self._library.PreTrainedConfig.get_config_dict(self.name)
            names = [*_names_elsewhere(config)]
            for path in map(Path(self.name).joinpath, _MORE_NAMES):
                if path.is_file():
                    names += _names_elsewhere(json.loads(safe_open(path).read()))
        if names:
            raise self._error(f"names {names[0]!r} in its files, but only what is part of the model is read")

    def _chosen_head(self) -> str:
        """The auto class for the configuration. Raises ConfigurationError if there is none."""
        head = heads.head_of(self._library, self._config)
        if head is None and heads.has_features(self._library, self._config):
            return heads.TOWERS
        if head is None:
            kind = self._config.model_type
            problem = f"is of type {kind}, which is no classifier, detector, segmentation or depth network"
            if kind in TWO_TOWERS:
                problem += f": use clip/{self.name} with --target TEXT"
            raise self._error(problem)
        return head

    @property
    def _has_features_only(self) -> bool:
        """Whether it has no head, as DINOv3."""
        return self._head == heads.TOWERS and self._config.model_type not in TWO_TOWERS

    def task(self, net: Module) -> str | None:
        if self._has_features_only and not self.headless:
            raise self._error("returns features and has no classes: add --similar-to PICTURE")
        return heads.HEADS.get(self._head)

    def takes_texts(self) -> bool:
        return self._head == heads.WITH_TEXTS

    def with_texts(self, net: Module, texts: Texts, scores: str) -> Module:
        return heads.with_texts(net, self._tokenizer(), texts, self._title)

    def _tokenizer(self) -> Any:
        tokenizer = self._fetch("AutoTokenizer", "tokenizer", _TOKENIZER_ADVICE)
        if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):  # made up where there is none
            problem = f"cannot load the tokenizer of {self._title} (it has no words)"
            raise ConfigurationError(f"{problem}: {_TOKENIZER_ADVICE}")
        return tokenizer

    def build(self, num_classes: int | None = None) -> Module:
        config = self._config_for(num_classes)
        with self._silent():
            return heads.make_plain(self._auto.from_config(config, dtype=torch.float32), self._head)

    def pretrained(self, weights: str) -> Module:
        advice = (
            "pass --weights FILE for a checkpoint of torch.save, or --weights none for an untrained network"
        )
        with fetch_errors(f"the weights of {self._title}", advice):
            return self._load_published()

    def restored(self, state: StateDict, title: str) -> Module:
        net = self.build()
        state = without_prefixes(state, net.state_dict())
        count = None
        if self._head not in heads.WITHOUT_ROWS:
            count = classes_in(state, net)
        # loading it so also converts names of earlier releases
        return self._load(type(net), None, title, config=self._config_for(count), state_dict=state)

    def _config_for(self, num_classes: int | None) -> Any:
        config = copy.deepcopy(self._config)
        config.num_labels = num_classes or config.num_labels
        return config

    def _load_published(self, **options: Any) -> Module:
        options |= {"config": self._config, "use_safetensors": True, "trust_remote_code": False}
        return self._load(self._auto, self.name, f"the model {self._title}", **options)

    def _load(self, model_class: Any, name: str | None, title: str, **options: Any) -> Module:
        """A model with weights, every one of which must fit; `title` is what to call them in messages."""
        options.setdefault("dtype", torch.float32)
        options |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
        with self._silent():
            net, info = model_class.from_pretrained(name, **options)
        misshapen = [
            f"{key} is {tuple(shape)} instead of {tuple(network_shape)}"
            for key, shape, network_shape in info["mismatched_keys"]
        ]
        missing = sorted(info["missing_keys"])
        extra = sorted(info["unexpected_keys"])
        if self.headless:  # what is below the head was loaded; a pooler above the features is not used
            missing = [key for key in missing if not key.startswith(_HEAD)]
            extra = [key for key in extra if _POOLER not in key]
        check_match(title, misshapen, missing, extra)
        return heads.make_plain(net, self._head)

    def transforms(self, net: Any, weights: str) -> InputSpec:
        auto = importlib.import_module("transformers.models.auto.image_processing_auto")
        with fetch_errors(f"the preprocessing of {self._title}", _ADVICE), self._silent():
            # transformers 5.5 to 5.18 finds only a configuration that is part of processor_config.json
            if auto.get_image_processor_config(self.name) or self._library.utils.cached_file(
                self.name, "preprocessor_config.json", _raise_exceptions_for_missing_entries=False
            ):
                processor = auto.AutoImageProcessor.from_pretrained(self.name, trust_remote_code=False)
                return self._spec_of(processor)
            usual = auto.IMAGE_PROCESSOR_MAPPING.get(type(self._config), {}).get("torchvision")
            spec = self._spec_of(usual()) if usual else super().transforms(net, weights)
        side = getattr(getattr(self._config, "vision_config", self._config), "image_size", None)
        if not isinstance(side, int):
            return spec
        return Preprocessing(resize=side, crop=side).apply(spec)

    def _spec_of(self, processor: Any) -> InputSpec:
        task = heads.HEADS.get(self._head)
        keeps_shape = task in (DETECTION, SEGMENTATION, VALUE_MAPS)
        spec = spec_of(processor, self._title, keeps_shape=keeps_shape)
        if task != VIDEO:
            return spec
        rate = _RATES.get(self._config.model_type, _USUAL_RATE)
        return replace(spec, frames=self._config.num_frames, rate=rate)

    def categories(self, net: Any, weights: str) -> Names:
        names = [name for _, name in sorted(net.config.id2label.items())]
        if all(re.fullmatch(r"LABEL_\d+", name) for name in names):
            return None
        return names

    def with_features(self, net: Module, weights: str) -> Module | None:
        if self._has_features_only:
            return heads.with_pooled_features(net)
        return None  # class names may be unknown, but there is a head

    def scores(self, net: Any) -> str | None:
        if self._head == heads.UNIVERSAL:
            return RAW
        return _SCORES.get(net.config.problem_type)

    def files(self, weights: str) -> Sequence[Path]:
        patterns = [*self.patterns]
        if weights == DEFAULT:
            patterns.append("*.safetensors")
        return sorted(file for pattern in patterns for file in Path(self.name).glob(pattern))

    @contextlib.contextmanager
    def _silent(self) -> Iterator[None]:
        """Silence the logging and progress bars of transformers."""
        log = self._library.utils.logging
        with quiet("transformers"), contextlib.ExitStack() as after:
            if log.is_progress_bar_enabled():
                log.disable_progress_bar()
                after.callback(log.enable_progress_bar)
            yield


class Clip(TwoTowers, HuggingFace):
    """A model with two towers on the hub, or in a local directory: CLIP or SigLIP."""

    _prefix = "clip/"
    patterns = ("*.json", "*.txt", "*.model")  # the tokenizer's files, too

    def _chosen_head(self) -> str:
        kind = self._config.model_type
        if kind not in TWO_TOWERS:
            advice = f"use hf/{self.name} if it is an image classifier"
            raise self._error(
                f"is of type {kind}, but CLIP or SigLIP is needed to compare images with texts: {advice}"
            )
        return heads.TOWERS

    def tower(self, net: Any) -> ImageTower:
        def embed(tower: Any, images: Tensor) -> Tensor:
            return tower.visual_projection(tower.vision_model(pixel_values=images).pooler_output)

        projection = getattr(net, "visual_projection", nn.Identity())  # SigLIP has none
        return ImageTower(embed, vision_model=net.vision_model, visual_projection=projection)

    def embeddings(self, net: Any, texts: Texts) -> Tensor:
        tokenizer = self._tokenizer()
        longest = self._config.text_config.max_position_embeddings
        with self._silent():  # warns of long texts
            check_lengths(tokenizer, texts, longest, self._title)
        options: dict[str, Any] = {"padding": True}
        if self._config.model_type == "siglip":  # which was trained on padded texts
            options = {"padding": "max_length", "max_length": longest}
        net.eval()
        embeddings = []
        with torch.no_grad():
            for start in range(0, len(texts), _TEXTS_AT_ONCE):
                part = list(texts[start : start + _TEXTS_AT_ONCE])
                tokens = tokenizer(part, return_tensors="pt", **options)
                embeddings.append(net.get_text_features(**tokens).pooler_output)
        return torch.cat(embeddings)


def _names_elsewhere(configuration: Any) -> Iterator[str]:
    """What a configuration names of files, models and servers outside of the model."""
    for key, text in _texts_in(configuration):
        if key in _FILES or (key in _PARTS and _LEADS_ELSEWHERE.search(text)):
            yield text


def _texts_in(values: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """The texts in a configuration, each with the key that it belongs to."""
    if isinstance(values, str):
        yield key, values
    elif isinstance(values, list):
        for value in values:
            yield from _texts_in(value, key)
    elif isinstance(values, dict):
        for name, value in values.items():
            if name not in _WORDS_ONLY:
                yield from _texts_in(value, key if key == _SHARDS else name)


def spec_of(processor: Any, name: str, *, keeps_shape: bool = False) -> InputSpec:
    """The preprocessing equivalent to an image or video processor, measured on synthetic images.

    The values of black and white pixels give mean and standard deviation. Where the pixels of a square come from gives
    the size to which it is resized before the center crop; those of an image twice as wide as high tell how other
    images are fitted.

    Args:
        processor: the processor.
        name: the network's name, for messages.
        keeps_shape: where the size of the processor's output follows the image, the network gets whole images.

    Raises:
        ConfigurationError: the processor does something else.
    """
    problem = ""
    if getattr(processor, "do_flip_channel_order", False):
        problem = "expects channels in the order blue, green, red"
    elif not getattr(processor, "do_resize", True):
        problem = "does not resize its input"
    if problem:
        raise ConfigurationError(f"{name} {problem}, which is not supported")

    if "ZoeDepth" in type(processor).__name__:
        processor = copy.copy(processor)
        processor.do_pad = False  # its margin of mirrored pixels has no place in the image

    from torchvision.transforms.functional import pil_to_tensor  # which other networks do not need

    def process(image: Image.Image) -> Tensor:
        values: Tensor = processor(pil_to_tensor(image), return_tensors="pt")["pixel_values"]
        return values.flatten(0, -4)[0].double()  # processors for video take an image for a video

    def size_of(width: int, height: int) -> tuple[int, ...]:
        """The size that an image gets."""
        return tuple(process(Image.new("RGB", (width, height))).shape[1:])

    def extent(width: int, height: int) -> list[float]:
        """How much of an image of that size is seen, across and down; with padding, more than there is."""
        return [end - start for start, end in measure_placement(process, (width, height)).sides]

    black = process(Image.new("RGB", (_SIDE, _SIDE)))
    white = process(Image.new("RGB", (_SIDE, _SIDE), "white"))
    _, height, width = black.shape
    size = (height, width)
    low = black[:, height // 2, width // 2]  # (3,)
    contrast = white[:, height // 2, width // 2] - low
    across, down = extent(_SIDE, _SIDE)
    resize = round(height * _SIDE / down), round(width * _SIDE / across)
    spec = InputSpec(
        size,
        resize=resize[: len({*resize})],
        mean=_round(-low / contrast),
        std=_round(1 / contrast),
        resample=Image.Resampling(int(processor.resample)),
    )
    if not processor.size:
        return replace(spec, fit=WHOLE, size=(_UNSIZED, _UNSIZED), resize=(_UNSIZED,))
    is_cropped = size_of(_SIDE, _SIDE // 2) == size
    if is_cropped:
        wide_across, wide_down = extent(_SIDE, _SIDE // 2)
        halves = round(2 * wide_across / across), round(2 * wide_down / down)
        return replace(spec, fit=_FITS.get(halves, SQUASH))
    if not keeps_shape:
        return spec
    return replace(spec, fit=WHOLE, longest=max(size_of(_SIDE, _SIDE // _LONG)))


def _round(values: Tensor) -> tuple[float, ...]:
    """Numbers without the rounding errors of float32."""
    return tuple(round(value, 6) + 0.0 for value in values.tolist())  # no -0.0
