"""The lines of docs/coming-from.md, of both programs, compute the same maps."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from torch import Tensor, nn

import ebcli
from ebcli.evaluate import perturbation_curve

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/coming-from.md").read_text(encoding="utf-8")
CAMS = {"grad-cam": "GradCAM", "hires-cam": "HiResCAM", "layer-cam": "LayerCAM"}


def scaled(maps: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """As pytorch-grad-cam scales a map: at the layer, and again at the size of the input."""
    from pytorch_grad_cam.utils.image import scale_cam_image

    return scale_cam_image(scale_cam_image(maps, size))


def reshape_transform(tokens: Tensor) -> Tensor:
    """The cells of `vit` as pytorch-grad-cam needs them, without the class token."""
    return tokens[:, 1:].reshape(len(tokens), 4, 4, -1).permute(0, 3, 1, 2)


@pytest.fixture(scope="module")
def vit() -> nn.Module:
    torch.manual_seed(1)
    net = torchvision.models.VisionTransformer(64, 16, 3, 4, 32, 64, num_classes=10).eval()
    nn.init.normal_(net.heads.head.weight)  # it starts with zeros
    return net


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


def test_an_array_from_0_to_1(names: dict[str, Any]) -> None:
    """Bicubic and bilinear interpolation agree at the centers of the cells, of 32 x 32 pixels."""
    gray, again = names["gray"], names["gray_again"]
    assert (again.min(), again.max()) == (0, 1)
    assert np.corrcoef(gray.ravel(), again.ravel())[0, 1] > 0.97
    assert np.abs(gray - again).mean() < 0.1


def test_a_curve_of_deletion_starts_at_the_score_and_ends_without_the_image(names: dict[str, Any]) -> None:
    net, (image,) = names["net"], names["inputs"]
    empty = torch.zeros_like(image)

    def score(batch: Tensor) -> Tensor:
        return (net(batch) / 1e4).softmax(1)[:, 3]

    (heat,) = names["found"].heatmap()
    curve = perturbation_curve(score, image, empty, heat, steps=4)
    with torch.no_grad():
        np.testing.assert_allclose(curve[[0, -1]], score(torch.stack([image, empty])), atol=1e-6)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("method", CAMS)
@pytest.mark.parametrize("is_transformer", [False, True])
def test_each_class_activation_map(
    method: str, is_transformer: bool, names: dict[str, Any], vit: Any
) -> None:
    import pytorch_grad_cam
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    net, inputs, layer, options = names["net"], names["inputs"], names["net"].layer3, {}
    if is_transformer:
        torch.manual_seed(0)
        net, inputs, layer = vit, torch.rand(1, 3, 64, 64), vit.encoder.layers[1].ln_1
        options = {"reshape_transform": reshape_transform}
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
    from captum.attr import Saliency

    net, inputs = names["net"], names["inputs"].clone().requires_grad_()
    gradient = Saliency(net).attribute(inputs, target=3).sum(1).numpy()
    found = ebcli.explain(net, names["inputs"][0], 3, layer="input", method="gradient")
    np.testing.assert_allclose(found.maps, gradient / gradient.sum(), atol=1e-7)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("layer", ["layer3", "input"])
def test_gradient_times_activation_by_captum(layer: str, names: dict[str, Any]) -> None:
    from captum.attr import InputXGradient, LayerGradientXActivation

    net, inputs = names["net"], names["inputs"].clone().requires_grad_()
    method = InputXGradient(net) if layer == "input" else LayerGradientXActivation(net, net.layer3)
    attribution = method.attribute(inputs, target=3).sum(1).detach().numpy()
    found = ebcli.explain(net, names["inputs"][0], 3, layer=layer, method="gradient-x-input")
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
