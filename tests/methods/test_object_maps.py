"""The object map, against its formula with another library's Gaussian."""

from functools import partial

import numpy as np
import pytest
import torch
from color_net import color_net
from scipy.ndimage import gaussian_filter
from torch import nn

import ebcli
from ebcli.methods.call import MethodCall, class_priors
from ebcli.methods.table import find_method


def deep_net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(6, 8, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    ).eval()


@pytest.mark.parametrize("against", [None, [2]])
@pytest.mark.parametrize("images", [1, 2])
def test_the_geometric_mean_of_a_marginal_and_a_blurred_contrastive_map(
    images: int, against: list[int] | None
) -> None:
    inputs = torch.rand(images, 3, 64, 80, generator=torch.Generator().manual_seed(0)).double()
    net = deep_net().double()
    classes = torch.tensor([[1, 4], [0, 3]])[:images]
    call = MethodCall(
        net=net, inputs=inputs, priors=partial(class_priors, classes), layers=["1", "3"], against=against
    )
    for layer, result in zip(("1", "3"), find_method("object").compute(call), strict=True):
        marginal = ebcli.excitation_backprop(net, inputs, classes, layer=layer).maps.numpy()
        contrast = ebcli.excitation_backprop(
            net, inputs, classes, layer=layer, contrastive=True, against=against
        )
        for i, k in np.ndindex(images, 2):
            positive = contrast.maps[i, k].clamp(min=0).numpy()
            sigma = min(positive.shape) / 16
            blurred = gaussian_filter(positive, sigma, mode="nearest", radius=int(np.ceil(3 * sigma)))
            expected = np.sqrt(marginal[i, k] * blurred)
            assert expected.sum() > 0
            np.testing.assert_allclose(result.maps[i, k], expected / expected.sum(), rtol=1e-6, atol=1e-12)


def test_without_positive_contrast_it_is_blank() -> None:
    """A dark picture: the network sees colors alone, so no cell speaks for one."""
    call = MethodCall(
        net=color_net(),
        inputs=torch.zeros(1, 3, 16, 16),
        priors=partial(class_priors, torch.tensor([[0]])),
        layers=[None],
    )
    (result,) = find_method("object").compute(call)
    assert not result.maps.any()


def test_the_rule_of_the_engine_is_kept() -> None:
    """Between GELUs, both maps are explained jointly, and so is a later call that takes the rule from the first one."""
    torch.manual_seed(1)
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.GELU(),
        nn.Conv2d(6, 8, 3),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(8 * 36, 5),
    ).eval()
    inputs = torch.rand(1, 3, 8, 8)
    (result,) = find_method("object").compute(
        MethodCall(net=net, inputs=inputs, priors=partial(class_priors, torch.tensor([[1]])), layers=["0"])
    )
    assert result.joint is ebcli.excitation_backprop(net, inputs, 1, layer="0").joint is True
