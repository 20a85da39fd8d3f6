"""Layer-wise relevance propagation, against zennit, cases worked by hand, and the definition."""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import zoo
from method_maps import maps_of
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision import models
from torchvision.models import resnet, vgg
from zennit.composites import LayerMapComposite
from zennit.core import Composite
from zennit.layer import Sum
from zennit.rules import Gamma, Norm, Pass
from zennit.torchvision import ResNetCanonizer, VGGCanonizer
from zennit.types import Activation, AvgPool, BatchNorm, Convolution, Linear

from ebcli.errors import LayerError, UnsupportedOpError

GAMMA = 0.25
CLASSES = [[3, 8], [7, 9]]


def relevance_of(
    net: nn.Module, inputs: Tensor, classes: Sequence[Sequence[int]], layer: Any = None
) -> Tensor:
    """Relevance (B, K, ...) at a layer."""
    (result,) = maps_of("lrp", net, inputs, classes, [layer])
    assert result.relevance is not None
    return result.relevance


def assert_close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9 * float(b.abs().max()))


# Zennit


def composite(canonizer: Any) -> Composite:
    """Gamma in all layers with weights, batch norms merged into them, and the stabilizers out of the way."""
    rules = [
        (Convolution, Gamma(GAMMA, stabilizer=1e-14)),
        (Linear, Gamma(GAMMA, stabilizer=1e-14)),
        ((AvgPool, Sum), Norm(1e-14)),
        ((Activation, BatchNorm), Pass()),
    ]
    return LayerMapComposite(rules, canonizers=[canonizer()])


def by_zennit(net: nn.Module, inputs: Tensor, canonizer: Any, layer: str | None) -> Tensor:
    inputs = inputs.clone().requires_grad_()
    tensors = [inputs]
    if layer is not None:
        net.get_submodule(layer).register_forward_hook(lambda _m, _args, output: tensors.append(output))
    with composite(canonizer).context(net) as modified:
        output = modified(inputs)
        maps = []
        for k in range(len(CLASSES[0])):
            one_hot = F.one_hot(torch.tensor(CLASSES)[: len(inputs), k], output.shape[1])
            maps += torch.autograd.grad(output, tensors[-1], output.detach() * one_hot, retain_graph=True)
    return torch.stack(maps, 1)


def small_vgg() -> nn.Module:
    with torch.device("meta"):  # its own classifier has 120 million weights
        net = models.VGG(nn.Sequential(), num_classes=10, init_weights=False)
    net.features = vgg.make_layers([8, "M", 12, "M", 16, 16, "M"], batch_norm=True)
    net.classifier = nn.Sequential(nn.Linear(16 * 49, 32), nn.ReLU(True), nn.Dropout(), nn.Linear(32, 10))
    return net


def small_resnet() -> nn.Module:
    return models.ResNet(resnet.BasicBlock, [1, 1, 1, 1], num_classes=10)


def small_bottlenecks() -> nn.Module:
    return models.ResNet(resnet.Bottleneck, [1, 1, 1, 1], num_classes=10)


def small_densenet() -> nn.Module:
    return models.DenseNet(8, (2, 2), 8, num_classes=10)


def small_vit() -> nn.Module:
    return models.VisionTransformer(32, 8, 2, 2, 16, 32, num_classes=10)


def living(make: Callable[[], nn.Module], *, shifts: bool = True) -> zoo.Specimen:
    """A network with random parameters and statistics, and two images; a quarter of its batch norms turn signs."""
    torch.manual_seed(0)
    return zoo.specimen_of("", make(), (2, 3, 32, 32), layer="", shifts=shifts).double()


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("make", "canonizer", "layer"),
    [
        (small_vgg, VGGCanonizer, None),
        (small_vgg, VGGCanonizer, "features.7"),  # a convolution, below its batch norm
        (small_resnet, ResNetCanonizer, "layer2"),
        (small_bottlenecks, ResNetCanonizer, None),
    ],
)
def test_networks_have_zennits_relevance(make: Any, canonizer: Any, layer: str | None) -> None:
    specimen = living(make)
    norms = [module for module in specimen.net.modules() if isinstance(module, nn.BatchNorm2d)]
    assert any((norm.weight < 0).any() for norm in norms)
    for norm in norms:
        norm.eps = 0.0  # zennit keeps it in the norm that it has merged
    found = relevance_of(specimen.net, specimen.inputs, CLASSES, layer)
    assert_close(found, by_zennit(specimen.net, specimen.inputs, canonizer, layer))


