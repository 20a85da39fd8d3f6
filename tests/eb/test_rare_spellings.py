"""What few networks do: constants made of the image, values that it does not depend on, unusual rules of users."""

import pytest
import torch
from test_equal_functions import GAMMA, READS, Tokens, assert_equal_maps, attention
from torch import nn
from torch.nn import functional as F
from torch.overrides import wrap_torch_function
from twins import Block, images, seeded

import ebcli
from ebcli.eb import LinearMap, pass_through, rule, unregister, weighted_sum
from ebcli.errors import ConfigurationError, LayerError, NonFiniteError, UnsupportedOpError

TURNED_SUMS = {
    "channels first": lambda w, v: (v.mT[:, :, None] * w[:, None]).sum(-1).mT,
    "queries first": lambda w, v: (w.transpose(0, 1)[..., None] * v[None]).sum(2).transpose(0, 1),
    "keys first": lambda w, v: (w.permute(2, 0, 1)[..., None] * v.transpose(0, 1)[:, :, None]).sum(0),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", TURNED_SUMS)
def test_attention_by_a_sum_over_any_axis(name):
    """The average behind it takes cells together that attention has mixed, wherever their axis is."""
    net, twin = (
        seeded(lambda weigh=weigh: Tokens(read=READS["average"], attend=attention(weigh)))
        for weigh in (TURNED_SUMS[name], torch.matmul)
    )
    assert_equal_maps(net, twin, layers=["conv"])


@pytest.mark.parametrize("axes", [2, 3, (2, 3)])
def test_sampled_cells_are_mixed_along_both_axes(axes):
    def between(_, y):
        grid = y.mean(1, keepdim=True).movedim(1, -1).tanh().expand(-1, -1, -1, 2)
        y = F.gelu(F.grid_sample(y, grid, align_corners=False))
        return y.mean(axes, keepdim=True).expand_as(y)

    assert not ebcli.excitation_backprop(seeded(lambda: Block(between)), images(), 1, "conv").joint


class Grouped(nn.Module):
    """Four heads of queries, and two of keys and values."""

    def __init__(self, attend):
        super().__init__()
        self.conv, self.q, self.kv, self.head = (
            nn.Conv2d(3, 8, 3),
            nn.Linear(8, 8),
            nn.Linear(8, 8),
            nn.Linear(8, 5),
        )
        self.attend = attend

    def forward(self, x):
        y = self.conv(x).flatten(2).mT
        k, v = self.kv(y).unflatten(2, (2, 2, 2)).permute(2, 0, 3, 1, 4)
        z = self.attend(self.q(y).unflatten(2, (4, 2)).transpose(1, 2), k, v)
        return self.head(F.gelu(z.transpose(1, 2).flatten(2)).mean(1))


def test_heads_that_share_keys_and_values():
    def repeated(q, k, v):
        return F.scaled_dot_product_attention(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1))

    def shared(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    assert_equal_maps(*(seeded(lambda attend=attend: Grouped(attend)) for attend in (shared, repeated)))


def without_gradients(compute):
    with torch.no_grad():
        return compute()


def test_constant_values_get_nothing_by_attention_or_without_gradients():
    """Their weights depend on the image, but the values that are weighed do not."""
    keys, values = torch.randn(2, 1, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(5))

    def looked_up(q):
        return F.scaled_dot_product_attention(q, keys.expand(len(q), -1, -1), values.expand(len(q), -1, -1))

    spellings = looked_up, lambda q: without_gradients(lambda: looked_up(q))
    net, twin = (
        seeded(lambda look=look: Tokens(read=READS["average"], attend=lambda q, k, v: v + look(q)))
        for look in spellings
    )
    assert_equal_maps(net, twin)


def test_powers_by_a_tensor():
    exponents = torch.tensor([0.5, 1.5, 2.5, 3.0], dtype=torch.float64)
    net = seeded(lambda: Block(lambda _, y: F.relu(y) ** exponents[:, None, None]))
    twin = seeded(
        lambda: Block(
            lambda _, y: torch.stack(
                [a ** float(e) for a, e in zip(F.relu(y).unbind(1), exponents, strict=True)], 1
            )
        )
    )
    assert_equal_maps(net, twin)


@wrap_torch_function(lambda a: (a,))
def scaled(a):
    return a * GAMMA[:, None, None]


@wrap_torch_function(lambda a: (a,))
def doubled_(a):
    return a.mul_(2)


@wrap_torch_function(lambda a, weight: (a, weight))
def product(a, weight):
    return a @ weight


@pytest.fixture
def registered():
    """Registers rules of the functions above, until the test is over."""
    names = []

    def register(function, own):
        rule(function)(own)
        names.append(function)

    yield register
    unregister(*names)


def test_a_scale_of_a_users_own_is_no_activation(registered):
    """Jointly, its factor is a weight."""
    registered(scaled, lambda call, a: pass_through(call, a, affine=True, keeps_zero=True))
    net = seeded(lambda: Block(lambda _, y: scaled(F.gelu(y))))
    assert_equal_maps(net, seeded(lambda: Block(lambda _, y: F.gelu(y) * GAMMA[:, None, None])))


def test_a_function_of_a_users_own_that_overwrites(registered):
    registered(doubled_, lambda call, a: pass_through(call, a, affine=True, keeps_zero=True))
    net = seeded(lambda: Block(lambda _, y: doubled_(F.gelu(y))))
    assert_equal_maps(net, seeded(lambda: Block(lambda _, y: F.gelu(y) * 2)))


def test_the_rule_of_a_layer_is_not_used_where_its_weights_depend_on_the_image(registered):
    def between(multiply):
        return lambda _, y: multiply(y, (y.mT @ y).softmax(-1))

    registered(product, lambda call, a, weight: weighted_sum(call, a, LinearMap(torch.matmul, weight)))
    net, twin = (seeded(lambda f=f: Block(between(f))) for f in (product, torch.matmul))
    assert_equal_maps(net, twin)


def test_operators_with_rules_are_told_by_their_names():
    with pytest.raises(ConfigurationError, match="roi_align already has the rule"):
        rule("torchvision.roi_align")


def test_operations_before_the_mode_are_named():
    x = torch.randn(2, 3, requires_grad=True)
    y = F.leaky_relu(x)
    with ebcli.excitation_mode():
        z = y.relu()
    with pytest.raises(UnsupportedOpError, match=r"leaky_relu \(called outside the mode\)"):
        torch.autograd.grad(z, x, torch.ones_like(z))


def test_no_probability_without_gradients_in_the_mode():
    x = torch.randn(2, 3, requires_grad=True)
    with ebcli.excitation_mode():
        y = x.relu()
        z = y + without_gradients(lambda: x * 3)
    (found,) = torch.autograd.grad(z, x, torch.ones_like(z))
    torch.testing.assert_close(found, (x > 0) / 4)  # of x + 3x; the rest ends there


class Apart(nn.Module):
    """A layer of a constant beside one of the image."""

    def __init__(self, *, reads_image):
        super().__init__()
        self.conv, self.apart, self.reads_image = nn.Conv2d(3, 4, 3), nn.Linear(2, 4), reads_image

    def forward(self, x):
        constant = self.apart(torch.ones(len(x), 2))
        return constant + self.conv(x).mean((2, 3)) if self.reads_image else constant


def test_what_does_not_depend_on_the_image():
    x = torch.randn(2, 3, 6, 6)
    with pytest.raises(LayerError, match="layer 'apart' does not depend on the input"):
        ebcli.excitation_backprop(Apart(reads_image=True), x, 1, "apart")
    with pytest.raises(LayerError, match="the network's output does not depend on its input"):
        ebcli.excitation_backprop(Apart(reads_image=False), x, 1)


def test_pixels_are_integers():
    with pytest.raises(ConfigurationError, match="must be integers"):
        ebcli.excitation_backprop(nn.Conv2d(3, 4, 3), torch.randn(2, 3, 6, 6), 1, where=(1.5, 2))


def test_maps_beyond_the_range_of_numbers_are_refused():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(64, 5))
    prior = torch.full((2, 5), 3e38)
    with pytest.raises(NonFiniteError, match="the map contains NaN or infinite values"):
        ebcli.excitation_backprop(net, torch.rand(2, 3, 6, 6), prior, "0")


class PartOfMemory(nn.Module):
    """Twenty of the values of each image, read by their place in memory, or as a slice."""

    def __init__(self, read):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.head, self.read = nn.Conv2d(3, 4, 3), nn.Linear(20, 3), read

    def forward(self, x):
        return self.head(self.read(self.conv(x).flatten(1)))


def read_memory(y, start):
    return y[:, 12:].as_strided((len(y), 20), (y.shape[1], 1), start)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("joint", [False, True])
def test_memory_is_read_behind_the_start_of_a_view(joint, count):
    x = torch.rand(count, 3, 8, 8)
    by_memory, by_slice = (
        ebcli.excitation_backprop(PartOfMemory(read), x, 1, "conv", joint=joint)
        for read in (lambda y: read_memory(y, 17), lambda y: y[:, 17:37])
    )
    assert torch.equal(by_memory.logits, by_slice.logits)
    torch.testing.assert_close(by_memory.relevance, by_slice.relevance)
    with pytest.raises(ebcli.errors.EbcliError, match="as_strided reads what is before its tensor in memory"):
        ebcli.excitation_backprop(PartOfMemory(lambda y: read_memory(y, 3)), x, 1, "conv")
