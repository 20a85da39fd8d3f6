"""CLIP and SigLIP in local directories; transformers is the reference."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from two_towers import SIDE, VISION, clip, siglip

import ebcli
from benchmarks.trained import captions
from ebcli.errors import ConfigurationError
from ebcli.models import default_layer, load_model

TEXTS = ("red A", "a blue letter X", "pink")
MODELS = {"clip": clip, "siglip": siglip}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A model in the directory ``two``, which is also returned."""
    monkeypatch.chdir(tmp_path)
    build: Callable[[Path], Any] = MODELS[request.param]
    return build(Path("two"))


def own_logits(net: Any, images: torch.Tensor, texts: tuple[str, ...] = TEXTS) -> torch.Tensor:
    """The model's own logits (B, K), scaled and shifted."""
    padding = (
        {"padding": "max_length", "max_length": 8} if net.config.model_type == "siglip" else {"padding": True}
    )
    tokens = captions.tokenizer()(list(texts), return_tensors="pt", **padding)
    with torch.no_grad():
        found: torch.Tensor = net(**tokens, pixel_values=images).logits_per_image
    return found


@pytest.mark.one_in(2)
def test_the_logits_are_cosine_similarities(model: Any) -> None:
    loaded, images = load_model("clip/two", class_names=TEXTS), torch.randn(2, 3, SIDE, SIDE)
    expected = (own_logits(model, images) - getattr(model, "logit_bias", 0)) / model.logit_scale.exp()
    torch.testing.assert_close(loaded.net(images), expected, rtol=1e-4, atol=1e-6)
    assert (loaded.name, loaded.weights, loaded.categories, loaded.scores) == (
        "clip/two",
        "DEFAULT",
        TEXTS,
        "raw",
    )
    files = {file.name for file in loaded.files}
    assert {"config.json", "model.safetensors", "tokenizer.json", "preprocessor_config.json"} <= files


@pytest.mark.one_in(2)
def test_softmax_and_sigmoid_are_those_of_the_model(model: Any) -> None:
    images = torch.randn(2, 3, SIDE, SIDE)
    expected = own_logits(model, images)
    for scores, function in (("softmax", lambda a: a.softmax(1)), ("sigmoid", torch.sigmoid)):
        loaded = load_model("clip/two", class_names=TEXTS, scores=scores)
        torch.testing.assert_close(
            loaded.to_scores(loaded.net(images)), function(expected), rtol=1e-4, atol=1e-6
        )
        others = ("blue", "red A")
        told = loaded.with_texts(others)
        expected_of_others = function(own_logits(model, images, others))
        torch.testing.assert_close(told.to_scores(told.net(images)), expected_of_others, rtol=1e-4, atol=1e-6)


@pytest.mark.one_in(2)
def test_a_text_s_similarity_does_not_depend_on_the_other_texts(model: Any) -> None:
    images = torch.randn(2, 3, SIDE, SIDE)
    alone = load_model("clip/two", class_names=TEXTS[:1]).net(images)
    torch.testing.assert_close(alone, load_model("clip/two", class_names=TEXTS).net(images)[:, :1])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("joint", [True, False])
def test_maps_keep_their_mass_and_leave_the_outputs_alone(model: Any, joint: bool) -> None:
    loaded, images = load_model("clip/two", class_names=TEXTS), torch.randn(2, 3, SIDE, SIDE)
    with torch.no_grad():  # these take a share of the pixels'
        for name, parameter in loaded.net.named_parameters():
            if name.endswith(("bias", "class_embedding", "position_embedding.weight")):
                parameter.zero_()
    for result in ebcli.excitation_backprop(
        loaded.net, images, [[0, 2]] * 2, [default_layer(loaded), None], joint=joint
    ):
        torch.testing.assert_close(result.mass, torch.ones(2, 2), rtol=0, atol=1e-4)
        assert torch.equal(result.logits, loaded.net(images))
        assert result.maps.shape[2:] == ((4, 4) if result.layer else (SIDE, SIDE))


