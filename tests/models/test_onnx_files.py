"""Networks in ONNX files: compared with onnxruntime, and their maps with those of the original networks."""

import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime  # which reads a file of the system, so before any test is watched
import pytest
import torch
from click.testing import CliRunner
from color_tasks import Segmenter, Yolo
from PIL import Image
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, ResNet
from torchvision.models.vision_transformer import VisionTransformer
from two_heads import TwoHeads

import ebcli
from ebcli.cli.saliency import main

pytestmark = pytest.mark.usefixtures("watched")

SIDE = 64
SAME = "the layer that returns the same"
VIT = pytest.param("vit", marks=pytest.mark.release)  # by an exporter that is slow


class Narrow(ResNet):
    def __init__(self) -> None:
        super().__init__(BasicBlock, [1, 1, 1, 1], num_classes=5)


def exported(
    net: nn.Module, path: Path, batch: str | None = None, *, dynamo: bool = False, side: int = SIDE
) -> Path:
    """An ONNX file of a network with a fixed batch of one, or a free one."""
    images, options = torch.rand(2 if batch else 1, 3, side, side), dict[str, Any]()
    if dynamo:
        options["dynamic_shapes"] = ({0: torch.export.Dim(batch)},) if batch else None
    elif batch:
        options["dynamic_axes"] = {"images": {0: batch}}
    names = {"input_names": ["images"], "output_names": ["output"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(net.eval(), (images,), path, dynamo=dynamo, verbose=False, **names, **options)
    return path


class Exported(dict[str, tuple[nn.Module, Path]]):
    """Networks, and the files that they are exported to once a test asks for them."""

    def __init__(self, nets: dict[str, nn.Module], folder: Path) -> None:
        self._nets, self._folder = nets, folder

    def __missing__(self, name: str) -> tuple[nn.Module, Path]:
        net, path = self._nets[name].eval(), self._folder / f"{name.replace(' ', '-')}.onnx"
        fixed = name in ("resnet", "yolo")
        self[name] = net, exported(net, path, None if fixed else "batch", dynamo=name == "vit")
        return self[name]


@pytest.fixture(scope="module")
def nets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[nn.Module, Path]]:
    torch.manual_seed(0)
    vit = VisionTransformer(SIDE, 16, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=64, num_classes=5)
    nn.init.normal_(vit.heads.head.weight)
    softmax = nn.Sequential(Narrow(), nn.Softmax(1))
    nn.init.normal_(softmax[0].fc.weight)
    known = {
        "resnet": softmax[0],
        "vit": vit,
        "plain vit": vit,
        "softmax": softmax,
        "yolo": Yolo(),
        "dense": Segmenter(),
    }
    return Exported(known, tmp_path_factory.mktemp("onnx"))


def same_values(net: nn.Module, layer: str, other: nn.Module) -> str:
    """The first layer of a converted network that returns what a layer of the original does.

    PyTorch's exporter has numbered nodes in several ways.
    """

    def outputs(net: nn.Module) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        with ExitStack() as hooks, torch.no_grad():
            for name, module in net.named_modules():
                hook = module.register_forward_hook(lambda _m, _i, y, name=name: found.setdefault(name, y))
                hooks.callback(hook.remove)
            net(torch.ones(1, 3, SIDE, SIDE))
        return {name: y for name, y in found.items() if isinstance(y, Tensor)}

    expected = outputs(net)[layer]
    same = (
        name for name, y in outputs(other).items() if y.shape == expected.shape and y.allclose(expected, 1e-4)
    )
    return next(same)


def run_by_onnxruntime(path: Path, images: Tensor) -> Tensor:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {session.get_inputs()[0].name: images.numpy()})[0])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["resnet", VIT, "plain vit", "softmax", "dense"])
def test_scores_are_those_of_onnxruntime(name: str, nets: dict[str, tuple[nn.Module, Path]]) -> None:
    _, path = nets[name]
    loaded, images = ebcli.load_model(str(path)), torch.rand(1 if name == "resnet" else 3, 3, SIDE, SIDE)
    with torch.no_grad():
        found = loaded.net(images)
    if name == "softmax":
        found = loaded.to_scores(found)
    torch.testing.assert_close(found, run_by_onnxruntime(path, images), rtol=1e-4, atol=1e-5)
    assert (loaded.weights, loaded.scores, loaded.num_classes) == (
        "file",
        "softmax",
        4 if name == "dense" else 5,
    )
    assert loaded.task == ("segmentation" if name == "dense" else "classification")
    assert loaded.transforms.size == (SIDE, SIDE)
    assert loaded.one_by_one is (name == "resnet")


