"""A trained LLaVA and pictures with known places: a word's map is on its letter, and its mass says if it was read.

The weights are those of `python -m benchmarks.trained --task sentences`, rounded to 8 bits per output.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import ebcli
from benchmarks.trained import sentence_maps, sentences
from benchmarks.trained.rounded import restored
from benchmarks.trained.sentence_maps import DEFAULT
from ebcli.models.sources.vision_language import VisionLanguage
from ebcli.run.network_description import NetworkDescription
from ebcli.run.plan_parts import MapOptions, WordOptions
from ebcli.run.reading import NetworkInput
from ebcli.run.tasks.task import ImageRequest
from ebcli.run.tasks.words import LAYER, explain

WEIGHTS = Path(__file__).with_name("weights") / "LLaVA.pt"
ENOUGH = 0.9  # of the map in the half of its letter; 0.95 to 0.98 was measured, and 0.5 is chance
READ = ("first letter", "relation", "second letter", "color")


@pytest.fixture(scope="module")
def net() -> Any:
    found = sentences.build()
    found.load_state_dict(restored(torch.load(WEIGHTS, weights_only=True)))
    return found.eval()


@pytest.mark.release
def test_a_saved_network_writes_the_sentences_of_photos(net: Any, tmp_path: Path) -> None:
    from transformers import AutoModelForImageTextToText, AutoProcessor

    sentences.save(net, tmp_path)
    processor, loaded = (
        AutoProcessor.from_pretrained(tmp_path),
        AutoModelForImageTextToText.from_pretrained(tmp_path),
    )
    question = [{"type": "image"}, {"type": "text", "text": sentences.QUESTION}]
    prompt = processor.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True
    )
    pictures = sentences.described(16, torch.Generator().manual_seed(3))
    photos = [_photo(image) for image in pictures.images]
    given = processor(images=photos, text=[prompt] * len(photos), return_tensors="pt")
    tokens = loaded.generate(**given, max_new_tokens=9, do_sample=False)[:, given["input_ids"].shape[1] :]
    said = processor.batch_decode(tokens, skip_special_tokens=True)
    assert sum(a == b for a, b in zip(said, pictures.sentences, strict=True)) >= 14


@pytest.mark.release
def test_a_question_is_explained_as_measured(net: Any, tmp_path: Path) -> None:
    """`ask` on photos gives the maps and shares of a network that was taken apart by hand."""
    sentences.save(net, tmp_path)
    model = VisionLanguage(str(tmp_path), "cpu", torch.float32)
    loaded = model.as_loaded()
    pictures = sentences.described(4, torch.Generator().manual_seed(4))
    halves = []
    for image, sentence, stacked in zip(
        pictures.images, pictures.sentences, pictures.stacked.tolist(), strict=True
    ):
        words = WordOptions(question=sentences.QUESTION, answer=sentence, all_words=True)
        asked = ImageRequest(NetworkDescription(loaded=loaded, layers=(LAYER,)), MapOptions(), words=words)
        found = explain(NetworkInput.from_image(_photo(image), loaded.transforms), asked)
        pixels = model.read(_photo(image), sentences.QUESTION)["pixel_values"]
        told = sentences.answers([sentence])
        told_net = sentence_maps.Told(net, told, sentence_maps.mean_tokens(net, pixels))
        said = [i for i, word in enumerate(sentence.split()) if word not in (",", ".")]
        prior = sentence_maps.units(told, torch.tensor([said]))
        marginal = ebcli.excitation_backprop(told_net, pixels, prior, DEFAULT, joint=True)
        contrastive = ebcli.excitation_backprop(
            told_net, pixels, prior, DEFAULT, contrastive=True, joint=True
        )
        maps = np.stack([word.values for word in found.maps])
        np.testing.assert_allclose([word.share for word in found.maps], marginal.mass[0], atol=1e-4)
        np.testing.assert_allclose(maps, contrastive.maps[0], atol=1e-4)
        by_side = maps.clip(0).swapaxes(1, 2) if stacked else maps.clip(0)
        left = by_side[:, :, :4].sum((1, 2)) / by_side.sum((1, 2))
        halves.append(
            (left[0], 1 - left[-2], left[-1])
        )  # the first letter, the second one, the color of the first
    assert (np.mean(halves, 0) > ENOUGH).all()


def _photo(image: torch.Tensor) -> Image.Image:
    pixels = ((image * sentences.STD + sentences.MEAN).clamp(0, 1) * 255).round().byte()
    return Image.fromarray(pixels.permute(1, 2, 0).numpy())


@pytest.mark.release
def test_maps_of_words_are_on_their_letters(net: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentence_maps, "LAYERS", (None, DEFAULT))
    rows = sentence_maps.located(net, 1.0, 6)
    found = {(row["word"], row["method"]): float(row["share"]) for row in rows if row["layer"] == DEFAULT}
    for word in ("first letter", "second letter", "color"):
        assert found[word, "contrastive"] > ENOUGH
        for other in ("step by step", "Grad-CAM", "LayerCAM", "gradient x activation", "attention rollout"):
            assert found[word, "contrastive"] > found[word, other] + 0.02, other


@pytest.mark.release
def test_mass_tells_what_was_read_in_the_picture(net: Any) -> None:
    rows = sentence_maps.shared(net, 1.0, 8)
    share = {(row["pictures"], row["word"]): float(row["joint"]) for row in rows}
    of_grammar = [share["letters", word] for word in sentence_maps.ROLES if word not in READ]
    for word in READ:
        assert share["letters", word] > max(of_grammar)
        assert share["letters", word] > 2 * max(share["clutter", word], share["blank", word])
