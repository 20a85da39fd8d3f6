"""CLIP and SigLIP of Hugging Face: ``clip/openai/clip-vit-base-patch32``, ``clip/my_model`` in a local directory.

The image tower becomes a classifier whose weights are the embeddings of texts. As in ``huggingface``, no code of a
model is executed.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ebcli.errors import ConfigurationError
from ebcli.models.sources.huggingface import TWO_TOWERS, HuggingFace
from ebcli.models.sources.huggingface_heads import TOWERS
from ebcli.models.sources.similarity import ImageTower, TwoTowers, check_lengths

_AT_ONCE = 64  # texts


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
        return TOWERS

    def tower(self, net: Any) -> ImageTower:
        def embed(tower: Any, images: Tensor) -> Tensor:
            found: Tensor = tower.visual_projection(tower.vision_model(pixel_values=images).pooler_output)
            return found

        projection = getattr(net, "visual_projection", nn.Identity())  # SigLIP has none
        return ImageTower(embed, vision_model=net.vision_model, visual_projection=projection)

    def _plain(self, net: nn.Module) -> nn.Module:
        return net

    def embeddings(self, net: Any, texts: Sequence[str]) -> Tensor:
        tokenizer, longest = self._tokenizer(), self._config.text_config.max_position_embeddings
        with self._silent():  # warns of long texts
            check_lengths(tokenizer, texts, longest, self._title)
        # SigLIP was trained on padded texts
        is_siglip = self._config.model_type == "siglip"
        padding: dict[str, Any] = {"padding": "max_length", "max_length": longest} if is_siglip else {"padding": True}
        parts = [list(texts[start : start + _AT_ONCE]) for start in range(0, len(texts), _AT_ONCE)]
        with torch.no_grad():
            read = [net.eval().get_text_features(**tokenizer(part, return_tensors="pt", **padding)) for part in parts]
        return torch.cat([one.pooler_output for one in read])