@pytest.mark.parametrize(
    ("name", "layer", "converted"),
    [
        ("resnet", "layer3", "/layer3/layer3.0/relu_1/Relu"),
        pytest.param("resnet", None, None, marks=pytest.mark.release),
        pytest.param("vit", "encoder.dropout", SAME, marks=pytest.mark.release),
        pytest.param("vit", "encoder.layers.encoder_layer_0", SAME, marks=pytest.mark.release),
        ("plain vit", "encoder.dropout", "/encoder/Add"),
        ("yolo", "cells.cells", "/cells/cells/Conv"),
    ],
)
def test_maps_are_those_of_the_original_network(
    name: str, layer: str | None, converted: str | None, nets: dict[str, tuple[nn.Module, Path]]
) -> None:
    net, path = nets[name]
    loaded, images, is_yolo = ebcli.load_model(str(path)), torch.rand(1, 3, SIDE, SIDE), name == "yolo"
    converted = same_values(net, str(layer), loaded.net) if converted == SAME else converted
    for contrastive in (True, False):
        one = ebcli.excitation_backprop(
            loaded.net, images, 2, converted, contrastive, where=(7,) if is_yolo else None
        )
        target: Any = 2
        if is_yolo:  # the original returns the rows of the boxes, too
            target = torch.zeros(1, 4 + 3, one.logits.shape[-1])
            target[:, 4 + 2, 7] = 1
        other = ebcli.excitation_backprop(net, images, target, layer, contrastive)
        assert one.joint == other.joint
        assert one.maps.abs().sum() > 0
        torch.testing.assert_close(one.maps, other.maps, rtol=1e-3, atol=1e-6)
        torch.testing.assert_close(one.mass, other.mass, rtol=1e-4, atol=1e-5)


def test_a_softmax_at_the_end_is_no_part_of_what_is_explained(
    nets: dict[str, tuple[nn.Module, Path]],
) -> None:
    (resnet, _), (_, path) = nets["resnet"], nets["softmax"]
    loaded, images = ebcli.load_model(str(path)), torch.rand(2, 3, SIDE, SIDE)
    with torch.no_grad():
        torch.testing.assert_close(loaded.net(images), resnet(images), rtol=1e-4, atol=1e-4)


def test_layers_have_the_names_of_the_nodes_and_defaults_those_of_the_architecture(
    nets: dict[str, tuple[nn.Module, Path]],
) -> None:
    loaded = {name: ebcli.load_model(str(nets[name][1])) for name in ("resnet", "plain vit")}
    listed = {layer.name: layer for layer in ebcli.layers(loaded["resnet"])}
    assert {
        node.name for node in onnx.load(nets["resnet"][1]).graph.node if node.op_type in ("Conv", "Gemm")
    } <= {*listed}
    found = listed["/layer3/layer3.0/relu_1/Relu"]
    assert (found.type, found.shape, found.stride) == ("ReLU", (256, 4, 4), 16)
    assert ebcli.default_layer(loaded["resnet"]) == "/layer1/layer1.0/relu_1/Relu"
    assert ebcli.default_layer(loaded["plain vit"]) == "/encoder/Add"


@pytest.mark.release
def test_the_default_layer_of_a_transformer_by_the_other_exporter(
    nets: dict[str, tuple[nn.Module, Path]],
) -> None:
    net, path = nets["vit"]
    loaded = ebcli.load_model(str(path))
    assert ebcli.default_layer(loaded) == same_values(
        net, "encoder.dropout", loaded.net
    )  # which the first norm reads


