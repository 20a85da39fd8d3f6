"""Detectors that return candidates: how their outputs are read, which are detections, and their layers and maps."""

import color_tasks
import pytest
import torch
from torch import Tensor, nn
from torchvision.ops import nms

import ebcli
from ebcli.models.detection import YoloOutput

SIZE = 64, 96  # height and width: grids of 8 x 12, 4 x 6 and 2 x 3 cells, 126 in all


@pytest.fixture
def random() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize(
    ("shape", "known", "expected"),
    [
        ((1, 14, 126), 0, YoloOutput(10, False, False)),
        ((1, 126, 14), 0, YoloOutput(10, False, True)),
        ((1, 378, 15), 0, YoloOutput(10, True, True)),
        ((1, 46, 126), 10, YoloOutput(10, False, False)),  # with 32 coefficients of masks
        ((1, 84, 384 + 126), 0, YoloOutput(80, False, False)),  # and another grid, of stride 4
        ((1, 14, 30), 0, YoloOutput(10, False, False)),  # without the finest
        ((1, 4, 126), 0, None),
        ((1, 14, 126), 11, None),
        ((1, 14, 96), 0, None),  # a single grid, as the tokens of a transformer
        ((1, 300, 6), 0, None),  # after non-maximum suppression
        ((1, 14, 8, 12), 0, None),
    ],
)
def test_outputs_are_told_by_their_shapes(
    shape: tuple[int, ...], known: int, expected: YoloOutput | None
) -> None:
    assert YoloOutput.from_output(torch.zeros(shape), SIZE, known) == expected
    assert YoloOutput.from_output([torch.zeros(shape), torch.zeros(1, 32, 16, 24)], SIZE, known) == expected


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("num_classes", [1, 3])
def test_an_output_with_objectness(num_classes: int, is_transposed: bool, random: torch.Generator) -> None:
    boxes, objectness = torch.rand(2, 4, 378, generator=random), torch.rand(2, 1, 378, generator=random)
    classes = torch.rand(2, num_classes, 378, generator=random)
    raw = torch.cat([boxes, objectness, classes], 1)
    raw = raw.mT if is_transposed else raw
    reading = YoloOutput.from_output(raw, SIZE)
    assert reading is not None
    found = reading(nn.Identity(), (), raw)
    assert torch.equal(found.scores, objectness * classes)
    assert torch.equal(found.logits, objectness if num_classes == 1 else classes)
    x, y, width, height = boxes.unbind(1)
    expected = torch.stack([x - width / 2, y - height / 2, x + width / 2, y + height / 2], 2)
    torch.testing.assert_close(found.boxes, expected)


def test_detections_are_those_of_non_maximum_suppression_class_by_class(random: torch.Generator) -> None:
    corners = 50 * torch.rand(2, 40, 2, generator=random)
    boxes = torch.cat([corners, corners + 20 * torch.rand(2, 40, 2, generator=random)], 2)
    scores = torch.rand(2, 3, 40, generator=random)
    found = ebcli.Candidates(scores, boxes, scores, 0.3).detections(0.6)
    for i, of_image in enumerate(found):
        best, labels = scores[i].max(0)
        expected = []
        for label in range(3):
            (own,) = ((labels == label) & (best >= 0.6)).nonzero(as_tuple=True)
            expected += own[nms(boxes[i][own], best[own], 0.3)].tolist()
        assert sorted(one.anchor for one in of_image) == sorted(expected)
        assert len(expected) < int((best >= 0.6).sum())
        for one in of_image:
            assert (one.label, one.score) == (int(labels[one.anchor]), float(best[one.anchor]))
            assert one.box == tuple(boxes[i, one.anchor].tolist())
        assert [one.score for one in of_image] == sorted((one.score for one in of_image), reverse=True)
    everything = ebcli.Candidates(scores, boxes, scores).detections(0.6)  # candidates are objects
    assert [len(of_image) for of_image in everything] == [int((of.amax(0) >= 0.6).sum()) for of in scores]


