"""Programs of torch.export, as they are and decomposed into core operators, have the maps of the network itself."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from twins import Function, assert_twins, images, seeded


class Layered(nn.Module):
    """A convolution, a module or function on (B, 4, 4, 4), a pooling and a head."""

    def __init__(self, middle):
        super().__init__()
        self.conv, self.middle, self.fc = nn.Conv2d(3, 4, 3), middle, nn.Linear(4, 3)

    def forward(self, x):
        return self.fc(self.middle(self.conv(x)).flatten(2).mean(2))


class SideBySide(nn.Module):
    """The same with several of them, each on a convolution of its own: to decompose a program takes a while."""

    def __init__(self, branches):
        super().__init__()
        self.branches = nn.ModuleList([Layered(branch) for branch in branches])
        self.fc = nn.LazyLinear(3)
        self.eval()(images().float())

    def forward(self, x):
        return self.fc(torch.cat([one.middle(one.conv(x)).flatten(2).mean(2) for one in self.branches], 1))


class Attended(nn.Module):
    """Attention over the 16 positions."""

    def __init__(self, modules):
        super().__init__()
        self.modules_by_hand = modules
        self.norm = nn.LayerNorm(4)
        self.heads = nn.MultiheadAttention(4, 2, batch_first=True) if modules else None

    def forward(self, y):
        tokens = self.norm(y.flatten(2).mT)
        if self.heads is not None:
            return (tokens + self.heads(tokens, tokens, tokens)[0]).mT
        return (tokens + F.scaled_dot_product_attention(tokens, tokens, tokens)).mT


MODULES = {
    "batch_norm": lambda: nn.Sequential(nn.BatchNorm2d(4), nn.ReLU()),
    "group_norm": lambda: nn.Sequential(nn.GroupNorm(2, 4), nn.SiLU()),
    "layer_norm": lambda: nn.Sequential(nn.LayerNorm([4, 4, 4]), nn.GELU()),
    "rms_norm": lambda: nn.Sequential(nn.RMSNorm([4, 4, 4]), nn.GELU()),
    "transposed_convolution": lambda: nn.Sequential(nn.ReLU(), nn.ConvTranspose2d(4, 4, 2, 2)),
    "grouped_transposed_convolution": lambda: nn.Sequential(
        nn.ConvTranspose2d(4, 4, 2, groups=2), nn.BatchNorm2d(4)
    ),
    "adaptive_pooling": lambda: nn.AdaptiveAvgPool2d(3),
    "max_pooling": lambda: nn.Sequential(nn.ReLU(), nn.MaxPool2d(3, 1)),
    "nearest": lambda: nn.Upsample(scale_factor=2),
    "bilinear": lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
    "bicubic_antialiased": lambda: Function(
        lambda y: F.interpolate(y, (3, 3), mode="bicubic", antialias=True)
    ),
    "reflection_padding": lambda: nn.ReflectionPad2d(1),
    "replication_padding": lambda: nn.ReplicationPad2d(1),
    "dropout": lambda: nn.Sequential(nn.Dropout(), nn.BatchNorm2d(4), nn.ReLU(inplace=True)),
    "attention": lambda: Attended(False),
    "multi_head_attention": lambda: Attended(True),
    "glu": lambda: nn.Sequential(nn.Conv2d(4, 8, 1), nn.GLU(1)),
    "pixel_shuffle": lambda: nn.Sequential(nn.Conv2d(4, 16, 1), nn.PixelShuffle(2)),
    "residual": lambda: Function(lambda y: y.relu() - 0.5 * y),
    "squeeze_excitation": lambda: Function(lambda y: y * F.hardsigmoid(y.mean((2, 3), keepdim=True))),
    "norm_of_channels": lambda: Function(lambda y: y * y.norm(dim=(2, 3), keepdim=True)),
    "flip_and_roll": lambda: Function(lambda y: y.flip(2).roll(1, 3)),
    "einsum": lambda: Function(lambda y: torch.einsum("bchw->bcwh", y)),
    "amax": lambda: Function(lambda y: y + y.amax((2, 3), keepdim=True)),
}
ACTIVATIONS = [
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish, nn.Sigmoid),
    *(nn.Tanh, nn.Softplus, nn.Softsign, nn.PReLU, nn.Hardtanh, nn.LogSigmoid, nn.Softmax2d),
]


@pytest.mark.release
@pytest.mark.parametrize("makers", [MODULES.values(), ACTIVATIONS], ids=["modules", "activations"])
def test_decomposed(makers):
    net = seeded(lambda: SideBySide([make() for make in makers]))
    assert_twins(torch.export.export(net, (images(),)).run_decompositions().module(), net)


def test_norms_by_the_statistics_of_the_input():
    net = seeded(lambda: Layered(nn.InstanceNorm2d(4)))
    assert_twins(torch.export.export(net, (images(),)).run_decompositions().module(), net)
