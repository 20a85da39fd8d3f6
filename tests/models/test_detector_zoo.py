"""Properties of all detectors of torchvision, explained from one of their detections."""

import pytest
import torch
import zoo
from test_zoo import each, state_of
from torchvision.models.resnet import BasicBlock, ResNet
from torchvision.ops.misc import FrozenBatchNorm2d

import ebcli

# Detectors of one and of two stages; the other ones are marked slow, as in test_zoo.py
QUICK = ["fcos_resnet50_fpn", "fasterrcnn_mobilenet_v3_large_fpn", "ssdlite320_mobilenet_v3_large"]


def best(net, images):
    found = ebcli.detections(net, images, score=0.0)[0]
    assert found
    return found[0]


@each(zoo.DETECTORS, QUICK)
def test_one_detection(name):
    net, images = zoo.detector(name)
    before = state_of(net)
    with torch.no_grad():
        plain = net(images)
    detection = best(net, images)
    assert ebcli.default_layer(net) == zoo.LAYERS[name]
    assert plain.shape[1] == net.num_classes
    layers = [zoo.LAYERS[name], None]
    results = ebcli.excitation_backprop(net, images, detection.label, layers, where=(detection.anchor,))
    for result in results:
        assert torch.equal(result.logits, plain)
        assert (result.relevance >= 0).all()
        assert 0.5 < result.mass.item() <= 1 + 1e-4
        if "mobilenet" not in name:  # units of depthwise convolutions have few inputs
            assert result.mass.item() == pytest.approx(1, abs=1e-4)
        assert result.maps.sum().item() == pytest.approx(result.mass.item(), rel=1e-4)
    assert results[1].maps.shape == (1, 96, 128)
    assert state_of(net) == before


def test_detections_in_a_batch_have_the_anchors_that_they_have_alone():
    net, images = zoo.detector("ssdlite320_mobilenet_v3_large")
    batch = torch.cat([images, images.flip(3)])
    together = ebcli.detections(net, batch, score=0.0)
    alone = [ebcli.detections(net, image[None], score=0.0)[0] for image in batch]
    assert [[one.anchor for one in found] for found in together] == [
        [one.anchor for one in found] for found in alone
    ]
    assert together[0][0].anchor != together[1][0].anchor


@pytest.mark.release
@pytest.mark.parametrize("name", QUICK)
def test_contrastive_maps_sum_to_zero(name):
    """Class and dual both keep all probability if no constant is added to the signal."""
    net, images = zoo.detector(name, shifts=False)
    net, images = net.double(), images.double()
    detection = best(net, images)
    layers = [zoo.LAYERS[name], None]
    for result in ebcli.excitation_backprop(
        net, images, detection.label, layers, True, where=(detection.anchor,)
    ):
        positive = result.relevance.clamp(min=0).sum().item()
        assert positive > 1e-6
        assert abs(result.relevance.sum().item()) <= 1e-6 * positive


@pytest.mark.release
def test_padding_loses_probability():
    """Detectors pad images to multiples of 32 pixels: at the zeros there, only biases make neurons active."""
    net, images = zoo.detector("fcos_resnet50_fpn")
    narrow = images[..., :100]
    detection = best(net, narrow)
    layers = ["backbone.body.conv1", None]
    above, below = ebcli.excitation_backprop(net, narrow, detection.label, layers, where=(detection.anchor,))
    assert above.mass.item() == pytest.approx(1, abs=1e-4)
    columns = above.maps.shape[2]
    _, width = net.extent(*narrow.shape[2:])
    # Outputs of conv1 whose kernels, of 7 pixels at every second one, see none of the image
    first = next(x for x in range(columns) if (2 * x - 3) / (2 * columns) * width >= narrow.shape[3])
    lost = 1 - below.mass.item()
    assert lost > 1e-5
    assert above.maps[0, :, first:].sum().item() == pytest.approx(lost, rel=1e-2)


@pytest.mark.release
def test_later_layers_get_only_a_part():
    """The pyramid reads three stages: what the first one passes to it does not arrive at the others."""
    net, images = zoo.detector("fcos_resnet50_fpn")
    layers = [f"backbone.body.layer{stage}" for stage in (2, 3, 4)]
    middle = 6 * 16 + 8  # of the 12 x 16 locations of the finest level, which come first
    results = ebcli.excitation_backprop(net, images, 1, layers, where=(middle,))
    first, second, third = (result.mass.item() for result in results)
    assert first == pytest.approx(1, abs=1e-4)
    assert 1 > second > third > 0


@pytest.mark.one_in(2)
@pytest.mark.parametrize("joint", [False, True])
def test_frozen_batch_norm_is_batch_norm(joint):
    """Torchvision's published detectors have FrozenBatchNorm2d, which multiplies and adds instead."""
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    usual = zoo.enliven(ResNet(BasicBlock, [1, 1, 1, 1], 10).double(), images)
    frozen = ResNet(BasicBlock, [1, 1, 1, 1], 10, norm_layer=FrozenBatchNorm2d).double().eval()
    frozen.load_state_dict(
        {name: value for name, value in usual.state_dict().items() if "num_batches" not in name}
    )
    for layer in ("layer3", None):
        expected, found = (
            ebcli.excitation_backprop(net, images, [3, 5], layer, contrastive=True, joint=joint).relevance
            for net in (usual, frozen)
        )
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9 * expected.abs().max().item())
