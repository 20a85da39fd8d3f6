"""Networks of the paper's time against zennit, another library's implementation of the same rule.

With non-negative inputs and ReLUs every neuron that gets probability is active, and Eq. 10 is LRP's z+ rule with the
bias left out. Weights are random: what matters is that the two agree.
"""

import pytest
import torch
import torchvision
from nets import unsettle
from torch import nn
from zennit.canonizers import SequentialMergeBatchNorm
from zennit.core import Composite
from zennit.rules import Norm, Pass, ZPlus
from zennit.types import AvgPool, Linear

import ebcli

NUM_CLASSES = 7
WIDTH = 128  # of the fully connected layers in AlexNet and VGG-16, to keep half a gigabyte of float64 out of the tests
CHANNELS = [size if size == "M" else size // 4 for size in torchvision.models.vgg.cfgs["D"]]  # of VGG-16


def alexnet():
    net = torchvision.models.alexnet(num_classes=NUM_CLASSES)
    net.classifier[1], net.classifier[4] = nn.Linear(9216, WIDTH), nn.Linear(WIDTH, WIDTH)
    net.classifier[6] = nn.Linear(WIDTH, NUM_CLASSES)
    return net


def vgg16():
    with torch.device("meta"):
        net = torchvision.models.VGG(nn.Identity(), NUM_CLASSES, init_weights=False)
    net.features = torchvision.models.vgg.make_layers(CHANNELS)
    net.classifier[0], net.classifier[3] = nn.Linear(25088 // 4, WIDTH), nn.Linear(WIDTH, WIDTH)
    net.classifier[6] = nn.Linear(WIDTH, NUM_CLASSES)
    return net


def squeezenet():
    return torchvision.models.squeezenet1_0(num_classes=NUM_CLASSES)


def googlenet():
    return torchvision.models.googlenet(
        num_classes=NUM_CLASSES, aux_logits=False, transform_input=False, init_weights=False
    )


SITES = [
    (alexnet, "features.7", 64),
    (vgg16, "features.23", 32),
    (squeezenet, "features.7", 64),
    (googlenet, "inception4a", 64),
]


def by_zennit(net, x, prior, layer):
    """The relevance of a layer's output, or of the input: what z+ hands down."""

    def rule_for(_ctx, _name, module):
        if isinstance(module, Linear):
            return ZPlus(stabilizer=1e-20, zero_params="bias")
        if isinstance(module, AvgPool):
            return Norm(stabilizer=1e-20)
        return Pass() if isinstance(module, (nn.ReLU, nn.Dropout, nn.BatchNorm2d)) else None

    seen = []
    if layer is not None:
        handle = net.get_submodule(layer).register_forward_hook(lambda _m, _args, output: seen.append(output))
    with Composite(rule_for, canonizers=[SequentialMergeBatchNorm()]).context(net) as modified:
        start = x.clone().requires_grad_()
        logits = modified(start)
        found = torch.autograd.grad(logits, start if layer is None else seen[0], prior)[0]
    if layer is not None:
        handle.remove()
    return found


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("make", "layer", "size"), SITES, ids=lambda value: getattr(value, "__name__", value)
)
def test_equals_zplus(make, layer, size):
    torch.manual_seed(0)
    net = unsettle(make())
    for module in net.modules():  # random biases: some neurons are active through nothing else
        if isinstance(module, nn.Conv2d) and module.bias is not None:
            nn.init.normal_(module.bias, std=0.05)
        if isinstance(module, nn.BatchNorm2d):
            module.eps = 0  # what zennit folds keeps its eps, and so divides by sqrt(1 + eps) once more
    x = torch.rand(2, 3, size, size, dtype=torch.float64)
    prior = nn.functional.one_hot(torch.tensor([1, 4]), NUM_CLASSES).double()
    for found in ebcli.excitation_backprop(net, x, [1, 4], [layer, None]):
        expected = by_zennit(net, x, prior, found.layer)
        assert expected.max() > 1e-9
        assert (found.relevance - expected).abs().max() <= 1e-6 * expected.max()