@pytest.mark.release
def test_one_image_at_a_time_where_the_batch_is_fixed(
    nets: dict[str, tuple[nn.Module, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, path = nets["resnet"]
    monkeypatch.chdir(tmp_path)
    photos = [Image.effect_noise((80, 60 + 10 * i), 90).convert("RGB") for i in range(3)]
    for i, photo in enumerate(photos):
        photo.save(f"{i}.png")
    options = [
        "--layer",
        "/layer2/layer2.0/relu_1/Relu",
        "--top-k",
        "3",
        "--raw",
        "--batch-size",
        "2",
        "-o",
        "maps",
    ]
    result = CliRunner().invoke(main, ["--model", str(path), *options, "0.png", "1.png", "2.png"])
    assert result.exit_code == 0, result.stderr
    assert result.stderr.count("assuming 0 to 1, normalized by ImageNet's mean") == 1
    spec = ebcli.load_model(str(path), preprocessing=ebcli.Preprocessing(fit="pad")).transforms
    for i, photo in enumerate(photos):
        inputs, file = spec(photo)[None], np.load(*Path("maps").glob(f"{i}.png*.npz"))
        classes = torch.from_numpy(file["classes"])[None]
        expected = ebcli.excitation_backprop(net, inputs, classes, "layer2", contrastive=True).maps[0]
        torch.testing.assert_close(torch.from_numpy(file["maps"]), expected, rtol=1e-3, atol=1e-5)


def test_what_is_assumed_is_said_unless_it_is_given(nets: dict[str, tuple[nn.Module, Path]]) -> None:
    path = str(nets["resnet"][1])
    with pytest.warns(
        UserWarning, match=r"resnet.onnx does not say .* 0 to 1, normalized by ImageNet's mean"
    ):
        spec = ebcli.load_model(path).transforms
    assert (spec.mean[0], spec.std[0], spec.fit) == (0.485, 0.229, "crop")
    with pytest.warns(UserWarning, match=r"assuming 0 to 1; --mean and --std set that"):
        spec = ebcli.load_model(str(nets["yolo"][1])).transforms
    assert (spec.mean, spec.std, spec.fit) == ((0,) * 3, (1,) * 3, "pad")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (
            ebcli.load_model(path, preprocessing=ebcli.Preprocessing(mean=0, std=1)).transforms.mean
            == (0.0,) * 3
        )


@pytest.fixture(scope="module")
def two_outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with two outputs, of which the second ends in a softmax."""
    path = tmp_path_factory.mktemp("heads") / "heads.onnx"
    net = TwoHeads(lambda kind, color: (kind, color.softmax(1)))
    names = {"input_names": ["images"], "output_names": ["kind", "color"]}
    free = {"images": {0: "batch"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net.eval(), (torch.rand(2, 3, 16, 16),), path, dynamo=False, dynamic_axes=free, **names
        )
    return path


@pytest.mark.filterwarnings("ignore:.* does not say how pixels are scaled")
@pytest.mark.parametrize(
    ("head", "name"), [(None, "kind"), ("kind", "kind"), ("color", "color"), (1, "color"), ("-2", "kind")]
)
def test_an_output_is_chosen(two_outputs: Path, head: str | int | None, name: str) -> None:
    """Without a choice, the first one is explained."""
    loaded = ebcli.load_model(str(two_outputs), head=head)
    assert (loaded.head, loaded.heads) == (name, {"kind": (2,), "color": (3,)})
    images = torch.rand(2, 3, 16, 16)
    session = onnxruntime.InferenceSession(two_outputs, providers=["CPUExecutionProvider"])
    (expected,) = session.run([name], {"images": images.numpy()})
    logits = loaded.net(images)
    found = loaded.to_scores(logits) if name == "color" else logits
    torch.testing.assert_close(found.detach(), torch.from_numpy(expected))
    torch.testing.assert_close(
        logits[:, 1], {"kind": -images[:, 0], "color": images[:, 2]}[name].mean((1, 2))
    )


def test_outputs_that_a_file_does_not_have(
    two_outputs: Path, nets: dict[str, tuple[nn.Module, Path]]
) -> None:
    with pytest.raises(ebcli.ConfigurationError, match="has no head 'size': choose one of kind, color"):
        ebcli.load_model(str(two_outputs), head="size")
    with pytest.raises(ebcli.ConfigurationError, match="has only one output: drop the head"):
        ebcli.load_model(str(nets["softmax"][1]), head=0)
