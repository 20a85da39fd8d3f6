"""Pictures as classes: similarities of the features below the head, whatever the source of the network."""

from pathlib import Path

import pytest
import timm
import torch
import transformers
from PIL import Image
from torch import Tensor, nn
from two_towers import SIDE, VISION

import ebcli
from ebcli.errors import ConfigurationError
from ebcli.models import Preprocessing, default_layer, load_model, resolve_layer

PICTURES = ("one.png", "two.png")
SMALL = Preprocessing(resize=SIDE, crop=SIDE)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with two pictures."""
    monkeypatch.chdir(tmp_path)
    pixels = torch.randint(
        0, 256, (2, 80, 70, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    for name, picture in zip(PICTURES, pixels.numpy(), strict=True):
        Image.fromarray(picture).save(name)
    return tmp_path


def inputs(loaded: ebcli.LoadedModel) -> Tensor:
    return torch.stack([loaded.transforms(Image.open(name)) for name in PICTURES])


def check_cosines(loaded: ebcli.LoadedModel, features: Tensor) -> None:
    """The similarities of the two pictures with themselves and with each other, of features (2, D)."""
    expected = torch.cosine_similarity(features[:, None], features[None], dim=2)
    torch.testing.assert_close(loaded.net(inputs(loaded)), expected, rtol=1e-4, atol=1e-5)
    assert (loaded.num_classes, loaded.categories, loaded.scores) == (2, PICTURES, "raw")
    assert set(map(Path, PICTURES)) <= set(loaded.files)


@torch.no_grad()
def test_a_classifier_is_compared_by_what_its_last_layer_reads() -> None:
    loaded = load_model("resnet18", "none", like=PICTURES, preprocessing=SMALL)
    plain = load_model("resnet18", "none", preprocessing=SMALL).net
    plain.fc = nn.Identity()
    check_cosines(loaded, plain(inputs(loaded)))
    assert default_layer(loaded) == resolve_layer(loaded, "layer3")


@torch.no_grad()
def test_the_bundled_network() -> None:
    loaded = load_model(like=PICTURES)
    plain = load_model().net
    features = []
    plain.classifier[-1].register_forward_hook(lambda _module, given, _output: features.append(given[0]))
    plain(inputs(loaded))
    check_cosines(loaded, features[0])
    assert default_layer(loaded) == "features.11"


@pytest.mark.one_in(2)
@torch.no_grad()
@pytest.mark.parametrize("name", ["test_vit", "test_resnet"])
def test_timm_without_head(name: str) -> None:
    loaded = load_model(f"timm/{name}", "none", like=PICTURES)
    plain = timm.create_model(name, num_classes=0).eval()
    plain.load_state_dict(loaded.net.backbone.state_dict())
    check_cosines(loaded, plain(inputs(loaded)))
    classifier = timm.create_model(name, num_classes=7).eval()
    torch.save(classifier.state_dict(), "tuned.pth")
    loaded = load_model(f"timm/{name}", "tuned.pth", like=PICTURES)
    check_cosines(
        loaded, classifier.forward_head(classifier.forward_features(inputs(loaded)), pre_logits=True)
    )


@torch.no_grad()
def test_hugging_face_with_and_without_head() -> None:
    config = transformers.Dinov2Config(**VISION, num_labels=5)
    for kind in (transformers.Dinov2ForImageClassification, transformers.Dinov2Model):
        net = kind(config).eval()
        net.save_pretrained("dino")
        loaded = load_model("hf/dino", like=PICTURES)
        tokens = getattr(net, "dinov2", net)(inputs(loaded)).last_hidden_state
        check_cosines(loaded, torch.cat([tokens[:, 0], tokens[:, 1:].mean(1)], dim=1))
    transformers.ViTModel(transformers.ViTConfig(**VISION)).save_pretrained("vit")
    loaded = load_model("hf/vit", like=PICTURES)
    tokens = transformers.ViTModel.from_pretrained("vit").eval()(inputs(loaded)).last_hidden_state
    check_cosines(loaded, tokens[:, 0])


@pytest.mark.one_in(2)
@torch.no_grad()
@pytest.mark.parametrize("kind", ["DINOv3ViT", "DINOv3ConvNext"])
def test_hugging_face_without_any_head(kind: str) -> None:
    """DINOv3's features are the normalized class token, or the normalized mean over all places."""
    sizes = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "image_size": SIDE}
    if kind == "DINOv3ViT":
        sizes = {**VISION, "num_register_tokens": 3}
    net = getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**sizes)).eval()
    net.save_pretrained("dino")
    loaded = load_model("hf/dino", like=PICTURES)
    tokens = net(inputs(loaded)).last_hidden_state
    check_cosines(loaded, tokens[:, 0])
    assert resolve_layer(loaded, default_layer(loaded)).startswith("backbone.")
    with pytest.raises(ConfigurationError, match="has no classes: add --similar-to PICTURE"):
        load_model("hf/dino")


def test_hugging_face_without_pooled_features_and_for_texts() -> None:
    transformers.ViTMAEModel(transformers.ViTMAEConfig(**VISION)).save_pretrained("masked")
    with pytest.raises(
        ConfigurationError, match="ViTMAEModel returns no pooled features to compare pictures by"
    ):
        load_model("hf/masked", like=PICTURES)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    transformers.BertModel(transformers.BertConfig(**sizes, vocab_size=9)).save_pretrained("bert")
    with pytest.raises(ConfigurationError, match="is of type bert, which is no classifier"):
        load_model("hf/bert", like=PICTURES)


FACTORIES = """
from torch import nn
def embeds():
    return nn.Sequential(nn.Conv2d(3, 8, 8, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
def classifies():
    net = embeds()
    net.categories = list("abcde")
    return net
def pools_nothing():
    return nn.Conv2d(3, 8, 8)
"""


@torch.no_grad()
def test_own_code_returns_features_unless_it_names_its_classes() -> None:
    Path("nets.py").write_text(FACTORIES)
    plain = load_model("nets.py:embeds").net
    loaded = load_model("nets.py:embeds", like=PICTURES)
    check_cosines(loaded, plain(inputs(loaded)))
    loaded = load_model("nets.py:classifies", like=PICTURES)
    check_cosines(loaded, plain[:-1](inputs(loaded)))
    with pytest.raises(
        ConfigurationError, match=r"pools_nothing returns a tensor \(B, .*but features \(B, D\) are needed"
    ):
        load_model("nets.py:pools_nothing", like=PICTURES)


def test_networks_without_a_last_linear_layer_are_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"squeezenet1_0 has no single linear layer .* from FILE.py:FACTORY"
    ):
        load_model("squeezenet1_0", "none", like="one.png")


def test_pictures_that_cannot_be_read_are_named() -> None:
    Path("text.png").write_text("no picture")
    with pytest.raises(
        ConfigurationError, match=r"cannot read .text.png., and --similar-to compares pictures: not"
    ):
        load_model(like=["one.png", "text.png"])
    with pytest.raises(ConfigurationError, match=r"cannot read 'missing\.png'"):
        load_model(like="missing.png")


def test_a_backbone_without_picture_is_told_of_the_option() -> None:
    with pytest.raises(
        ConfigurationError, match=r"dinov2 has no classifier: compare pictures by --similar-to"
    ):
        load_model("timm/vit_small_patch14_dinov2")
