"""Nothing is left behind: gradients, parameters, flags, hooks and other threads are what they were."""

import copy

import pytest
import torch
import torchvision
from nets import bare, relevance_of, unsettle
from torch import nn
from torch.nn import functional as F
from twins import Function

import ebcli

PLAIN_OPS = {
    "conv2d": lambda x: F.conv2d(x[None, None], torch.arange(8.0).double().reshape(2, 1, 2, 2)),
    "tanh": torch.tanh,
    "max_pool2d": lambda x: F.max_pool2d(x[None], 2),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "add": lambda x: x + 2 * x,
    "matmul": lambda x: x @ x.T,
    "softmax": lambda x: x.softmax(1),
}


def assert_ordinary_gradients():
    torch.manual_seed(0)
    x = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    for name, op in PLAIN_OPS.items():
        assert torch.autograd.gradcheck(op, (x,)), name


class Fragile(nn.Module):
    """A network with everything in it that could be disturbed; `do` is called half-way through the forward pass."""

    def __init__(self, do=lambda: None):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.drop, self.fc = nn.Dropout(0.9), nn.Linear(4, 5)
        self.do = do

    def forward(self, x):
        x = F.relu(self.bn(self.conv(x)), inplace=True)
        self.do()
        return self.fc(self.drop(x).mean((2, 3)))


def fragile(do=lambda: None):
    torch.manual_seed(0)
    net = unsettle(Fragile(do))
    net.train()
    net.bn.eval()  # training flags that differ
    net.conv.weight.requires_grad_(False)
    net.fc.weight.grad = torch.randn_like(net.fc.weight)
    net.fc.register_forward_hook(lambda _m, _args, output: output)
    net.bn.register_forward_pre_hook(lambda _m, args: args)
    net.conv.register_full_backward_hook(lambda _m, _grad_in, _grad_out: None)
    return net, torch.randn(2, 3, 6, 6, dtype=torch.float64)


def state_of(net):
    """Everything about a network that a user could notice."""
    hooks = {
        (name, kind): list(getattr(module, kind).items())
        for name, module in net.named_modules()
        for kind in vars(module)
        if kind.endswith("hooks")
    }
    assert any(hooks.values())
    return {
        "parameters": {
            name: (id(p), p._version, p.requires_grad, p.is_leaf) for name, p in net.named_parameters()
        },
        "gradients": {name: (id(p.grad), copy.deepcopy(p.grad)) for name, p in net.named_parameters()},
        "values": {name: value.clone() for name, value in net.state_dict().items()},
        "training": {name: module.training for name, module in net.named_modules()},
        "attributes": {name: sorted(vars(module)) for name, module in net.named_modules()},
        "hooks": hooks,
    }


def assert_same_state(net, before):
    after = state_of(net)
    for part in ("parameters", "training", "attributes", "hooks"):
        assert after[part] == before[part]
    for name, value in before["values"].items():
        assert torch.equal(after["values"][name], value)
    for name, (identity, value) in before["gradients"].items():
        assert after["gradients"][name][0] == identity
        assert value is None or torch.equal(after["gradients"][name][1], value)
    assert torch.is_grad_enabled()
    assert_ordinary_gradients()


@pytest.mark.parametrize("contrastive", [False, True])
@pytest.mark.parametrize("layer", [None, "bn"])
def test_after_use(layer, contrastive):
    net, x = fragile()
    before, x_before = state_of(net), x.clone()
    for targets in (1, [[0, 1], [2, 3]]):
        ebcli.excitation_backprop(net, x, targets, layer, contrastive)
        assert_same_state(net, before)
    assert torch.equal(x, x_before)
    assert not x.requires_grad


def test_evaluation_mode_is_used():
    net, x = fragile()
    logits = ebcli.excitation_backprop(net, x, 1).logits
    assert torch.equal(logits, net.eval()(x).detach())


def explode():
    raise ZeroDivisionError("half-way")


MISHAPS = {
    "in the forward pass": (ZeroDivisionError, explode, {}),
    "in the targets": (ZeroDivisionError, None, {"targets": lambda logits: explode()}),
    "no such class": (ebcli.ConfigurationError, None, {"targets": 99}),
    "no such layer": (ebcli.LayerError, None, {"layer": "conw"}),
}


@pytest.mark.parametrize("mishap", MISHAPS)
def test_after_an_exception(mishap):
    error, do, arguments = MISHAPS[mishap]
    net, x = fragile(do or (lambda: None))
    before = state_of(net)
    with pytest.raises(error):
        ebcli.excitation_backprop(net, x, **{"targets": 1, "layer": "bn", **arguments})
    assert_same_state(net, before)


def test_after_an_exception_in_the_bare_mode():
    net, x = fragile(explode)
    before = state_of(net)
    with pytest.raises(ZeroDivisionError), ebcli.excitation_mode():
        net.eval()(x.requires_grad_())
    net.train()
    net.bn.eval()
    assert_same_state(net, before)


def test_after_an_unsupported_operation():
    net = nn.Sequential(nn.Linear(4, 4), nn.Flatten()).double()
    net[1].forward = lambda x: torch.cumprod(x, 1)
    with pytest.raises(ebcli.UnsupportedOpError):
        ebcli.excitation_backprop(net, torch.randn(2, 4).double(), 0)
    assert_ordinary_gradients()


