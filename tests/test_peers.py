"""Tools that people already use: captum, Quantus and others, imported where a test needs them, run on the maps."""

from typing import Any

import color_tasks
import numpy as np
import pytest
import torch
from color_net import GREEN, RED, color_net, painted
from stub_run import run_python
from torch import nn

import ebcli


def red_squares() -> torch.Tensor:
    """Two pictures with a red square, left or right, in dark noise."""
    torch.manual_seed(2)
    images = 0.05 * torch.rand(2, 3, 16, 16)
    images[0, 0, 4:9, 2:7] = images[1, 0, 4:9, 9:14] = 1
    return images


@pytest.mark.parametrize("where", ["layer", "input"])
def test_captum_runs_its_own_tools_on_it(where: str) -> None:
    from captum.attr import LayerAttribution, NoiseTunnel
    from captum.metrics import infidelity, sensitivity_max

    from ebcli.captum import ExcitationBackprop

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


@pytest.mark.release
def test_captums_arguments() -> None:
    from ebcli.captum import ExcitationBackprop

    net, images = color_net(), red_squares()
    plain = ExcitationBackprop(net, net[1], contrastive=False).attribute(images, 1)
    torch.testing.assert_close(plain.sum((1, 2, 3)), torch.ones(2))
    function = ExcitationBackprop(lambda x, scale: scale * net(x), net[1], contrastive=False)
    torch.testing.assert_close(function.attribute(images, 1, additional_forward_args=3.0), plain)
    dense = ExcitationBackprop(nn.Conv2d(3, 2, 1), contrastive=False).attribute(images, (1, 5, 6))
    assert dense[:, :, 5, 6].sum() == pytest.approx(2, abs=1e-5)
    lazily = "import sys, ebcli; ebcli.explain; print('captum' in sys.modules); print(ebcli.captum.__name__)"
    assert run_python(lazily) == "False\nebcli.captum\n"


def test_quantus_measures_it() -> None:
    import quantus

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
    stable = quantus.MaxSensitivity(
        nr_samples=3, lower_bound=0.01, disable_warnings=True, display_progressbar=False
    )
    assert max(stable(**options, explain_func_kwargs={"layer": net[1]}, device="cpu")) < 0.5


@pytest.mark.parametrize("kind", ["detector", "yolo"])
def test_detections_of_supervision_go_in_and_out(kind: str) -> None:
    import supervision as sv

    net = getattr(color_tasks, kind)()
    squares = {"red": (24, 24, 72, 72), "green": (120, 48, 168, 96)}
    image = painted((192, 144), (RED, squares["red"]), (GREEN, squares["green"]))
    found = ebcli.explain(net, image).detections()
    assert isinstance(found, sv.Detections)
    assert {*found.data["class_name"]} == {"red", "green"}
    assert found.confidence.min() >= 0.5
    middles = {
        name: ((left + right) / 2, (top + bottom) / 2) for name, (left, top, right, bottom) in squares.items()
    }
    for (left, top, right, bottom), name in zip(found.xyxy, found.data["class_name"], strict=True):
        middle = (left + right) / 2, (top + bottom) / 2
        assert np.abs(np.subtract(middle, middles[name])).max() <= 24
    asked = sv.Detections(xyxy=np.array([squares["green"], squares["red"]], float))
    again = ebcli.explain(net, image, boxes=asked)
    assert again.classes == ["green", "red"]
    for heat, name in zip(again.heatmap(), again.classes, strict=True):
        left, top, right, bottom = squares[name]
        assert heat[top - 8 : bottom + 8, left - 8 : right + 8].sum() > 0.9 * heat.sum()
    labels = sv.LabelAnnotator().annotate(np.asarray(image).copy(), found)
    assert labels.shape == (144, 192, 3)


def test_maps_of_classes_are_detections_too() -> None:
    photo = red_squares()[0]
    found = ebcli.explain(
        color_net(), photo, [0, 2], layer="input", class_names=["red", "green", "blue"]
    ).detections()
    assert found.xyxy[0] == pytest.approx((2, 4, 7, 9), abs=1)
    assert found.class_id[0] == 0
    with pytest.raises(ebcli.ConfigurationError, match="--where X,Y,W,H works only with detectors"):
        ebcli.explain(color_net(), photo, boxes=[(0, 0, 5, 5)])
