"""A call says nothing, and imports nothing that PyTorch does not need for it."""

import subprocess
import sys
import warnings

import pytest
import torch
import torchvision
from nets import NUM_CLASSES, SqueezeExcitation, head
from torch import nn
from torch.nn import functional as F
from twins import images, seeded

import ebcli


class Between(nn.Module):
    """A convolution, a function of its output, a GELU, and a head.

    Args:
        function: of the module and the output (B, 4, 6, 6).
        modules: more modules, as attributes.
    """

    def __init__(self, function, **modules):
        super().__init__()
        self.conv, self.rest = nn.Conv2d(3, 4, 3), nn.Sequential(nn.GELU(), nn.Conv2d(4, 4, 1), *head(4))
        self.function = function
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, x):
        return self.rest(self.function(self, self.conv(x)))


def boxes(y):
    """One box for each image, as `roi_align` wants them: (images, 5), index first."""
    return torch.cat(
        [torch.arange(len(y))[:, None], torch.tensor([[0.5, 1.0, 4.5, 5.0]]).expand(len(y), -1)], 1
    ).to(y)


def grid(y):
    points = torch.linspace(-0.8, 0.9, 5, dtype=y.dtype)
    return torch.stack(torch.meshgrid(points, points, indexing="xy"), -1).expand(len(y), -1, -1, -1)


def attention(net, y):
    tokens = y.flatten(2).mT
    return net.attention(tokens, tokens, tokens, need_weights=False)[0].mT.unflatten(2, y.shape[2:])


BICUBIC = {"mode": "bicubic", "align_corners": False}
NETS = {
    "InstanceNorm, PReLU, squeeze-excitation": lambda: Between(
        lambda net, y: net.excitation(net.act(net.norm(y))),
        norm=nn.InstanceNorm2d(4, affine=True), act=nn.PReLU(4), excitation=SqueezeExcitation(),
    ),
    "index by a list": lambda: Between(lambda net, y: y[:, [2, 0, 1, 1]]),
    "index of images by a list": lambda: Between(lambda net, y: y[[*range(len(y))]]),
    "write by a list": lambda: Between(lambda net, y: y.clone().index_put_((torch.tensor([0]),), y[:1] * 2)),
    "roi_align": lambda: Between(lambda net, y: torchvision.ops.roi_align(y, boxes(y), 3, sampling_ratio=2)),
    "grid_sample": lambda: Between(lambda net, y: F.grid_sample(y, grid(y), align_corners=False)),
    "bicubic, antialiased": lambda: Between(lambda net, y: F.interpolate(y, size=4, antialias=True, **BICUBIC)),
    "attention": lambda: Between(attention, attention=nn.MultiheadAttention(4, 2, batch_first=True)),
    "max pooling": lambda: Between(lambda net, y: F.max_unpool2d(*F.max_pool2d(y, 2, return_indices=True), 2)),
}  # fmt: skip
CALLS = {
    "one target": {"targets": 1},
    "targets of each image": {"targets": [[0, 1], [2, 3]]},
    "contrastive": {"targets": [[0, 1], [2, 3]], "contrastive": True},
    "against": {"targets": [[0, 1], [2, 3]], "against": (NUM_CLASSES - 1,)},
    "lost mass": {"targets": [[0, 1], [2, 3]], "track_lost_mass": True},
}


@pytest.fixture
def warnings_are_errors():
    """Also those that PyTorch gives once a process."""
    torch.set_warn_always(True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    torch.set_warn_always(False)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("name", NETS)
def test_nothing_is_warned_of(name, joint, warnings_are_errors):
    net = seeded(NETS[name])
    for options in CALLS.values():
        ebcli.excitation_backprop(net, images((2, 3, 8, 8)), layer=[None, "conv"], joint=joint, **options)


@pytest.mark.parametrize("name", NETS)
def test_nothing_is_warned_of_in_the_mode(name, warnings_are_errors):
    net, x = seeded(NETS[name]), images((2, 3, 8, 8)).requires_grad_()
    with ebcli.excitation_mode(net):
        logits = net(x)
    logits.backward(torch.ones_like(logits))


CODE = """
import sys
import torch
from torch import nn
from ebcli import excitation_backprop

class Gated(nn.Module):
    def forward(self, y):
        return y * y.mean(2, keepdim=True).sigmoid()

layer = nn.TransformerEncoderLayer(4, 2, 8, activation="gelu", batch_first=True)
stem = nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), nn.SiLU(), Gated())
nets = [
    nn.Sequential(nn.Linear(4, 4), layer, nn.Flatten(), nn.Linear(12, 5)),
    nn.Sequential(stem, nn.MaxPool1d(2), nn.Flatten(), nn.Linear(4, 5)),
]
for net in nets:
    for options in ({}, {"contrastive": True}, {"joint": True}, {"joint": False, "track_lost_mass": True}):
        excitation_backprop(net, torch.randn(2, 3, 4), [[1, 2], [3, 4]], [None, "0"], **options)
print(sorted({"sympy", "torch._dynamo", "torch._inductor", "torchvision"} & {*sys.modules}))
"""


def test_a_call_imports_no_compiler():
    """SymPy takes half a second, and the compiler several."""
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "[]\n"
    assert done.stderr == ""
