"""Questions about a photo, to small random models of every family: what they get, and where it lies."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import vision_language
from PIL import Image
from vision_language_more import MORE

from ebcli.datatypes.explanation import Explanation
from ebcli.errors import ConfigurationError
from ebcli.models.sources.vision_language import _ENTRIES, VisionLanguage
from ebcli.run.network_description import NetworkDescription
from ebcli.run.plan_parts import MapOptions, WordOptions
from ebcli.run.reading import NetworkInput
from ebcli.run.tasks.task import ImageRequest
from ebcli.run.tasks.words import LAYER, explain
from ebcli.run.token_boxes import TokenBoxes

USUAL = {"llava", "qwen3_vl", "mllama", "smolvlm", "instructblip", "blip"}
ANSWER = "a red cup on the table"
SIZE = (60, 40)


class Models(dict[str, VisionLanguage]):
    """The families, each of which is made when it is asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __missing__(self, family: str) -> VisionLanguage:
        folder = self._folder / family
        vision_language.save(family, folder)
        self[family] = VisionLanguage(str(folder), "cpu", torch.float32)
        return self[family]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, VisionLanguage]:
    return Models(tmp_path_factory.mktemp("models"))


# one for each way of entry by default: a projector, deepstack, cross-attention, tiles and a Q-Former
FAMILIES = [
    pytest.param(family, marks=[] if family in USUAL else pytest.mark.release)
    for family in vision_language.FAMILIES | MORE
]


@pytest.fixture(scope="module")
def photo() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (*SIZE[::-1], 3), np.uint8))


def ask(model: VisionLanguage, photo: Image.Image, question: str, answer: str, **given: Any) -> Explanation:
    words, loaded = WordOptions(question=question, answer=answer, **given), model.as_loaded()
    asked = ImageRequest(
        NetworkDescription(loaded=loaded, layers=(LAYER,)), MapOptions(), size=photo.size, words=words
    )
    return explain(NetworkInput.from_image(photo, loaded.transforms), asked)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_one_pass_with_the_whole_answer_scores_it_as_generation_does(
    models: dict[str, VisionLanguage], photo: Image.Image, family: str
) -> None:
    model = models[family]
    question = "what is on the table ?"
    inputs = model.read(photo, question) | {"use_cache": True}
    generated = model.net.generate(
        **inputs, do_sample=False, max_new_tokens=5, output_logits=True, return_dict_in_generate=True
    )
    ids = generated.sequences[0, -len(generated.logits) :]
    count = len(ids)
    answer = model.exchange(photo, question, " ".join("a red cup on the".split()[:count]), 5)
    text = "decoder_input_ids" if "decoder_input_ids" in answer.inputs else "input_ids"
    longer = answer.inputs | {text: answer.inputs[text].clone()}
    longer[text][0, -count:] = ids
    with torch.no_grad():
        logits = model.net(**longer).logits[0, -count - 1 : -1]
    torch.testing.assert_close(logits, torch.cat(generated.logits), atol=1e-4, rtol=1e-4)


