"""Every built-in rule against the definition, by check_rule, over the parameters that its operation has."""

import itertools
from collections import Counter

import pytest
import torch
import torchvision
from torch import nn
from torch.nn import functional as F

import ebcli

CASES = {}


def case(name, fn, *inputs, **options):
    """One check: tuples stand for random signals of that shape, tensors and all else for constants."""
    assert name not in CASES
    CASES[name] = fn, inputs, options


def combinations(**parameters):
    """Combinations of parameters that have each pair of values of two of them at least once, as (title, dict)."""

    def pairs(values):
        return set(itertools.combinations(zip(parameters, values, strict=True), 2))

    every = list(itertools.product(*parameters.values()))
    missing = set().union(*map(pairs, every))
    while missing:
        values = max(every, key=lambda one: len(pairs(one) & missing))
        missing -= pairs(values)
        yield (
            ",".join(f"{k}={v}" for k, v in zip(parameters, values, strict=True)),
            dict(zip(parameters, values, strict=True)),
        )


def weights(*shape):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


# layers with weights
for bias in (True, False):
    case(f"linear bias={bias}", nn.Linear(5, 4, bias=bias), (3, 5))
    case(f"linear of three axes bias={bias}", nn.Linear(4, 3, bias=bias), (2, 3, 4))
    case(f"conv1d bias={bias}", nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2, bias=bias), (2, 4, 7))
    case(f"conv3d bias={bias}", nn.Conv3d(2, 3, 2, padding=1, dilation=2, bias=bias), (1, 2, 3, 3, 3))
case("linear unbatched", nn.Linear(5, 4), (5,))
case("conv2d unbatched", nn.Conv2d(2, 3, 2), (2, 3, 3))
for title, options in combinations(
    stride=[1, 2, (1, 2)], padding=[0, 1, (0, 2)], dilation=[1, 2], groups=[1, 2]
):
    case(f"conv2d {title}", nn.Conv2d(2, 4, 2, **options), (1, 2, 3, 4))
case("conv2d padding=circular", nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), (1, 2, 4, 4))
case("conv2d padding=same", nn.Conv2d(2, 3, 3, padding="same", dilation=2), (1, 2, 4, 4))
case("conv2d depthwise", nn.Conv2d(3, 6, 3, padding=1, groups=3), (1, 3, 4, 4))
for title, options in combinations(stride=[1, 2], padding=[0, 1], dilation=[1, 2], groups=[1, 2]):
    case(f"conv_transpose2d {title}", nn.ConvTranspose2d(2, 4, 2, **options), (1, 2, 2, 3))
case("conv_transpose2d output_padding", nn.ConvTranspose2d(2, 3, 3, stride=2, output_padding=1), (1, 2, 2, 3))
case("conv_transpose1d", nn.ConvTranspose1d(2, 4, 3, stride=2, groups=2), (2, 2, 4))
case("conv_transpose3d", nn.ConvTranspose3d(2, 3, 2), (1, 2, 2, 2, 2))

# averages and sums
for title, options in combinations(
    kernel_size=[2, 3],
    stride=[1, 2],
    padding=[0, 1],
    ceil_mode=[False, True],
    count_include_pad=[False, True],
):
    case(f"avg_pool2d {title}", nn.AvgPool2d(**options), (1, 1, 4, 5))
case("avg_pool2d divisor_override", nn.AvgPool2d(2, divisor_override=3), (1, 2, 4, 4))
case("avg_pool1d", nn.AvgPool1d(3, 2, 1), (1, 2, 7))
case("avg_pool3d", nn.AvgPool3d(2), (1, 2, 4, 2, 2))
for size in (1, 3, (2, None)):
    case(f"adaptive_avg_pool2d {size}", nn.AdaptiveAvgPool2d(size), (1, 2, 5, 4))
case("adaptive_avg_pool1d", nn.AdaptiveAvgPool1d(3), (1, 2, 7))
case("adaptive_avg_pool3d", nn.AdaptiveAvgPool3d(2), (1, 2, 3, 3, 3))
for title, options in combinations(dim=[1, (1, 2), -1], keepdim=[False, True]):
    case(f"mean {title}", lambda a, options=options: a.mean(**options), (2, 3, 4))
    case(f"sum {title}", lambda a, options=options: torch.sum(a, **options), (2, 3, 4))
