"""Networks of which a mode may see only a part: right, and never an ordinary gradient unasked."""

import pytest
import torch
from torch import nn
from twins import Block, assert_twins, images, seeded

import ebcli
from ebcli.errors import UnsupportedOpError


def net_of(middle=nn.Identity):
    return seeded(
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), middle(), nn.Flatten(), nn.Linear(64, 5))
    )


class Middle(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x):
        return torch.tanh(self.conv(x))


def scripted(module):
    return torch.jit.script(module)


def traced(module):
    return torch.jit.trace(module, torch.randn(2, 3, 6, 6).double())


def with_a_scripted_part(net):
    net[2] = torch.jit.script(net[2])
    return net


def with_a_traced_part(net):
    net[2] = torch.jit.trace(net[2], torch.randn(2, 4, 4, 4).double())
    return net


def with_a_scripted_function(net):
    @torch.jit.script
    def squash(x: torch.Tensor):
        return torch.tanh(x) * 2 + x

    return seeded(lambda: Block(lambda _, y: squash(y)))


def squashing(_net):
    return seeded(lambda: Block(lambda _, y: torch.tanh(y) * 2 + y))


COMPILED = [scripted, traced, with_a_scripted_part, with_a_traced_part, with_a_scripted_function]
plain = dict.fromkeys(COMPILED, lambda net: net) | {with_a_scripted_function: squashing}


@pytest.mark.one_in(2)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("contrastive", [False, True])
@pytest.mark.parametrize("runs_before", [0, 3])  # the first runs profile, later ones are fused
@pytest.mark.parametrize("compiled", COMPILED)
def test_compiled_by_torch_jit(compiled, runs_before, contrastive):
    net, twin = compiled(net_of(Middle)), plain[compiled](net_of(Middle))
    for _ in range(runs_before):
        net(images())
    found = ebcli.excitation_backprop(net, images(), 1, contrastive=contrastive).relevance
    expected = ebcli.excitation_backprop(twin, images(), 1, contrastive=contrastive).relevance
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_compiled_by_torch_jit_in_the_bare_mode():
    net, x = with_a_scripted_part(net_of(Middle)), images().requires_grad_()
    with ebcli.excitation_mode(net):
        logits = net(x)
    (found,) = torch.autograd.grad(logits, x, torch.ones_like(logits))
    expected = ebcli.excitation_backprop(net_of(Middle), images(), torch.ones_like(logits)).relevance
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


class OwnGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.tanh()

    @staticmethod
    def backward(ctx, grad):
        return grad


def test_an_autograd_function_is_the_operations_that_it_is_made_of():
    net = seeded(lambda: Block(lambda _, y: OwnGradient.apply(y)))
    assert_twins(net, seeded(lambda: Block(lambda _, y: y.tanh())))


class Switched(nn.Module):
    """A network that switches gradients on for a part of its forward pass."""

    def __init__(self, part):
        super().__init__()
        self.stem, self.mid, self.fc = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, padding=1), nn.Linear(64, 5)
        self.part = part

    def forward(self, x):
        x = self.stem(x).tanh()
        if self.part == "mid":
            with torch.enable_grad():
                x = self.mid(x)
        elif self.part == "all":
            with torch.enable_grad():
                return self.fc(self.mid(x).tanh().flatten(1))
        elif self.part == "set":
            torch.set_grad_enabled(True)
            x = self.mid(x)
        else:
            x = self.mid(x)
        return self.fc(x.tanh().flatten(1))


@pytest.mark.parametrize("layer", [None, "stem", "mid"])
@pytest.mark.parametrize("part", ["mid", "all", "set"])
def test_gradients_switched_on_in_the_network(part, layer):
    was_enabled = torch.is_grad_enabled()
    try:
        assert_twins(seeded(lambda: Switched(part)), seeded(lambda: Switched("")), layer=layer)
    finally:
        torch.set_grad_enabled(was_enabled)


def test_gradients_switched_on_below_the_layer():
    class Below(Switched):
        def forward(self, x):
            with torch.enable_grad():
                x = self.stem(x)
            return self.fc(self.mid(x.tanh()).tanh().flatten(1))

    assert_twins(seeded(lambda: Below("")), seeded(lambda: Switched("")), layer="mid")


@pytest.mark.parametrize("layer", [None, "conv"])
def test_autocast_in_the_network(layer):
    class Pointwise(Middle):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            return torch.tanh(self.linear(self.conv(x).transpose(1, 3)))

    def autocast(net, y):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return net.mid(y).float()

    def cast(net, y):
        return net.mid.bfloat16()(y.bfloat16()).float()

    net, twin = (seeded(lambda f=f: Block(f, mid=Pointwise())).float() for f in (autocast, cast))
    x = images().float()
    found, expected = (ebcli.excitation_backprop(network, x, 1, layer) for network in (net, twin))
    torch.testing.assert_close(found.relevance, expected.relevance, rtol=0, atol=5e-3)
    torch.testing.assert_close(found.mass, expected.mass, rtol=0, atol=5e-2)