def test_words_of_a_byte_level_tokenizer(
    models: dict[str, VisionLanguage], photo: Image.Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes a word's space a part of its first token, and several tokens of one character."""
    tokenizer = vision_language.byte_level_tokenizer(["assistant : a cat", "a cat"])
    monkeypatch.setattr(models["llava"]._processor, "tokenizer", tokenizer)
    answer = "cat 日本 cat"
    said = models["llava"].exchange(photo, "what", answer, 5)
    assert said.ids.tolist() == tokenizer(f" {answer}")["input_ids"]  # as behind "assistant :"
    for word in answer.split():
        start = said.text.index(word)
        assert tokenizer.decode(said.ids[list(said.tokens(start, start + len(word)))]).strip() == word


@pytest.mark.one_in(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_words_have_maps_over_the_photo_and_shares(
    models: dict[str, VisionLanguage], photo: Image.Image, family: str
) -> None:
    found = ask(models[family], photo, "what is on the table ?", ANSWER)
    assert found.answer is not None
    assert [word.subject.name for word in found.maps] == ["red", "cup", "table"]
    assert [word.subject.position for word in found.maps] == [2, 3, 6]
    for word in found.maps:
        assert found.answer[slice(*(word.subject.span or ()))] == word.subject.name
        assert 0 < (word.share or 0) < 1 and 0 < word.subject.score < 1
        assert word.values.max() > 0 > word.values.min()
        left, top, right, bottom = word.placement
        assert (top, bottom) == (0, SIZE[1])
        # LLaVA 1.5 gets the center crop
        assert (left, right) == pytest.approx((10, 50) if family == "llava" else (0, SIZE[0]), abs=0.1)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("family", FAMILIES)
def test_layers_that_are_recorded_one_after_another_give_the_same_maps(
    models: dict[str, VisionLanguage], photo: Image.Image, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models[family]
    monkeypatch.setattr(model, "net", copy.deepcopy(model.net).double())
    question = "what is on the table ?"
    one_by_one = [ask(model, photo, question, ANSWER, words=words) for words in ((), ("cup",))]
    monkeypatch.setattr("ebcli.run.tasks.words.checkpointed", lambda _net: nullcontext())
    for explanation in one_by_one:
        words = tuple(word.subject.name for word in explanation.maps)
        whole = ask(model, photo, question, ANSWER, words=words)
        for word, other in zip(explanation.maps, whole.maps, strict=True):
            assert word.share == pytest.approx(other.share, abs=1e-12)
            np.testing.assert_allclose(word.values, other.values, atol=1e-12)


def _rows_of(rows: int, columns: int) -> list[tuple[float, float, float, float]]:
    """The rectangles of cells row by row: left, top, right, bottom as shares of the photo."""
    return [
        (j / columns, i / rows, (j + 1) / columns, (i + 1) / rows)
        for i in range(rows)
        for j in range(columns)
    ]


def _tiles(rows: int, columns: int, side: int) -> list[tuple[float, float, float, float]]:
    """The rectangles of cells tile by tile."""
    found = []
    for tile_left, tile_top, _, _ in _rows_of(rows, columns):
        for left, top, right, bottom in _rows_of(side, side):
            found.append(
                (
                    tile_left + left / columns,
                    tile_top + top / rows,
                    tile_left + right / columns,
                    tile_top + bottom / rows,
                )
            )
    return found


PLACES = {
    "qwen2_vl": _rows_of(4, 6),  # 32 x 48 pixels in patches of 4, of which 2 x 2 are merged
    "qwen2_5_vl": _rows_of(4, 6),
    "smolvlm": _tiles(2, 2, 2)
    + _rows_of(2, 2),  # four tiles and the whole photo, 4 x 4 patches of which 2 x 2 merge
    "idefics3": _tiles(2, 2, 2) + _rows_of(2, 2),
    "paligemma": _rows_of(4, 4),
    "qwen3_vl": 3 * _rows_of(4, 6),  # what enters at the first layer, and what is added behind two layers
    "gemma3": _rows_of(2, 2),  # 4 x 4 patches of which 2 x 2 are averaged
    "mistral3": _rows_of(2, 3),  # 32 x 48 pixels in patches of 8, of which 2 x 2 are merged
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("family", PLACES)
def test_each_token_lies_where_its_patches_do(models: dict[str, VisionLanguage], family: str) -> None:
    _, tokens = models[family].photo_tokens(SIZE, "what")
    torch.testing.assert_close(tokens.boxes.float(), torch.tensor(PLACES[family]), atol=0.01, rtol=0)


def test_a_token_counts_once_however_large_it_is() -> None:
    """The first token has the two cells at the left, the other one a single cell at the upper right."""
    corners = torch.tensor([[(0.0, 0), (4, 0)], [(4, 8), (8, 4)]])
    map_ = TokenBoxes(corners).map(torch.tensor([[0.5, 0.25], [-1.0, 2.0]]))
    expected = torch.tensor([[[0.25, 0.25], [0.25, 0.0]], [[-0.5, 2.0], [-0.5, 0.0]]])
    torch.testing.assert_close(map_.float(), expected)


def test_tokens_of_tiles_beside_padding(models: dict[str, VisionLanguage]) -> None:
    """60 x 40 pixels fill 64 x 43 pixels of LLaVA-NeXT's tiles, in patches of 8: six rows, of which two are cut."""
    _, tokens = models["llava_next"].photo_tokens(SIZE, "what")
    boxes = tokens.boxes.float() * torch.tensor(SIZE * 2)
    assert len(boxes) == 16 + 6 * 8  # the whole photo first; newlines between the rows are no tokens of it
    expected = [(0, 0, 7.5, 5), (52.5, 5, 60, 12.5), (0, 35, 7.5, 40)]
    torch.testing.assert_close(boxes[[16, 16 + 8 + 7, 16 + 5 * 8]], torch.tensor(expected), atol=0.8, rtol=0)
    values = torch.zeros(1, 16 + 6 * 8)
    values[0, :16] = 1 / 16
    whole = TokenBoxes(boxes.unflatten(1, (2, 2)).transpose(0, 1)).map(values)
    assert whole.sum() == pytest.approx(1)
    assert float(whole.max() / whole.min()) == pytest.approx(1, abs=0.1)


def test_a_word_of_several_tokens_is_as_likely_as_all_of_them_in_a_row(
    models: dict[str, VisionLanguage], photo: Image.Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, answer = models["llava"], "a cups"
    monkeypatch.setattr(model._processor, "tokenizer", vision_language.word_pieces())
    said = model.exchange(photo, "what", answer, 5)
    place = said.tokens(said.text.index("cups"), len(said.text))
    assert len(place) == 2
    with torch.no_grad():
        logits = model.net(**said.inputs).logits[0, -len(said.ids) - 1 : -1]
    expected = logits.log_softmax(1)[list(place), said.ids[list(place)]].sum().exp()
    (word,) = ask(model, photo, "what", answer).maps
    assert (word.subject.name, word.subject.score) == ("cups", pytest.approx(float(expected), rel=1e-3))


def test_shares_and_maps_by_slopes_of_a_decoder_that_is_held(
    models: dict[str, VisionLanguage], photo: Image.Image
) -> None:
    """With attention, gates and the scales of norms held, the decoder is linear, and slopes tell all contributions."""
    model = models["llava"]
    said = model.exchange(photo, "what is on the table ?", ANSWER, 5)
    read, logit = _held(model.net, said)
    (slopes,) = torch.autograd.grad(logit, read)
    of_photo = said.inputs["input_ids"][0] == model.net.config.image_token_id
    mean = read[of_photo].mean(0, keepdim=True)
    z = torch.cat(
        [
            (read[of_photo] - mean) * slopes[of_photo],
            mean * slopes[of_photo].sum(0),
            read[~of_photo] * slopes[~of_photo],
        ]
    )
    winning, losing = z.clamp(min=0).sum(1), (-z).clamp(min=0).sum(1)
    (word,) = ask(model, photo, "what is on the table ?", ANSWER, words=("cup",)).maps
    assert word.share == pytest.approx(float(winning[:16].sum() / winning.sum()), rel=1e-4)
    contrast = winning[:16] / winning[:16].sum() - losing[:16] / losing[:16].sum()
    np.testing.assert_allclose(word.values, contrast.reshape(4, 4).detach(), atol=1e-5)


def _held(net: Any, said: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """What the decoder of a LLaVA reads, (S, D), and the logit of the answer's third token linear in it."""
    net.set_attn_implementation("eager")
    with torch.no_grad():
        whole = net(**said.inputs, output_attentions=True, output_hidden_states=True)
    net.set_attn_implementation("sdpa")
    h = read = whole.hidden_states[0][0].requires_grad_()

    def normed(norm: Any, x: torch.Tensor) -> torch.Tensor:
        return x * norm.weight * (x.square().mean(1, keepdim=True) + norm.variance_epsilon).rsqrt().detach()

    decoder = net.get_decoder()
    for layer, attention in zip(decoder.layers, whole.attentions, strict=True):
        values = layer.self_attn.v_proj(normed(layer.input_layernorm, h)).unflatten(
            1, (len(attention[0]), -1)
        )
        h = h + layer.self_attn.o_proj(torch.einsum("hqk,khd->qhd", attention[0], values).flatten(1))
        x = normed(layer.post_attention_layernorm, h)
        gate = torch.nn.functional.silu(layer.mlp.gate_proj(x)).detach()
        h = h + layer.mlp.down_proj(gate * layer.mlp.up_proj(x))
    logits = net.lm_head(normed(decoder.norm, h))
    torch.testing.assert_close(logits, whole.logits[0], atol=1e-4, rtol=1e-4)
    return read, logits[len(logits) - len(said.ids) + 1, said.ids[2]]


def test_a_contrast_is_against_the_other_word(models: dict[str, VisionLanguage], photo: Image.Image) -> None:
    model = models["llava"]
    one, other = (
        ask(model, photo, "what", answer, words=(answer.split()[-1],), against=against).maps[0].values
        for answer, against in (("a cup", "dog"), ("a dog", "cup"))
    )
    np.testing.assert_allclose(one, -other, atol=1e-6)


@pytest.mark.parametrize(("options", "message"), [({"words": ("cup",), "against": "cup"}, "cannot be told")])
def test_words_that_are_not_there(
    models: dict[str, VisionLanguage], photo: Image.Image, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ask(models["llava"], photo, "what", ANSWER, **options)


def test_tokens_without_a_place_keep_their_share(
    models: dict[str, VisionLanguage], photo: Image.Image
) -> None:
    """BLIP's decoder reads a class token, which the encoder makes of the whole photo."""
    _, tokens = models["blip"].photo_tokens(SIZE, "what is on the table ?")
    assert tokens.boxes.isnan().all(1).tolist() == [True] + 16 * [False]
    for word in ask(models["blip"], photo, "what is on the table ?", ANSWER).maps:
        assert 0 < word.unplaced < 1 - (word.share or 0)
    assert all(word.unplaced == 0 for word in ask(models["llava"], photo, "what", ANSWER).maps)


def test_places_that_the_network_contradicts_are_refused(
    models: dict[str, VisionLanguage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Patches that the processor packs in another order each time lie nowhere."""
    model = models["qwen2_vl"]
    read = model.read
    generator = torch.Generator().manual_seed(0)

    def shuffled(photo: Any, question: str) -> dict[str, Any]:
        inputs = read(photo, question)
        pixels = inputs["pixel_values"]
        return inputs | {"pixel_values": pixels[torch.randperm(len(pixels), generator=generator)]}

    monkeypatch.setattr(model, "read", shuffled)
    monkeypatch.delitem(_ENTRIES, model.net, raising=False)
    with pytest.raises(ConfigurationError, match=r"the photo's tokens|hardly any tokens"):
        model.photo_tokens(SIZE, "what is")


def test_a_photo_of_one_pixel_is_refused(models: dict[str, VisionLanguage]) -> None:
    with pytest.raises(ConfigurationError, match="too small"):
        ask(models["llava"], Image.new("RGB", (1, 1)), "what", ANSWER)


def test_other_models_are_refused(tmp_path: Path) -> None:
    import transformers

    transformers.ResNetConfig().save_pretrained(tmp_path)
    with pytest.raises(ConfigurationError, match="is of type resnet, which answers no questions"):
        VisionLanguage(str(tmp_path), "cpu", torch.float32)
