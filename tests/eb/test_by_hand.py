"""Two blocks worked out one number at a time, in plain Python: a tiny ViT encoder block and a squeeze-excitation."""

import math

import pytest
import torch
from torch import nn
from torchvision.models.vision_transformer import EncoderBlock
from torchvision.ops import SqueezeExcitation

import ebcli


def shares(contributions, sign):
    """Eq. 4 for one neuron: its contributions z_i and the sign of its response -> P(i | n)."""
    positive = [max(sign * z, 0.0) for z in contributions]
    total = sum(positive)
    return [p / total if total else 0.0 for p in positive]


def linear(tokens, layer):
    weight, bias = layer.weight.tolist(), layer.bias.tolist()
    return [[sum(w * a for w, a in zip(row, t, strict=True)) + b for row, b in zip(weight, bias, strict=True)]
            for t in tokens]  # fmt: skip


def linear_down(P, tokens, layer):
    """P over a linear layer's outputs -> P over its inputs, token by token."""
    outputs, down = linear(tokens, layer), [[0.0] * len(t) for t in tokens]
    for t, token in enumerate(tokens):
        for n, row in enumerate(layer.weight.tolist()):
            parts = shares([w * a for w, a in zip(row, token, strict=True)], math.copysign(1, outputs[t][n]))
            for i, part in enumerate(parts):
                down[t][i] += part * P[t][n]
    return down


def sum_down(P, first, second):
    """P over a sum -> P over its two operands."""
    split = [[shares([a, b], math.copysign(1, a + b)) for a, b in zip(*pair, strict=True)]
             for pair in zip(first, second, strict=True)]  # fmt: skip
    return [[[p * part[k] for p, part in zip(*row, strict=True)] for row in zip(P, split, strict=True)] for k in (0, 1)]


def added(first, second):
    return [[a + b for a, b in zip(*row, strict=True)] for row in zip(first, second, strict=True)]


def layer_norm(tokens, layer):
    normed = []
    for t in tokens:
        mean = sum(t) / len(t)
        deviation = math.sqrt(sum((a - mean) ** 2 for a in t) / len(t) + layer.eps)
        scaled = [(a - mean) / deviation for a in t]
        normed.append([a * g + b for a, g, b in zip(scaled, layer.weight.tolist(), layer.bias.tolist(), strict=True)])
    return normed


@pytest.fixture
def block():
    torch.manual_seed(3)
    block = EncoderBlock(num_heads=1, hidden_dim=2, mlp_dim=3, dropout=0.0, attention_dropout=0.0).double().eval()
    for parameter in block.parameters():
        nn.init.normal_(parameter)
    return block