def test_autocast_around_the_call():
    net = net_of(Middle).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = ebcli.excitation_backprop(net, images().float(), 1)
    expected = ebcli.excitation_backprop(net, images().float(), 1)
    torch.testing.assert_close(found.mass, expected.mass, rtol=0, atol=5e-2)


class Accumulating(nn.Module):
    """A sum spelled as writing, with accumulation, into one of its operands."""

    def __init__(self, accumulate):
        super().__init__()
        self.first, self.second, self.fc = nn.Linear(6, 4), nn.Linear(6, 4), nn.Linear(4, 3)
        self.accumulate = accumulate

    def forward(self, x):
        return self.fc(self.accumulate(self.first(x), self.second(x)))


ROWS = torch.arange(3)
PLACES = torch.arange(4).expand(3, 4)
ACCUMULATIONS = {
    "index_put": lambda a, b: a.index_put((ROWS,), b, accumulate=True),
    "index_put_": lambda a, b: a.clone().index_put_((ROWS,), b, accumulate=True),
    "scatter": lambda a, b: a.scatter(1, PLACES, b, reduce="add"),
    "scatter_add": lambda a, b: a.scatter_add(1, PLACES, b),
    "index_add": lambda a, b: a.index_add(0, ROWS, b),
}
REDUCTIONS = {
    "index_reduce": lambda a, b: a.index_reduce(0, ROWS, b, "mean"),
    "scatter_reduce": lambda a, b: a.scatter_reduce(1, PLACES, b, reduce="sum"),
}


@pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter")
@pytest.mark.parametrize("name", ACCUMULATIONS)
def test_writing_that_accumulates_is_a_sum(name):
    net, twin = (seeded(lambda f=f: Accumulating(f)) for f in (ACCUMULATIONS[name], torch.add))
    assert_twins(net, twin, images((3, 6)))


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("name", REDUCTIONS)
def test_other_reductions_are_refused_by_name(name):
    with pytest.raises(UnsupportedOpError, match=name):
        ebcli.excitation_backprop(seeded(lambda: Accumulating(REDUCTIONS[name])), images((3, 6)), 1)


class Exported(nn.Module):
    """A convolution, a batch norm, a residual sum, a pooling, a gate, a norm and a linear layer."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.second = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3, padding=1)
        self.excite, self.norm, self.fc = nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 5)

    def forward(self, x):
        x = torch.relu(self.bn(self.conv(x)))
        x = torch.nn.functional.max_pool2d(x + self.second(x), 2, 1)
        x = x * torch.sigmoid(self.excite(x.mean((2, 3))))[:, :, None, None]
        x = self.norm(torch.nn.functional.gelu(x).flatten(2).transpose(1, 2))
        return self.fc(torch.cat([x[:, :4], x[:, 4:]], 1).mean(1))


def test_an_exported_program():
    net = seeded(Exported)
    program = torch.export.export(net, (images(),))
    assert_twins(program.module(), net)


def test_aten_spellings():
    aten = torch.ops.aten

    class Spelled(Block):
        def forward(self, x):
            y = aten.convolution.default(
                x, self.conv.weight, self.conv.bias, [1, 1], [0, 0], [1, 1], False, [0, 0], 1
            )
            y = aten.add.Tensor(aten.relu.default(y), aten.mul.Tensor(y, 0.5))
            return aten.addmm.default(
                self.fc.bias, aten.view.default(y, [-1, 64]), aten.t.default(self.fc.weight)
            )

    assert_twins(seeded(lambda: Spelled(None)), seeded(lambda: Block(lambda _, y: y.relu() + y * 0.5)))


class OwnForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.second(torch.nn.functional.gelu(self.first(x)))


def test_compiled_networks_run_as_they_are_written():
    net, x = nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 3)).eval(), torch.randn(2, 6)
    expected = ebcli.excitation_backprop(net, x, 1, "1", contrastive=True)
    compiled = torch.compile(net, backend="eager")
    for layer in ("1", "_orig_mod.1", net[1]):
        found = ebcli.excitation_backprop(compiled, x, 1, layer, contrastive=True)
        assert torch.equal(found.relevance, expected.relevance)
        assert torch.equal(found.logits, expected.logits)
    other = OwnForward()
    other.forward = torch.compile(other.forward, backend="eager")
    other.first.load_state_dict(net[0].state_dict())
    other.second.load_state_dict(net[2].state_dict())
    part = nn.Sequential(torch.compile(net[0], backend="eager"), *net[1:])
    for own in (other, part):
        found = ebcli.excitation_backprop(own, x, 1, contrastive=True)
        torch.testing.assert_close(
            found.relevance, ebcli.excitation_backprop(net, x, 1, contrastive=True).relevance
        )
