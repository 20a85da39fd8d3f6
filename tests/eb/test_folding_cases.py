"""Batch norm becomes a part of the layer before it, whatever routes values in between; in place or not."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval
from twins import Block, assert_twins, images, seeded

import ebcli

IN_PLACE = {
    "dropout_module": (lambda net, y: nn.ReLU(inplace=True)(net.drop(y)), lambda net, y: F.relu(y)),
    "dropout_then_relu_": (lambda net, y: net.drop(y).relu_(), lambda net, y: y.relu()),
    "dropout_batch_norm": (
        lambda net, y: F.relu(net.bn(net.drop(y)), inplace=True),
        lambda net, y: F.relu(net.bn(y)),
    ),
    "dropout_of_a_summand": (
        lambda net, y: net.drop(net.other(y)).add_(y).relu_(),
        lambda net, y: (net.other(y) + y).relu(),
    ),
    "roll": (lambda net, y: y.roll(1, -1).relu_(), lambda net, y: y.roll(1, -1).relu()),
    "reshaped": (lambda net, y: y.flatten(2).relu_().unflatten(2, (4, 4)), lambda net, y: y.relu()),
    "identity": (lambda net, y: nn.Identity()(y).relu_(), lambda net, y: y.relu()),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("layer", [None, "conv"])
@pytest.mark.parametrize("name", IN_PLACE)
def test_overwriting_what_another_operation_handed_on(name, layer):
    def make(between):
        return seeded(
            lambda: Block(
                between, drop=nn.Dropout(), bn=nn.BatchNorm2d(4), other=nn.Conv2d(4, 4, 3, padding=1)
            )
        )

    in_place, plain = IN_PLACE[name]
    assert_twins(make(in_place), make(plain), layer=layer)


FOLDABLE = {
    "directly": (nn.BatchNorm2d, lambda net, y: net.bn(y)),
    "flattened": (nn.BatchNorm1d, lambda net, y: net.bn(y.flatten(2))),
    "unsqueezed": (nn.BatchNorm3d, lambda net, y: net.bn(y.unsqueeze(2))),
    "moved_back": (nn.BatchNorm2d, lambda net, y: net.bn(y.permute(0, 2, 3, 1).permute(0, 3, 1, 2))),
    "rolled": (nn.BatchNorm2d, lambda net, y: net.bn(y.roll(1, 3)).roll(-1, 3)),
    "joined": (nn.BatchNorm2d, lambda net, y: net.bn(torch.cat([y[..., :2], y[..., 2:]], -1))),
    "stacked": (nn.BatchNorm3d, lambda net, y: net.bn(torch.stack([y, y], -1))[..., 0]),
    "padded": (nn.BatchNorm2d, lambda net, y: net.bn(F.pad(y, (1, 1)))[..., 1:-1]),
    "chosen": (
        nn.BatchNorm2d,
        lambda net, y: net.bn(torch.where(y.new_tensor([1, 0, 1, 0]) > 0, y, y.clone())),
    ),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("activation", [nn.Identity, nn.ReLU, nn.Tanh])
@pytest.mark.parametrize("name", FOLDABLE)
def test_batch_norm_behind_what_only_moves_values(name, activation):
    norm, between = FOLDABLE[name]
    act = activation()
    net = seeded(lambda: Block(lambda net, y: act(between(net, y)), bn=norm(4)))
    twin = seeded(lambda: Block(lambda net, y: act(y)))
    fused = nn.BatchNorm2d(4).double().eval()
    fused.load_state_dict(net.bn.state_dict())
    twin.conv, twin.fc = fuse_conv_bn_eval(net.conv, fused), net.fc
    assert_twins(net, twin)
    assert_twins(net, twin, layer="conv")


@pytest.mark.parametrize("back", [lambda z, y: z.reshape_as(y), lambda z, y: z.unflatten(0, y.shape[:2])])
@pytest.mark.parametrize(
    "handed_on", [lambda y: y, torch.clone, torch.Tensor.contiguous, lambda y: y.flip(1).flip(1)]
)
@pytest.mark.parametrize("activation", [nn.Identity, nn.ReLU, nn.Hardswish])
def test_batch_norm_over_tokens_laid_out_in_the_batch(activation, handed_on, back):
    """LeViT's linear layer: (B, N, C), flattened to (B N, C) for its batch norm."""

    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.bn, self.act = nn.Linear(5, 6), nn.BatchNorm1d(6), activation()
            self.fc = nn.Linear(24, 3)

        def forward(self, x):
            y = self.linear(x)
            y = back(self.bn(y.flatten(0, 1)), y)
            return self.fc(self.act(handed_on(y)).flatten(1))

    net = seeded(Tokens)
    twin = nn.Sequential(fuse_linear_bn_eval(net.linear, net.bn), net.act, nn.Flatten(), net.fc)
    assert_twins(net, twin, images((2, 4, 5)))


