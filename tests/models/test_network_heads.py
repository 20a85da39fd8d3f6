"""Networks that return several tensors, of which one is explained."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from method_maps import method_maps
from torch import Tensor, nn
from torchvision.models._utils import IntermediateLayerGetter
from torchvision.models.segmentation import fcn
from two_heads import COLOR, KIND, TwoHeads, as_dict

import ebcli
from ebcli.errors import ConfigurationError


@dataclass
class Predictions:
    kind: Tensor
    color: Tensor


Pair = namedtuple("Pair", "kind color")
NAMED: list[Callable[[Tensor, Tensor], Any]] = [as_dict, Pair, Predictions]


@pytest.fixture
def images() -> Tensor:
    return torch.rand(2, 3, 9, 12, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("form", NAMED)
@pytest.mark.parametrize(("head", "target", "channel"), [("kind", 0, 0), ("color", 0, 1), ("color", 1, 2)])
def test_the_map_is_that_of_the_chosen_head(
    images: Tensor, form: Any, head: str, target: int, channel: int
) -> None:
    """All probability goes to the channel that the class reads, in proportion to its values."""
    for found, image in zip(
        ebcli.explain(TwoHeads(form), images, target, head=head, layer="pixels", contrastive=False),
        images,
        strict=True,
    ):
        expected = image[channel] / image[channel].sum()
        torch.testing.assert_close(torch.from_numpy(found.maps[0]), expected)
        assert f"head {head}, " in repr(found)


@pytest.mark.parametrize("head", [1, "1", -1])
def test_a_head_of_a_tuple_is_chosen_by_its_position(images: Tensor, head: str | int) -> None:
    net = TwoHeads(lambda kind, color: (kind, color))
    loaded = ebcli.load_model(net, head=head)
    assert (loaded.head, loaded.num_classes) == ("1", 3)
    assert loaded.heads == {"0": (2,), "1": (3,)}
    assert torch.equal(loaded.net(images), net(images)[1])


def test_the_positions_in_a_tuple_count_what_is_no_head(images: Tensor) -> None:
    net = TwoHeads(lambda kind, color: (torch.tensor([7]), kind, color))
    assert ebcli.load_model(net, head=1).num_classes == 2
    assert ebcli.load_model(net, head=2).num_classes == 3
    with pytest.raises(ConfigurationError, match=r"no head 0: choose one of 1 \(B, 2\); 2 \(B, 3\)$"):
        ebcli.load_model(net, head=0)


def test_a_number_is_a_position_among_heads_with_names() -> None:
    assert ebcli.load_model(TwoHeads(as_dict), head="1").head == "color"
    numbered = TwoHeads(lambda kind, color: {"1": kind, "0": color})
    assert ebcli.load_model(numbered, head=1).num_classes == 2  # its name


@pytest.mark.parametrize(
    "use",
    [
        ebcli.load_model,
        ebcli.layers,
        ebcli.default_layer,
        lambda net: ebcli.explain(net, torch.rand(3, 8, 8)),
        lambda net: ebcli.quantus_explain(net, torch.rand(1, 3, 8, 8), [0]),
    ],
)
def test_without_an_obvious_head_all_are_named(use: Callable[[nn.Module], Any]) -> None:
    with pytest.raises(ConfigurationError) as error:
        use(TwoHeads(as_dict))
    assert "choose one of kind (B, 2); color (B, 3), by head= or --head" in str(error.value)


@pytest.mark.parametrize("name", ["logits", "pred", "out"])
def test_a_head_of_a_usual_name_is_explained(name: str) -> None:
    loaded = ebcli.load_model(TwoHeads(lambda kind, color: {"features": kind, name: color}))
    assert (loaded.head, loaded.num_classes) == (name, 3)
    assert repr(loaded) == f"<TwoHeads, weights in memory, head {name}, for classification, 3 classes>"


def test_the_only_tensor_with_rows_needs_no_choice_and_is_not_named(images: Tensor) -> None:
    """A loss comes first: its tensor was taken once."""
    net = TwoHeads(lambda kind, color: {"loss": kind.sum(), "scores": color})
    loaded = ebcli.load_model(net)
    assert (loaded.head, loaded.heads, loaded.num_classes) == (None, {}, 3)
    assert "head" not in repr(loaded)
    scores = net.color(images[0].mean((1, 2))).detach().softmax(0)
    (subject,) = ebcli.explain(net, images[0], 1, layer="pixels").explanation.subjects
    assert subject.score == pytest.approx(float(scores[1]), rel=1e-5)


def test_the_network_stays_as_it_is(images: Tensor) -> None:
    net = TwoHeads(as_dict)
    ebcli.load_model(net, head="color")
    ebcli.layers(net, head="color")
    ebcli.explain(net, images, head="kind")
    assert not net._forward_hooks
    assert net(images).keys() == {"kind", "color"}


def test_class_names_of_each_head() -> None:
    net = TwoHeads(as_dict)
    net.categories = {"kind": KIND, "color": COLOR}
    assert ebcli.load_model(net, head="kind").categories == (*KIND,)
    assert ebcli.load_model(net, head="color").categories == (*COLOR,)
    swapped = {"color": COLOR[::-1]}
    assert ebcli.load_model(net, head="color", class_names=swapped).categories == (*COLOR[::-1],)
    assert ebcli.load_model(net, head="kind", class_names=swapped).categories is None
    assert ebcli.load_model(net, head="kind", class_names=["a", "b"]).categories == ("a", "b")
    found = ebcli.explain(net, torch.rand(3, 8, 8), "blue", head="color")
    assert found.classes == ["blue"]
    by_position = TwoHeads(lambda kind, color: (kind, color))
    by_position.categories = {0: KIND, 1: COLOR}
    assert ebcli.load_model(by_position, head=1).categories == (*COLOR,)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"head": "size"}, r"has no head 'size': choose one of kind \(B, 2\); color \(B, 3\)$"),
        ({"head": 2}, "has no head 2: choose one of"),
        ({"head": "9" * 5000}, "has no head '9"),
        (
            {"head": "kind", "class_names": COLOR},
            "there are 3 class names, but head 'kind' of TwoHeads has 2 outputs",
        ),
        (
            {"head": "kind", "class_names": {"colour": COLOR}},
            "class names for head 'colour', but TwoHeads has kind, color",
        ),
    ],
)
def test_wrong_choices(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        ebcli.load_model(TwoHeads(as_dict), **options)


def test_networks_without_heads() -> None:
    one = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(2), nn.AdaptiveAvgPool1d(1), nn.Flatten())
    with pytest.raises(ConfigurationError, match=r"has only one output, \(B, 2\): drop the head"):
        ebcli.load_model(one, head=0)
    with pytest.raises(ConfigurationError, match="is a detector, so it has one head: drop --head"):
        ebcli.load_model("ssdlite320_mobilenet_v3_large", weights="none", head=0)
    with pytest.raises(ConfigurationError, match="by their features, not by a head: drop --head"):
        ebcli.load_model(one, head=0, like=Path(__file__))
    loaded = ebcli.load_model(TwoHeads(as_dict), head="kind")
    with pytest.raises(
        ConfigurationError, match="loaded already: pass transform, class_names, scores and head"
    ):
        ebcli.explain(loaded, torch.rand(3, 8, 8), head="color")
    with pytest.raises(ConfigurationError, match=r"loaded already: pass the head to load_model\(\)"):
        ebcli.layers(loaded, head="color")


class Branches(nn.Module):
    """Two heads with layers of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.fine = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(4, 5, 1))
        self.coarse = nn.Sequential(nn.Conv2d(3, 4, 8, stride=8), nn.ReLU(), nn.Conv2d(4, 5, 1))

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return {"a": self.fine(images).mean((2, 3)), "b": self.coarse(images).mean((2, 3))}


