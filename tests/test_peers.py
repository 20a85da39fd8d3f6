"""Tools that people already use: captum, Quantus and others run on the maps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import quantus
import torch
from captum.attr import LayerAttribution, NoiseTunnel
from captum.metrics import infidelity, sensitivity_max
from color_net import color_net
from stub_run import run_python
from torch import nn

import ebcli
from ebcli.captum import ExcitationBackprop


def red_squares() -> torch.Tensor:
    """Two pictures with a red square, left or right, in dark noise."""
    torch.manual_seed(2)
    images = 0.05 * torch.rand(2, 3, 16, 16)
    images[0, 0, 4:9, 2:7] = images[1, 0, 4:9, 9:14] = 1
    return images


@pytest.mark.parametrize("where", ["layer", "input"])
def test_captum_runs_its_own_tools_on_it(where: str) -> None:
    net, images = color_net(), red_squares()
    method = ExcitationBackprop(net, net[1] if where == "layer" else None)
    assert isinstance(method, LayerAttribution)
    found = method.attribute(images, target=0)
    expected = ebcli.excitation_backprop(net, images, 0, "1" if where == "layer" else None, contrastive=True)
    torch.testing.assert_close(found, expected.relevance)
    assert method.attribute((images,), torch.tensor([0, 1]))[0].shape == images.shape
    smooth = NoiseTunnel(method).attribute(images, nt_type="smoothgrad", nt_samples=4, stdevs=0.02, target=0)
    assert torch.corrcoef(torch.stack([smooth.flatten(), found.flatten()]))[0, 1] > 0.95

    def shifted(inputs: Any) -> Any:
        noise = 0.01 * torch.randn_like(inputs)
        return noise, inputs - noise

    good, bad = (infidelity(net, shifted, images, one, target=0).mean() for one in (found, -100 * found))
    assert good < bad
    assert sensitivity_max(method.attribute, images, target=0, perturb_radius=0.01).max() < 0.5


def test_captums_arguments() -> None:
    net, images = color_net(), red_squares()
    plain = ExcitationBackprop(net, net[1], contrastive=False).attribute(images, 1)
    torch.testing.assert_close(plain.sum((1, 2, 3)), torch.ones(2))
    function = ExcitationBackprop(lambda x, scale: scale * net(x), net[1], contrastive=False)
    torch.testing.assert_close(function.attribute(images, 1, additional_forward_args=3.0), plain)
    dense = ExcitationBackprop(nn.Conv2d(3, 2, 1), contrastive=False).attribute(images, (1, 5, 6))
    assert dense[:, :, 5, 6].sum() == pytest.approx(2, abs=1e-5)
    assert run_python("import sys, ebcli; ebcli.explain; print('captum' in sys.modules)") == "False\n"


def test_quantus_measures_it() -> None:
    net, images = color_net(), red_squares().numpy()
    boxes = np.zeros((2, 1, 16, 16), np.uint8)
    boxes[0, 0, 4:9, 2:7] = boxes[1, 0, 4:9, 9:14] = 1
    labels = np.array([0, 0])
    options: dict[str, Any] = {
        "model": net,
        "x_batch": images,
        "y_batch": labels,
        "explain_func": ebcli.quantus_explain,
    }
    localization = quantus.RelevanceRankAccuracy(
        abs=False, normalise=True, disable_warnings=True, display_progressbar=False
    )
    scores = localization(**options, s_batch=boxes, explain_func_kwargs={"layer": "1"})
    assert min(scores) > 0.9
    flipped = localization(**options, s_batch=boxes[::-1], explain_func_kwargs={"layer": "1"})
    assert max(flipped) < 0.2
    stable = quantus.MaxSensitivity(nr_samples=3, lower_bound=0.01, disable_warnings=True, display_progressbar=False)
    assert max(stable(**options, explain_func_kwargs={"layer": net[1]}, device="cpu")) < 0.5
