"""Networks of Hugging Face: ``hf/microsoft/resnet-50`` on the hub, ``hf/my_model`` in a local directory.

``clip/NAME`` are those with a tower for texts, whose embeddings become the weights of a classifier. No code of a model
is executed: weights are read from safetensors only, and remote code is never downloaded.
"""

import contextlib
import copy
import importlib
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
from ebcli.models import keywords
from ebcli.models.checkpoint import check_match, classes_in, without_prefixes
from ebcli.models.sources import huggingface_heads as heads
from ebcli.models.sources.base import ModelSource, fetch_errors, quiet
from ebcli.models.sources.similarity import ImageTower, TwoTowers, check_lengths
from ebcli.models.spec import Preprocessing

_ADVICE = (
    "give the name of a model on the hub, such as hf/microsoft/resnet-50 or clip/openai/clip-vit-base-patch32, or a "
    "directory written by save_pretrained(); offline, only models in the local cache can be loaded"
)
TWO_TOWERS = ("clip", "siglip")  # types with a tower for images and one for texts
_TOKENIZER_ADVICE = "save the tokenizer beside the model by save_pretrained(), and install the package that it needs"
# Frames per second of the clips that the published networks were trained on: of Kinetics, at 30 frames per second,
# every fourth (VideoMAE), 32nd (TimeSformer) or second frame (ViViT)
_RATES = {"videomae": 7.5, "timesformer": 0.94, "vivit": 15.0}
_USUAL_RATE = 15.0  # frames per second
_HEAD, _POOLER = "classifier.", "pooler."
_TEXTS_AT_ONCE = 64
_SIDE = 1024  # pixels of the images that processors are measured by
_LONG = 8  # times as wide as high, more than any limit of the longer side
_SCORES = {"multi_label_classification": keywords.SIGMOID, "regression": keywords.RAW}
_SCORES |= {"single_label_classification": keywords.SOFTMAX}