@pytest.mark.one_in(2)
def test_the_default_layer_is_what_the_first_block_reads(model: Any) -> None:
    loaded = load_model("clip/two", class_names=TEXTS)
    first = "vision_model.embeddings" if model.config.model_type == "siglip" else "vision_model.pre_layrnorm"
    assert default_layer(loaded) == first
    below = {layer.name for layer in ebcli.layers(loaded)}
    assert default_layer(loaded) in below and "vision_model.encoder.layers.2" in below


@pytest.mark.one_in(2)
def test_preprocessing_is_the_processor_s(model: Any) -> None:
    preset = load_model("clip/two", class_names=TEXTS).transforms
    is_squashed = model.config.model_type == "siglip"
    assert preset.fit == ("squash" if is_squashed else "crop")
    assert (preset.size, preset.mean) == ((SIDE, SIDE), (0.5 if is_squashed else captions.MEAN,) * 3)
    Path("two/preprocessor_config.json").unlink()
    assert load_model("clip/two", class_names=TEXTS).transforms.size == (SIDE, SIDE)


@pytest.mark.one_in(2)
def test_a_checkpoint_of_torch_save(model: Any) -> None:
    images, state = torch.randn(1, 3, SIDE, SIDE), model.state_dict()
    state = {key: value + 0.01 for key, value in state.items()}
    torch.save(state, "tuned.pth")
    loaded = load_model("clip/two", "tuned.pth", class_names=TEXTS, scores="softmax")
    model.load_state_dict(state)
    torch.testing.assert_close(loaded.net(images), own_logits(model, images), rtol=1e-4, atol=1e-4)


@pytest.mark.one_in(2)
def test_without_texts_it_is_no_classifier(model: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=r"clip/two compares images with texts: give one, as in --target"
    ):
        load_model("clip/two")
    with pytest.raises(ConfigurationError, match="a text to compare images with is empty"):
        load_model("clip/two", class_names=["red A", " "])


@pytest.mark.one_in(2)
def test_a_long_text_is_not_cut(model: Any) -> None:
    start_and_end = 2
    load_model("clip/two", class_names=["red " * (8 - start_and_end)])
    with pytest.raises(
        ConfigurationError, match=r"the text 'red .* has 9 tokens, but clip/two reads at most 8"
    ):
        load_model("clip/two", class_names=["red A", "red " * (9 - start_and_end)])


@pytest.mark.one_in(2)
def test_a_missing_tokenizer_is_named(model: Any) -> None:
    for file in Path("two").glob("tokenizer*"):
        file.unlink()
    with pytest.raises(ConfigurationError, match="cannot load the tokenizer of clip/two"):
        load_model("clip/two", class_names=TEXTS)


def test_other_types_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    transformers.ViTConfig(**VISION).save_pretrained("vit")
    with pytest.raises(ConfigurationError, match=r"clip/vit is of type vit, but CLIP or SigLIP is needed"):
        load_model("clip/vit", "none", class_names=TEXTS)


@pytest.mark.one_in(2)
def test_features_are_those_of_the_image_tower(model: Any) -> None:
    """A picture's similarity to itself is 1."""
    from PIL import Image

    pixels = torch.randint(0, 256, (SIDE, SIDE, 3), dtype=torch.uint8).numpy()
    for name in ("one.png", "other.png"):
        Image.fromarray(pixels).save(name)
        pixels = pixels.transpose(1, 0, 2).copy()
    loaded = load_model("clip/two", like=["one.png", "other.png"])
    images = torch.stack([loaded.transforms(Image.open(name)) for name in ("one.png", "other.png")])
    with torch.no_grad():
        features = model.get_image_features(pixel_values=images).pooler_output
    expected = torch.cosine_similarity(features[:, None], features[None], dim=2)
    torch.testing.assert_close(loaded.net(images), expected, rtol=1e-4, atol=1e-5)
    assert loaded.categories == ("one.png", "other.png")
    assert json.loads(Path("two/config.json").read_text())["model_type"] == model.config.model_type
