"""The joint rule: all winning neurons explained as one (Eq. 4 for the joint neuron)."""

import copy

import pytest
import torch
import zoo
from nets import NUM_CLASSES
from test_contrast import Tokens
from torch import nn
from torch.nn import functional as F

import ebcli


def jacobian(function, at):
    """d function(x)_n / d x_k of flat tensors, (outputs, inputs)."""
    return torch.autograd.functional.jacobian(lambda a: function(a).flatten(), at).reshape(-1, at.numel())


class Stack(nn.Module):
    """Linear maps in a row, GELU units, linear maps in a row: (B, 6) -> (B, NUM_CLASSES)."""

    def __init__(self, activation=F.gelu):
        super().__init__()
        self.first, self.second = nn.Linear(6, 7), nn.Linear(7, 8)
        self.third, self.head = nn.Linear(8, 5), nn.Linear(5, NUM_CLASSES)
        self.activation = activation

    def forward(self, x):
        return self.head(self.third(self.activation(self.second(self.first(x)))))


def by_definition(below, activation, above, x, sign):
    """P over the inputs, one image (N,), for units h = f(u) between affine maps `below` and `above` (to one class)."""
    u = below(x).flatten()
    h = activation(u)
    weights = sign * jacobian(above, h)[0]  # the class's unit reads the units through `above`
    P = (h * weights).clamp(min=0)  # of the winners
    joint = torch.zeros_like(x.flatten())
    for n in range(len(u)):  # sum_n P(n) / u_n * u_n, one neuron
        if P[n] > 0:
            joint += P[n] / u[n] * jacobian(below, x)[n]
    excitation = (x.flatten() * joint).clamp(min=0)
    return excitation / excitation.sum()


def quick_gelu(u):
    """CLIP's activation."""
    return u * torch.sigmoid(1.702 * u)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "activation", [F.gelu, F.silu, F.hardswish, F.relu, torch.tanh, F.leaky_relu, quick_gelu]
)
def test_units_between_linear_maps(activation):
    torch.manual_seed(1)
    net, x = Stack(activation).double().eval(), torch.randn(2, 6, dtype=torch.double)
    below, above = nn.Sequential(net.first, net.second), nn.Sequential(net.third, net.head)
    for k in range(NUM_CLASSES):
        found = ebcli.excitation_backprop(net, x, k, joint=True)
        contrast = ebcli.excitation_backprop(net, x, k, contrastive=True, joint=True)
        for i, image in enumerate(x):
            maps = [
                by_definition(below, activation, lambda h, k=k: above(h)[k : k + 1], image, s)
                for s in (1, -1)
            ]
            torch.testing.assert_close(found.relevance[i], maps[0])
            torch.testing.assert_close(contrast.relevance[i], maps[0] - maps[1])
        torch.testing.assert_close(found.mass, torch.ones(2, dtype=torch.double))
        assert found.lost_mass is None
        assert (found.relevance >= 0).all()


def test_two_units_by_hand():
    """Two winners u = (2, -1) with h = (2, -0.5), weights 1 and -4 to the class, inputs (1, 1).

    P = (2 * 1, -0.5 * -4) = (2, 2). Their weights are q = P / u = (1, -2). The first unit reads (3, -1), the second
    (1, -2), so the joint neuron reads (3 - 2, -1 + 4) = (1, 3): a quarter and three quarters.
    """
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.LeakyReLU(0.5), nn.Linear(2, 1, bias=False)).double()
    net[0].weight.data = torch.tensor([[3.0, -1.0], [1.0, -2.0]]).double()
    net[2].weight.data = torch.tensor([[1.0, -4.0]]).double()
    found = ebcli.excitation_backprop(net, torch.ones(1, 2, dtype=torch.double), 0)
    assert found.joint
    torch.testing.assert_close(found.relevance, torch.tensor([[0.25, 0.75]]).double())
    # step by step, the first unit is explained by its first input alone, the second one by its second alone
    found = ebcli.excitation_backprop(net, torch.ones(1, 2, dtype=torch.double), 0, joint=False)
    torch.testing.assert_close(found.relevance, torch.tensor([[0.5, 0.5]]).double())