case("mean of all", torch.mean, (2, 3))
case("cumsum", lambda a: a.cumsum(1), (2, 4))
case("fold", nn.Fold((4, 4), 2), (1, 8, 9))
for mode in ("nearest", "nearest-exact", "bilinear", "area"):
    case(f"interpolate {mode} up", nn.Upsample(scale_factor=2, mode=mode), (1, 2, 3, 3))
    case(f"interpolate {mode} to size", nn.Upsample(size=(2, 5), mode=mode), (1, 2, 3, 3))
case("interpolate align_corners", nn.Upsample(size=(5, 4), mode="bilinear", align_corners=True), (1, 2, 3, 3))
case("interpolate linear", nn.Upsample(scale_factor=2, mode="linear"), (1, 2, 4))
case("interpolate trilinear", nn.Upsample(scale_factor=2, mode="trilinear"), (1, 1, 2, 2, 2))
case(
    "interpolate antialias", lambda a: F.interpolate(a, (2, 2), mode="bilinear", antialias=True), (1, 2, 5, 5)
)

grid = torch.linspace(-1.3, 1.2, 24, dtype=torch.float64).reshape(1, 3, 4, 2)
for title, options in combinations(
    mode=["bilinear", "nearest"], padding_mode=["zeros", "border", "reflection"], align_corners=[False, True]
):
    case(
        f"grid_sample {title}",
        lambda a, g, options=options: F.grid_sample(a, g, **options),
        (1, 2, 3, 3),
        grid,
    )
case(
    "grid_sample of a volume",
    lambda a: F.grid_sample(a, grid.reshape(1, 2, 2, 2, 3).to(a), align_corners=True),
    (1, 1, 2, 3, 2),
)

# the winner takes all
for title, options in combinations(
    kernel_size=[2, 3], stride=[1, 2], padding=[0, 1], ceil_mode=[False, True]
):
    case(f"max_pool2d {title}", nn.MaxPool2d(**options), (1, 1, 4, 5))
case("max_pool2d dilation", nn.MaxPool2d(2, 1, dilation=2), (1, 2, 5, 5))
case("max_pool2d indices", lambda a: F.max_pool2d(a, 2, return_indices=True), (1, 2, 4, 4))
case("max_pool1d", nn.MaxPool1d(3, 2), (1, 2, 7))
case("max_pool3d", nn.MaxPool3d(2), (1, 2, 4, 2, 2))
case("adaptive_max_pool1d", nn.AdaptiveMaxPool1d(3), (1, 2, 7))
case("adaptive_max_pool2d", nn.AdaptiveMaxPool2d((2, 3)), (1, 2, 5, 5))
case("adaptive_max_pool3d", nn.AdaptiveMaxPool3d(2), (1, 1, 3, 3, 3))
case("max", lambda a: a.max(1).values, (2, 4))
case("amax", lambda a: a.amax((1, 2)), (2, 3, 3))
case("maximum", torch.maximum, (2, 3), (2, 3))
case("topk", lambda a: a.topk(2).values, (2, 5))
case("sort", lambda a: a.sort(1).values, (2, 5))

# one input, one output
ODD = "relu relu6 hardtanh leaky_relu elu celu selu hardswish silu gelu mish tanh softsign hardshrink softshrink"
ODD += " tanhshrink sigmoid hardsigmoid softplus logsigmoid"
for name in ODD.split():
    case(name, getattr(F, name), (3, 4))
for name in (
    "erf asinh atan sinh sin expm1 sign round trunc nan_to_num abs square exp exp2 reciprocal cos neg".split()
):
    case(name, getattr(torch, name), (3, 4))
for name in "log log2 log10 sqrt rsqrt logit log1p".split():  # of what can only be positive, or less than 1
    function = getattr(torch, name)
    case(name, lambda a, function=function: function(a.abs() / 4 + 0.1), (3, 4))
case("detach", torch.detach, (3, 4))
for name in "tanh_ sigmoid_ relu_ exp_ neg_ abs_".split():
    case(f"in place: {name}", getattr(torch, name), (3, 4))
