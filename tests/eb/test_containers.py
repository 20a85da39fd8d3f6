"""Layers and networks whose output is a tuple, a named tuple, a list or a dict."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import ebcli
from ebcli.errors import ConfigurationError

Named = namedtuple("Named", "features extra")


@dataclass
class Features:
    features: torch.Tensor
    indices: torch.Tensor | None = None


class Attributes(OrderedDict):
    """A dict whose items are attributes too, as in several model libraries."""

    def __getattr__(self, name):
        return self[name]


FORMS = {
    "tensor": (lambda a: a, lambda out: out),
    "tuple": (lambda a: (a,), lambda out: out[0]),
    "tuple_with_none": (lambda a: (None, a), lambda out: out[1]),
    "tuple_with_indices": (lambda a: (a, a.argmax(1)), lambda out: out[0]),
    "list": (lambda a: [a], lambda out: out.pop()),
    "dict": (lambda a: {"features": a}, lambda out: out["features"]),
    "named_tuple": (lambda a: Named(a, None), lambda out: out.features),
    "data_class": (Features, lambda out: out.features),
    "dict_with_attributes": (lambda a: Attributes(features=a), lambda out: out.features),
}


class Wrapped(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.conv, self.wrap = nn.Conv2d(3, 4, 3), wrap

    def forward(self, x):
        return self.wrap(torch.relu(self.conv(x)))


class Net(nn.Module):
    def __init__(self, wrap, unwrap, wrap_logits=lambda logits: logits):
        super().__init__()
        self.layer, self.unwrap, self.fc, self.wrap_logits = (
            Wrapped(wrap),
            unwrap,
            nn.Linear(4, 5),
            wrap_logits,
        )

    def forward(self, x):
        return self.wrap_logits(self.fc(self.unwrap(self.layer(x)).mean((2, 3))))


def run(form, **keywords):
    torch.manual_seed(0)
    net = Net(*FORMS[form], **keywords)
    return ebcli.excitation_backprop(net, torch.rand(2, 3, 6, 6), [1, 4], "layer", contrastive=True)


@pytest.mark.parametrize("form", FORMS)
def test_one_tensor_in_a_container(form):
    result, plain = run(form), run("tensor")
    assert result.relevance.shape == (2, 4, 4, 4)
    assert plain.relevance.abs().max() > 1e-3
    assert torch.equal(result.relevance, plain.relevance)


@pytest.mark.parametrize("wrap", [lambda a: (a, 2 * a), lambda a: {"low": a, "high": a + 1}, lambda a: ()])
def test_no_single_tensor(wrap):
    with pytest.raises(ebcli.LayerError, match=r"layer 'layer' returns a .* not a single one"):
        ebcli.excitation_backprop(Net(wrap, lambda out: next(iter(out))), torch.rand(2, 3, 6, 6), 0, "layer")


@pytest.mark.parametrize(
    "wrap_logits",
    [
        lambda logits: (logits, logits.argmax(1)),
        lambda logits: {"out": logits, "aux": 2 * logits},
        lambda logits: [logits],
        lambda logits: Named(logits, None),
        Features,
    ],
)
def test_logits_in_a_container(wrap_logits):
    result, plain = run("tensor", wrap_logits=wrap_logits), run("tensor")
    assert torch.equal(result.logits, plain.logits)
    assert torch.equal(result.relevance, plain.relevance)


def test_no_logits():
    with pytest.raises(ebcli.LayerError, match="the network's output must contain a floating-point tensor"):
        run("tensor", wrap_logits=lambda logits: {"shape": logits.shape})


class TwoHeads(nn.Module):
    """Two heads of five and three classes, returned in some form."""

    def __init__(self, form):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.kind, self.color, self.form = (
            nn.Conv2d(3, 4, 3),
            nn.Linear(4, 5),
            nn.Linear(4, 3),
            form,
        )

    def forward(self, x):
        features = torch.relu(self.conv(x)).mean((2, 3))
        return self.form(self.kind(features), self.color(features))


Colored = namedtuple("Colored", "kind color")


@pytest.mark.parametrize(
    ("form", "kind", "color"),
    [
        (lambda kind, color: (kind, color), 0, 1),
        (lambda kind, color: (kind, color), "0", -1),
        (lambda kind, color: {"kind": kind, "color": color}, "kind", "color"),
        (Colored, "kind", "color"),
    ],
)
def test_a_head_is_chosen(form, kind, color):
    x = torch.rand(2, 3, 6, 6)
    net = TwoHeads(form)
    for head, index in ((kind, 0), (color, 1)):
        result = ebcli.excitation_backprop(net, x, 2, "conv", head=head)
        alone = ebcli.excitation_backprop(TwoHeads(lambda *heads, i=index: heads[i]), x, 2, "conv")
        assert torch.equal(result.relevance, alone.relevance)
        assert repr(result.head) in repr(result)
        assert alone.head is None
    with pytest.raises(
        ConfigurationError, match=r"the network has several heads: choose one of .*\(B, 5\); .*\(B, 3\)"
    ):
        ebcli.excitation_backprop(net, x, 2, "conv")
    with pytest.raises(
        ConfigurationError, match=r"the network has no head 'shape': choose one of .*\(B, 5\)"
    ):
        ebcli.excitation_backprop(net, x, 2, "conv", head="shape")


def test_a_head_of_a_usual_name_is_explained():
    net = TwoHeads(lambda kind, color: {"features": kind, "logits": color})
    result = ebcli.excitation_backprop(net, torch.rand(2, 3, 6, 6), 2, "conv")
    assert result.head == "logits"
    assert result.logits.shape == (2, 3)


def test_what_has_no_row_for_each_image_is_no_head():
    net = TwoHeads(lambda kind, color: (color.sum(), kind))
    result = ebcli.excitation_backprop(net, torch.rand(2, 3, 6, 6), 4, "conv")
    assert result.logits.shape == (2, 5)
    assert result.head is None
