"""Small networks in float64, each with one or two of the habits of real ones."""

import torch
from torch import nn
from torch.nn import functional as F

import ebcli

NUM_CLASSES = 5


def unsettle(net: nn.Module) -> nn.Module:
    """Float64, evaluation mode, and batch norms with statistics of their own and gammas of both signs."""
    net = net.double().eval()
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            nn.init.uniform_(module.weight, 0.3, 2)
            module.weight.data[::2] *= -1
            nn.init.normal_(module.bias, std=0.5)
            nn.init.normal_(module.running_mean, std=0.5)
            nn.init.uniform_(module.running_var, 0.3, 2)
    return net


def head(channels: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, NUM_CLASSES)]


class Residual(nn.Module):
    """A basic block as torchvision writes it: `out += identity`, ReLUs that work in place, one of them called twice."""

    def __init__(self, channels: int = 4, out: int = 6) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, out, 3, 2, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.downsample = nn.Sequential(nn.Conv2d(channels, out, 1, 2, bias=False), nn.BatchNorm2d(out))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.downsample(x)
        return self.relu(out)


class SqueezeExcitation(nn.Module):
    def __init__(self, channels: int = 4, gate: nn.Module | None = None) -> None:
        super().__init__()
        self.squeeze, self.excite = nn.Conv2d(channels, 2, 1), nn.Conv2d(2, channels, 1)
        self.gate = gate or nn.Sigmoid()

    def forward(self, x):
        scale = x.mean((2, 3), keepdim=True)
        scale = self.gate(self.excite(F.relu(self.squeeze(scale))))
        return x * scale


class Dense(nn.Module):
    """Concatenation with batch norm before ReLU, so that shifted zeros hand probability to silent units."""

    def __init__(self, channels: int = 4) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, channels, 3, 1, 1), nn.ReLU(True))
        self.bn1, self.conv1 = nn.BatchNorm2d(channels), nn.Conv2d(channels, 3, 3, 1, 1)
        self.bn2, self.conv2 = nn.BatchNorm2d(channels + 3), nn.Conv2d(channels + 3, 4, 1)
        self.fc = nn.Linear(4, NUM_CLASSES)

    def forward(self, x):
        x = self.stem(x)
        x = torch.cat([x, self.conv1(F.relu(self.bn1(x)))], 1)
        x = F.relu(self.conv2(F.relu(self.bn2(x), inplace=True)))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class LayerScale(nn.Module):
    """ConvNeXt's: depthwise convolution, layer norm over channels, a scale for each channel, and a residual sum."""

    def __init__(self, channels: int = 4) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 3, 1, 1, groups=channels)
        self.norm, self.expand = nn.LayerNorm(channels), nn.Linear(channels, 6)
        self.act, self.project = nn.GELU(), nn.Linear(6, channels)
        self.scale = nn.Parameter(torch.randn(channels, 1, 1))

    def forward(self, x):
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.project(self.act(self.expand(y))).permute(0, 3, 1, 2)
        return x + self.scale * y


class TwoHeads(nn.Module):
    """Two classifiers, averaged: one is deeper than the other."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(6, 8), nn.ReLU())
        self.deeper = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        self.first, self.second = nn.Linear(8, NUM_CLASSES), nn.Linear(8, NUM_CLASSES)

    def forward(self, x):
        x = self.stem(x)
        return (self.first(x) + self.second(self.deeper(x))) / 2


class Functional(nn.Module):
    """Everything called by keyword or through torch.nn.functional."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(4, 3, 3, 3)), nn.Parameter(torch.randn(4))
        self.bn, self.fc = nn.BatchNorm2d(4), nn.Parameter(torch.randn(NUM_CLASSES, 4))

    def forward(self, x):
        x = F.conv2d(input=x, weight=self.weight, bias=self.bias, stride=2)
        bn = self.bn
        x = F.batch_norm(x, bn.running_mean, bn.running_var, weight=bn.weight, bias=bn.bias)
        x = F.max_pool2d(F.relu(input=x, inplace=True), kernel_size=2, stride=1)
        return F.linear(x.mean(dim=(2, 3)), weight=self.fc)


