"""The lines of docs/coming-from.md, of both programs, compute the same maps."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ebcli

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/coming-from.md").read_text(encoding="utf-8")
CAMS = {"grad-cam": "GradCAM", "hires-cam": "HiResCAM", "layer-cam": "LayerCAM"}


def scaled(maps: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """As pytorch-grad-cam scales a map: at the layer, and again at the size of the input."""
    from pytorch_grad_cam.utils.image import scale_cam_image

    return scale_cam_image(scale_cam_image(maps, size))


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """What the blocks of the page define, with a network of larger logits: pytorch-grad-cam adds 1e-7 to values."""
    variables: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE):
        if "sample_images" in block:
            continue
        exec(block, variables)
        if "net = " in block:
            variables["net"].fc.weight.data *= 1e4
    return variables


def test_grad_cam_of_a_convolutional_network(names: dict[str, Any]) -> None:
    found, gray = names["found"], names["gray"]
    assert found.maps.max() > 0
    np.testing.assert_allclose(scaled(found.maps, (128, 128))[0], gray, atol=1e-4)


def test_grad_cam_of_a_transformer(names: dict[str, Any]) -> None:
    found, gray = names["found_vit"], names["gray_vit"]
    assert found.maps.max() > 0
    np.testing.assert_allclose(scaled(found.maps, (64, 64))[0], gray, atol=1e-4)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("method", CAMS)
@pytest.mark.parametrize("is_transformer", [False, True])
def test_each_class_activation_map(method: str, is_transformer: bool, names: dict[str, Any]) -> None:
    import pytorch_grad_cam
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    net, inputs, layer, options = names["net"], names["inputs"].detach(), names["net"].layer3, {}
    if is_transformer:
        net, inputs, layer = names["vit"], names["tokens"], names["vit"].encoder.layers[1].ln_1
        options = {"reshape_transform": names["reshape_transform"]}
    side = inputs.shape[-1]
    with getattr(pytorch_grad_cam, CAMS[method])(model=net, target_layers=[layer], **options) as cam:
        gray = cam(input_tensor=inputs, targets=[ClassifierOutputTarget(3)])[0]
    found = ebcli.explain(net, inputs[0], 3, layer=layer, method=method)
    assert len(np.unique(gray)) > 16
    np.testing.assert_allclose(scaled(found.maps, (side, side))[0], gray, atol=1e-4)


def test_grad_cam_by_captum(names: dict[str, Any]) -> None:
    attribution = names["attribution"][0].detach().numpy()
    np.testing.assert_allclose(names["found"].maps, attribution / attribution.sum(), atol=1e-6)


def test_the_gradient_by_captum(names: dict[str, Any]) -> None:
    gradient = names["gradient"].detach().numpy()
    np.testing.assert_allclose(names["found_gradient"].maps, gradient / gradient.sum(), atol=1e-7)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("layer", ["layer3", "input"])
def test_gradient_times_activation_by_captum(layer: str, names: dict[str, Any]) -> None:
    from captum.attr import InputXGradient, LayerGradientXActivation

    net, inputs = names["net"], names["inputs"]
    method = InputXGradient(net) if layer == "input" else LayerGradientXActivation(net, net.layer3)
    attribution = method.attribute(inputs, target=3).sum(1).detach().numpy()
    found = ebcli.explain(net, inputs.detach()[0], 3, layer=layer, method="gradient-x-input")
    np.testing.assert_allclose(found.maps, attribution / attribution.clip(0).sum(), atol=1e-6)


def test_every_name_on_the_page_exists() -> None:
    import captum.attr
    import captum.metrics
    import pytorch_grad_cam
    import pytorch_grad_cam.utils.model_targets as targets

    places = (captum.attr, captum.metrics, pytorch_grad_cam, targets)
    rows = re.findall(r"^\| (.*?) \| .* \|$", PAGE, re.MULTILINE)
    words = {
        word for row in rows for word in re.findall(r"\b[A-Z]\w+(?:Cam|CAM|Target|Gradient|Tunnel)\b", row)
    }
    assert len(words) > 6
    for word in words:
        assert any(hasattr(place, word) for place in places), word
