"""Attention rollout, against the product of attention weights that hooks and libraries give."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import library_models as libraries
import pytest
import timm
import torch
import transformers
import zoo
from method_maps import maps_of
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision import models

from ebcli.errors import ConfigurationError
from ebcli.methods.table import find_method

CLASSES = [[0, 1], [2, 0]]


def rollout(attention: Sequence[Tensor], rows: Sequence[int]) -> Tensor:
    """The mean of some rows (B, tokens) of the rollout of attention weights (B, heads, tokens, tokens)."""
    tokens = attention[0].shape[-1]
    total = torch.eye(tokens).double().expand(len(attention[0]), -1, -1)
    for weights in attention:
        mixed = weights.double().mean(1) + torch.eye(tokens)
        total = (mixed / mixed.sum(-1, keepdim=True)) @ total
    return total[:, list(rows)].mean(1)


def check(net: nn.Module, x: Tensor, expected: Tensor, layers: Sequence[str | None] = (None,)) -> None:
    """Compare maps of both classes with maps (B, h, w)."""
    (result,) = maps_of("attention-rollout", net, x, CLASSES, layers)
    assert result.layer is None and result.relevance is None
    torch.testing.assert_close(result.maps, expected[:, None].expand(-1, 2, -1, -1).to(result.maps))


def photos(height: int = 32, width: int = 32) -> Tensor:
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(0))


def weights_from(qkv: Tensor, heads: int) -> Tensor:
    """Attention weights of queries and keys in (B, tokens, 3 C)."""
    q, k, _ = qkv.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)


# Networks of libraries


def torchvision_vit() -> models.VisionTransformer:
    torch.manual_seed(0)
    net = models.VisionTransformer(32, 8, 3, 2, 16, 32, num_classes=3)
    zoo.enliven(net, photos())
    return net


def torchvision_attention(net: models.VisionTransformer, x: Tensor) -> list[Tensor]:
    """From what each block's attention reads."""
    found: list[Tensor] = []

    def note(module: nn.MultiheadAttention, args: tuple[Tensor, ...]) -> None:
        found.append(weights_from(F.linear(args[0], module.in_proj_weight, module.in_proj_bias), 2))

    for block in net.encoder.layers:
        block.self_attention.register_forward_pre_hook(note)
    with torch.no_grad():
        net(x)
    return found


@pytest.mark.parametrize(
    ("layer", "blocks"),
    [
        (None, 3),
        ("conv_proj", 3),
        ("encoder.layers.encoder_layer_1", 2),
        ("encoder.layers.encoder_layer_1.ln_1", 1),
    ],
)
def test_torchvision_up_to_a_layer(layer: str | None, blocks: int) -> None:
    net, x = torchvision_vit(), photos()
    attention = torchvision_attention(torchvision_vit(), x)
    check(net, x, rollout(attention[:blocks], [0])[:, 1:].unflatten(1, (4, 4)), [layer])


def test_of_several_layers_the_last_counts() -> None:
    net, x = torchvision_vit(), photos()
    attention = torchvision_attention(torchvision_vit(), x)
    expected = rollout(attention[:2], [0])[:, 1:].unflatten(1, (4, 4))
    check(net, x, expected, ["encoder.layers.encoder_layer_1", "encoder.layers.encoder_layer_0"])


@pytest.mark.parametrize(
    ("name", "rows", "special"),
    [
        ("vit_tiny_patch16_224", [0], 1),
        ("deit_tiny_distilled_patch16_224", [0, 1], 2),  # the mean of two classifiers
        ("vit_medium_patch16_reg4_gap_256", [*range(4, 20)], 4),  # registers, and the mean of all cells
        ("vit_base_patch16_siglip_224", [*range(16)], 0),  # cells pooled by attention
    ],
)
def test_timm(name: str, rows: Sequence[int], special: int) -> None:
    torch.manual_seed(0)
    net = timm.create_model(name, **{**libraries._TOKENS, "depth": 2}, num_classes=3)
    x = photos(64, 64)
    zoo.enliven(net, x)
    found: list[Tensor] = []

    def note(module: Any, args: tuple[Tensor, ...]) -> None:
        found.append(weights_from(module.qkv(args[0]), module.num_heads))

    handles = [block.attn.register_forward_pre_hook(note) for block in net.blocks]
    with torch.no_grad():
        net(x)
    for handle in handles:
        handle.remove()
    check(net, x, rollout(found, rows)[:, special:].unflatten(1, (4, 4)))


@pytest.mark.parametrize(
    ("kind", "size", "special"),
    [("ViT", (64, 96), 1), ("Dinov2WithRegisters", 64, 5)],  # which resizes its position embeddings
)
def test_hugging_face_on_a_grid_that_is_no_square(kind: str, size: Any, special: int) -> None:
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        **{**libraries._VIT, "num_hidden_layers": 2}, patch_size=16, image_size=size, num_labels=3
    )
    net = getattr(transformers, f"{kind}ForImageClassification")(config)
    x = photos(64, 96)
    net.set_attn_implementation("eager")
    net.eval()
    with torch.no_grad():
        attention = net(x, output_attentions=True).attentions
    expected = rollout(attention, [0])[:, special:].unflatten(1, (4, 6))
    check(net, x, expected)
    net.set_attn_implementation("sdpa")
    check(net, x, expected)