case("in place: silu", nn.SiLU(inplace=True), (3, 4))
case("prelu", nn.PReLU(3), (2, 3, 4))
case("rrelu", nn.RReLU(), (3, 4))
case("threshold", nn.Threshold(0.3, -2.0), (3, 4))
for low, high in ((0, 6), (-1, 1), (0.5, 2), (None, 1)):
    case(f"clamp {low} {high}", lambda a, low=low, high=high: a.clamp(low, high), (3, 4))
case("clamp_min", lambda a: torch.clamp_min(a, 0), (3, 4))
case("pow", lambda a: a**2, (3, 4))
case("float_power", lambda a: torch.float_power(a, 3), (3, 4))
for layer in (nn.Dropout(), nn.Dropout2d(), nn.AlphaDropout(), nn.FeatureAlphaDropout()):
    case(type(layer).__name__, layer, (1, 2, 2, 2))

# by convention: units that share a norm, a gate or a softmax keep their own
CONVENTION = {
    "layer_norm": (nn.LayerNorm(4), (2, 3, 4)),
    "group_norm": (nn.GroupNorm(2, 4), (1, 4, 2, 2)),
    "instance_norm": (nn.InstanceNorm2d(2), (1, 2, 3, 3)),
    "rms_norm": (nn.RMSNorm(4), (2, 3, 4)),
    "local_response_norm": (nn.LocalResponseNorm(3), (1, 4, 2, 2)),
    "normalize": (F.normalize, (3, 4)),
    "batch_norm alone": (nn.BatchNorm2d(3), (2, 3, 2, 2)),
    "native_layer_norm": (lambda a: torch.native_layer_norm(a, (4,), None, None, 1e-5)[0], (2, 3, 4)),
    "native_batch_norm": (
        lambda a: torch.native_batch_norm(a, None, None, weights(3), weights(3) ** 2 + 1, False, 0.1, 1e-5)[
            0
        ],
        (2, 3, 2, 2),
    ),
    "softmax": (nn.Softmax(1), (2, 4)),
    "softmin": (nn.Softmin(1), (2, 4)),
    "log_softmax": (nn.LogSoftmax(1), (2, 4)),
    "subtracted from a constant": (lambda a: 2 - a, (2, 3)),
    "scale and shift": (lambda a: 2 * a + 3, (2, 3)),
    "scale and shift at once": (lambda a: torch.addcmul(weights(4), weights(4) + 2, a), (2, 4)),
    "added to a scaled constant": (lambda a: torch.addcmul(a, weights(4), weights(4)), (2, 4)),
    "lerp from a constant": (lambda a: weights(2, 3).lerp(a, -0.5), (2, 3)),
    "a constant product added": (lambda a: torch.addmm(a, weights(2, 4), weights(4, 3), beta=-2), (2, 3)),
    "gate of itself": (lambda a: a * a.mean(1, keepdim=True).sigmoid(), (2, 4)),
    "layer scale": (lambda a: a * weights(4), (2, 3, 4)),
    "expanded": (lambda a: a.expand(3, 2, 4), (2, 4)),
}
for name, (fn, shape) in CONVENTION.items():
    case(name, fn, shape, passes_through=True)

# layers with a batch norm are one layer, of weights with the sign of the batch norm's scale
for layer, shape in (
    (nn.Linear(5, 4), (3, 5)),
    (nn.Conv2d(2, 4, 3, groups=2, bias=False), (2, 2, 4, 4)),
    (nn.ConvTranspose2d(4, 4, 2, groups=2), (1, 4, 2, 2)),
):
    kind = nn.BatchNorm1d if isinstance(layer, nn.Linear) else nn.BatchNorm2d
    norm = kind(4).eval()
    with torch.no_grad():
        for tensor in (norm.weight, norm.bias, norm.running_mean):
            tensor.copy_(weights(4) if tensor is norm.weight else weights(4) / 3)
        norm.weight[1] = -1.5
        norm.running_var.uniform_(0.5, 2)
    case(f"{type(layer).__name__} and batch norm", nn.Sequential(layer, norm), shape)
    case(
        f"{type(layer).__name__}, batch norm and ReLU",
        nn.Sequential(layer, norm, nn.ReLU(inplace=True)),
        shape,
    )