# By hand


class Pixels(nn.Sequential):
    """Reads pixels (B, 1, 1, N)."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(nn.Flatten(), *layers)
        self.double()


def linear(weight: Sequence[Sequence[float]], bias: Sequence[float] | None = None) -> nn.Linear:
    layer = nn.Linear(len(weight[0]), len(weight), bias=bias is not None)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weight))
        if bias is not None:
            layer.bias.copy_(torch.tensor(bias))
    return layer


def pixels(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).reshape(1, 1, 1, -1)


def test_three_neurons_by_hand() -> None:
    """Hidden units of 2 * 2 - 1 = 3 and 4 * 1 - 2 = 2, and the scores 3 - 2 = 1 and 2 - 3 = -1."""
    net = Pixels(linear([[2, -1], [-1, 4]]), nn.ReLU(), linear([[1, -1], [-1, 1]]))
    # below the score: 1.25 * 3 / 1.75 = 15/7 and -2 / 1.75 = -8/7
    first = 15 / 7 * 5 / 4 + 8 / 7 * 2 / 3
    second = -15 / 7 * 1 / 4 - 8 / 7 * 5 / 3
    found = relevance_of(net, pixels(2, 1), [[0, 1]])
    expected = torch.tensor([[first, second], [-first, -second]], dtype=torch.float64)
    assert_close(found.reshape(2, 2), expected)
    assert first + second == pytest.approx(1)


@pytest.mark.parametrize(
    ("a", "weight", "bias", "expected"),
    [
        (2, 1, 2, 4 * 2.5 / 5),  # of the sign of the score: counts more, too
        (4, 1, -2, 2 * 5 / 3),
        (-2, 1, -2, -4 * 2.5 / 5),
        (1, 1, -3, -2 * 1 / -2.75),  # speaks against a score that is negative by its bias
    ],
)
def test_biases_by_hand(a: float, weight: float, bias: float, expected: float) -> None:
    found = relevance_of(Pixels(linear([[weight]], [bias])), pixels(a), [[0]])
    assert float(found) == pytest.approx(expected)


class Gated(nn.Module):
    """y = W (u g), for two layers u and g of the input, of which g passes a sigmoid."""

    def __init__(self, gate: Tensor | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.signal, self.gate, self.head = nn.Conv2d(2, 4, 3), nn.Conv2d(2, 4, 3), nn.Linear(4, 3)
        self.constant = gate

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate(x).sigmoid() if self.constant is None else self.constant
        return self.head((self.signal(x) * gate).mean((2, 3)))


def test_the_signal_takes_all_relevance_of_a_product() -> None:
    net, x = Gated().double(), torch.randn(2, 2, 6, 6).double()
    constant = Gated(net.gate(x).sigmoid().detach()).double()
    assert_close(relevance_of(net, x, [[0], [2]]), relevance_of(constant, x, [[0], [2]]))


# A vision transformer


class TinyTransformer(nn.Module):
    """Two blocks of a ViT, with a class token, two heads and GELUs.

    Args:
        batch_first: tokens are (B, T, C) and not (T, B, C).
    """

    def __init__(self, *, batch_first: bool = True) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.batch_first = batch_first
        self.patches = nn.Conv2d(3, 8, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.position = nn.Parameter(torch.randn(1, 7, 8))
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm1": nn.LayerNorm(8),
                    "qkv": nn.Linear(8, 24),
                    "out": nn.Linear(8, 8),
                    "norm2": nn.LayerNorm(8),
                    "up": nn.Linear(8, 16),
                    "down": nn.Linear(16, 8),
                    "end": nn.Identity(),
                }
            )
            for _ in range(2)
        )
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 5)
        for parameter in self.parameters():
            nn.init.normal_(parameter, 0, 0.5)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).mT
        tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], 1) + self.position
        for block in self.blocks:
            q, k, v = block["qkv"](block["norm1"](tokens)).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            tokens = tokens + block["out"](mixed)
            tokens = tokens + block["down"](F.gelu(block["up"](block["norm2"](tokens))))
            turned = tokens if self.batch_first else tokens.transpose(0, 1)
            tokens = block["end"](turned)
            tokens = tokens if self.batch_first else tokens.transpose(0, 1)
        return self.head(self.norm(tokens)[:, 0])


def gamma_rule(layer: nn.Linear, a: Tensor, R: Tensor) -> Tensor:
    """Each neuron's relevance by its contributions, all written out: (..., out, in)."""
    contributions = layer.weight * a[..., None, :]
    y = layer(a)
    s = y.sign()[..., None]
    boosted = contributions + GAMMA * s * (s * contributions).clamp(min=0)
    bias = layer.bias + GAMMA * s[..., 0] * (s[..., 0] * layer.bias).clamp(min=0)
    return (boosted / (boosted.sum(-1) + bias)[..., None] * R[..., None]).sum(-2)


