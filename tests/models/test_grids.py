"""The maps of networks that read pictures of 96 x 160 pixels: which cell of the picture each of their cells is."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import timm
import torch
import transformers
from torch import Tensor, nn
from zoo import enliven

import ebcli
from ebcli.heads import heads_of
from ebcli.models import default_layer

SIZE = 96, 160


class Grid(NamedTuple):
    """A network, with an inner layer of another name and perhaps of other cells than the default layer.

    Attributes:
        build: makes it.
        inner: the inner layer.
        strides: of the default layer and of the inner one.
        special: how many tokens are no cells.
    """

    build: Callable[[], nn.Module]
    inner: str
    strides: tuple[int, int] = (16, 16)
    special: int = 0


def timm_net(name: str, **options: Any) -> Callable[[], nn.Module]:
    return lambda: timm.create_model(name, num_classes=5, **options)


def hf_net(name: str, **options: Any) -> Callable[[], nn.Module]:
    """A classifier of Hugging Face."""

    def build() -> nn.Module:
        config = getattr(transformers, f"{name}Config")(num_labels=5, **options)
        net: nn.Module = getattr(transformers, f"{name}ForImageClassification")(config)
        return net

    return build


class Detector(nn.Module):
    """The first object that YOLOS detects, whose tokens are behind those of the picture."""

    def __init__(self) -> None:
        super().__init__()
        config = transformers.YolosConfig(image_size=SIZE, num_detection_tokens=4, **HF_TOKENS)
        self.net = transformers.YolosForObjectDetection(config)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(pixel_values=x).logits
        return logits[:, 0]


class Features(nn.Module):
    """A linear classifier on what DINOv3 pools."""

    def __init__(self) -> None:
        super().__init__()
        config = transformers.DINOv3ViTConfig(num_register_tokens=4, **HF_TOKENS)
        self.net = transformers.DINOv3ViTModel(config)
        self.head = nn.Linear(48, 5)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.net(pixel_values=x).pooler_output)
        return logits


HF_TOKENS: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 96,
}
_TOKENS: dict[str, Any] = {"img_size": SIZE, "embed_dim": 48, "depth": 4, "num_heads": 3}
_HEADS = {"num_heads": (1, 2, 4, 8)}
_STAGES: dict[str, Any] = {"img_size": SIZE, "embed_dim": 24, "depths": (1, 1, 2, 1), **_HEADS}
_LISTS: dict[str, Any] = {
    "image_size": SIZE,
    "embed_dim": 24,
    "depths": [1, 1, 2, 1],
    "num_heads": [1, 2, 4, 8],
}
GRIDS = {
    "registers": Grid(timm_net("vit_medium_patch16_reg4_gap_256", **_TOKENS), "blocks.2", special=4),
    "distilled": Grid(timm_net("deit_tiny_distilled_patch16_224", **_TOKENS), "blocks.2", special=2),
    "BEiT": Grid(timm_net("beit_base_patch16_224", **_TOKENS), "blocks.2", special=1),
    "EVA": Grid(timm_net("eva02_base_patch16_clip_224", **_TOKENS), "blocks.2", special=1),
    "any size": Grid(
        timm_net("vit_tiny_patch16_224", **_TOKENS | {"img_size": 224}, dynamic_img_size=True),
        "blocks.2",
        special=1,
    ),
    "NaFlexViT": Grid(
        timm_net("naflexvit_base_patch16_gap", **_TOKENS | {"img_size": None}), "blocks.2", special=4
    ),
    "Swin": Grid(
        timm_net("swin_tiny_patch4_window7_224", **_STAGES, window_size=(3, 5)), "layers.2.blocks.0", (8, 16)
    ),
    "Hiera": Grid(
        timm_net("hiera_tiny_224", img_size=SIZE, embed_dim=24, stages=(1, 1, 2, 1)), "blocks.2", (8, 16)
    ),
    "MambaOut": Grid(timm_net("mambaout_femto"), "stages.2.blocks.2", (8, 16)),
    "hf Hiera": Grid(hf_net("Hiera", **_LISTS | {"image_size": [*SIZE]}), "hiera.encoder.stages.2", (8, 16)),
    "hf Swin": Grid(hf_net("Swin", **_LISTS, window_size=2), "swin.encoder.layers.2.blocks.0", (8, 16)),
    "hf ViT": Grid(hf_net("ViT", image_size=SIZE, **HF_TOKENS), "vit.layers.2", special=1),
    "hf PVT v2": Grid(
        hf_net("PvtV2", hidden_sizes=[16, 32, 40, 64]), "pvt_v2.encoder.layers.2.blocks.0", (8, 16)
    ),
    "hf DINOv3": Grid(Features, "net.model.layer.2", special=5),
    "hf YOLOS": Grid(Detector, "net.vit.encoder.layer.2", special=5),
}


def output_of(net: nn.Module, layer: str, x: Tensor) -> Tensor:
    """What a layer returns."""
    outputs: list[Tensor] = []

    def keep(_module: nn.Module, _args: Any, output: Any) -> None:
        (tensor,) = heads_of(output).values()
        outputs.append(tensor.clone())

    with net.get_submodule(layer).register_forward_hook(keep), torch.no_grad():
        net(x)
    (output,) = outputs
    return output


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", GRIDS)
def test_the_cell_that_a_part_of_the_picture_changes_most_is_there_on_the_map(name: str) -> None:
    grid = GRIDS[name]
    torch.manual_seed(0)
    net = grid.build().requires_grad_(False)
    x = torch.randn(1, 3, *SIZE)
    enliven(net, x)
    layers = default_layer(net, SIZE), grid.inner
    for layer, stride, result in zip(
        layers, grid.strides, ebcli.excitation_backprop(net, x, 1, list(layers)), strict=True
    ):
        height, width = SIZE[0] // stride, SIZE[1] // stride
        assert result.maps.shape == (1, height, width)
        assert result.special_tokens == grid.special
        for row, column in [(0, 0), (1, width - 2), (height - 1, 2), (height // 2, width // 2)]:
            other = x.clone()
            other[..., row * stride : (row + 1) * stride, column * stride : (column + 1) * stride] += 2
            change = (output_of(net, layer, other) - output_of(net, layer, x)).abs()
            changes = result.layout.sum_channels(change)[0]
            place = divmod(int(changes.argmax()), width)
            assert abs(place[0] - row) <= 1 >= abs(place[1] - column), (layer, row, column)  # windows overlap
