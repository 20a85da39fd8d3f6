"""CLIP and SigLIP of Hugging Face: ``clip/openai/clip-vit-base-patch32``, ``clip/my_model`` in a local directory.

The image tower becomes a classifier whose weights are the embeddings of texts. As in ``huggingface``, no code of a
model is executed.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ebcli.errors import ConfigurationError
from ebcli.models.checkpoint import without_prefixes
from ebcli.models.keywords import DEFAULT, RAW
from ebcli.models.similarity import Similarity
from ebcli.models.sources.base import fetching
from ebcli.models.sources.huggingface import TWO_TOWERS, HuggingFace

_ADVICE = "save the tokenizer beside the model by save_pretrained(), and install the package that it needs"
_TEXTS_AT_ONCE = 64


class ImageTower(nn.Module):
    """The image tower of a model with two towers: images (B, 3, H, W) to embeddings (B, D), or to their similarities.

    The modules are the model's own, under their own names.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.vision_model = model.vision_model
        self.visual_projection = getattr(model, "visual_projection", nn.Identity())  # SigLIP has none
        self.similarity: nn.Module = nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        pooled = self.vision_model(pixel_values=images).pooler_output
        found: Tensor = self.similarity(self.visual_projection(pooled))
        return found


class Clip(HuggingFace):
    """A model with two towers on the hub, or in a local directory."""

    prefix = "clip"
    auto_class = "AutoModel"

    def _check_type(self) -> None:
        if self._config.model_type not in TWO_TOWERS:
            raise ConfigurationError(
                f"{self._title} is of type {self._config.model_type}, but CLIP or SigLIP is needed to compare images "
                f"with texts: use hf/{self.name} if it is an image classifier"
            )

    def restored(self, state: dict[str, Any], title: str) -> nn.Module:
        net = self.build()
        return self._loaded_from(net, self._config, without_prefixes(state, net.state_dict()), title)

    def takes_texts(self) -> bool:
        return True

    def with_texts(self, net: Any, texts: Sequence[str], scores: str) -> nn.Module:
        tower, embeddings = ImageTower(net), self._embeddings(net, texts)
        if scores == RAW:
            tower.similarity = Similarity(embeddings)
        else:  # the temperature and bias that the model was trained with
            bias = getattr(net, "logit_bias", None)
            tower.similarity = Similarity(embeddings, net.logit_scale.exp(), bias)
        return tower

    def with_features(self, net: Any, weights: str) -> nn.Module:
        return ImageTower(net)

    def categories(self, net: Any, weights: str) -> None:
        return None

    def scores(self, net: Any) -> str:
        return RAW

    def files(self, weights: str) -> Sequence[Path]:
        # the tokenizer's files, too
        patterns = ["*.json", "*.txt", "*.model", *(["*.safetensors"] if weights == DEFAULT else [])]
        return sorted(file for pattern in patterns for file in Path(self.name).glob(pattern))

    def _plain(self, net: nn.Module) -> nn.Module:
        return net

    def _embeddings(self, net: Any, texts: Sequence[str]) -> Tensor:
        """The embeddings (K, D) of texts."""
        with fetching(f"the tokenizer of {self._title}", _ADVICE), self._silent():
            tokenizer = self._library.AutoTokenizer.from_pretrained(self.name, trust_remote_code=False)
            if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):  # made up where there is none
                raise FileNotFoundError("it has no words")
        longest = self._config.text_config.max_position_embeddings
        with self._silent():  # warns of long texts
            for text, tokens in zip(texts, tokenizer(list(texts))["input_ids"], strict=True):
                if len(tokens) > longest:
                    shown = textwrap.shorten(text, 60, placeholder=" ...")
                    raise ConfigurationError(
                        f"the text {shown!r} has {len(tokens)} tokens, but {self._title} reads at most {longest}: "
                        "shorten it"
                    )
        # SigLIP was trained on padded texts
        is_siglip = self._config.model_type == "siglip"
        padding: dict[str, Any] = {"padding": "max_length", "max_length": longest} if is_siglip else {"padding": True}
        options = {"return_tensors": "pt", **padding}
        found = []
        with torch.no_grad():
            for start in range(0, len(texts), _TEXTS_AT_ONCE):
                tokens = tokenizer(list(texts[start : start + _TEXTS_AT_ONCE]), **options)
                found.append(net.eval().get_text_features(**tokens).pooler_output)
        return torch.cat(found)
