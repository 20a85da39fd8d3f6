"""Networks of Hugging Face for depth, compared with transformers, and maps of values without an axis of outputs."""

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
import value_nets
from click.testing import CliRunner
from PIL import Image
from torch import Tensor, nn

import ebcli
from ebcli.cli.saliency import main
from ebcli.errors import ConfigurationError

_TOKENS: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2}
_NECK: dict[str, Any] = {"neck_hidden_sizes": [4, 4, 8, 8], "fusion_hidden_size": 4}
_BINS = {"n_bins": 8, "min_depth": 0.001, "max_depth": 10.0, "name": "nyu"}


def _dpt() -> nn.Module:
    stages = {"backbone_out_indices": [0, 1, 2, 3], "is_hybrid": False}
    config = hf.DPTConfig(image_size=64, patch_size=16, intermediate_size=32, **_TOKENS, **_NECK, **stages)
    return hf.DPTForDepthEstimation(config)


def _depth_anything() -> nn.Module:
    stages = {"out_indices": [1, 2, 3, 4], "reshape_hidden_states": False}
    backbone = hf.Dinov2Config(image_size=56, patch_size=14, mlp_ratio=2, **_TOKENS, **stages)
    config = hf.DepthAnythingConfig(
        backbone_config=backbone, reassemble_hidden_size=16, head_hidden_size=4, patch_size=14, **_NECK
    )
    return hf.DepthAnythingForDepthEstimation(config)


def _glpn() -> nn.Module:
    sizes = {"hidden_sizes": [4, 8, 8, 8], "depths": [1] * 4, "num_attention_heads": [1, 1, 2, 2]}
    return hf.GLPNForDepthEstimation(hf.GLPNConfig(**sizes, decoder_hidden_size=4))


def _zoe_depth() -> nn.Module:
    stages = {"out_indices": [1, 2, 3, 4], "reshape_hidden_states": False, "use_relative_position_bias": True}
    backbone = hf.BeitConfig(image_size=64, patch_size=16, intermediate_size=32, **_TOKENS, **stages)
    widths = dict.fromkeys(("bottleneck_features", "num_relative_features", "bin_embedding_dim"), 4)
    config = hf.ZoeDepthConfig(
        backbone_config=backbone, **_NECK, **widths, num_attractors=[4, 2, 2, 1], bin_configurations=[_BINS]
    )
    return hf.ZoeDepthForDepthEstimation(config)


_SQUARE = {"height": 64, "width": 64}
NETWORKS: dict[str, tuple[Any, Any]] = {
    "DPT": (_dpt, lambda: hf.DPTImageProcessor(size=_SQUARE)),
    "Depth Anything": (
        _depth_anything,
        lambda: hf.DPTImageProcessor(
            size={"height": 56, "width": 56}, keep_aspect_ratio=True, ensure_multiple_of=14
        ),
    ),
    "GLPN": (_glpn, lambda: hf.GLPNImageProcessor(size_divisor=32)),
    "ZoeDepth": (_zoe_depth, lambda: hf.ZoeDepthImageProcessor(size=_SQUARE)),
}


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("depth")


@functools.cache
def saved(name: str, parent: Path) -> Path:
    """A directory with a network, whose depth differs from place to place."""
    make, processor = NETWORKS[name]
    torch.manual_seed(0)
    net = make()
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    net.save_pretrained(parent / name)
    processor().save_pretrained(parent / name)
    return parent / name


@functools.cache
def loaded(name: str, parent: Path) -> ebcli.LoadedModel:
    return ebcli.load_model(f"hf/{saved(name, parent)}")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", NETWORKS)
def test_the_depth_is_that_of_transformers(name: str, parent: Path) -> None:
    model = loaded(name, parent)
    assert (model.task, model.num_classes, model.has_values) == ("maps of values", 1, True)
    plain = hf.AutoModelForDepthEstimation.from_pretrained(saved(name, parent)).eval()
    height, width = (64, 64) if name == "DPT" else (56, 84) if name == "Depth Anything" else (64, 96)
    inputs = torch.randn(2, 3, height, width)
    with torch.no_grad():
        expected = plain(inputs).predicted_depth
    torch.testing.assert_close(model.net(inputs), expected[:, None], rtol=0, atol=0)
    result = ebcli.excitation_backprop(model.net, inputs, 0, None, joint=True)
    assert result.maps.shape == (2, height, width)
    assert (result.mass > 0.9).all()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["DPT", "Depth Anything", "ZoeDepth"])
