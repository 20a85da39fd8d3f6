"""Programs of torch.export: their layers, scores and maps are those of the original networks."""

import zipfile
from pathlib import Path

import pytest
import torch
from color_tasks import Yolo
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, ResNet
from torchvision.models.vision_transformer import VisionTransformer
from two_heads import TwoHeads

import ebcli
from ebcli.errors import ConfigurationError, LayerError

pytestmark = [
    pytest.mark.usefixtures("watched"),
    pytest.mark.filterwarnings("ignore:.* does not say how pixels are scaled"),
]
SIDE = 64


class Small(nn.Module):
    """A VGG with a sigmoid or softmax that is no module."""

    def __init__(self, end: str = "") -> None:
        super().__init__()
        self.end = end
        self.features = nn.Sequential(
            *(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        )
        self.classifier = nn.Sequential(nn.Dropout(), nn.Linear(8 * 16 * 16, 5))

    def forward(self, x: Tensor) -> Tensor:
        logits = self.classifier(self.features(x).flatten(1))
        return getattr(logits, self.end)(*([1] if "softmax" in self.end else [])) if self.end else logits


def saved(
    net: nn.Module, path: Path, *, batch: int | None = None, decomposed: bool = False, side: int = SIDE
) -> str:
    """The file of a network for batches of one size, or of any."""
    free = None if batch else ({0: torch.export.Dim("batch")},)
    program = torch.export.export(net.eval(), (torch.rand(batch or 2, 3, side, side),), dynamic_shapes=free)
    torch.export.save(program.run_decompositions() if decomposed else program, path)
    return str(path)


@pytest.fixture(scope="module")
def nets() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    vit = VisionTransformer(SIDE, 16, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=64, num_classes=5)
    nn.init.normal_(vit.heads.head.weight)
    return {
        "resnet": ResNet(BasicBlock, [1, 1, 1, 1], num_classes=5),
        "vgg": Small(),
        "vit": vit,
        "yolo": Yolo(),
    }


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("name", "layer", "batch", "decomposed"),
    [
        pytest.param("vgg", "features.6", None, False, marks=pytest.mark.release),
        ("vgg", "features.6", 1, True),
        pytest.param("resnet", "layer3", None, True, marks=pytest.mark.slow),
        ("resnet", None, 1, False),
        pytest.param("vit", "encoder.dropout", None, False, marks=pytest.mark.release),
        pytest.param("vit", "encoder.layers.encoder_layer_0.ln_1", None, True, marks=pytest.mark.slow),
        ("yolo", "cells.cells", 1, False),
    ],
)
def test_maps_are_those_of_the_original_network_at_the_same_layer(
    name: str,
    layer: str | None,
    batch: int | None,
    decomposed: bool,
    nets: dict[str, nn.Module],
    tmp_path: Path,
) -> None:
    net, images = nets[name], torch.rand(batch or 3, 3, SIDE, SIDE)
    loaded = ebcli.load_model(saved(net, tmp_path / "net.pt2", batch=batch, decomposed=decomposed))
    is_yolo = name == "yolo"
    assert (loaded.task, loaded.one_by_one, loaded.weights) == (
        "detection" if is_yolo else "classification",
        batch == 1,
        "file",
    )
    for contrastive in (True, False):
        one = ebcli.excitation_backprop(
            loaded.net, images, 2, layer, contrastive, where=(7,) if is_yolo else None
        )
        target = torch.zeros(1, 4 + 3, one.logits.shape[-1])
        target[:, 4 + 2, 7:8] = 1  # the original returns the rows of the boxes, too
        other = ebcli.excitation_backprop(net, images, target if is_yolo else 2, layer, contrastive)
        assert one.joint == other.joint
        assert one.maps.abs().sum() > 0
        torch.testing.assert_close(one.maps, other.maps, rtol=1e-4, atol=1e-7)


@pytest.mark.release
def test_layers_have_the_names_types_and_strides_of_the_original_s(
    nets: dict[str, nn.Module], tmp_path: Path
) -> None:
    for name in ("vgg", "vit"):
        loaded = ebcli.load_model(saved(nets[name], tmp_path / f"{name}.pt2"))
        original = {layer.name: layer for layer in ebcli.layers(nets[name], SIDE)}
        found = {layer.name: layer for layer in ebcli.layers(loaded)}
        common = found.keys() & original.keys()
        assert all(found[key] == original[key] for key in common)
        assert len(common) > 0.8 * len(original)
        assert ebcli.default_layer(loaded) == ebcli.default_layer(nets[name], SIDE)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("end", "scores", "decomposed"),
    [("softmax", "softmax", False), ("log_softmax", "softmax", True), ("sigmoid", "sigmoid", False)],
)
def test_scores_at_the_end_are_not_turned_into_scores_again(
    end: str, scores: str, decomposed: bool, tmp_path: Path
) -> None:
    net, images = Small(end).eval(), torch.rand(2, 3, SIDE, SIDE)
    loaded = ebcli.load_model(saved(net, tmp_path / "net.pt2", decomposed=decomposed))
    assert loaded.scores == scores
    with torch.no_grad():
        expected = net(images)
        found = loaded.to_scores(loaded.net(images))
    torch.testing.assert_close(found.log() if end == "log_softmax" else found, expected)