# sums and products
for scale in (1, -0.5, 2):
    case(f"add alpha={scale}", lambda a, b, scale=scale: torch.add(a, b, alpha=scale), (2, 3), (2, 3))
    case(f"sub alpha={scale}", lambda a, b, scale=scale: torch.sub(a, b, alpha=scale), (2, 3), (2, 3))
    case(f"rsub alpha={scale}", lambda a, b, scale=scale: torch.rsub(a, b, alpha=scale), (2, 3), (2, 3))
case("add in place", lambda a, b: a.add_(b), (2, 3), (2, 3))
case("add with broadcasting", torch.add, (2, 3), (3,))
case("add a constant", lambda a: a + 2, (2, 3))
case("mul by a constant", lambda a: -3 * a, (2, 3))
for scale in (1, -0.5):
    case(
        f"addcmul value={scale}",
        lambda a, b, scale=scale: torch.addcmul(a, weights(3), b, value=scale),
        (2, 3),
        (2, 3),
    )
case("lerp", lambda a, b: torch.lerp(a, b, 0.3), (2, 3), (2, 3))
case("lerp beyond the end", lambda a, b: a.lerp(b, 1 + weights(3).abs()), (2, 3), (2, 3))
case("mul by a gate", torch.mul, (2, 3, 2), torch.rand(2, 3, 1))
case("div", lambda a: a / -2, (2, 3))
case("div by a tensor", torch.div, (2, 3), weights(3))
case("rdiv", lambda a: 2 / a, (2, 3))
case("glu", lambda a: F.glu(torch.cat([a, torch.ones_like(a).detach()], 1)), (2, 3))

# matrices
case("matmul", torch.matmul, (2, 3, 4), weights(4, 2))
case("matmul from the left", torch.matmul, weights(3, 2), (1, 2, 3))
case("rmatmul", lambda a: weights(3, 2) @ a, (2, 3))
case("mm", torch.mm, (2, 3), weights(3, 2))
case("bmm", torch.bmm, (2, 2, 3), weights(2, 3, 2))
case(
    "solve_triangular",
    lambda A, a: torch.linalg.solve_triangular(A, a, upper=False, unitriangular=True),
    weights(3, 3),
    (2, 3, 4),
)
case("mv", torch.mv, (3, 2), weights(2))
case("einsum", lambda a: torch.einsum("bij,kj->bki", a, weights(2, 3)), (2, 2, 3))
case("einsum of one", lambda a: torch.einsum("bij->bj", a), (2, 2, 3))
case("addmm", lambda a: torch.addmm(weights(2), a, weights(3, 2)), (2, 3))
case("addmv", lambda a: torch.addmv(weights(3), weights(3, 2), a), (2,))
case("baddbmm", lambda a: torch.baddbmm(weights(2, 1, 1), a, weights(2, 3, 2), beta=2, alpha=-0.5), (2, 2, 3))
case("addbmm", lambda a: torch.addbmm(weights(2, 2), a, weights(2, 3, 2)), (2, 2, 3))
for bias in (True, False):
    case(f"bilinear bias={bias}", nn.Bilinear(3, 4, 2, bias=bias), (2, 3), weights(2, 4))
case("bilinear of the other", nn.Bilinear(3, 4, 2), weights(2, 5, 3), (2, 5, 4))
attention = F.scaled_dot_product_attention
case("attention", attention, weights(1, 2, 3, 4), weights(1, 2, 5, 4), (1, 2, 5, 3))

# writing that accumulates
rows = torch.tensor([0, 1, 1])
case("index_put", lambda a, b: a.index_put((rows,), b, accumulate=True), (2, 3), (3, 3))
case("index_put of values", lambda a, b: a.index_put((rows[:2],), b), (2, 3), (2, 3))
case("index_add", lambda a, b: a.index_add(0, rows, b), (2, 3), (3, 3))
case("scatter_add", lambda a, b: a.scatter_add(0, rows[:, None].expand(3, 3), b), (2, 3), (3, 3))
case("scatter", lambda a, b: a.scatter(1, torch.tensor([[0], [2]]), b), (2, 3), (2, 1))