# The same attention, spelled in other ways


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def as_products(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-1, -2) / 2).softmax(-1) @ v


def turned(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The values are the left factor."""
    return (v.mT @ (k @ q.mT / 2).softmax(-2)).mT


def summed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.einsum("bhqk,bhkc->bhqc", (torch.einsum("bhqc,bhkc->bhqk", q, k) / 2).softmax(-1), v)


def of_groups(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """All heads have the keys and values of the first one."""
    return F.scaled_dot_product_attention(q, k[:, :1], v[:, :1], enable_gqa=True)


class Tokens(nn.Module):
    """Two blocks of attention among patches, and the mean of all."""

    def __init__(self, mix: Callable[..., Tensor]) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.mix = mix
        self.patches = nn.Conv2d(3, 8, 8, 8)
        self.qkv = nn.ModuleList(nn.Linear(8, 24) for _ in range(2))
        self.head = nn.Linear(8, 3)
        self.attention: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).mT
        for qkv in self.qkv:
            q, k, v = qkv(tokens).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
            tokens = tokens + self.mix(q, k, v).transpose(1, 2).flatten(2)
        return self.head(tokens.mean(1))


def attention_of(net: Tokens, x: Tensor, *, one_key: bool = False) -> list[Tensor]:
    tokens, found = net.patches(x).flatten(2).mT, []
    for qkv in net.qkv:
        q, k, v = qkv(tokens).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        if one_key:
            k, v = k[:, [0, 0]], v[:, [0, 0]]
        found.append((q @ k.mT / 2).softmax(-1))
        tokens = tokens + (found[-1] @ v).transpose(1, 2).flatten(2)
    return found


@pytest.mark.parametrize("mix", [fused, as_products, turned, summed, of_groups])
def test_spellings(mix: Callable[..., Tensor]) -> None:
    net, x = Tokens(mix).eval(), photos(16, 32)
    with torch.no_grad():
        attention = attention_of(net, x, one_key=mix is of_groups)
    check(net, x, rollout(attention, range(8)).unflatten(1, (2, 4)))


class Multihead(nn.Module):
    """`nn.MultiheadAttention` among patches (T, B, C), and the first of them as the class token."""

    def __init__(self, *, needs_weights: bool) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.patches, self.head = nn.Conv2d(3, 8, 8, 8), nn.Linear(8, 3)
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.attention = nn.MultiheadAttention(8, 2)
        self.needs_weights = needs_weights

    def tokens(self, x: Tensor) -> Tensor:
        return torch.cat([self.token.expand(-1, len(x), -1), self.patches(x).flatten(2).permute(2, 0, 1)])

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.tokens(x)
        mixed, _ = self.attention(tokens, tokens, tokens, need_weights=self.needs_weights)
        return self.head((tokens + mixed)[0])


@pytest.mark.parametrize("needs_weights", [True, False])
def test_multihead_attention(needs_weights: bool) -> None:
    net, x = Multihead(needs_weights=needs_weights).eval(), photos(16, 32)
    with torch.no_grad():
        tokens = net.tokens(x)
        weights = net.attention(tokens, tokens, tokens, average_attn_weights=False)[1]
    check(net, x, rollout([weights], [0])[:, 1:].unflatten(1, (2, 4)))


# What holds for all


def test_an_image_alone_has_the_map_that_it_has_in_a_batch() -> None:
    net, x = torchvision_vit(), photos()
    (together,) = maps_of("attention-rollout", net, x, CLASSES)
    (alone,) = maps_of("attention-rollout", net, x[1:], CLASSES[1:])
    torch.testing.assert_close(alone.maps[0], together.maps[1])
    assert (together.maps[:, 0] == together.maps[:, 1]).all()
    assert not torch.allclose(together.maps[0], together.maps[1])


def test_the_table_says_that_it_knows_no_class() -> None:
    assert not find_method("attention-rollout").knows_class


def test_a_network_without_attention_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="needs attention, and this network has none"):
        maps_of("attention-rollout", nn.Sequential(nn.Flatten(), nn.Linear(3072, 3)), photos(), CLASSES)


def pyramid() -> nn.Module:
    return timm.create_model("pvt_v2_b0", num_classes=3)


def windows() -> nn.Module:
    return models.SwinTransformer([4, 4], 8, [1, 1], [1, 2], [4, 4], num_classes=3)


def talking_heads() -> nn.Module:
    return timm.create_model("cait_xxs24_224", img_size=64, embed_dim=32, depth=1, num_heads=2, num_classes=3)


@pytest.mark.parametrize("make", [pyramid, windows, talking_heads])
def test_attention_among_some_tokens_is_refused(make: Callable[[], nn.Module]) -> None:
    with pytest.raises(
        ConfigurationError, match=r"every token to attend to all tokens of one grid: \w+ in .*\d"
    ):
        maps_of("attention-rollout", make(), photos(64, 64), CLASSES)


def test_a_softmax_at_the_end_changes_nothing() -> None:
    net, x = torchvision_vit(), photos()
    (expected,) = maps_of("attention-rollout", net, x, CLASSES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it ends in a softmax
        (found,) = maps_of("attention-rollout", nn.Sequential(net, nn.Softmax(1)), x, CLASSES)
    torch.testing.assert_close(found.maps, expected.maps)
