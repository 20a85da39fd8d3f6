"""check_rule() must notice every way in which a rule can be wrong, and say where."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ebcli
from ebcli.eb import LinearMap, pass_through, residual_sum, rule, unregister, weighted_sum


@torch.overrides.wrap_torch_function(lambda x, weight, bias=None: (x, weight, bias))
def own_linear(x, weight, bias=None):
    return F.linear(x, weight, bias)


@torch.overrides.wrap_torch_function(lambda a, b: (a, b))
def own_sum(a, b):
    return a + b


@torch.overrides.wrap_torch_function(lambda a: (a,))
def own_tanh(a):
    return a.tanh()


@pytest.fixture
def registered():
    """Registers a rule for the time of a test."""
    functions = []

    def register(function, own):
        functions.append(function)
        rule(function)(own)

    yield register
    unregister(*functions)


@pytest.fixture
def linear():
    torch.manual_seed(0)
    x = torch.randn(2, 3, requires_grad=True)
    return [x, torch.randn(4, 3, dtype=torch.float64), torch.randn(4, dtype=torch.float64)]


def right(call, x, weight, bias=None):
    return weighted_sum(call, x, LinearMap(F.linear, weight))


def test_right_rules(registered, linear):
    registered(own_linear, right)
    registered(own_sum, lambda call, a, b: residual_sum(call, (a, b), (1, 1)))
    registered(own_tanh, lambda call, a: pass_through(call, a, keeps_zero=True))
    x = linear[0]
    assert ebcli.check_rule(own_linear, linear)
    assert ebcli.check_rule(own_sum, (x, torch.randn(2, 3, requires_grad=True)))
    assert ebcli.check_rule(own_tanh, x)


def bias_in_the_normaliser(call, x, weight, bias=None):
    ones = torch.ones_like(x[:, :1])
    wide = torch.cat([weight, bias[:, None]], 1)
    return weighted_sum(call, torch.cat([x, ones], 1), LinearMap(F.linear, wide))


def rounded(call, x, weight, bias=None):
    return right(call, x, weight, bias) + 1e-12


def cut(call, x, weight, bias=None):
    return call.compute().detach()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda call, x, weight, bias=None: weighted_sum(call, x, LinearMap(F.linear, -weight)), "disagrees"),
        (
            lambda call, x, weight, bias=None: weighted_sum(call, x, LinearMap(F.linear, weight.abs())),
            "disagrees",
        ),
        (bias_in_the_normaliser, "disagrees"),
        (rounded, "changes the value"),
        (cut, "cuts the signal"),
        (
            lambda call, x, weight, bias=None: weighted_sum(call, x, LinearMap(F.linear, weight * math.nan)),
            "disagrees",
        ),
    ],
    ids=["sign", "absolute", "bias", "value", "cut", "nan"],
)
def test_wrong_linear(registered, linear, wrong, message):
    registered(own_linear, wrong)
    with pytest.raises(ebcli.RuleError, match=message):
        ebcli.check_rule(own_linear, linear)
    assert not ebcli.check_rule(own_linear, linear, raise_exception=False)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda call, a, b: pass_through(call, a),
        lambda call, a, b: residual_sum(call, (a, b), (1, -1)),
        lambda call, a, b: residual_sum(call, (a, b), (1, 2)),
    ],
    ids=["first", "difference", "scale"],
)
def test_wrong_sum(registered, wrong):
    torch.manual_seed(0)
    registered(own_sum, wrong)
    with pytest.raises(ebcli.RuleError, match="disagrees"):
        ebcli.check_rule(own_sum, [torch.randn(2, 3, requires_grad=True) for _ in range(2)])


MADE_OF_OPERATIONS = {
    "linear": (own_linear, lambda call, x, weight, bias=None: x @ weight.mT, F.linear),
    "sum": (own_sum, lambda call, a, b: a + b, torch.add),
    "tanh": (own_tanh, lambda call, a: a.tanh(), torch.tanh),
}


@pytest.mark.parametrize("name", MADE_OF_OPERATIONS)
def test_a_rule_made_of_operations(name, registered, linear):
    """It has the shares of the operations that it is made of."""
    function, own, plain = MADE_OF_OPERATIONS[name]
    x = torch.tensor([[3.0, -3.0, 2.0], [-1.0, 4.0, 5.0]], requires_grad=True)
    inputs = {"linear": [x, linear[1]], "sum": [x, linear[0]], "tanh": [x]}[name]
    registered(function, own)
    assert ebcli.check_rule(function, inputs)
    found, expected = [], []
    for shares, op in ((found, function), (expected, plain)):
        operands = [one.detach().double().requires_grad_(one.requires_grad) for one in inputs]
        with ebcli.excitation_mode():
            value = op(*operands)
            classes = value.flatten()[None] @ torch.eye(value.numel()).double()
        signals = [one for one in operands if one.requires_grad]
        shares.extend(torch.autograd.grad(classes, signals, torch.ones_like(classes)))
    torch.testing.assert_close(found, expected)


def test_a_promise_not_kept(registered):
    registered(own_tanh, lambda call, a: pass_through(call, a, nonnegative=True))
    with pytest.raises(ebcli.RuleError, match="sets nonnegative=True"):
        ebcli.check_rule(own_tanh, torch.randn(2, 3, requires_grad=True))


def test_zero_not_kept(registered):
    registered(own_tanh, lambda call, a: pass_through(call, a, keeps_zero=True))
    x = torch.randn(2, 3, requires_grad=True)
    assert ebcli.check_rule(own_tanh, x)
    own_exp = torch.overrides.wrap_torch_function(lambda a: (a,))(lambda a: a.exp())
    registered(own_exp, lambda call, a: pass_through(call, a, keeps_zero=True))
    with pytest.raises(ebcli.RuleError, match="sets keeps_zero=True"):
        ebcli.check_rule(own_exp, x)


@pytest.mark.parametrize(
    ("per_output", "message"),
    [
        (lambda scale: scale.abs()[:, None], "with a batch norm on top"),
        (lambda scale: scale[None, :], "with a batch norm on top"),
    ],
    ids=["no_sign", "wrong_axis"],
)
def test_scales_of_a_batch_norm(registered, per_output, message):
    torch.manual_seed(0)
    square = [torch.randn(3, 4, requires_grad=True), torch.randn(4, 4, dtype=torch.float64)]
    registered(
        own_linear, lambda call, x, w, b=None: weighted_sum(call, x, LinearMap(F.linear, w, per_output))
    )
    with pytest.raises(ebcli.RuleError, match=message):
        ebcli.check_rule(own_linear, square)
    unregister(own_linear)
    rule(own_linear)(
        lambda call, x, w, b=None: weighted_sum(call, x, LinearMap(F.linear, w, lambda scale: scale[:, None]))
    )
    assert ebcli.check_rule(own_linear, square)


def test_slips_of_the_pen(registered, linear):
    registered(own_linear, lambda call, x, weight, bias=None: None)
    with pytest.raises(
        ebcli.RuleError, match=r"own_linear failed \(as given\).*returned None: return the value"
    ):
        ebcli.check_rule(own_linear, linear)
    registered(own_sum, lambda call, a, b: residual_sum(call, (a, b), (1,)))
    with pytest.raises(ebcli.RuleError, match=r"own_sum failed.*2 signals but 1 scales"):
        ebcli.check_rule(own_sum, [torch.randn(2, 3, requires_grad=True) for _ in range(2)])


def test_inputs_that_are_too_large_or_empty():
    with pytest.raises(ValueError, match=r"has 1024 elements.*use 1 to 1000"):
        ebcli.check_rule(F.relu, torch.randn(32, 32, requires_grad=True))
    with pytest.raises(ValueError, match="has 0 elements"):
        ebcli.check_rule(F.relu, torch.randn(0, 3, requires_grad=True))


def test_precision(registered, linear):
    def coarse(call, x, weight, bias=None):
        return right(call, x, weight) if x.dtype == torch.float64 else call.compute().detach()

    registered(own_linear, coarse)

    class Own(nn.Linear):
        def forward(self, x):
            return own_linear(x, self.weight, self.bias)

    with pytest.raises(ebcli.RuleError, match=r"\(in float32\)"):
        ebcli.check_rule(Own(3, 2), linear[0])


def test_one_of_two_memory_layouts(registered):
    registered(own_tanh, lambda call, a: pass_through(call, a) if a.is_contiguous() else a * 2)
    with pytest.raises(ebcli.RuleError, match="non-contiguous"):
        ebcli.check_rule(own_tanh, torch.randn(2, 3, requires_grad=True))


def test_the_report_names_the_place(registered):
    registered(own_sum, lambda call, a, b: residual_sum(call, (a, b), (1, 2)))
    a, b = torch.tensor([1.0, 3.0], requires_grad=True), torch.tensor([1.0, 1.0], requires_grad=True)
    with pytest.raises(ebcli.RuleError) as raised:
        ebcli.check_rule(own_sum, (a, b))
    assert str(raised.value) == (
        "the rule for own_sum disagrees with the definition (as given):\n"
        "  output 0, element (0,), value 2\n"
        "  input 0, element (0,)\n"
        "  share: 0.333333, expected 0.5\n"
        "  sum of all shares: 1, expected 1\n"
        "  4 of 8 shares differ"
    )


def test_operations_without_a_rule(linear):
    """The operations that a function is made of have rules, or are refused by name."""
    assert ebcli.check_rule(own_linear, linear)
    with pytest.raises(ebcli.UnsupportedOpError, match="cumprod"):
        ebcli.check_rule(torch.cumprod, [linear[0], 1])


def test_wrong_use(linear):
    with pytest.raises(ValueError, match="no input requires grad"):
        ebcli.check_rule(F.relu, torch.randn(3))
    with pytest.raises(ValueError, match=r"\(2, 3\) does not broadcast to \(2, 4\)"):
        ebcli.check_rule(F.linear, linear, passes_through=True)
    with pytest.raises(ebcli.RuleError, match="fails with float64"):
        ebcli.check_rule(lambda x: F.linear(x, torch.ones(2, 3)), linear[0])
    for operation, inputs in ((3, linear[0]), (F.relu, 3)):
        with pytest.raises(ebcli.EbcliError, match="an operation and its arguments"):
            ebcli.check_rule(operation, inputs)


def test_nothing_is_changed(linear):
    layer, x = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), linear[0]
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    values = x.detach().clone()
    assert ebcli.check_rule(layer, x)
    assert layer.training
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())
    assert all(p.dtype == torch.float32 and p.grad is None for p in layer.parameters())
    assert torch.equal(x, values)
    assert x.grad is None
    assert x.dtype == torch.float32
