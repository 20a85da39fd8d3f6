"""The model under test: fully convolutional, seeded, and refused if it does not fit."""

from collections.abc import Callable
from typing import Any

import color_tasks
import numpy as np
import pytest
import torch
from color_net import GREEN, RED, SIDE, painted
from torch import nn
from torchvision.models import alexnet, resnet18
from zoo import narrow_vgg11_bn

from ebcli.errors import ConfigurationError, LayerError
from ebcli.evaluate.benchmark import ModelUnderTest, fully_convolutional
from ebcli.models import ModelSpec, load_model


@pytest.mark.one_in(2)
@pytest.mark.parametrize("build", [narrow_vgg11_bn, alexnet])
def test_convolutional_classifiers_compute_the_same_function(build: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    net = build().eval()
    converted = fully_convolutional(net)
    features = torch.rand(1, net.features(torch.zeros(1, 3, 224, 224)).shape[1], 8, 9)
    side = net.avgpool.output_size[0]
    with torch.no_grad():
        image = torch.rand(1, 3, 224, 224)
        torch.testing.assert_close(converted(image)[..., 0, 0], net(image))
        found = converted.classifier(features)
        assert found.shape[2:] == (8 - side + 1, 9 - side + 1)
        window = features[:, :, 1 : 1 + side, 2 : 2 + side]
        torch.testing.assert_close(found[:, :, 1, 2], net.classifier(window.flatten(1)))
    assert {"features.5", "classifier.1"} <= dict(converted.named_modules()).keys()


def test_other_networks_are_returned_unchanged() -> None:
    for net in (resnet18(), load_model("efficientnet_lite0", "none").net, nn.Sequential(nn.Conv2d(3, 3, 1))):
        assert fully_convolutional(net) is net


def test_maps_of_a_converted_network_cover_a_whole_wide_image() -> None:
    model = ModelUnderTest(
        ModelSpec("shufflenet_v2_x0_5", weights="none"), ["stage3"], ["marginal", "gradient"], "cpu"
    )
    torch.manual_seed(0)
    for _, _, maps in model.explain(torch.rand(1, 3, 224, 448), [3, 5], "seed"):
        assert maps.shape == (2, 14, 28)
        assert (maps[:, :, :7].sum() > 0) and (maps[:, :, -7:].sum() > 0)


@pytest.mark.usefixtures("colors")
def test_maps_are_ordered_by_method_and_layer_and_reproducible() -> None:
    model = ModelUnderTest(
        ModelSpec("colors", weights="none"),
        ["0", "input", "0"],
        ["random", "marginal", "center", "marginal"],
        "cpu",
    )
    inputs = model.inputs(painted((SIDE, SIDE), (RED, (0, 0, 8, 8))))
    found = list(model.explain(inputs, [0], "a"))
    assert [(method, layer) for method, layer, _ in found] == [
        ("random", "-"),
        ("marginal", "0"),
        ("marginal", "input"),
        ("center", "-"),
    ]
    again, other = list(model.explain(inputs, [0], "a")), list(model.explain(inputs, [0], "b"))
    assert np.array_equal(found[0][2], again[0][2])
    assert not np.array_equal(found[0][2], other[0][2])
    assert np.array_equal(found[1][2], other[1][2])


@pytest.mark.usefixtures("colors")
def test_preprocessing_of_the_whole_image_and_its_center() -> None:
    model = ModelUnderTest(ModelSpec("colors", weights="none"), [], ["marginal"], "cpu")
    image = painted((60, 30), (RED, (0, 0, 15, 30)), (GREEN, (15, 0, 45, 30)))
    whole = model.whole_image(image)
    assert whole.shape == (1, 3, SIDE, 2 * SIDE)
    assert whole[0, 0, SIDE // 2, SIDE // 4] == 1
    seen = model.inputs(image, 20)
    assert seen.shape == (1, 3, 20, 20)
    assert seen[0, 1, 10, 2:-2].min() > 0.9
    assert model.inputs(image).shape == (1, 3, SIDE, SIDE)


@pytest.mark.usefixtures("colors")
def test_misfits_are_reported_early() -> None:
    with pytest.raises(LayerError, match="no layer '9'"):
        ModelUnderTest(ModelSpec("colors", weights="none"), ["9"], ["marginal"], "cpu")
    with pytest.raises(LayerError, match="layer '5' of colors has no map"):
        ModelUnderTest(ModelSpec("colors", weights="none"), ["5"], ["marginal"], "cpu")
    with pytest.raises(LayerError, match="grad-cam needs a layer with channels, not the pixels"):
        ModelUnderTest(ModelSpec("colors", weights="none"), ["input"], ["grad-cam"], "cpu")


@pytest.mark.usefixtures("colors")
def test_a_method_is_measured_at_those_layers_that_it_has_maps_of() -> None:
    model = ModelUnderTest(
        ModelSpec("colors", weights="none"), ["0", "input"], ["grad-cam", "gradient"], "cpu"
    )
    found = [(maps.method, maps.layer) for maps in model.explain(torch.rand(1, 3, 32, 32), [1], "seed")]
    assert found == [("grad-cam", "0"), ("gradient", "0"), ("gradient", "input")]


def test_an_image_of_the_wrong_size_for_the_network() -> None:
    model = ModelUnderTest(
        ModelSpec("timm/vit_tiny_patch16_224", weights="none"), ["patch_embed"], ["marginal"], "cpu"
    )
    with pytest.raises(ConfigurationError, match="does not accept images of 224 x 298 pixels"):
        model.probe(224, 298)


def test_networks_for_other_tasks_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="is for segmentation, but benchmarks are for classifiers"):
        ModelUnderTest(ModelSpec(f"{color_tasks.__file__}:Segmenter"), ["pixels"], ["marginal"], "cpu")