class TokenBatchNorm(nn.Module):
    """A linear layer over the last axis, and a batch norm over the tokens, which are the axis before it."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.mix, self.bn = nn.Linear(5, width), nn.BatchNorm1d(tokens)
        self.fc = nn.Linear(tokens * width, NUM_CLASSES)

    def forward(self, x):
        return self.fc(torch.flatten(F.relu(self.bn(self.mix(x))), 1))


def _stage(*layers: nn.Module, channels: int, before: int = 4) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, before, 3, 1, 1), nn.ReLU(), *layers, *head(channels))


IMAGE, WIDE, VOLUME = (2, 3, 6, 6), (2, 3, 9, 7), (2, 2, 5, 5, 5)
VECTOR, TOKENS = (2, 6), (2, 4, 5)

# name: how to make it, the input's shape, and the layers to look at
NETS = {
    "mlp_tanh": (
        lambda: nn.Sequential(
            nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 7, bias=False), nn.Tanh(), nn.Linear(7, NUM_CLASSES)
        ),
        VECTOR,
        ["0", "1", "2", "3"],
    ),
    "cnn": (
        lambda: nn.Sequential(
            *(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)),
            *(nn.Conv2d(4, 6, 3, 1, 1), nn.BatchNorm2d(6), nn.ReLU(True), nn.AvgPool2d(2, 1)),
            *(nn.Flatten(), nn.Dropout(), nn.Linear(36, NUM_CLASSES)),
        ),
        WIDE,
        ["0", "1", "2", "4", "6"],
    ),
    "conv3d": (
        lambda: nn.Sequential(
            *(nn.Conv3d(2, 3, 3), nn.BatchNorm3d(3), nn.ReLU(), nn.MaxPool3d(2, 1), nn.AvgPool3d(2)),
            *(nn.Flatten(), nn.Linear(3, NUM_CLASSES)),
        ),
        VOLUME,
        ["2"],
    ),
    "grouped_strided_dilated": (
        lambda: _stage(
            *(nn.Conv2d(4, 8, 3, 2, 1, groups=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 2, groups=8)),
            *(nn.BatchNorm2d(8), nn.Hardswish(True), nn.Conv2d(8, 4, 3, padding=2, dilation=2), nn.ReLU6()),
            channels=4,
        ),
        WIDE,
        ["1", "4"],
    ),
    "transposed": (
        lambda: _stage(
            *(
                nn.ConvTranspose2d(4, 6, 3, 2, 1, output_padding=1, groups=2),
                nn.BatchNorm2d(6),
                nn.ReLU(True),
            ),
            *(nn.ConvTranspose2d(6, 3, 2, dilation=2), nn.BatchNorm2d(3), nn.Tanh()),
            channels=3,
        ),
        (2, 3, 3, 4),
        ["1", "4"],
    ),
    "residual": (lambda: _stage(Residual(), channels=6), IMAGE, ["1", "2.conv1", "2.bn2", "2.downsample.1"]),
    "squeeze_excitation": (
        lambda: _stage(SqueezeExcitation(), nn.Conv2d(4, 5, 3), nn.ReLU(), channels=5),
        IMAGE,
        ["1"],
    ),
    "dense": (Dense, IMAGE, ["stem.0", "stem.1", "bn1", "conv1"]),
    "layer_scale": (lambda: _stage(LayerScale(), LayerScale(), channels=4), (2, 3, 4, 4), ["1", "2.act"]),
    "classifier_conv_relu": (
        lambda: nn.Sequential(
            *(nn.Conv2d(3, 6, 3), nn.ReLU(True), nn.Dropout(), nn.Conv2d(6, NUM_CLASSES, 1), nn.ReLU(True)),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        ),
        IMAGE,
        ["1", "2"],
    ),
    "two_heads_of_different_depth": (TwoHeads, VECTOR, ["stem.1"]),
    "functional": (Functional, WIDE, []),
    "square_token_batch_norm": (lambda: TokenBatchNorm(4, 4), TOKENS, []),
}

ACTIVATIONS = [
    nn.ReLU(True), nn.ReLU6(), nn.LeakyReLU(0.2, True), nn.ELU(), nn.Tanh(), nn.Sigmoid(), nn.Hardswish(),
    nn.Hardsigmoid(), nn.SiLU(True), nn.GELU(), nn.GELU("tanh"), nn.Mish(), nn.Softplus(), nn.Hardtanh(0, 6),
    nn.Hardtanh(), nn.Softsign(), nn.PReLU(init=-0.3),
]  # fmt: skip


def relevance_of(net, x, prior):
    with ebcli.excitation_mode():
        logits = net(x)
    return torch.autograd.grad(logits, x, prior)[0]


def bare():
    """A network whose logits are all negative, an input that requires grad, and a prior."""
    torch.manual_seed(1)
    net = unsettle(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(True), nn.Flatten(), nn.Linear(64, 5)))
    net[3].bias.data -= 100
    x = torch.randn(2, 3, 6, 6, dtype=torch.float64, requires_grad=True)
    return net, x, torch.rand(2, 5, dtype=torch.float64)


def assert_same(found, expected):
    assert expected.abs().max() > 1e-6
    assert (found - expected).abs().max() <= 1e-10 * max(1, expected.abs().max().item())


def one_hot(*classes):
    return F.one_hot(torch.tensor(classes), NUM_CLASSES).double()


def classifier():
    torch.manual_seed(0)
    return unsettle(nn.Sequential(nn.Conv2d(3, 9, 3), nn.ReLU(), *head(9))), torch.randn(
        IMAGE, dtype=torch.float64
    )
