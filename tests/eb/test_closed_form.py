"""Global average pooling and one linear layer on features f that are never negative: the contrastive map in one line.

m(x) = sum_k f_k(x) [w_k+ / sum_k w_k+ F_k  -  |w_k-| / sum_k |w_k-| F_k],    F_k = sum_x f_k(x)
"""

import pytest
import torch
import torchvision
from nets import unsettle
from torch import nn

import ebcli


def resnet():
    net = torchvision.models.resnet18(num_classes=9)
    return net, "layer4", net.fc


def densenet():
    net = torchvision.models.DenseNet(
        growth_rate=8, block_config=(2, 2, 2), num_init_features=8, num_classes=9
    )
    return net, "features.norm5", net.classifier


def mobilenet():
    net = torchvision.models.mobilenet_v2(num_classes=9, width_mult=0.35)
    return net, "features.18", net.classifier[1]


def small():
    head = nn.Linear(12, 9)
    net = nn.Sequential(
        nn.Conv2d(3, 12, 5), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head
    )
    return net, "1", head


@pytest.mark.one_in(2)
@pytest.mark.parametrize("make", [small, resnet, densenet, mobilenet])
@pytest.mark.parametrize("contrastive", [True, False], ids=["contrastive", "marginal"])
def test_last_features(make, contrastive):
    torch.manual_seed(0)
    net, layer, head = make()
    unsettle(net)
    x = torch.randn(2, 3, 64, 96, dtype=torch.float64)
    features = []
    handle = net.get_submodule(layer).register_forward_hook(
        lambda _m, _args, output: features.append(output.clone())
    )
    net(x)
    handle.remove()
    f = features[0].detach().clamp(min=0)  # DenseNet's ReLU comes after the layer
    F = f.sum((2, 3))
    targets = torch.tensor([[0, 8, 3], [5, 2, 3]])
    found = ebcli.excitation_backprop(net, x, targets, layer, contrastive, track_lost_mass=contrastive)
    for b in range(2):
        for k in range(3):
            w = head.weight[targets[b, k]].detach()
            factor = w.clamp(min=0) / (w.clamp(min=0) * F[b]).sum()
            if contrastive:
                factor = factor - (-w).clamp(min=0) / ((-w).clamp(min=0) * F[b]).sum()
            expected = (f[b] * factor[:, None, None]).sum(0)
            assert expected.abs().max() > 1e-4
            assert (found.maps[b, k] - expected).abs().max() <= 1e-6 * expected.abs().max()
            # with features that are there at all nothing gets lost on the way
            assert found.mass[b, k].item() == pytest.approx(1, abs=1e-9)