@pytest.mark.parametrize("target", [(0, 0), (1, 1), (2, 0)])
def test_encoder_block(block, target):
    """Three tokens of two numbers; probability starts on one number of one token of the block's output."""
    x = torch.randn(1, 3, 2, dtype=torch.float64)
    prior = torch.zeros(1, 3, 2, dtype=torch.float64)
    prior[0][target] = 1
    leaf = x.clone().requires_grad_()
    signs = torch.diag(block(x).detach().flatten().sign())
    with ebcli.excitation_mode(block):
        out = block(leaf)
        # classifiers, each of which hears one of the numbers, by a weight of that number's sign
        above = out.flatten(1) @ signs
    (found,) = torch.autograd.grad(above, leaf, prior.flatten(1))

    tokens = x[0].tolist()
    normed = layer_norm(tokens, block.ln_1)
    query, key, value = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
    for layer, weight, bias in zip(
        (query, key, value),
        block.self_attention.in_proj_weight.chunk(3),
        block.self_attention.in_proj_bias.chunk(3),
        strict=True,
    ):
        layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(bias)
    q, k, v = linear(normed, query), linear(normed, key), linear(normed, value)
    scores = [[math.exp(sum(a * b for a, b in zip(i, j, strict=True)) / math.sqrt(2)) for j in k] for i in q]
    attention = [[score / sum(row) for score in row] for row in scores]
    mixed = [[sum(w * t[d] for w, t in zip(row, v, strict=True)) for d in (0, 1)] for row in attention]
    attended = linear(mixed, block.self_attention.out_proj)
    middle = added(attended, tokens)
    normed_again = layer_norm(middle, block.ln_2)
    hidden = linear(normed_again, block.mlp[0])
    active = [[a * 0.5 * (1 + math.erf(a / math.sqrt(2))) for a in t] for t in hidden]
    mlp = linear(active, block.mlp[3])
    final = added(middle, mlp)
    assert torch.allclose(torch.tensor(final, dtype=torch.float64), out[0].detach())

    P = [[float((t, d) == target) for d in (0, 1)] for t in range(3)]
    P_middle, P_mlp = sum_down(P, middle, mlp)
    # GELU and layer norm hand on what they get
    P_middle = added(P_middle, linear_down(linear_down(P_mlp, active, block.mlp[3]), normed_again, block.mlp[0]))
    P_attended, P_tokens = sum_down(P_middle, attended, tokens)
    P_mixed = linear_down(P_attended, mixed, block.self_attention.out_proj)
    P_value = [[0.0, 0.0] for _ in tokens]
    for t in range(3):
        for d in (0, 1):
            parts = shares([w * u[d] for w, u in zip(attention[t], v, strict=True)], math.copysign(1, mixed[t][d]))
            for u, part in enumerate(parts):
                P_value[u][d] += part * P_mixed[t][d]
    expected = added(P_tokens, linear_down(P_value, normed, value))
    assert sum(map(sum, expected)) > 0.01
    torch.testing.assert_close(found[0], torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-12)


def test_squeeze_excitation():
    """Two channels of two pixels: the gate takes nothing, and the signal is not scaled by it on the way down."""
    gated = nn.Sequential(SqueezeExcitation(2, 1), nn.Flatten(), nn.Linear(4, 1)).double()
    for parameter in gated.parameters():
        nn.init.constant_(parameter, 0.5)
    gated[2].weight.data = torch.tensor([[1.0, 2.0, -1.0, 4.0]], dtype=torch.float64)
    x = torch.tensor([[[[1.0, 3.0]], [[2.0, 0.5]]]], dtype=torch.float64)
    # means 2 and 1.25 -> relu(0.5 * 3.25 + 0.5) = 2.125 -> both gates sigmoid(0.5 * 2.125 + 0.5) = g
    g = 1 / (1 + math.exp(-1.5625))
    assert gated(x).item() == pytest.approx(g * (1 + 6 - 2 + 2) + 0.5)
    # the class hears g, 6 g and 2 g, and the third pixel is against it
    result = ebcli.excitation_backprop(gated, x, 0)
    assert result.relevance.flatten().tolist() == pytest.approx([1 / 9, 6 / 9, 0, 2 / 9])
    contrast = ebcli.excitation_backprop(gated, x, 0, contrastive=True)
    assert contrast.relevance.flatten().tolist() == pytest.approx([1 / 9, 6 / 9, -1, 2 / 9])


def test_probability_at_an_inactive_neuron_goes_to_what_inhibits_it():
    """exp(relu(-2)) = 1 excites the class: the response of -2 is explained by the weight of -3."""
    net = nn.Sequential(nn.Linear(2, 1, bias=False), nn.ReLU(), Exponential(), nn.Linear(1, 1, bias=False)).eval()
    net[0].weight.data, net[3].weight.data = torch.tensor([[1.0, -3.0]]), torch.tensor([[1.0]])
    assert ebcli.excitation_backprop(net, torch.ones(1, 2), 0).relevance.tolist() == [[0.0, 1.0]]


class Exponential(nn.Module):
    def forward(self, y):
        return y.exp()
