"""Networks of timm; timm is the reference."""

from pathlib import Path

import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform, resolve_data_config
from torchvision.models import ResNet18_Weights
from zoo import enliven

import ebcli
from ebcli.errors import ConfigurationError
from ebcli.models import load_model

PHOTO = Path(__file__).parents[2] / "sample_images/chelsea.jpg"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["resnet18", "mobilenetv4_conv_small", "convnext_atto", "test_vit"])
def test_preprocessing_matches_timm(name: str) -> None:
    loaded = load_model(f"timm/{name}", "none")
    config = resolve_data_config(model=timm.create_model(name))
    photo = Image.open(PHOTO).convert("RGB")
    expected = create_transform(**config)(photo)
    torch.testing.assert_close(loaded.transforms(photo), expected, rtol=0, atol=1e-6)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("mode", "crop_pct"), [("squash", 1.0), ("squash", 0.875), ("border", 1.0), ("border", 0.9)]
)
def test_crop_modes_match_timm(monkeypatch: pytest.MonkeyPatch, mode: str, crop_pct: float) -> None:
    config = resolve_data_config(model=timm.create_model("resnet18")) | {
        "crop_mode": mode,
        "crop_pct": crop_pct,
    }
    monkeypatch.setattr(timm.data, "resolve_data_config", lambda model: config)
    photo = Image.open(PHOTO).convert("RGB")
    found = load_model("timm/resnet18", "none").transforms(photo)
    torch.testing.assert_close(found, create_transform(**config)(photo), rtol=0, atol=1e-6)


def test_the_crop_mode_of_published_weights_is_used() -> None:
    with torch.device("meta"):
        loaded = load_model("timm/convnextv2_nano.fcmae_ft_in22k_in1k_384", "none", "meta")
    assert loaded.transforms.fit == "squash"
    assert (loaded.transforms.resize, loaded.transforms.size) == ((384,), (384, 384))


def test_untrained_networks_are_reproducible_and_have_imagenet_names() -> None:
    first, second = load_model("timm/resnet18", "none"), load_model("timm/resnet18.tv_in1k", "none")
    assert (first.name, second.name, first.weights) == ("timm/resnet18", "timm/resnet18.tv_in1k", "none")
    for one, other in zip(first.net.parameters(), second.net.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert first.categories == tuple(ResNet18_Weights.DEFAULT.meta["categories"])
    assert first.transforms.resize != second.transforms.resize


@pytest.mark.release
@pytest.mark.one_in(2)
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_checkpoint_sets_the_number_of_classes(tmp_path: Path, suffix: str) -> None:
    from safetensors.torch import save_file

    trained, path = timm.create_model("resnet18", num_classes=7).eval(), tmp_path / f"seven{suffix}"
    state = {f"module.{key}": value for key, value in trained.state_dict().items()}
    save_file(state, path) if suffix == ".safetensors" else torch.save(
        {"state_dict": state, "epoch": 3}, path
    )
    loaded = load_model("timm/resnet18", path, class_names=list("abcdefg"))
    images = torch.rand(1, 3, 64, 64)
    torch.testing.assert_close(loaded.net(images), trained(images), rtol=0, atol=0)
    assert loaded.categories == tuple("abcdefg")
    assert loaded.files == (path,)
    assert load_model("timm/resnet18", path).categories is None


def test_published_weights_are_downloaded_by_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    made, create = [], timm.create_model

    def create_model(name: str, pretrained: bool = False, **options: object) -> torch.nn.Module:
        made.append((name, pretrained))
        return create(name, **options)

    monkeypatch.setattr(timm, "create_model", create_model)
    assert load_model("timm/resnet18").weights == "a1_in1k"  # timm's default
    assert load_model("timm/resnet18", "tv_in1k").weights == "tv_in1k"
    assert made == [("resnet18.a1_in1k", True), ("resnet18.tv_in1k", True)]


def test_a_failed_download_is_reported_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def create_model(*_args: object, **_options: object) -> None:
        raise OSError("no route to host\nat all")

    monkeypatch.setattr(timm, "create_model", create_model)
    with pytest.raises(
        ConfigurationError, match=r"cannot load the weights a1_in1k of timm/resnet18 \(no route to host\)"
    ):
        load_model("timm/resnet18")


@pytest.mark.parametrize(
    ("name", "weights", "said"),
    [
        ("timm/resnet81", "none", "did you mean 'resnet18'"),
        ("timm/resnet18.nonsense", "none", "no weights 'nonsense': choose a1_in1k"),
        ("timm/resnet18", "tv_in2k", "neither a file nor weights of timm/resnet18.*tv_in1k"),
        ("timm/vit_small_patch14_reg4_dinov2", "DEFAULT", "has no classifier"),
        pytest.param(
            "timm/vit_base_patch16_sapiens2",
            "none",
            "1024 x 768 pixels",
            marks=pytest.mark.skipif(not timm.is_model("vit_base_patch16_sapiens2"), reason="timm is older"),
        ),
    ],
)
def test_wrong_names_are_reported_in_one_sentence(name: str, weights: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught, torch.device("meta"):
        load_model(name, weights, "meta")
    assert "\n" not in str(caught.value)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("name", "layer"), [("crossvit_tiny_240", "patch_embed.1"), ("coat_tiny", "patch_embed2")]
)
def test_the_default_layer_of_branches_has_cells_that_probability_reaches(name: str, layer: str) -> None:
    """The last norms are read at the class token alone, so that their maps would be empty."""
    loaded = load_model(f"timm/{name}", "none")
    assert ebcli.default_layer(loaded) == layer
    noise = torch.rand(1, 3, *loaded.transforms.shape, generator=torch.Generator().manual_seed(0))
    enliven(loaded.net, noise)
    assert ebcli.excitation_backprop(loaded.net, noise, 1, layer).maps.sum() > 0.5