def linear_rule(function: Any, a: Tensor, R: Tensor) -> Tensor:
    """R_k = sum_n a_k w_kn / y_n R_n, where the weights w_kn are the Jacobian of an affine function of all elements."""
    J = torch.autograd.functional.jacobian(function, a).reshape(R.numel(), a.numel())
    return (J * a.flatten() * (R / function(a)).reshape(-1, 1)).sum(0).reshape(a.shape)


def norm_rule(norm: nn.LayerNorm, a: Tensor, R: Tensor) -> Tensor:
    deviation = (a.var(-1, correction=0, keepdim=True) + norm.eps).sqrt()
    return linear_rule(lambda a: (a - a.mean(-1, keepdim=True)) / deviation * norm.weight + norm.bias, a, R)


def vit_by_hand(net: TinyTransformer, x: Tensor, target: int) -> dict[str | None, Tensor]:
    """Relevance of one image (1, 3, H, W) at the tokens after the first block, at the patches and at the pixels."""
    patches = net.patches(x).flatten(2).mT
    start = torch.cat([net.token, patches], 1)
    tokens = start + net.position
    passes = []
    for block in net.blocks:
        a = block["norm1"](tokens)
        q, k, v = block["qkv"](a).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        A = (q @ k.mT / 2).softmax(-1)
        mixed = (A @ v).transpose(1, 2).flatten(2)
        middle = tokens + block["out"](mixed)
        h = F.gelu(block["up"](block["norm2"](middle)))
        passes.append((block, tokens, a, A, v, mixed, middle, h))
        tokens = middle + block["down"](h)

    ends = [*(of_block[1] for of_block in passes[1:]), tokens]
    R = torch.zeros_like(tokens)
    token = net.norm(tokens)[:, 0]
    R[:, 0] = gamma_rule(net.head, token, net.head(token) * F.one_hot(torch.tensor([target]), 5))
    R = norm_rule(net.norm, tokens, R)
    after_blocks = []
    for (block, tokens, a, A, v, mixed, middle, h), end in zip(reversed(passes), reversed(ends), strict=True):
        after_blocks.append(R)
        branch = gamma_rule(block["down"], h, R * block["down"](h) / end)
        branch = norm_rule(block["norm2"], middle, gamma_rule(block["up"], block["norm2"](middle), branch))
        R = R * middle / end + branch
        branch = gamma_rule(block["out"], mixed, R * block["out"](mixed) / middle)
        branch = linear_rule(lambda v, A=A: (A @ v).transpose(1, 2).flatten(2), v, branch)
        of_qkv = torch.zeros(*a.shape[:2], 3, 2, 4, dtype=a.dtype)  # queries and keys get nothing
        of_qkv[:, :, 2] = branch.transpose(1, 2)
        branch = norm_rule(block["norm1"], tokens, gamma_rule(block["qkv"], a, of_qkv.flatten(2)))
        R = R * tokens / middle + branch

    at_patches = (R * start / (start + net.position))[:, 1:]
    matrix = linear(net.patches.weight.flatten(1).tolist(), net.patches.bias.tolist()).double()
    matrix.load_state_dict({"weight": net.patches.weight.flatten(1), "bias": net.patches.bias})
    columns = F.unfold(x, 4, stride=4).mT
    at_pixels = F.fold(gamma_rule(matrix, columns, at_patches).mT, x.shape[2:], 4, stride=4)
    return {
        "blocks.0.end": after_blocks[1],
        "patches": at_patches.mT.unflatten(2, (x.shape[2] // 4, -1)),
        None: at_pixels,
    }


@pytest.fixture(name="photos")
def _photos() -> Tensor:
    """Of 2 x 3 patches."""
    return torch.randn(2, 3, 8, 12, generator=torch.Generator().manual_seed(0)).double()


def test_a_transformer_has_the_relevance_of_the_definition(photos: Tensor) -> None:
    net = TinyTransformer()
    for layer in ("blocks.0.end", "patches", None):
        found = relevance_of(net, photos, [[0, 3], [4, 1]], layer)
        for image, classes in enumerate(([0, 3], [4, 1])):
            for k, target in enumerate(classes):
                with torch.no_grad():
                    expected = vit_by_hand(net, photos[[image]], target)[layer]
                assert_close(found[image, k], expected[0])


def test_maps_sum_the_channels_of_the_cells(photos: Tensor) -> None:
    """Of pixels, of channels before and behind the cells, and of tokens beside a class token, in two orders."""
    classes = [[0, 3], [4, 1]]
    net = TinyTransformer()
    pixels, patches, tokens = maps_of("lrp", net, photos, classes, [None, "patches", "blocks.0.end"])
    turned = TinyTransformer(batch_first=False)
    (tokens_first,) = maps_of("lrp", turned, photos, classes, ["blocks.0.end"])
    assert pixels.relevance is not None and patches.relevance is not None and tokens.relevance is not None
    assert_close(pixels.maps, pixels.relevance.sum(2))
    assert_close(patches.maps, patches.relevance.sum(2))
    assert_close(tokens.maps, tokens.relevance[:, :, 1:].sum(3).unflatten(2, (2, 3)))
    assert (pixels.special_tokens, patches.special_tokens, tokens.special_tokens) == (0, 0, 1)
    assert tokens_first.relevance is not None
    assert_close(tokens_first.relevance, tokens.relevance)
    assert_close(tokens_first.maps, tokens.maps)


class TokenAtTheEnd(nn.Module):
    """Its class token is behind the patches, which no shape tells."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.patches, self.tokens, self.head = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 8), nn.Linear(8, 5)
        self.token = nn.Parameter(torch.randn(1, 1, 8))

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patches(x).flatten(2).mT
        tokens = self.tokens(torch.cat([patches, self.token.expand(len(x), -1, -1)], 1))
        return self.head(F.scaled_dot_product_attention(tokens[:, -1:], tokens, tokens)[:, 0])


def test_a_class_token_behind_the_cells(photos: Tensor) -> None:
    (result,) = maps_of("lrp", TokenAtTheEnd().double(), photos, [[0, 3], [4, 1]], ["tokens"])
    assert result.relevance is not None
    assert_close(result.maps, result.relevance[:, :, :-1].sum(3).unflatten(2, (2, 3)))


def test_channels_last() -> None:
    specimen = zoo.small("swin_t", batch=2, layer="").double()
    (result,) = maps_of("lrp", specimen.net, specimen.inputs, CLASSES, ["features.1"])
    assert result.relevance is not None and result.relevance.shape == (2, 2, 16, 16, 24)
    assert_close(result.maps, result.relevance.sum(4))


# What holds for all networks


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "network",
    [
        small_vgg,
        small_bottlenecks,
        small_densenet,
        "mobilenet_v3_small",
        "vit_b_32",
        "swin_t",
        "convnext_tiny",
    ],
)
def test_relevance_sums_to_the_score_where_there_are_no_biases(network: Any) -> None:
    if callable(network):
        specimen = living(network, shifts=False)
    else:
        specimen = zoo.small(network, batch=2, layer="", shifts=False).double()
    with torch.no_grad():
        scores = specimen.net(specimen.inputs).gather(1, torch.tensor(CLASSES))
    assert scores.any()
    found = relevance_of(specimen.net, specimen.inputs, CLASSES)
    assert_close(found.flatten(2).sum(2), scores)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("make", [small_resnet, small_vit])
def test_an_image_alone_has_the_relevance_that_it_has_in_a_batch(make: Any) -> None:
    specimen = living(make)
    together = relevance_of(specimen.net, specimen.inputs, CLASSES)
    for image in (0, 1):
        alone = relevance_of(specimen.net, specimen.inputs[[image]], CLASSES[image : image + 1])
        assert_close(alone[0], together[image])


def conv_net(*end: nn.Module) -> nn.Sequential:
    torch.manual_seed(3)
    body = nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4)
    return nn.Sequential(*body, *end).double()


@pytest.mark.parametrize("end", [nn.Softmax(1), nn.LogSoftmax(1), nn.Sigmoid()])
def test_the_score_is_what_is_before_a_last_activation(end: nn.Module, photos: Tensor) -> None:
    """Also that of classes whose score is negative."""
    classes = [[0, 1, 2, 3], [3, 2, 1, 0]]
    with torch.no_grad():
        scores = conv_net()(photos)
    assert (scores < 0).any() and (scores > 0).any()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it ends in a softmax
        found = relevance_of(conv_net(end), photos, classes)
    assert_close(found, relevance_of(conv_net(), photos, classes))


class Spelled(nn.Module):
    """A layer, with a scale and a shift behind it, or in its weights."""

    def __init__(self, spelling: str) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.spelling = spelling
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3)
        self.norm, self.head = nn.BatchNorm2d(8), nn.Linear(8, 4)
        assert self.norm.running_mean is not None and self.norm.running_var is not None
        for tensor in (self.norm.weight, self.norm.bias, self.norm.running_mean):
            nn.init.normal_(tensor)
        self.norm.running_var.uniform_(0.5, 2)
        self.eval().double()

    def forward(self, x: Tensor) -> Tensor:
        scale = self.norm.weight / (self.norm.running_var + self.norm.eps).sqrt()
        shift = self.norm.bias - scale * self.norm.running_mean
        if self.spelling == "merged":
            weight = torch.cat([self.first.weight, self.second.weight]) * scale[:, None, None, None]
            bias = torch.cat([self.first.bias, self.second.bias]) * scale + shift
            return self._end(F.conv2d(x, weight, bias))
        h = torch.cat([self.first(x), self.second(x)], 1)
        if self.spelling == "batch norm":
            return self._end(self.norm(h))
        return self._end(h * scale[:, None, None] + shift[:, None, None])

    def _end(self, h: Tensor) -> Tensor:
        return self.head(h.relu().mean((2, 3)))


@pytest.mark.parametrize("spelling", ["batch norm", "scale and shift"])
def test_a_norm_behind_layers_is_in_their_weights(spelling: str, photos: Tensor) -> None:
    classes = [[0, 1], [2, 3]]
    merged = relevance_of(Spelled("merged"), photos, classes)
    assert_close(relevance_of(Spelled(spelling), photos, classes), merged)


class Product(nn.Module):
    """Of two layers, neither of which is a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return (self.a(x) * self.b(x)).mean((2, 3))


def test_operations_without_a_rule_are_refused(photos: Tensor) -> None:
    net = Product().double()
    with pytest.raises(UnsupportedOpError, match="no excitation rule for mul"):
        relevance_of(net, photos, [[0], [1]])
    with pytest.warns(UserWarning, match="gradients"):
        (result,) = maps_of("lrp", net, photos, [[0], [1]], allow_unsupported=True)
    assert math.isfinite(float(result.maps.sum()))


def test_a_layer_without_cells_has_no_map(photos: Tensor) -> None:
    with pytest.raises(LayerError, match="no spatial dimensions"):
        relevance_of(conv_net(), photos, [[0], [1]], "4")


def test_the_network_is_left_as_it_was(photos: Tensor) -> None:
    net = conv_net().train()
    relevance_of(net, photos, [[0], [1]])
    assert net.training and all(parameter.grad is None for parameter in net.parameters())
