"""Networks of open_clip, with a tower for texts: ``open_clip/ViT-B-32``.

Texts become the classifier as in ``clip``.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ebcli.datatypes.input_spec import InputSpec
from ebcli.errors import ConfigurationError, closest, import_optional
from ebcli.models.classes import Texts
from ebcli.models.keywords import CROP, DEFAULT, SQUASH
from ebcli.models.sources.base import fetch_errors, quiet
from ebcli.models.sources.similarity import ImageTower, TwoTowers, too_long

_FITS = {"shortest": CROP, "squash": SQUASH}  # by resize mode


class OpenClip(TwoTowers):
    """A network of ``open_clip.list_models()``; ``weights`` are the tags of its pretrained weights."""

    _prefix = "open_clip/"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._library = import_optional("open_clip", "open_clip_torch")
        names = self._library.list_models()
        if name not in names:
            hint = closest(name, names) or "open_clip.list_models() lists them in Python"
            raise ConfigurationError(f"open_clip has no model {name!r}: {hint}")

    def weights(self) -> Sequence[str]:
        return self._library.list_pretrained_tags_by_model(self.name)

    def published(self, weights: str) -> str | None:
        if weights != DEFAULT:
            return super().published(weights)
        return next(iter(self.weights()), None)

    def build(self, num_classes: int | None = None) -> Module:
        return self._create("install the packages that it needs", load_weights=False, pretrained_text=False)

    def pretrained(self, weights: str) -> Module:
        config = self._library.get_pretrained_cfg(self.name, weights)
        advice = f"choose {', '.join(self.weights())}, or pass --weights FILE or --weights none"
        return self._create(advice, pretrained=weights, force_quick_gelu=bool(config.get("quick_gelu")))

    def _create(self, advice: str, **options: Any) -> Module:
        with quiet("root"), fetch_errors(self._title, advice):
            return self._library.create_model(self.name, **options)

    def transforms(self, net: Any, weights: str) -> InputSpec:
        config = self._library.get_model_preprocess_cfg(net)
        size = config["size"]
        if isinstance(size, int):
            size = (size, size)
        mode = config["resize_mode"]
        if mode not in _FITS:
            raise self._error(f"resizes images by {mode!r}, which is not supported")
        return self._square_spec(size, config, resize=size[:1], fit=_FITS[mode])

    def tower(self, net: Any) -> ImageTower:
        return ImageTower(lambda tower, images: tower.visual(images), visual=net.visual)

    def embeddings(self, net: Any, texts: Texts) -> Tensor:
        with fetch_errors(f"the tokenizer of {self._title}", "install the packages that it needs"):
            tokenizer = self._library.get_tokenizer(self.name)
        longest = net.context_length
        for text in texts:
            (end,) = tokenizer([text], context_length=2 * longest)[:, longest:]
            if (end != end[-1]).any():  # more than padding
                raise too_long(text, f"is longer than the {longest} tokens that {self._title} reads")
        with torch.no_grad():
            return net.eval().encode_text(tokenizer(list(texts), context_length=longest))
