"""A trained LLaVA and pictures with known places: a word's map is on its letter, and its mass says if it was read.

The weights are those of `python -m benchmarks.trained --task sentences`, rounded to 8 bits per output.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from benchmarks.trained import sentence_maps, sentences
from benchmarks.trained.rounded import restored
from benchmarks.trained.sentence_maps import DEFAULT

WEIGHTS = Path(__file__).with_name("weights") / "LLaVA.pt"
ENOUGH = 0.9  # of the map in the half of its letter; 0.95 to 0.98 was measured, and 0.5 is chance
READ = ("first letter", "relation", "second letter", "color")


@pytest.fixture(scope="module")
def net() -> Any:
    found = sentences.build()
    found.load_state_dict(restored(torch.load(WEIGHTS, weights_only=True)))
    return found.eval()


def test_a_saved_network_writes_the_sentences_of_photos(net: Any, tmp_path: Path) -> None:
    from transformers import AutoModelForImageTextToText, AutoProcessor

    sentences.save(net, tmp_path)
    processor, loaded = AutoProcessor.from_pretrained(tmp_path), AutoModelForImageTextToText.from_pretrained(tmp_path)
    question = [{"type": "image"}, {"type": "text", "text": sentences.QUESTION}]
    prompt = processor.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True)
    pictures = sentences.described(16, torch.Generator().manual_seed(3))
    pixels = ((pictures.images * sentences.STD + sentences.MEAN).clamp(0, 1) * 255).round().byte()
    photos = [Image.fromarray(one.permute(1, 2, 0).numpy()) for one in pixels]
    given = processor(images=photos, text=[prompt] * len(photos), return_tensors="pt")
    tokens = loaded.generate(**given, max_new_tokens=9, do_sample=False)[:, given["input_ids"].shape[1] :]
    said = processor.batch_decode(tokens, skip_special_tokens=True)
    assert sum(a == b for a, b in zip(said, pictures.sentences, strict=True)) >= 14


def test_maps_of_words_are_on_their_letters(net: Any) -> None:
    rows = sentence_maps.located(net, 1.0, 24)
    found = {(row["word"], row["method"]): float(row["share"]) for row in rows if row["layer"] == DEFAULT}
    for word in ("first letter", "second letter", "color"):
        assert found[word, "contrastive"] > ENOUGH
        for other in ("step by step", "Grad-CAM", "LayerCAM", "gradient x activation", "attention rollout"):
            assert found[word, "contrastive"] > found[word, other] + 0.02, other


def test_mass_tells_what_was_read_in_the_picture(net: Any) -> None:
    rows = sentence_maps.shared(net, 1.0, 16)
    share = {(row["pictures"], row["word"]): float(row["joint"]) for row in rows}
    of_grammar = [share["letters", word] for word in sentence_maps.ROLES if word not in READ]
    for word in READ:
        assert share["letters", word] > max(of_grammar)
        assert share["letters", word] > 2 * max(share["clutter", word], share["blank", word])