class Block(nn.Module):
    """What lies between two layers of GELU units in a transformer or a modern convolutional network."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.norm = {"layer": nn.LayerNorm(8), "group": nn.GroupNorm(2, 8), "batch": nn.BatchNorm1d(8)}[kind]
        self.linear, self.scale = nn.Linear(8, 8), nn.Parameter(torch.randn(8))
        self.gate = nn.Linear(8, 8)
        if kind == "batch":
            self.norm.running_mean.normal_()
            self.norm.running_var.uniform_(0.5, 2)
            nn.init.normal_(self.norm.weight)

    def forward(self, x):
        y = self.linear(self.norm(x)) * self.scale
        return x - 2 * y * torch.sigmoid(self.gate(x)) + 0.5

    def fixed(self, at):
        """The same map, affine: gate and deviation are those at `at`."""
        gate = torch.sigmoid(self.gate(at)).detach()
        groups = {"layer": 1, "group": 2}.get(self.kind)

        def normed(x):
            if groups is None:
                return self.norm(x[None])[0]
            deviation = (at.reshape(groups, -1).var(1, correction=0, keepdim=True) + self.norm.eps).sqrt()
            parts = x.reshape(groups, -1)
            parts = (parts - parts.mean(1, keepdim=True)) / deviation
            return parts.reshape(8) * self.norm.weight + self.norm.bias

        def affine(x):
            y = self.linear(normed(x)[None])[0] * self.scale
            return x - 2 * y * gate + 0.5

        return affine


@pytest.mark.parametrize("kind", ["layer", "group", "batch"])
def test_residual_streams_norms_gates_and_scales_are_one_affine_map(kind):
    torch.manual_seed(3)
    block = Block(kind)
    net = nn.Sequential(block, nn.Linear(8, 6), nn.GELU(), nn.Linear(6, NUM_CLASSES)).double().eval()
    nn.init.normal_(block.norm.weight)
    x = torch.randn(3, 8, dtype=torch.double)
    found = ebcli.excitation_backprop(net, x, 1, contrastive=True)
    assert found.joint
    for i, image in enumerate(x):
        affine = block.fixed(image)
        torch.testing.assert_close(affine(image), block(x)[i])
        maps = [
            by_definition(
                lambda a, affine=affine: net[1](affine(a)), F.gelu, lambda h: net[3](h)[1:2], image, s
            )
            for s in (1, -1)
        ]
        torch.testing.assert_close(found.relevance[i], maps[0] - maps[1])


@pytest.mark.parametrize("in_place", [False, True])
def test_logits_are_those_of_the_plain_network_to_the_bit(in_place):
    torch.manual_seed(4)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.SiLU(inplace=in_place),
        nn.Conv2d(8, 8, 3),
        nn.Hardswish(inplace=in_place),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, NUM_CLASSES),
    ).eval()
    x, before = torch.randn(2, 3, 8, 8), copy.deepcopy(net.state_dict())
    layers = ["1", "2", "3", None]
    results = ebcli.excitation_backprop(
        net, x, [[0, 1], [2, 3]], layers, contrastive=True, track_lost_mass=True
    )
    assert [result.joint for result in results] == [True] * 4
    for layer, result in zip(layers, results, strict=True):
        assert torch.equal(result.logits, net(x))
        alone = ebcli.excitation_backprop(net, x, [[0, 1], [2, 3]], layer, contrastive=True)
        torch.testing.assert_close(alone.relevance, result.relevance)
        torch.testing.assert_close(result.mass, torch.ones(2, 2))
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


def test_attention_mixes_values_by_constant_weights():
    torch.manual_seed(6)
    net, x = Tokens().double().eval(), torch.randn(2, 3, 8, 8, dtype=torch.double)
    found = ebcli.excitation_backprop(net, x, 1, "joined", contrastive=True)
    assert found.joint
    assert found.special_tokens == 1
    seen = {}
    net.joined.register_forward_hook(lambda _m, _i, output: seen.update(tokens=output.detach()))
    net(x)
    weight, bias = net.attention.in_proj_weight.chunk(3)[2], net.attention.in_proj_bias.chunk(3)[2]
    for tokens, relevance in zip(seen["tokens"], found.relevance, strict=True):
        heads = net.attention(tokens[None], tokens[None], tokens[None], average_attn_weights=False)[1][0]

        def below(a, heads=heads):
            values = F.linear(a, weight, bias).unflatten(1, (2, 4)).permute(1, 0, 2)
            return (a + net.attention.out_proj((heads @ values).permute(1, 0, 2).flatten(1)))[0]

        maps = []
        for sign in (1, -1):
            u = below(tokens)
            P = (F.gelu(u) * sign * net.head.weight[1]).clamp(min=0)
            weights = jacobian(below, tokens).T @ torch.where(P > 0, P / u, 0)
            excitation = (tokens.flatten() * weights).clamp(min=0).reshape(17, 8)
            maps.append(excitation / excitation[1:].sum())
        torch.testing.assert_close(relevance, maps[0] - maps[1])


def test_what_follows_the_classifier_has_no_dual():
    """SqueezeNet's classifier is a convolution, followed by a ReLU and a mean, which would stop its dual."""
    torch.manual_seed(7)
    head = [nn.Conv2d(8, NUM_CLASSES, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GELU(), *head, nn.Softmax(1)).double().eval()
    x = torch.randn(1, 3, 6, 6, dtype=torch.double)
    with pytest.warns(UserWarning, match="softmax"):
        found = ebcli.excitation_backprop(net, x, 1, "1", contrastive=True)
    h = net[:2](x)
    passes = (net[2](h)[:, 1] > 0)[:, None]
    z = h * net[2].weight[1] * passes
    maps = [(s * z).clamp(min=0) for s in (1, -1)]
    torch.testing.assert_close(found.relevance, maps[0] / maps[0].sum() - maps[1] / maps[1].sum())


@pytest.mark.parametrize(
    "name",
    [
        "vit_b_32",
        *(pytest.param(name, marks=pytest.mark.release) for name in ("swin_t", "convnext_tiny")),
        *(pytest.param(name, marks=pytest.mark.release) for name in ("mobilenet_v3_small", "squeezenet1_1")),
        pytest.param("efficientnet_b0", marks=pytest.mark.slow),
    ],
)
def test_networks_of_torchvision(name):
    specimen = zoo.small(name)
    plain = specimen.forward()
    layers = [specimen.layer, None]
    for contrastive in (False, True):
        results = ebcli.excitation_backprop(
            specimen.net, specimen.inputs, 3, layers, contrastive, joint=True, track_lost_mass=contrastive
        )
        for result in results:
            assert torch.equal(result.logits, plain)
            assert result.relevance.isfinite().all()
            is_whole = (
                name != "vit_b_32" or result.layer is not None
            )  # whose class token is a constant above the input
            assert (
                result.mass.item() == pytest.approx(1, abs=1e-4) if is_whole else 0 < result.mass.item() < 1
            )
            if not contrastive:
                assert (result.relevance >= 0).all()
            elif name != "vit_b_32":  # whose class token is not part of the map
                assert abs(result.relevance.sum().item()) < 1e-4


def test_contrastive_maps_are_below_the_classifier():
    net = Stack()
    with pytest.raises(ebcli.LayerError, match="'head' is not below the classifier"):
        ebcli.excitation_backprop(net, torch.randn(1, 6), 1, "head", contrastive=True, joint=True)


@pytest.mark.parametrize("joint", [None, True, False])
def test_the_network_runs_once(joint):
    count, net, x = [], Stack(), torch.randn(1, 6)
    net.register_forward_hook(lambda *_: count.append(None))
    mixed = ebcli.excitation_backprop(net, x, [[1, 2]], [None, "third"], contrastive=True, joint=joint)
    assert [result.joint for result in mixed] == ([True, False] if joint is None else [joint] * 2)
    assert len(count) == 1