def test_bare_mode_is_the_marginal_map():
    net, x, prior = bare()
    relevance = relevance_of(net, x, prior)
    result = ebcli.excitation_backprop(net, x, prior)
    assert (result.logits < 0).all()
    assert (relevance > 0).any()
    torch.testing.assert_close(relevance, result.relevance, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("retain", [False, True])
def test_gradients_taken_inside_the_mode(retain):
    net, x, prior = bare()
    with ebcli.excitation_mode():
        logits = net(x)
        inside = torch.autograd.grad([logits], [x], [prior], retain)[0]
    assert torch.equal(inside, relevance_of(net, x, prior))


def test_backward_fills_in_grad():
    net, x, prior = bare()
    with ebcli.excitation_mode():
        net(x).backward(prior)
    assert torch.equal(x.grad, relevance_of(net, x, prior))
    assert all(p.grad is None for p in net.parameters())


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("layer", [None, "1"])
def test_under_other_gradient_modes(context, layer):
    net, x, prior = bare()
    expected = ebcli.excitation_backprop(net, x, prior, layer, contrastive=True)
    with context():
        inputs = x.detach().clone()  # in inference mode, a tensor that autograd would not take
        result = ebcli.excitation_backprop(net, inputs, prior, layer, contrastive=True)
        assert torch.is_inference_mode_enabled() == (context is torch.inference_mode)
        assert torch.is_grad_enabled() == (context is torch.enable_grad)
    assert torch.equal(result.relevance, expected.relevance)
    assert not result.relevance.requires_grad
    assert not result.logits.requires_grad


def test_enable_and_disable():
    net, x, prior = bare()
    expected, plain = relevance_of(net, x, prior), torch.autograd.grad(net(x), x, prior)[0]
    with pytest.raises(RuntimeError, match="not enabled"):
        ebcli.disable()
    ebcli.enable()
    try:
        with pytest.raises(RuntimeError, match="already enabled"):
            ebcli.enable()
        assert torch.equal(torch.autograd.grad(net(x), x, prior)[0], expected)
        # a run of its own inside leaves it on, and with its own results
        nested = ebcli.excitation_backprop(net, x, prior, contrastive=True)
        assert torch.equal(torch.autograd.grad(net(x), x, prior)[0], expected)
    finally:
        ebcli.disable()
    assert torch.equal(nested.relevance, ebcli.excitation_backprop(net, x, prior, contrastive=True).relevance)
    assert torch.equal(torch.autograd.grad(net(x), x, prior)[0], plain)
    with pytest.raises(RuntimeError, match="not enabled"):
        ebcli.disable()
    assert_ordinary_gradients()


def test_modes_in_modes():
    net, x, prior = bare()
    expected = relevance_of(net, x, prior)
    with ebcli.excitation_mode():
        assert torch.equal(relevance_of(net, x, prior), expected)
        assert torch.equal(torch.autograd.grad(net(x), x, prior)[0], expected)


NETWORKS = (
    "densenet121 efficientnet_b0 googlenet mnasnet0_5 mobilenet_v2 mobilenet_v3_small regnet_y_400mf resnet18 "
    "shufflenet_v2_x0_5 squeezenet1_1"
).split()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", NETWORKS)
def test_forward_values_are_bit_identical(name):
    torch.manual_seed(0)
    keywords = {"init_weights": False} if name == "googlenet" else {}
    net = unsettle(torchvision.models.get_model(name, num_classes=6, **keywords)).float()
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        expected = net(x)
    with ebcli.excitation_mode():
        assert torch.equal(net(x.clone().requires_grad_()), expected)
    assert torch.equal(ebcli.excitation_backprop(net, x, 0, contrastive=True).logits, expected)


PARTS = {
    "a_slice": lambda y: y[:, :6],
    "transposed": lambda y: y.mT,
    "every_other": lambda y: y[..., ::2],
    "expanded": lambda y: y[:, :1].expand(-1, 3, -1),
    "a_row": lambda y: y[:, 2],
}


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("layers", [["1"], [None, "1"]])
def test_a_layer_hands_on_its_output_in_the_memory_layout_it_has(name, layers):
    """Matrix products of another layout or alignment round differently, so logits would not be the network's."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(5, 9), Function(PARTS[name]), nn.Identity(), nn.Flatten(), nn.LazyLinear(4)
    ).double()
    x, seen = torch.randn(2, 8, 5).double(), []
    net[2].register_forward_pre_hook(lambda _, args: seen.append((args[0].stride(), args[0].data_ptr() % 64)))
    plain = net(x)
    results = ebcli.excitation_backprop(net.eval(), x, 1, layers)
    assert seen[0] == seen[1]
    assert all(torch.equal(result.logits, plain) for result in results)


def test_an_argument_that_is_true_overwrites_nothing():
    """Such as keepdim: here, on a view, which an operation in place would write into."""

    class Kept(nn.Module):
        def forward(self, x):
            return x.mT.mean(1, True).squeeze(1)

    net = nn.Sequential(nn.Linear(6, 5), Kept(), nn.Linear(3, 2)).double()
    x = torch.randn(2, 3, 6, dtype=torch.double)
    assert torch.equal(ebcli.excitation_backprop(net, x, 0).logits, net(x))