# operators behind PyTorch's functions
case(
    "convolution",
    lambda a: torch.convolution(a, weights(4, 2, 2, 2), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
    (1, 2, 3, 3),
)
case("aten.linear", lambda a: torch.ops.aten.linear.default(a, weights(4, 5)), (3, 5))
case("interpolate bicubic", nn.Upsample(scale_factor=2, mode="bicubic"), (1, 2, 3, 3))
case("upsample_bicubic2d", lambda a: torch.ops.aten.upsample_bicubic2d(a, [5, 4], False), (1, 2, 3, 3))
case("norm", lambda a: a.norm(dim=1), (3, 4))
case("norm of order 3", lambda a: torch.norm(a, 3, (0, 2), True), (3, 4, 2))
case("norm of all", torch.norm, (3, 4))
case("vector_norm", lambda a: torch.linalg.vector_norm(a, 1, -1), (3, 4))
case("copied into", lambda a: torch.ops.aten.copy.default(weights(2, 3, 4), a), (3, 4))
case(
    "interpolate bicubic down",
    lambda a: F.interpolate(a, (2, 3), mode="bicubic", antialias=True),
    (1, 1, 5, 4),
)
case(
    "roi_align",
    lambda a: torchvision.ops.roi_align(
        a, torch.tensor([[0.0, 0.3, 0.2, 3.4, 3.1]]).to(a), 2, sampling_ratio=2
    ),
    (1, 2, 4, 4),
)

# products of elementwise functions of one tensor
case("square by hand", lambda a: a * a, (3, 4))
case("gelu by hand", lambda a: 0.5 * a * (1 + torch.erf(a / 2**0.5)), (3, 4))
case("mish by hand", lambda a: a * torch.tanh(F.softplus(a)), (3, 4))

# copies and moves
case("cat", lambda a, b: torch.cat([a, b, torch.ones_like(a).detach()], 1), (2, 3), (2, 1))
case("stack", lambda a, b: torch.stack([a, b]), (2, 2), (2, 2))
case("split", lambda a: a.split(2, 1), (2, 5))
case("chunk", lambda a: a.chunk(2, 1)[1], (2, 4))
case("index", lambda a: a[:, [0, 0, 2], 1:], (2, 3, 3))
case("roll", lambda a: a.roll((1, -1), (0, 1)), (3, 3))
case("flip", lambda a: a.flip(1), (2, 3))
case("pad", lambda a: F.pad(a, (1, 2, 0, 1), value=3.0), (2, 3))
case("reflection pad", nn.ReflectionPad2d(1), (1, 1, 3, 3))
case("permute", lambda a: a.permute(2, 0, 1).reshape(3, -1), (2, 2, 3))
case("unfold", nn.Unfold(2), (1, 2, 3, 3))
case("pixel_shuffle", nn.PixelShuffle(2), (1, 4, 2, 2))
case("repeat", lambda a: a.repeat(2, 1), (2, 3))
case("masked_fill", lambda a: a.masked_fill(torch.eye(3, dtype=torch.bool), -5.0), (3, 3))
case("where", lambda a, b: torch.where(torch.eye(3, dtype=torch.bool), a, b), (3, 3), (3, 3))
case("where_positive", lambda a: torch.where(a > 0, a, a / 5), (3, 3))
case(
    "assignment",
    lambda a, b: torch.zeros_like(a).detach().index_copy(0, torch.tensor([1]), b) + a * 0,
    (2, 3),
    (1, 3),
)


def arguments(inputs):
    torch.manual_seed(0)
    return [
        torch.randn(i, dtype=torch.float64, requires_grad=True) if isinstance(i, tuple) else i for i in inputs
    ]


def parameters():
    """The names of the cases; of those that differ in a parameter or in the number of axes, few are default tests."""
    seen = Counter()
    for name in CASES:
        operation, _, parameter = name.partition(" ")
        seen[operation] += "=" in parameter or operation == "interpolate"
        is_like_others = seen[operation] > 2 or operation.endswith(("1d", "3d", "linear of three axes"))
        yield pytest.param(name, marks=[pytest.mark.release] * is_like_others)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", parameters())
def test_rule(name):
    fn, inputs, options = CASES[name]
    assert ebcli.check_rule(fn, arguments(inputs), **options)
