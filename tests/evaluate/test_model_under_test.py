"""The network under test: fully convolutional, seeded, and refused where it does not fit."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from color_net import GREEN, RED, SIDE, painted
from torch import nn
from torchvision.models import alexnet, resnet18, vgg11

from ebcli.errors import ConfigurationError, LayerError
from ebcli.evaluate.model_under_test import ModelUnderTest, fully_convolutional
from ebcli.models import load_model


@pytest.mark.parametrize("build", [vgg11, alexnet])
def test_a_classifier_of_convolutions_is_the_same_function(build: object) -> None:
    torch.manual_seed(0)
    net = build(num_classes=7).eval()  # type: ignore[operator]
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


def test_other_networks_are_left_as_they_are() -> None:
    for net in (resnet18(), load_model("efficientnet_lite0", "none").net, nn.Sequential(nn.Conv2d(3, 3, 1))):
        assert fully_convolutional(net) is net


def test_a_vgg_explains_the_whole_of_a_wide_image() -> None:
    """With the prior on all places alike, each part of the image can get probability."""
    subject = ModelUnderTest("vgg11", "none", ["features.10"], ["marginal", "gradient"], "cpu")
    torch.manual_seed(0)
    for _, _, maps in subject.explain(torch.rand(1, 3, 224, 448), [3, 5], "seed"):
        assert maps.shape == (2, 28, 56)
        assert (maps[:, :, :14].sum() > 0) and (maps[:, :, -14:].sum() > 0)


@pytest.mark.usefixtures("colours")
def test_maps_come_by_method_and_layer_and_the_same_each_time() -> None:
    subject = ModelUnderTest(
        "colours", "none", ["0", "input", "0"], ["random", "marginal", "centre", "marginal"], "cpu"
    )
    inputs = subject.inputs(painted((SIDE, SIDE), (RED, (0, 0, 8, 8))))
    found = list(subject.explain(inputs, [0], "a"))
    assert [(method, layer) for method, layer, _ in found] == [
        ("random", "-"),
        ("marginal", "0"),
        ("marginal", "input"),
        ("centre", "-"),
    ]
    again, other = list(subject.explain(inputs, [0], "a")), list(subject.explain(inputs, [0], "b"))
    assert np.array_equal(found[0][2], again[0][2])
    assert not np.array_equal(found[0][2], other[0][2])
    assert np.array_equal(found[1][2], other[1][2])


@pytest.mark.usefixtures("colours")
def test_the_whole_image_and_its_centre() -> None:
    subject = ModelUnderTest("colours", "none", [], ["marginal"], "cpu")
    image = painted((60, 30), (RED, (0, 0, 15, 30)), (GREEN, (15, 0, 45, 30)))
    assert subject.whole(image, 10).shape == (1, 3, 10, 20)
    assert subject.whole(image, 10)[0, 0, 5, 2] == 1
    seen = subject.inputs(image, 20)  # the preset cuts out the centre square
    assert seen.shape == (1, 3, 20, 20)
    assert seen[0, 1, 10, 2:-2].min() > 0.9
    assert subject.inputs(image).shape == (1, 3, SIDE, SIDE)  # the other size has left no trace


@pytest.mark.usefixtures("colours")
def test_what_does_not_fit_is_refused_before_any_work() -> None:
    with pytest.raises(LayerError, match="no layer '9'"):
        ModelUnderTest("colours", "none", ["9"], ["marginal"], "cpu")
    with pytest.raises(LayerError, match="layer '5' of colours has no map"):
        ModelUnderTest("colours", "none", ["5"], ["marginal"], "cpu")
    with pytest.raises(LayerError, match="Grad-CAM weighs the channels of a layer"):
        ModelUnderTest("colours", "none", ["input"], ["grad-cam"], "cpu")


def test_an_image_of_the_wrong_size_for_the_network() -> None:
    subject = ModelUnderTest("vit_b_32", "none", [], ["marginal"], "cpu")
    with pytest.raises(ConfigurationError, match="vit_b_32 takes no image of 224 x 298 pixels"):
        subject.probe(224, 298)


def test_without_the_extra_one_sentence_tells_what_to_install() -> None:
    code = (
        "import sys; sys.modules['captum'] = None\n"
        "from ebcli.imports import import_optional\n"
        "try:\n    import_optional('captum.attr')\n"
        "except Exception as error:\n    print(type(error).__name__, error)"
    )
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert printed.startswith("ConfigurationError this takes the package captum: pip install captum\n")
