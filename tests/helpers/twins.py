"""Two spellings of one network must have the same maps."""

import torch
from nets import NUM_CLASSES, unsettle
from torch import nn
from torch.nn import functional as F

import ebcli


class Block(nn.Module):
    """A convolution named ``conv``, a function of the block and its output, and a head.

    Args:
        between: called as ``between(block, y)``, y being the convolution's output (B, 4, 4, 4).
        modules: more modules, as attributes.
    """

    def __init__(self, between, bias=True, **modules):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, bias=bias)
        for name, module in modules.items():
            setattr(self, name, module)
        self.between = between
        self.fc = nn.Linear(64, NUM_CLASSES)

    def forward(self, x):
        return self.fc(self.between(self, self.conv(x)).flatten(1))


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Between(nn.Module):
    """A function between linear layers, (B, ..., width) -> (B, NUM_CLASSES)."""

    def __init__(self, function, width):
        super().__init__()
        self.stem, self.function, self.fc = nn.Linear(width, width), function, nn.LazyLinear(NUM_CLASSES)

    def forward(self, x):
        return self.fc(F.gelu(self.function(self.stem(x)).flatten(1)))


IMAGES = (2, 3, 6, 6)


def images(shape=IMAGES):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def seeded(make, seed=0):
    """The network that `make` returns, with random weights in float64 that do not depend on what came before."""
    torch.manual_seed(seed)
    return unsettle(make())


def assert_twins(net, twin, inputs=None, layer=None, twin_layer=None, tolerance=1e-9):
    """Both have the same logits, relevance, mass and lost mass; `twin_layer` is the layer's name in the twin."""
    inputs = images() if inputs is None else inputs
    for contrastive in (False, True):
        found, expected = (
            ebcli.excitation_backprop(n, inputs, 1, at, contrastive)
            for n, at in ((net, layer), (twin, twin_layer or layer))
        )
        torch.testing.assert_close(found.logits, expected.logits, rtol=1e-6, atol=1e-9)
        assert expected.relevance.abs().max() > 1e-6, "the twin's map is empty, so nothing is compared"
        torch.testing.assert_close(found.relevance, expected.relevance, rtol=0, atol=tolerance)
        if not contrastive:
            torch.testing.assert_close(found.mass, expected.mass, rtol=0, atol=max(tolerance, 1e-9))


def shares(W, a, sign):
    """Eq. 4 for neurons of responses with these signs: P(i | n), (N, I), of weights (N, I) and activations (I,)."""
    z = (sign[:, None] * W * a).clamp(min=0)
    total = z.sum(1, keepdim=True)
    return torch.where(total == 0, 0.0, z / total)


def assert_equal_maps(net, twin, x, layers):
    """Both rules give both networks the same maps, and the logits of `net` are its own."""
    for joint in (False, True):
        for contrastive in (False, True):
            found, expected = (
                ebcli.excitation_backprop(n, x, [[0, 1]] * len(x), layers, contrastive, joint=joint)
                for n in (net, twin)
            )
            for one, other in zip(found, expected, strict=True):
                assert torch.equal(one.logits, net(x))
                assert other.relevance.abs().max() > 1e-6
                torch.testing.assert_close(one.relevance, other.relevance, rtol=1e-7, atol=1e-9)
                if not contrastive:
                    torch.testing.assert_close(one.mass, other.mass)
    with torch.no_grad():  # for training, oneDNN adds in another order on some processors
        assert torch.equal(ebcli.excitation_backprop(net.float(), x.float(), 0).logits, net(x.float()))


def equal_networks(make, twin, x):
    torch.manual_seed(0)
    nets = [make().double().eval(), twin().double().eval()]
    for net in nets:
        net(x)  # which makes lazy layers
    nets[1].load_state_dict(nets[0].state_dict())
    return nets
