"""One call from Python: a question about photos to a vision-language model, and the maps of the answer's words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ebcli.datatypes.arrays import FloatArray
from ebcli.datatypes.query import Query
from ebcli.drawing.figure import answer_figure
from ebcli.drawing.pages import answer_page, notebook_view
from ebcli.drawing.style import DrawingStyle
from ebcli.errors import ConfigurationError, ImageError
from ebcli.models.running import resolve_device
from ebcli.models.sources.vision_language import VisionLanguage
from ebcli.run.explainer import Explainer
from ebcli.run.image_arguments import read_all
from ebcli.run.network_description import in_a_sentence
from ebcli.run.plan import RunPlan
from ebcli.run.plan_parts import DTYPES, WordOptions
from ebcli.run.saliency import Saliency

_HTML = ".html"


class Answer(Saliency):
    """The answer about a photo, and the maps of its words; notebooks show a word's map where the pointer is.

    It has no maps if it has none of the words that were asked for.

    Examples:
        >>> import ebcli
        >>> answer = ebcli.ask("my_model", "photo.jpg", "What is on the table?")  # doctest: +SKIP
        >>> answer.text, answer.words, answer.maps.shape  # doctest: +SKIP
        ('A red cup.', ['red', 'cup'], (2, 24, 24))
        >>> dict(zip(answer.words, answer.shares))  # doctest: +SKIP
        {'red': 0.61, 'cup': 0.55}
    """

    @property
    def text(self) -> str:
        """The answer."""
        return (self.explanation.answer or "").strip()

    @property
    def words(self) -> list[str]:
        """The words and phrases that have maps, in order."""
        return self.classes

    @property
    def shares(self) -> list[float]:
        """The share of each word's evidence that is at places of the picture, 0 to 1."""
        return [map_.share or 0.0 for map_ in self._maps]

    @property
    def maps(self) -> FloatArray:
        """The maps (K, h, w) of the words, signed; (0, 0, 0) if there are none."""
        return super().maps if self._maps else np.zeros((0, 0, 0), np.float32)

    def _draw(self, style: DrawingStyle) -> Any:
        if not self._maps:
            raise ConfigurationError("the answer has none of these words, so there is nothing to draw")
        return answer_figure(self.explanation, [self._frame], self._frame_maps(style), "", self.about).image()

    def save(self, path: Any, style: Any = None, **drawing: Any) -> None:
        """Write the figure to a file of any format that Pillow writes, or the page to one that ends in ``.html``.

        Raises:
            ConfigurationError: there are no maps, or the format cannot hold the figure.
        """
        if Path(path).suffix.lower() != _HTML:
            super().save(path, style, **drawing)
            return
        page = answer_page(
            self.explanation, [self._frame], self._frame_maps(self.style), self.text, self.about
        )
        Path(path).write_bytes(page)

    def _repr_html_(self) -> str:
        return notebook_view(self._frame_maps(self.style), self._frame, self.about, self.explanation)

    def __repr__(self) -> str:
        shares = ", ".join(f"{word} {share:.2f}" for word, share in zip(self.words, self.shares, strict=True))
        return f"<Answer {self.text!r}; from the picture: {shares or 'no word'}; {self.about}>"


def ask(
    model: Any,
    photo: Any,
    question: str = "",
    *,
    processor: Any = None,
    answer: str | None = None,
    words: str | Sequence[str] = (),
    phrases: str | Sequence[str] = (),
    against: str | None = None,
    all_words: bool = False,
    max_tokens: int = 64,
    device: str = "auto",
    dtype: str = "float32",
) -> Any:
    """Ask a vision-language model about a photo, and explain the words of its answer.

    Args:
        model: the name of a model of Hugging Face, or a directory written by ``save_pretrained()``, which is loaded at
            each call; or a model in memory, which stays on its device.
        photo: an image as for `explain`, or a list of these.
        question: the question; if it is empty, that for a description.
        processor: of a model in memory.
        answer: explain this answer instead of the model's own.
        words: the words to explain where they are said; none for those with a meaning of their own.
        phrases: likewise, words in a row that have one map.
        against: another word to contrast each of them with.
        all_words: also explain words such as "of".
        max_tokens: the longest answer of the model.
        device: of a model that is loaded: any device of PyTorch.
        dtype: of a model that is loaded: ``"float32"`` or ``"bfloat16"``.

    Returns:
        An `Answer`, or a list of these.

    Raises:
        ConfigurationError: the model cannot be loaded, or two options exclude each other.
        ImageError: an image cannot be read, or there is no answer about it.
        UnsupportedOpError: the network has operations without an excitation rule.

    Examples:
        >>> import ebcli
        >>> ebcli.ask(net, "photo.jpg", "Is there a dog?", processor=processor, words="dog")  # doctest: +SKIP
        <Answer 'A dog.'; from the picture: dog 0.58; my_model (DEFAULT), layer photo tokens, contrastive EB>
    """
    options = WordOptions(
        question=question,
        answer=answer,
        words=_as_tuple(words),
        phrases=_as_tuple(phrases),
        against=against,
        all_words=all_words,
        max_tokens=max_tokens,
    )
    network = _load(model, processor, device, dtype).as_loaded()
    photos = [*photo] if isinstance(photo, (list, tuple)) else [photo]
    plan = RunPlan.from_values(images=(Path("photo"),), model=network.name, words=options)
    frames = read_all(photos, network.transforms)
    explainer = Explainer(plan, len(photos), network)
    subtitle = in_a_sentence(explainer.network.provenance_of_picture())
    query = Query(question, answer)
    answers = []
    for number, (item, frame) in enumerate(frames, 1):
        (explanation,) = explainer.explain([replace(item, query=query)])
        if isinstance(explanation, ImageError):
            prefix = f"photo {number} of {len(photos)}: " if len(photos) > 1 else ""
            raise ImageError(f"{prefix}{explanation}") from explanation
        answers.append(Answer(explanation, frame, plan, subtitle))
    return answers if isinstance(photo, (list, tuple)) else answers[0]


def _as_tuple(texts: str | Sequence[str]) -> tuple[str, ...]:
    return (texts,) if isinstance(texts, str) else tuple(texts)


def _load(model: Any, processor: Any, device: str, dtype: str) -> VisionLanguage:
    if isinstance(model, (str, Path)):
        if processor is not None:
            raise ConfigurationError("a model that is loaded brings its processor: drop processor")
        if dtype not in DTYPES:
            raise ConfigurationError(f"dtype is {dtype!r}, but it must be {' or '.join(DTYPES)}")
        return VisionLanguage(str(model), resolve_device(device), getattr(torch, dtype))
    if processor is None:
        raise ConfigurationError(
            f"{type(model).__name__} needs its processor: pass it, as in processor=processor"
        )
    return VisionLanguage.in_memory(model, processor)