@pytest.mark.parametrize("has_no_object", [True, False])
def test_queries(has_no_object: bool, random: torch.Generator) -> None:
    logits, boxes = torch.randn(2, 7, 4, generator=random), torch.rand(2, 7, 4, generator=random)
    found = ebcli.Candidates.of_queries(logits, boxes, SIZE, has_no_object=has_no_object)
    count = 3 if has_no_object else 4
    assert torch.equal(found.logits, logits.transpose(1, 2)[:, :count])
    scores = logits.exp() / logits.exp().sum(2, keepdim=True) if has_no_object else 1 / (1 + (-logits).exp())
    torch.testing.assert_close(found.scores, scores.transpose(1, 2)[:, :count])
    x, y, width, height = (boxes * torch.tensor([96, 64, 96, 64])).unbind(2)
    expected = torch.stack([x - width / 2, y - height / 2, x + width / 2, y + height / 2], 2)
    torch.testing.assert_close(found.boxes, expected)
    assert found.overlap is None


class Scores(nn.Module):
    """A small detector with SiLUs, whose scores are logits or their sigmoids."""

    def __init__(self, ends: nn.Module) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(2, 8, 3, 8, 1), nn.SiLU())
        self.fine = nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1), nn.SiLU())
        self.coarse = nn.Sequential(nn.Conv2d(8, 8, 3, 2, 1), nn.SiLU())
        self.heads = nn.ModuleList(nn.Conv2d(8, 3, 1) for _ in range(2))
        self.ends = ends

    def forward(self, x: Tensor) -> Tensor:
        stem = self.stem(x)
        features = self.fine(stem), self.coarse(stem)
        grids = [head(values).flatten(2) for head, values in zip(self.heads, features, strict=True)]
        scores = self.ends(torch.cat(grids, 2))
        return torch.cat([torch.ones(len(x), 4, scores.shape[2]), scores], 1)


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("contrastive", [True, False])
def test_maps_from_sigmoids_are_those_from_their_logits(joint: bool, contrastive: bool) -> None:
    """Also where a score is nearly 0 or 1."""
    torch.manual_seed(0)
    plain = Scores(nn.Identity()).eval()
    for head in plain.heads:
        head.bias.data = torch.tensor([-12.0, 0, 12])
    images = torch.randn(1, 2, *SIZE)
    ended = Scores(nn.Sigmoid()).eval()
    ended.load_state_dict(plain.state_dict())
    for net in (plain, ended):
        reading = YoloOutput.from_output(net(images), SIZE)
        assert reading is not None
        net.register_forward_hook(reading)
    assert ended(images).logits[0, 2].min() > 0.999
    assert 0 < ended(images).logits[0, 0].max() < 1e-3
    for label, anchor in ((0, 5), (1, 5), (2, 5), (0, 115), (2, 115)):
        by_logit, by_score = (
            ebcli.excitation_backprop(
                net, images, label, "stem", contrastive, where=(anchor,), joint=joint
            ).maps
            for net in (plain, ended)
        )
        assert by_logit.abs().sum() > 0.1
        torch.testing.assert_close(by_logit, by_score)


@pytest.mark.parametrize("factory", ["yolo", "transposed", "objectness", "Queries"])
def test_own_code_is_recognized(factory: str) -> None:
    loaded = ebcli.load_model(f"{color_tasks.__file__}:{factory}")
    assert (loaded.task, loaded.num_classes) == ("detection", 3)
    assert loaded.categories == ("red", "green", "blue")
    assert ebcli.default_layer(loaded) == "cells"  # of both grids
    images = torch.zeros(1, 3, 96, 96)
    images[0, 1, 32:40, 40:48] = 1
    (found,) = ebcli.detections(loaded.net, images)[0]
    assert (found.label, found.box) == (1, (40, 32, 48, 40))
    map_ = ebcli.excitation_backprop(loaded.net, images, 1, "cells", where=(found.anchor,)).maps[0]
    assert map_[4, 5] == map_.sum() == 1


def test_no_detectors(tmp_path: pytest.TempPathFactory) -> None:
    with pytest.raises(
        ebcli.ConfigurationError, match=r"Linear is not a detector: it must return ebcli.Candidates"
    ):
        ebcli.detections(nn.Linear(3, 3), torch.rand(1, 3))
    code = "from torch import nn\ndef net():\n    net = nn.Conv2d(3, 5, 1)\n    net.task = 'detection'\n    return net"
    (file := tmp_path / "wrong.py").write_text(code)
    with pytest.raises(
        ebcli.ConfigurationError, match=r"wrong.py:net is for detection, but does not return boxes"
    ):
        ebcli.load_model(f"{file}:net")