@pytest.mark.parametrize(("head", "layer"), [("a", "fine"), ("b", "coarse")])
def test_the_layers_are_those_of_the_head(head: str, layer: str) -> None:
    names = [f"{layer}.0", f"{layer}.1", f"{layer}.2", layer]
    assert [found.name for found in ebcli.layers(Branches(), 64, head=head)] == names
    loaded = ebcli.load_model(Branches(), head=head)
    assert [found.name for found in ebcli.layers(loaded, 64)] == names
    assert ebcli.default_layer(Branches(), 64, head=head) == ebcli.default_layer(loaded, 64)
    assert ebcli.default_layer(loaded, 64).startswith(layer)


@pytest.mark.parametrize(("head", "channel"), [("kind", 0), ("color", 1)])
def test_gradients_are_those_of_the_head(images: Tensor, head: str, channel: int) -> None:
    """Of the mean of a channel, the gradient with respect to each of its values."""
    loaded = ebcli.load_model(TwoHeads(as_dict), head=head)
    expected = torch.zeros(3, 9, 12)
    expected[channel] = 1 / (9 * 12)
    classes = torch.tensor([[0]])
    torch.testing.assert_close(
        method_maps("gradient", loaded.net, images[:1], classes, None)[0], expected.sum(0)
    )
    input_times = method_maps("gradient-x-input", loaded.net, images[:1], classes, None)[0]
    torch.testing.assert_close(input_times, (expected * images[0]).sum(0))
    maps = ebcli.quantus_explain(
        TwoHeads(as_dict), images, [0, 0], layer="pixels", head=head, contrastive=False
    )
    torch.testing.assert_close(
        torch.from_numpy(maps[:, 0]), images[:, channel] / images[:, channel].sum((1, 2), keepdim=True)
    )


class Dense(nn.Module):
    """As torchvision's segmentation networks in training: ``out``, and a head for auxiliary losses."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 6, 1)
        self.classifier = nn.Conv2d(6, 4, 1)
        self.aux = nn.Conv2d(6, 5, 1)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        values = torch.relu(self.body(images))
        return {"aux": self.aux(values), "out": self.classifier(values)}


def test_segmentation() -> None:
    assert (ebcli.load_model(Dense()).head, ebcli.load_model(Dense()).num_classes) == ("out", 4)
    loaded = ebcli.load_model(Dense(), head="aux")
    assert (loaded.task, loaded.num_classes) == ("segmentation", 5)


def test_the_default_layer_of_an_auxiliary_head_is_what_it_reads() -> None:
    """In torchvision's networks, it reads ``layer3``, of which ``layer4`` is computed for the other head."""
    parts = {"layer4": "out", "layer3": "aux"}
    backbone = IntermediateLayerGetter(torchvision.models.resnet18(), parts)
    net = fcn.FCN(backbone, fcn.FCNHead(512, 4), fcn.FCNHead(256, 4)).eval()
    for head, layer in ((None, "backbone.layer4"), ("out", "backbone.layer4"), ("aux", "backbone.layer3")):
        assert ebcli.default_layer(ebcli.load_model(net, head=head)) == layer
    found = ebcli.explain(net, torch.rand(3, 64, 64), head="aux")
    assert {map_.layer for map_ in found.explanation.maps} == {"backbone.layer3"}