class HuggingFace(ModelSource):
    """A model on the hub, or in a local directory."""

    prefix = "hf"
    patterns: tuple[str, ...] = ("*.json",)  # of the files that define it

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._library = import_optional("transformers")
        self._title = f"{self.prefix}/{name}"
        with fetch_errors(f"the configuration of {self._title}", _ADVICE), self._silent():
            self._config = self._library.AutoConfig.from_pretrained(name, trust_remote_code=False)
        self._head = self._chosen_head()
        # transformers needs a list to choose among several heads, and takes the first if it is empty
        self._config.architectures = self._config.architectures or []
        self._auto = getattr(self._library, self._head)

    def _chosen_head(self) -> str:
        """The auto class for the configuration. Raises ConfigurationError if there is none."""
        head = heads.head_of(self._library, self._config)
        if head is None:
            kind = self._config.model_type
            problem = f"{self._title} is of type {kind}, which is no classifier, detector or segmentation network"
            if kind in TWO_TOWERS:
                problem += f": use clip/{self.name} with --target TEXT"
            raise ConfigurationError(problem)
        return head

    def task(self, net: Module) -> str | None:
        return heads.HEADS.get(self._head)

    def takes_texts(self) -> bool:
        return self._head == heads.WITH_TEXTS

    def with_texts(self, net: Module, texts: Sequence[str], scores: str) -> Module:
        return heads.with_texts(net, self._tokenizer(), texts, self._title)

    def _tokenizer(self) -> Any:
        with fetch_errors(f"the tokenizer of {self._title}", _TOKENIZER_ADVICE), self._silent():
            tokenizer = self._library.AutoTokenizer.from_pretrained(self.name, trust_remote_code=False)
            if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):  # made up where there is none
                raise FileNotFoundError("it has no words")
            return tokenizer

    def build(self, num_classes: int | None = None) -> Module:
        config = copy.deepcopy(self._config)
        config.num_labels = num_classes or config.num_labels
        with self._silent():
            return heads.make_plain(self._auto.from_config(config, dtype=torch.float32), self._head)

    def pretrained(self, weights: str) -> Module:
        advice = "pass --weights FILE for a checkpoint of torch.save, or --weights none for an untrained network"
        with fetch_errors(f"the weights of {self._title}", advice):
            return self._load_published()

    def restored(self, state: dict[str, Any], title: str) -> Module:
        net = self.build()
        state = without_prefixes(state, net.state_dict())
        count = None if self._head in heads.WITHOUT_ROWS else classes_in(state, net)
        config = copy.deepcopy(self._config)
        config.num_labels = count or config.num_labels
        return self._load(type(net), None, config, title, state_dict=state)  # also converts names of earlier releases

    def _load_published(self, **options: Any) -> Module:
        options |= {"use_safetensors": True, "trust_remote_code": False}
        return self._load(self._auto, self.name, self._config, f"the model {self._title}", **options)

    def _load(self, model_class: Any, name: str | None, config: Any, title: str, **options: Any) -> Module:
        """A model with weights, every one of which must fit; `title` is what to call them in messages."""
        options = {"dtype": torch.float32, "output_loading_info": True, "ignore_mismatched_sizes": True} | options
        with self._silent():
            net, info = model_class.from_pretrained(name, config=config, **options)
        misshapen = [
            f"{key} is {tuple(shape)} instead of {tuple(other)}" for key, shape, other in info["mismatched_keys"]
        ]
        missing, extra = sorted(info["missing_keys"]), sorted(info["unexpected_keys"])
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
            preset = self._spec_of(usual()) if usual else super().transforms(net, weights)
        side = getattr(getattr(self._config, "vision_config", self._config), "image_size", None)
        return Preprocessing(resize=side, crop=side).apply(preset) if isinstance(side, int) else preset

    def _spec_of(self, processor: Any) -> InputSpec:
        task = heads.HEADS.get(self._head)
        spec = spec_of(processor, self._title, keeps_shape=task in (keywords.DETECTION, keywords.SEGMENTATION))
        if task != keywords.VIDEO:
            return spec
        return replace(spec, frames=self._config.num_frames, rate=_RATES.get(self._config.model_type, _USUAL_RATE))

    def categories(self, net: Any, weights: str) -> Sequence[str] | None:
        names = [name for _, name in sorted(net.config.id2label.items())]
        return None if all(re.fullmatch(r"LABEL_\d+", name) for name in names) else names

    def with_features(self, net: Module, weights: str) -> Module | None:
        return None  # class names may be unknown, but there is a head

    def scores(self, net: Any) -> str | None:
        return keywords.RAW if self._head == heads.UNIVERSAL else _SCORES.get(net.config.problem_type)

    def files(self, weights: str) -> Sequence[Path]:
        patterns = [*self.patterns]
        if weights == keywords.DEFAULT:
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

    prefix = "clip"
    patterns = ("*.json", "*.txt", "*.model")  # the tokenizer's files, too

    def _chosen_head(self) -> str:
        if self._config.model_type not in TWO_TOWERS:
            raise ConfigurationError(
                f"{self._title} is of type {self._config.model_type}, but CLIP or SigLIP is needed to compare images "
                f"with texts: use hf/{self.name} if it is an image classifier"
            )
        return heads.TOWERS

    def tower(self, net: Any) -> ImageTower:
        def embed(tower: Any, images: Tensor) -> Tensor:
            return tower.visual_projection(tower.vision_model(pixel_values=images).pooler_output)

        projection = getattr(net, "visual_projection", nn.Identity())  # SigLIP has none
        return ImageTower(embed, vision_model=net.vision_model, visual_projection=projection)

    def embeddings(self, net: Any, texts: Sequence[str]) -> Tensor:
        tokenizer = self._tokenizer()
        longest = self._config.text_config.max_position_embeddings
        with self._silent():  # warns of long texts
            check_lengths(tokenizer, texts, longest, self._title)
        # SigLIP was trained on padded texts
        options: dict[str, Any] = {"padding": True, "return_tensors": "pt"}
        if self._config.model_type == "siglip":
            options |= {"padding": "max_length", "max_length": longest}
        net.eval()
        embeddings = []
        with torch.no_grad():
            for start in range(0, len(texts), _TEXTS_AT_ONCE):
                tokens = tokenizer(list(texts[start : start + _TEXTS_AT_ONCE]), **options)
                embeddings.append(net.get_text_features(**tokens).pooler_output)
        return torch.cat(embeddings)


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
    if getattr(processor, "do_flip_channel_order", False):
        raise ConfigurationError(f"{name} expects channels in the order blue, green, red, which is not supported")
    if not getattr(processor, "do_resize", True):
        raise ConfigurationError(f"{name} does not resize its input, which is not supported")

    from torchvision.transforms.functional import pil_to_tensor  # which other networks do not need

    def process(image: Image.Image) -> Tensor:
        values: Tensor = processor(pil_to_tensor(image), return_tensors="pt")["pixel_values"]
        return values.flatten(0, -4)[0].double()  # processors for video take an image for a video

    def extent(width: int, height: int) -> list[float]:
        """How much of an image of that size is seen, across and down; with padding, more than there is."""
        return [end - start for start, end in measure_placement(process, (width, height)).sides]

    black, white = (process(Image.new("RGB", (_SIDE, _SIDE), color)) for color in ("black", "white"))
    height, width = size = black.shape[1], black.shape[2]
    low, high = (values[:, height // 2, width // 2] for values in (black, white))  # (3,) each
    across, down = extent(_SIDE, _SIDE)
    resize = round(height * _SIDE / down), round(width * _SIDE / across)
    spec = InputSpec(
        size,
        resize=resize[: len({*resize})],
        mean=_round(-low / (high - low)),
        std=_round(1 / (high - low)),
        resample=Image.Resampling(int(processor.resample)),
    )
    if process(Image.new("RGB", (_SIDE, _SIDE // 2))).shape[1:] != size:  # not cropped: the input follows the image
        longest = max(process(Image.new("RGB", (_SIDE, _SIDE // _LONG))).shape[1:])
        return replace(spec, fit=keywords.WHOLE, longest=longest) if keeps_shape else spec
    wide_across, wide_down = extent(_SIDE, _SIDE // 2)
    of_square = round(2 * wide_across / across), round(2 * wide_down / down)  # in halves of what is seen of a square
    return replace(spec, fit={(1, 1): keywords.CROP, (2, 2): keywords.PAD}.get(of_square, keywords.SQUASH))


def _round(values: Tensor) -> tuple[float, ...]:
    """Numbers without the rounding errors of float32."""
    return tuple(round(value, 6) + 0.0 for value in values.tolist())  # no -0.0