def test_depth_is_explained_as_its_mean_and_at_a_pixel(name: str, parent: Path) -> None:
    coarse = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)
    photo = Image.fromarray(coarse).resize((144, 96), Image.Resampling.BICUBIC)
    model = loaded(name, parent)
    fitted = model.with_preprocessing(ebcli.Preprocessing(fit="whole")).transforms(photo)[None]
    height, width = fitted.shape[2:]
    assert (height == width) == (name == "DPT")  # which takes squares only
    with torch.no_grad():
        depth = model.net(fitted)[0, 0]
    found = ebcli.explain(model, photo)
    assert found.classes == ["value"]
    assert found.scores == [pytest.approx(float(depth.mean()), rel=1e-4)]
    at_pixel = ebcli.explain(model, photo, where=(100, 50))
    expected = depth[int(50.5 / 96 * height), int(100.5 / 144 * width)]
    assert at_pixel.scores == [pytest.approx(float(expected), rel=1e-4)]
    assert at_pixel.heatmap().shape == (1, 96, 144)


def test_the_command_explains_depth_at_a_pixel(
    parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Image.effect_noise((96, 64), 80).convert("RGB").save("a.png")
    model = f"hf/{saved('ZoeDepth', parent)}"
    arguments = ["a.png", "--model", model, "--json", "--where", "40,20", "--workers", "0"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    (map_,) = json.loads(done.stdout)["classes"]
    assert (map_["name"], map_["score"]) == ("value", None)
    found = ebcli.explain(
        hf.AutoModelForDepthEstimation.from_pretrained(parent / "ZoeDepth"),
        "a.png",
        transform=processor(parent),
        where=(40, 20),
    )
    assert found.scores == [pytest.approx(map_["value"], rel=1e-4)]


def processor(parent: Path) -> Any:
    return hf.AutoImageProcessor.from_pretrained(saved("ZoeDepth", parent))


def test_a_processor_without_a_size_keeps_whole_photos(parent: Path) -> None:
    transforms = loaded("GLPN", parent).with_preprocessing(ebcli.Preprocessing(fit="whole")).transforms
    assert transforms.size == (480, 480)
    assert transforms(Image.new("RGB", (640, 480), "white")).shape == (3, 480, 640)
    assert float(transforms(Image.new("RGB", (640, 480), "white")).min()) == 1


class FlatHeights(value_nets.Heights):
    """The same numbers, without an axis of outputs: (B, 16, 16)."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images).squeeze(1)


class Tokens(FlatHeights):
    """Five classes of 256 tokens, (B, 256, 5)."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images).flatten(1)[..., None].expand(-1, -1, 5)


@pytest.mark.parametrize("where", [None, (48, 16)])
def test_a_map_without_an_axis_of_outputs_is_one_map_of_values(where: Any) -> None:
    images = torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(0))
    options = {"layer": "cells", "scores": "raw", "where": where}
    expected = ebcli.explain(value_nets.Heights().eval(), images, **options)
    found = ebcli.explain(FlatHeights().eval(), images, **options)
    assert (found.classes, found.scores) == (["value"], expected.scores)
    np.testing.assert_array_equal(found.maps, expected.maps)
    declared = FlatHeights().eval()
    declared.task = "maps of values"
    del options["scores"]
    np.testing.assert_array_equal(ebcli.explain(declared, images, **options).maps, expected.maps)


def test_values_without_an_axis_of_outputs_are_not_guessed() -> None:
    for net in (FlatHeights(), Tokens()):
        with pytest.raises(
            ConfigurationError, match=r"if these are values of pixels \(B, H, W\), add --scores raw"
        ):
            ebcli.load_model(net)
    with pytest.raises(
        ConfigurationError, match=r"Tokens returns a tensor \(B, 256, 5\) for images of 64 x 64"
    ):
        ebcli.load_model(Tokens(), scores="raw")
