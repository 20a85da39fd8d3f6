"""Operations without a rule are reported, all at once and by the name of the module they sit in."""

import warnings

import pytest
import torch
from torch import nn

import ebcli


class Cumulative(nn.Module):
    def forward(self, x):
        return torch.cumprod(x, 1)


class Product(nn.Module):
    def forward(self, x):
        return torch.prod(x[:, :, None], 2)


class Doubled(torch.autograd.Function):
    """A user's own function, computed where PyTorch's modes see nothing."""

    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(2 * x.detach().numpy())

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


class Custom(nn.Module):
    def forward(self, x):
        return Doubled.apply(x)


class CustomBeside(nn.Module):
    def forward(self, x):
        return x + Doubled.apply(x)


class InPlace(nn.Module):
    def forward(self, x):
        return x.clone().cumprod_(1)


class InPlaceOnView(nn.Module):
    def forward(self, x):
        x = x.clone()
        x[:, :2].cumprod_(1)
        return x


class OffThePath(nn.Module):
    """Unknown operations whose results only rescale, choose or are thrown away."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 5)

    def forward(self, x):
        torch.cumprod(x, 1)
        assert x.argmax(1).shape == x.shape[:1]
        x = x / (x.prod(1, keepdim=True).abs() + 1)
        return self.fc(x * (x > x.prod(1, keepdim=True).detach() - 9))


def net_with(**modules):
    torch.manual_seed(0)
    net = nn.Sequential()
    net.add_module("stem", nn.Linear(3, 4))
    for name, module in modules.items():
        net.add_module(name, module)
    net.add_module("fc", nn.Linear(4, 5))
    return net.double(), torch.rand(2, 3, dtype=torch.float64)


def test_all_of_them_at_once():
    net, x = net_with(
        early=Cumulative(), late=nn.Sequential(nn.ReLU(), nn.ModuleDict({"inner": Product()})["inner"])
    )
    with pytest.raises(ebcli.UnsupportedOpError) as caught:
        ebcli.excitation_backprop(net, x, 0)
    for site in ("cumprod in early", "prod in late.1"):
        assert str(caught.value).count(site) == 1
    for innocent in ("relu", "linear", "stem", "fc"):
        assert innocent not in str(caught.value)


def test_only_what_is_above_the_layer():
    net, x = net_with(early=Cumulative(), late=Product())
    with pytest.raises(ebcli.UnsupportedOpError, match="prod in late") as caught:
        ebcli.excitation_backprop(net, x, 0, "early")
    assert "cumprod" not in str(caught.value)
    ebcli.excitation_backprop(net, x, 0, "late")


HIDDEN = [
    (Custom, "Doubled"),
    (CustomBeside, "Doubled"),
    (InPlace, "cumprod_? in odd"),
    (InPlaceOnView, "cumprod_? in odd"),
]


@pytest.mark.parametrize(("module", "message"), HIDDEN)
@pytest.mark.parametrize("contrastive", [False, True])
def test_hidden_ones(module, message, contrastive):
    net, x = net_with(odd=module())
    with pytest.raises(ebcli.UnsupportedOpError, match=message):
        ebcli.excitation_backprop(net, x, 0, contrastive=contrastive)


class Odd(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.recurrent, self.function = nn.LSTM(1, 1, batch_first=True), function

    def forward(self, x):
        return self.function(self, x)


REFUSED = {
    "pow": ("pow", lambda _, x: torch.pow(x.abs() + 1, x.flip(1))),
    "dot": (
        "dot|mul|sum",
        lambda _, x: torch.stack([torch.dot(t, t.flip(0)) for t in x])[:, None].expand(-1, 4),
    ),
    "prod": ("prod", lambda _, x: x.prod(1, keepdim=True) * torch.ones(4)),
    "bilinear": (
        "bilinear|einsum|b?mm|mul",
        lambda _, x: nn.functional.bilinear(x, x, torch.ones(4, 4, 4).to(x)),
    ),
    "cosine_similarity": (
        "cosine_similarity|matmul|b?mm|mul",
        lambda _, x: torch.cosine_similarity(x[:, None], x.flip(1)[:, None].repeat(1, 4, 1), 2),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_products_of_signals_are_refused(name):
    """By the name of the function, or of the operation that it is made of."""
    said, function = REFUSED[name]
    net, x = net_with(odd=Odd(function))
    with pytest.raises(ebcli.UnsupportedOpError, match=f"({said}) in odd"):
        ebcli.excitation_backprop(net, x, 0)


def packed(net, x):
    sequence = nn.utils.rnn.pack_padded_sequence(x[:, :, None], [4, 4], batch_first=True)
    return nn.utils.rnn.pad_packed_sequence(net.recurrent(sequence)[0], batch_first=True)[0][..., 0]


CENTERS = torch.stack([torch.linspace(-1, 1, 4), torch.zeros(4)], -1)


def sampled(_, x):
    grid = CENTERS.expand(2, 1, 4, 2).to(x)
    return nn.functional.grid_sample(x[:, None, None], grid, mode="bicubic", align_corners=True)[:, 0, 0]


@pytest.mark.parametrize("function", [packed, sampled])
def test_operations_without_a_rule_are_refused_in_their_module(function):
    net, x = net_with(odd=Odd(function))
    with pytest.raises(ebcli.UnsupportedOpError, match=" in odd"):
        ebcli.excitation_backprop(net, x, 0)


def test_in_the_bare_mode():
    net, x = net_with(early=Cumulative(), late=Product())
    x.requires_grad_()
    with ebcli.excitation_mode(net):
        logits = net(x)
    for _ in range(2):  # not in the first backward pass alone
        with pytest.raises(ebcli.UnsupportedOpError, match="cumprod in early, prod in late"):
            torch.autograd.grad(logits.sum(), x, retain_graph=True)
    with ebcli.excitation_mode():  # without the network, types serve for names
        logits = net(x)
    with pytest.raises(ebcli.UnsupportedOpError, match="cumprod in Cumulative, prod in Product"):
        torch.autograd.grad(logits.sum(), x)


@pytest.mark.parametrize("contrastive", [False, True])
def test_off_the_path_of_the_signal(contrastive):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), OffThePath())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = ebcli.excitation_backprop(net, torch.rand(2, 3), 0, contrastive=contrastive)
    assert result.relevance.abs().max() > 0


@pytest.mark.parametrize("targets", [[0, 3], [[0, 1], [3, 4]]], ids=["one", "several"])
@pytest.mark.parametrize("contrastive", [False, True])
@pytest.mark.parametrize("module", [Cumulative, InPlace, InPlaceOnView])
def test_ordinary_gradients_where_allowed(module, contrastive, targets):
    net, x = net_with(odd=module())
    with pytest.warns(UserWarning, match="ordinary gradients.*cumprod_? in odd") as caught:
        result = ebcli.excitation_backprop(net, x, targets, "stem", contrastive, unsupported="gradient")
    assert len(caught) == 1
    above = ebcli.excitation_backprop(net, x, targets, "odd", contrastive).relevance
    stem = net.stem(x).detach().requires_grad_()
    value = net.odd(stem)
    several = [above] if above.ndim == 2 else above.unbind(1)
    expected = [torch.autograd.grad(value, stem, P, retain_graph=True)[0] for P in several]
    expected = expected[0] if above.ndim == 2 else torch.stack(expected, 1)
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(result.relevance, expected, rtol=1e-10, atol=1e-12)


def test_no_other_ways():
    net, x = net_with()
    with pytest.raises(ValueError, match="'error' or 'gradient'"):
        ebcli.excitation_backprop(net, x, 0, unsupported="ignore")