def test_a_checkpoint_for_the_same_network_replaces_the_weights(
    nets: dict[str, nn.Module], tmp_path: Path
) -> None:
    path, other, images = (
        saved(nets["vgg"], tmp_path / "net.pt2"),
        Small().eval(),
        torch.rand(1, 3, SIDE, SIDE),
    )
    torch.save(other.state_dict(), tmp_path / "other.pth")
    loaded = ebcli.load_model(path, tmp_path / "other.pth")
    torch.testing.assert_close(loaded.net(images), other(images))
    assert loaded.files == (Path(path), tmp_path / "other.pth")


class Two(Small):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x + y)


def test_wrong_files(nets: dict[str, nn.Module], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def refused(path: str | Path, said: str) -> None:
        with pytest.raises(ConfigurationError, match=said) as caught:
            ebcli.load_model(str(path))
        assert "\n" not in str(caught.value)

    (tmp_path / "text.pt2").write_text("not a program")
    refused(tmp_path / "text.pt2", r"text.pt2 is no program of torch.export.save\(\): .*")
    whole = Path(saved(nets["vgg"], tmp_path / "whole.pt2"))
    (tmp_path / "half.pt2").write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    refused(tmp_path / "half.pt2", "half.pt2 is no program of torch.export.save")
    assert not [
        one for one in caplog.records if one.levelname == "WARNING"
    ]  # PyTorch logs tracebacks of all formats that it tries
    torch.jit.save(torch.jit.trace(nets["vgg"].eval(), torch.rand(1, 3, SIDE, SIDE)), tmp_path / "script.pt2")
    refused(tmp_path / "script.pt2", "script.pt2 is no program of torch.export.save")
    refused("none.pt2", "the file none.pt2 does not exist")
    refused(
        saved(nets["vgg"], tmp_path / "four.pt2", batch=4),
        "takes 4 images at once: export it for one, or for any",
    )
    images = torch.rand(1, 3, SIDE, SIDE)
    torch.export.save(torch.export.export(Two().eval(), (images, images)), tmp_path / "two.pt2")
    refused(tmp_path / "two.pt2", r"has 2 inputs \(x, y\), but must have one")
    with pytest.raises(LayerError, match="did you mean"):
        ebcli.models.resolve_layer(ebcli.load_model(str(whole)), "features.66")


@pytest.mark.parametrize("name", ["script.pt", "folder/net.pth", "net.torchscript"])
def test_torchscript_and_checkpoints_are_no_models(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"torch.export to a .pt2 file, or .* to --weights"):
        ebcli.load_model(name)


RAN: list[int] = []


def run() -> None:
    RAN.append(1)


class Payload:
    def __reduce__(self) -> object:
        return run, ()


def test_why_the_documentation_says_that_such_files_run_code(
    nets: dict[str, nn.Module], tmp_path: Path
) -> None:
    """If this fails, PyTorch reads them safely now, and SECURITY.md can say so."""
    path = Path(saved(nets["vgg"], tmp_path / "net.pt2"))
    torch.save(Payload(), tmp_path / "payload")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / "new.pt2", "w") as new:
        for entry in old.namelist():
            is_sample = "sample_inputs" in entry and entry.endswith(".pt")
            new.writestr(entry, (tmp_path / "payload").read_bytes() if is_sample else old.read(entry))
    with pytest.raises(ConfigurationError, match=r"is no program of torch\.export\.save"):
        ebcli.load_model(str(tmp_path / "new.pt2"))
    assert RAN


@pytest.mark.parametrize(
    ("head", "name"),
    [("color", "color"), (0, "kind"), (None, "out")],
    ids=["by name", "by position", "usual"],
)
def test_a_head_is_chosen_and_ends_before_its_softmax(
    tmp_path: Path, head: str | int | None, name: str
) -> None:
    """The first output is left as it is, with a sigmoid at its end."""
    other = "out" if head is None else "color"
    net = TwoHeads(lambda kind, color: {"kind": kind.sigmoid(), other: color.softmax(1)})
    path = saved(net, tmp_path / "heads.pt2", side=16)
    loaded = ebcli.load_model(path, head=head)
    images = torch.rand(3, 3, 16, 16)
    logits = loaded.net(images)
    assert (loaded.head, loaded.heads) == (name, {"kind": (2,), other: (3,)})
    assert loaded.scores == ("sigmoid" if name == "kind" else "softmax")
    torch.testing.assert_close(loaded.to_scores(logits), net(images)[name])
    torch.testing.assert_close(logits[:, 1], {"kind": -images[:, 0]}.get(name, images[:, 2]).mean((1, 2)))


def test_a_program_with_several_outputs_asks(tmp_path: Path) -> None:
    path = saved(TwoHeads(lambda kind, color: (kind, color)), tmp_path / "heads.pt2", side=16)
    with pytest.raises(ConfigurationError, match=r"choose one of 0 \(B, 2\); 1 \(B, 3\), by head= or --head"):
        ebcli.load_model(path)
    with pytest.raises(ConfigurationError, match=r"no head 'color': choose one of 0 \(B, 2\); 1 \(B, 3\)$"):
        ebcli.load_model(path, head="color")