SPELLINGS = {
    "mm": lambda x, w: torch.mm(x, w.t()),
    "einsum": lambda x, w: torch.einsum("bi,oi->bo", x, w),
    "weight_first": lambda x, w: (w @ x.T).T,
    "addmm": lambda x, w: torch.addmm(x.new_zeros(len(w)), x, w.T),
    "linear": F.linear,
}


@pytest.mark.parametrize("is_head", [True, False])
@pytest.mark.parametrize("name", SPELLINGS)
def test_batch_norm_behind_a_product_of_matrices(name, is_head):
    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.bn = nn.Parameter(torch.randn(4, 6)), nn.BatchNorm1d(4)
            self.rest = nn.Identity() if is_head else nn.Sequential(nn.Tanh(), nn.Linear(4, 3))

        def forward(self, x):
            return self.rest(self.bn(SPELLINGS[name](x, self.weight)))

    net = seeded(Product)
    linear = nn.Linear(6, 4, bias=False).double().eval()
    linear.weight.data = net.weight.data.clone()
    assert_twins(net, nn.Sequential(fuse_linear_bn_eval(linear, net.bn), net.rest), images((3, 6)))


def test_a_negative_gamma_at_the_head_by_hand():
    # the class's unit has the weights -2 and +6: only the second input excites it
    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.bn = nn.Parameter(torch.tensor([[1.0, -3.0]])), nn.BatchNorm1d(1)

        def forward(self, x):
            return self.bn(x @ self.weight.T)

    net = Head().eval()
    net.bn.weight.data.fill_(-2)
    assert ebcli.excitation_backprop(net, torch.ones(1, 2), 0).relevance.tolist() == [[0.0, 1.0]]


