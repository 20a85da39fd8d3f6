"""Networks of Hugging Face: ``hf/microsoft/resnet-50`` on the hub, ``hf/my_model`` in a local directory.

No code of a model is executed: weights are read from safetensors only, and remote code is never downloaded.
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
from torch import nn

from ebcli.errors import ConfigurationError
from ebcli.imports import import_optional
from ebcli.models.checkpoint import check_match, classes_in, without_prefixes
from ebcli.models.keywords import DEFAULT, DETECTION, RAW, SEGMENTATION, SIGMOID, SOFTMAX, VIDEO
from ebcli.models.sources.base import ModelSource, fetching
from ebcli.models.sources.huggingface_heads import (
    HEADS,
    UNIVERSAL,
    WITH_TEXTS,
    WITHOUT_ROWS,
    head_of,
    make_plain,
    with_texts,
)
from ebcli.models.sources.huggingface_processors import spec_of
from ebcli.models.spec import Preprocessing
from ebcli.nouns.input_spec import InputSpec

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
_SCORES = {"multi_label_classification": SIGMOID, "regression": RAW, "single_label_classification": SOFTMAX}


class HuggingFace(ModelSource):
    """A model on the hub, or in a local directory."""

    prefix = "hf"
    patterns: tuple[str, ...] = ("*.json",)  # of the files that define it

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._library = import_optional("transformers")
        self._title = f"{self.prefix}/{name}"
        with fetching(f"the configuration of {self._title}", _ADVICE), self._silent():
            self._config = self._library.AutoConfig.from_pretrained(name, trust_remote_code=False)
        self._head = self._chosen_head()
        # transformers needs a list to choose among several heads, and takes the first if it is empty
        self._config.architectures = self._config.architectures or []
        self._auto = getattr(self._library, self._head)

    def _chosen_head(self) -> str:
        """The auto class for the configuration. Raises ConfigurationError if there is none."""
        head = head_of(self._library, self._config)
        if head is None:
            kind = self._config.model_type
            raise ConfigurationError(
                f"{self._title} is of type {kind}, which is no classifier, detector or segmentation network"
                + (f": use clip/{self.name} with --target TEXT" if kind in TWO_TOWERS else "")
            )
        return head

    def task(self, net: nn.Module) -> str | None:
        return HEADS.get(self._head)

    def takes_texts(self) -> bool:
        return self._head == WITH_TEXTS

    def with_texts(self, net: nn.Module, texts: Sequence[str], scores: str) -> nn.Module:
        return with_texts(net, self._tokenizer(), texts, self._title)

    def _tokenizer(self) -> Any:
        with fetching(f"the tokenizer of {self._title}", _TOKENIZER_ADVICE), self._silent():
            tokenizer = self._library.AutoTokenizer.from_pretrained(self.name, trust_remote_code=False)
            if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):  # made up where there is none
                raise FileNotFoundError("it has no words")
            return tokenizer

    def build(self, num_classes: int | None = None) -> nn.Module:
        config = copy.deepcopy(self._config)
        if num_classes is not None:
            config.num_labels = num_classes
        with self._silent():
            return self._plain(self._auto.from_config(config, dtype=torch.float32))

    def pretrained(self, weights: str) -> nn.Module:
        advice = "pass --weights FILE for a checkpoint of torch.save, or --weights none for an untrained network"
        with fetching(f"the weights of {self._title}", advice):
            options = {"use_safetensors": True, "trust_remote_code": False}
            return self._loaded(self._auto, self.name, self._config, f"the model {self._title}", **options)

    def restored(self, state: dict[str, Any], title: str) -> nn.Module:
        net = self.build()
        state = without_prefixes(state, net.state_dict())
        count = None if self._head in WITHOUT_ROWS else classes_in(state, net)
        config = copy.deepcopy(self._config)
        if count is not None and count != config.num_labels:
            config.num_labels = count
        return self._loaded(type(net), None, config, title, state_dict=state)  # also converts names of earlier releases

    def _loaded(self, model_class: Any, name: str | None, config: Any, title: str, **options: Any) -> nn.Module:
        """A model with weights, every one of which must fit; `title` is what to call them in messages."""
        options = {"dtype": torch.float32, "output_loading_info": True, "ignore_mismatched_sizes": True} | options
        with self._silent():
            net, found = model_class.from_pretrained(name, config=config, **options)
        misshapen = [f"{key} is {tuple(one)} instead of {tuple(other)}" for key, one, other in found["mismatched_keys"]]
        missing, unexpected = sorted(found["missing_keys"]), sorted(found["unexpected_keys"])
        if self.headless:  # what is below the head was loaded; a pooler above the features is not used
            missing = [key for key in missing if not key.startswith(_HEAD)]
            unexpected = [key for key in unexpected if _POOLER not in key]
        check_match(title, misshapen, missing, unexpected)
        return self._plain(net)

    def transforms(self, net: Any, weights: str) -> InputSpec:
        auto = importlib.import_module("transformers.models.auto.image_processing_auto")
        with fetching(f"the preprocessing of {self._title}", _ADVICE), self._silent():
            # transformers 5.5 to 5.18 finds only a configuration that is part of processor_config.json
            if auto.get_image_processor_config(self.name) or self._library.utils.cached_file(
                self.name, "preprocessor_config.json", _raise_exceptions_for_missing_entries=False
            ):
                processor = auto.AutoImageProcessor.from_pretrained(self.name, trust_remote_code=False)
                return self._spec_of(processor)
            usual = auto.IMAGE_PROCESSOR_MAPPING.get(type(self._config), {}).get("torchvision")
            preset = self._spec_of(usual()) if usual else super().transforms(net, weights)
        side = getattr(getattr(self._config, "vision_config", self._config), "image_size", None)
        return Preprocessing(resize=side, crop=side).applied_to(preset) if isinstance(side, int) else preset

    def _spec_of(self, processor: Any) -> InputSpec:
        task = HEADS.get(self._head)
        if task == VIDEO:
            spec = spec_of(processor, self._title, of_video=True)
            return replace(spec, frames=self._config.num_frames, rate=_RATES.get(self._config.model_type, _USUAL_RATE))
        return spec_of(processor, self._title, keeps_shape=task in (DETECTION, SEGMENTATION))

    def categories(self, net: Any, weights: str) -> Sequence[str] | None:
        names = [name for _, name in sorted(net.config.id2label.items())]
        return None if all(re.fullmatch(r"LABEL_\d+", name) for name in names) else names

    def with_features(self, net: nn.Module, weights: str) -> nn.Module | None:
        return None  # class names may be unknown, but there is a head

    def scores(self, net: Any) -> str | None:
        return RAW if self._head == UNIVERSAL else _SCORES.get(net.config.problem_type)

    def files(self, weights: str) -> Sequence[Path]:
        patterns = (*self.patterns, *(["*.safetensors"] if weights == DEFAULT else []))
        return sorted(file for pattern in patterns for file in Path(self.name).glob(pattern))

    def _plain(self, net: nn.Module) -> nn.Module:
        """Make a model return its logits only; its modules keep their names."""
        return make_plain(net, self._head)

    @contextlib.contextmanager
    def _silent(self) -> Iterator[None]:
        """Silence the logging and progress bars of transformers."""
        log = self._library.utils.logging
        level, shown = log.get_verbosity(), log.is_progress_bar_enabled()
        log.set_verbosity_error()
        log.disable_progress_bar()
        try:
            yield
        finally:
            log.set_verbosity(level)
            if shown:
                log.enable_progress_bar()
