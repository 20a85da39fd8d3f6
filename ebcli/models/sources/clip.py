"""CLIP and SigLIP of Hugging Face: ``clip/openai/clip-vit-base-patch32``, ``clip/my_model`` in a local directory.

The image tower becomes a classifier whose weights are the embeddings of texts. As in ``huggingface``, no code of a
model is executed.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ebcli.errors import ConfigurationError
from ebcli.models.checkpoint import without_prefixes
from ebcli.models.sources.huggingface import TWO_TOWERS, HuggingFace
from ebcli.models.sources.similarity import ImageTower, TwoTowers, too_long

_TEXTS_AT_ONCE = 64


class Clip(TwoTowers, HuggingFace):
    """A model with two towers on the hub, or in a local directory."""

    prefix = "clip"
    patterns = ("*.json", "*.txt", "*.model")  # the tokenizer's files, too

    def _chosen_head(self) -> str:
        if self._config.model_type not in TWO_TOWERS:
            raise ConfigurationError(
                f"{self._title} is of type {self._config.model_type}, but CLIP or SigLIP is needed to compare images "
                f"with texts: use hf/{self.name} if it is an image classifier"
            )
        return "AutoModel"

    def restored(self, state: dict[str, Any], title: str) -> nn.Module:
        net = self.build()
        return self._loaded_from(net, self._config, without_prefixes(state, net.state_dict()), title)

    def categories(self, net: Any, weights: str) -> None:
        return None

    def tower(self, net: Any) -> ImageTower:
        def embed(tower: Any, images: Tensor) -> Tensor:
            found: Tensor = tower.visual_projection(tower.vision_model(pixel_values=images).pooler_output)
            return found

        projection = getattr(net, "visual_projection", nn.Identity())  # SigLIP has none
        return ImageTower(embed, vision_model=net.vision_model, visual_projection=projection)

    def _plain(self, net: nn.Module) -> nn.Module:
        return net

    def embeddings(self, net: Any, texts: Sequence[str]) -> Tensor:
        tokenizer = self._tokenizer()
        longest = self._config.text_config.max_position_embeddings
        with self._silent():  # warns of long texts
            for text, tokens in zip(texts, tokenizer(list(texts))["input_ids"], strict=True):
                if len(tokens) > longest:
                    raise too_long(text, f"has {len(tokens)} tokens, but {self._title} reads at most {longest}")
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