CHAINS = {
    "bare": lambda: [nn.Conv2d(3, 4, 3), nn.Identity(), nn.BatchNorm2d(4)],
    "signed": lambda: [nn.Conv2d(3, 4, 3), nn.Identity(), nn.BatchNorm2d(4), nn.Tanh()],
    "identity": lambda: [nn.Conv2d(3, 4, 3), nn.Identity(), nn.BatchNorm2d(4), nn.ReLU()],
    "dropout": lambda: [nn.Conv2d(3, 4, 3), nn.Dropout(), nn.BatchNorm2d(4), nn.ReLU(True)],
    "flatten": lambda: [nn.Conv2d(3, 4, 3), nn.Flatten(2), nn.BatchNorm1d(4), nn.ReLU()],
    "norm": lambda: [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Identity(), nn.ReLU(True), nn.Dropout()],
    "tanh": lambda: [
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(4, 4, 2),
    ],
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("contrastive", [False, True])
@pytest.mark.parametrize("name", CHAINS)
def test_asking_for_one_layer_more_never_changes_another_map(name, contrastive):
    net = seeded(lambda: nn.Sequential(*CHAINS[name](), nn.Flatten(), nn.LazyLinear(3)))
    net(images())
    net = seeded(lambda: net)
    layers = [None, *(str(i) for i in range(len(net) - 2))]
    alone = {layer: ebcli.excitation_backprop(net, images(), 1, layer, contrastive) for layer in layers}
    assert alone[None].relevance.abs().max() > 1e-6
    for chosen in [*itertools.combinations(layers, 2), layers]:
        for result in ebcli.excitation_backprop(net, images(), 1, list(chosen), contrastive):
            expected = alone[result.layer]
            torch.testing.assert_close(
                result.relevance, expected.relevance, rtol=0, atol=1e-10, msg=str(chosen)
            )
            if not contrastive:
                torch.testing.assert_close(result.mass, expected.mass, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["identity", "signed", "norm"])
def test_layers_that_are_one_neuron_each_have_one_map(name):
    """What lies between a convolution and its batch norm hands probability straight on."""
    net = seeded(lambda: nn.Sequential(*CHAINS[name](), nn.Flatten(), nn.Linear(64, 3)))
    maps = [ebcli.excitation_backprop(net, images(), 1, str(i)).relevance for i in range(4)]
    for found in maps[1:]:
        torch.testing.assert_close(found, maps[0], rtol=0, atol=1e-10)


def test_a_scale_and_a_shift_are_a_batch_norm():
    """Frozen batch norms are spelled ``x * scale + shift``."""
    net = seeded(lambda: Block(lambda net, y: F.relu(net.bn(y)), bn=nn.BatchNorm2d(4)))
    bn = net.bn
    scale = (bn.weight / (bn.running_var + bn.eps).sqrt()).detach()[:, None, None]
    shift = bn.bias.detach()[:, None, None] - bn.running_mean[:, None, None] * scale
    frozen = seeded(lambda: Block(lambda net, y: F.relu(y * scale + shift), bn=nn.BatchNorm2d(4)))
    assert_twins(frozen, net)


@pytest.mark.parametrize("activation", [nn.Identity, nn.ReLU, nn.Tanh])
def test_two_scales_with_the_values_moved_in_between(activation):
    """Each scale turns the neurons in the layout in which it is applied."""
    first = torch.tensor(
        [1.0, -2.0, -1.0, 3.0], dtype=torch.float64
    )  # per channel, the last axis of (B, H, W, C)
    second = torch.tensor(
        [-1.0, 2.0, -3.0, -1.0], dtype=torch.float64
    )  # per column, the last axis of (B, C, H, W)

    def scaled(net, y):
        channels_last = (y.permute(0, 2, 3, 1) * first).flip(1).clone()
        return net.act(channels_last.flip(1).permute(0, 3, 1, 2) * second)

    class Columns(nn.Module):
        """The same map with the weights of each column scaled: one convolution a column."""

        def __init__(self, conv):
            super().__init__()
            self.convs = nn.ModuleList(nn.Conv2d(3, 4, 3) for _ in second)
            for column, factor in zip(self.convs, second, strict=True):
                column.weight.data = conv.weight.data * first[:, None, None, None] * factor
                column.bias.data = conv.bias.data * first * factor

        def forward(self, x):
            return torch.cat([conv(x[..., i : i + 3]) for i, conv in enumerate(self.convs)], -1)

    net = seeded(lambda: Block(scaled, act=activation()))
    twin = nn.Sequential(Columns(net.conv), net.act, nn.Flatten(), net.fc)
    assert_twins(net, twin)
    # the convolution's own output is every column's, and nothing is lost or moved between the two
    assert_twins(net, twin, layer="conv", twin_layer="0")


@pytest.mark.parametrize("is_head", [True, False])
@pytest.mark.parametrize("activation", [nn.Identity, nn.ReLU, nn.Tanh])
def test_a_bias_and_a_scale_that_make_copies(activation, is_head):
    """One row, and a position embedding for each of four: (B, 1, C) + (4, C)."""

    class Copies(nn.Module):
        def __init__(self, early):
            super().__init__()
            self.early = early
            self.linear, self.act = nn.Linear(5, 6), activation()
            self.positions, self.scale = nn.Parameter(torch.randn(4, 6)), nn.Parameter(torch.randn(4, 1))
            self.fc = nn.Identity() if is_head else nn.Linear(24, 3)

        def forward(self, x):
            x = x[:, None]
            y = self.linear(x.expand(-1, 4, -1) if self.early else x)
            return self.fc(self.act((y * self.scale + self.positions).relu()).flatten(1))

    assert_twins(seeded(lambda: Copies(False)), seeded(lambda: Copies(True)), images((2, 5)))
    # with the input asked for as well, the layer is one neuron with what is folded into it
    nets = seeded(lambda: Copies(False)), seeded(lambda: Copies(True))
    once, four = (
        ebcli.excitation_backprop(n, images((2, 5)), 1, [None, "linear"])[1].relevance for n in nets
    )
    torch.testing.assert_close(once, four.sum(1, keepdim=True), rtol=0, atol=1e-10)


def test_a_norm_behind_max_pooling_is_a_part_of_the_layer():
    """The winner, 4 - 1, is made negative by the norm, as a bias of -5 would make it: what inhibits it explains it."""
    net = nn.Sequential(
        nn.Conv2d(2, 1, 1, bias=False), nn.MaxPool2d((1, 2)), nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(1, 2)
    ).eval()
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([1.0, -1.0]).reshape(1, 2, 1, 1))
        net[2].running_mean.fill_(5)
        net[4].weight.copy_(torch.tensor([[-1.0], [1.0]]))
    x = torch.tensor([[[[4.0, 1.0]], [[1.0, 3.0]]]])
    result = ebcli.excitation_backprop(net, x, 0)
    torch.testing.assert_close(result.relevance, torch.tensor([[[[0.0, 0.0]], [[1.0, 0.0]]]]))


def norm_before(net, y):
    return F.interpolate(net.bn(y), scale_factor=2, mode=net.mode)


def norm_behind(net, y):
    return net.bn(F.interpolate(y, scale_factor=2, mode=net.mode))


@pytest.mark.parametrize("act", [nn.Identity(), nn.ReLU(), nn.Tanh()], ids=["linear", "relu", "tanh"])
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_batch_norm_before_and_behind_interpolation(mode, act):
    """The weights of interpolation sum to 1, so that both are the same function."""

    def make(resized):
        net = seeded(
            lambda: Block(lambda net, y: F.avg_pool2d(act(resized(net, y)), 2), bn=nn.BatchNorm2d(4))
        )
        net.mode = mode
        return net

    assert_twins(make(norm_behind), make(norm_before))
