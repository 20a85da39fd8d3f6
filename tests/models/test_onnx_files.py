"""Networks in ONNX files: compared with onnxruntime, and their maps with those of the original networks."""

from __future__ import annotations

import os
import resource
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from click.testing import CliRunner
from color_tasks import Segmenter, Yolo
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, ResNet
from torchvision.models.vision_transformer import VisionTransformer

import ebcli
from ebcli.cli.saliency import main
from ebcli.errors import ConfigurationError, EbcliError
from ebcli.models.fingerprint import network_settings

pytestmark = pytest.mark.usefixtures("watched")

SIDE = 64
SAME = "the layer that returns the same"


class Narrow(ResNet):
    def __init__(self) -> None:
        super().__init__(BasicBlock, [1, 1, 1, 1], num_classes=5)


def exported(net: nn.Module, path: Path, batch: str | None = None, *, dynamo: bool = False, side: int = SIDE) -> Path:
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


@pytest.fixture(scope="module")
def nets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[nn.Module, Path]]:
    """Networks, and the files that they were exported to."""
    folder = tmp_path_factory.mktemp("onnx")
    torch.manual_seed(0)
    vit = VisionTransformer(SIDE, 16, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=64, num_classes=5)
    nn.init.normal_(vit.heads.head.weight)
    softmax = nn.Sequential(Narrow(), nn.Softmax(1))
    nn.init.normal_(softmax[0].fc.weight)
    return {
        "resnet": (softmax[0].eval(), exported(softmax[0], folder / "resnet.onnx")),
        "vit": (vit.eval(), exported(vit, folder / "vit.onnx", "batch", dynamo=True)),
        "plain vit": (vit, exported(vit, folder / "plain.onnx", "batch")),
        "softmax": (softmax.eval(), exported(softmax, folder / "softmax.onnx", "batch")),
        "yolo": (Yolo().eval(), exported(Yolo(), folder / "yolo.onnx")),
        "dense": (Segmenter().eval(), exported(Segmenter(), folder / "dense.onnx", "batch")),
    }


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
    same = (name for name, y in outputs(other).items() if y.shape == expected.shape and y.allclose(expected, 1e-4))
    return next(same)


def run_by_onnxruntime(path: Path, images: Tensor) -> Tensor:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {session.get_inputs()[0].name: images.numpy()})[0])


@pytest.mark.parametrize("name", ["resnet", "vit", "plain vit", "softmax", "dense"])
def test_scores_are_those_of_onnxruntime(name: str, nets: dict[str, tuple[nn.Module, Path]]) -> None:
    _, path = nets[name]
    loaded, images = ebcli.load_model(str(path)), torch.rand(1 if name == "resnet" else 3, 3, SIDE, SIDE)
    with torch.no_grad():
        found = loaded.net(images)
    if name == "softmax":
        found = loaded.to_scores(found)
    torch.testing.assert_close(found, run_by_onnxruntime(path, images), rtol=1e-4, atol=1e-5)
    assert (loaded.weights, loaded.scores, loaded.num_classes) == ("file", "softmax", 4 if name == "dense" else 5)
    assert loaded.task == ("segmentation" if name == "dense" else "classification")
    assert loaded.transforms.size == (SIDE, SIDE)
    assert loaded.one_by_one is (name == "resnet")


@pytest.mark.parametrize(
    ("name", "layer", "converted"),
    [
        ("resnet", "layer3", "/layer3/layer3.0/relu_1/Relu"),
        ("resnet", None, None),
        ("vit", "encoder.dropout", SAME),
        ("vit", "encoder.layers.encoder_layer_0", SAME),
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
        one = ebcli.excitation_backprop(loaded.net, images, 2, converted, contrastive, where=(7,) if is_yolo else None)
        target: Any = 2
        if is_yolo:  # the original returns the rows of the boxes, too
            target = torch.zeros(1, 4 + 3, one.logits.shape[-1])
            target[:, 4 + 2, 7] = 1
        other = ebcli.excitation_backprop(net, images, target, layer, contrastive)
        assert one.joint == other.joint
        assert one.maps.abs().sum() > 0
        torch.testing.assert_close(one.maps, other.maps, rtol=1e-3, atol=1e-6)
        torch.testing.assert_close(one.mass, other.mass, rtol=1e-4, atol=1e-5)


def test_a_softmax_at_the_end_is_no_part_of_what_is_explained(nets: dict[str, tuple[nn.Module, Path]]) -> None:
    (resnet, _), (_, path) = nets["resnet"], nets["softmax"]
    loaded, images = ebcli.load_model(str(path)), torch.rand(2, 3, SIDE, SIDE)
    with torch.no_grad():
        torch.testing.assert_close(loaded.net(images), resnet(images), rtol=1e-4, atol=1e-4)


def test_layers_have_the_names_of_the_nodes_and_defaults_those_of_the_architecture(
    nets: dict[str, tuple[nn.Module, Path]],
) -> None:
    loaded = {name: ebcli.load_model(str(path)) for name, (_, path) in nets.items()}
    listed = {layer.name: layer for layer in ebcli.layers(loaded["resnet"])}
    assert {node.name for node in onnx.load(nets["resnet"][1]).graph.node if node.op_type in ("Conv", "Gemm")} <= {
        *listed
    }
    found = listed["/layer3/layer3.0/relu_1/Relu"]
    assert (found.type, found.shape, found.stride) == ("ReLU", (256, 4, 4), 16)
    assert ebcli.default_layer(loaded["resnet"]) == "/layer1/layer1.0/relu_1/Relu"
    tokens = same_values(nets["vit"][0], "encoder.dropout", loaded["vit"].net)  # which the first norm reads
    assert ebcli.default_layer(loaded["vit"]) == tokens
    assert ebcli.default_layer(loaded["plain vit"]) == "/encoder/Add"


def test_one_image_at_a_time_where_the_batch_is_fixed(
    nets: dict[str, tuple[nn.Module, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, path = nets["resnet"]
    monkeypatch.chdir(tmp_path)
    photos = [Image.effect_noise((80, 60 + 10 * i), 90).convert("RGB") for i in range(3)]
    for i, photo in enumerate(photos):
        photo.save(f"{i}.png")
    options = ["--layer", "/layer2/layer2.0/relu_1/Relu", "--top-k", "3", "--raw", "--batch-size", "2", "-o", "maps"]
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
    with pytest.warns(UserWarning, match=r"resnet.onnx does not say .* 0 to 1, normalized by ImageNet's mean"):
        spec = ebcli.load_model(path).transforms
    assert (spec.mean[0], spec.std[0], spec.fit) == (0.485, 0.229, "crop")
    with pytest.warns(UserWarning, match=r"assuming 0 to 1; --mean and --std set that"):
        spec = ebcli.load_model(str(nets["yolo"][1])).transforms
    assert (spec.mean, spec.std, spec.fit) == ((0,) * 3, (1,) * 3, "pad")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ebcli.load_model(path, preprocessing=ebcli.Preprocessing(mean=0, std=1)).transforms.mean == (0.0,) * 3


def graph(*nodes: onnx.NodeProto, shape: Any = ("batch", 3, 8, 8), opset: int = 17, **tensors: Any) -> onnx.ModelProto:
    """A model from ``x`` to ``y``, with constants."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])]
    constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in tensors.items()]
    made = helper.make_graph(nodes, "net", inputs, outputs, constants)
    opsets = [helper.make_opsetid(domain, version) for domain, version in (("", opset), ("acme", 1))]
    return helper.make_model(made, opset_imports=opsets, ir_version=9)


HEAD = [helper.make_node("GlobalAveragePool", ["h"], ["p"]), helper.make_node("Flatten", ["p"], ["y"])]
KERNEL = np.random.default_rng(0).normal(size=(4, 3, 3, 3)).astype(np.float32)


def saved(model: onnx.ModelProto, path: Path) -> str:
    onnx.save(model, path)
    return str(path)


def test_channels_last_sizes_and_names_are_read_from_the_file(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["t", "w"], ["h"]),
    ]
    model = graph(*nodes, *HEAD, shape=("batch", 8, 12, 3), w=KERNEL)
    helper.set_model_props(model, {"names": "{3: 'hat', 1: 'dog', 0: 'cat', 2: 'cup'}"})
    path = tmp_path / "last.onnx"
    loaded, images = ebcli.load_model(saved(model, path)), torch.rand(2, 3, 8, 12)
    assert loaded.categories == ("cat", "dog", "cup", "hat")
    assert (loaded.transforms.size, loaded.transforms.fit) == ((8, 12), "squash")
    torch.testing.assert_close(loaded.net(images), run_by_onnxruntime(path, images.movedim(1, -1)))
    assert ebcli.load_model(str(path), class_names=["a", "b", "c", "d"]).categories == ("a", "b", "c", "d")


@pytest.mark.parametrize(
    "names", ["{0: 'cat', 1: 2}", "__import__('os').abort()", "[" * 5000, "{1: 'a', 'x': 'b'}", "7"]
)
def test_names_in_the_metadata_are_literals_only(names: str, tmp_path: Path) -> None:
    model = graph(helper.make_node("Conv", ["x", "w"], ["h"]), *HEAD, w=KERNEL)
    helper.set_model_props(model, {"names": names})
    assert ebcli.load_model(saved(model, tmp_path / "net.onnx")).categories is None


def test_newer_operators_are_written_as_older_ones(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("Gelu", ["a"], ["b"]),
        helper.make_node("CastLike", ["half", "b"], ["c"]),
        helper.make_node("Mul", ["b", "c"], ["d"]),
        helper.make_node("Mish", ["d"], ["e"]),
        helper.make_node("Split", ["e"], ["f", "g"], axis=1, num_outputs=2),
        helper.make_node("Concat", ["g", "f"], ["h"], axis=1),
        helper.make_node("ReduceMean", ["h", "axes"], ["y"], keepdims=0),
    ]
    model = graph(*nodes, opset=20, w=KERNEL, half=np.float32(0.5), axes=np.array([2, 3]))
    loaded, images = ebcli.load_model(saved(model, tmp_path / "new.onnx")), torch.rand(2, 3, 8, 8)
    torch.testing.assert_close(loaded.net(images), run_by_onnxruntime(tmp_path / "new.onnx", images))


def external(tmp_path: Path, location: str, folder: str = "net") -> Path:
    """An ONNX file whose weights are in another file."""
    model = graph(helper.make_node("Conv", ["x", "w"], ["h"]), *HEAD, w=KERNEL)
    path = tmp_path / folder / "net.onnx"
    path.parent.mkdir(exist_ok=True)
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    model = onnx.load(path, load_external_data=False)
    for entry in model.graph.initializer[0].external_data:
        entry.value = location if entry.key == "location" else entry.value
    onnx.save(model, path)
    return path


def test_weights_in_another_file_of_the_directory(tmp_path: Path) -> None:
    path, images = external(tmp_path, "weights.bin"), torch.rand(2, 3, 8, 8)
    loaded = ebcli.load_model(str(path))
    torch.testing.assert_close(loaded.net(images), run_by_onnxruntime(path, images))
    assert loaded.files == (path, path.with_name("weights.bin"))
    before = network_settings(loaded)
    path.with_name("weights.bin").write_bytes(np.zeros_like(KERNEL).tobytes())
    assert network_settings(ebcli.load_model(str(path))) != before


def test_weights_elsewhere_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(KERNEL.tobytes())
    for location in ("../weights.bin", str(tmp_path / "weights.bin"), "link.bin", "sub/../../weights.bin"):
        path = external(tmp_path, location)
        if location == "link.bin":
            (path.parent / location).symlink_to(tmp_path / "weights.bin")
        with pytest.raises(ConfigurationError, match="leads out of its directory"):
            ebcli.load_model(str(path))


def test_missing_and_truncated_weights(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot read '.*none.bin', the data of .*net.onnx: No such file"):
        ebcli.load_model(str(external(tmp_path, "none.bin")))
    path = external(tmp_path, "weights.bin")
    path.with_name("weights.bin").write_bytes(KERNEL.tobytes()[:-1])
    with pytest.raises(ConfigurationError, match=r"weights.bin', the data of .*, is truncated: copy it again"):
        ebcli.load_model(str(path))


CONV = helper.make_node("Conv", ["x", "w"], ["h"])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is no ONNX file: it has no network"),
        (b"PK\x03\x04 something else", "is no ONNX file, or is truncated"),
        (graph(CONV, *HEAD, w=KERNEL).SerializeToString()[:-60], "is no ONNX file"),
        (graph(CONV, *HEAD, w=KERNEL, shape=(4, 3, 8, 8)), "takes 4 images at once: export it for one"),
        (graph(CONV, *HEAD, w=KERNEL, shape=(1, 3, 8)), r"takes an input \(1, 3, 8\), but images"),
        (graph(CONV, *HEAD), r"has 2 inputs \(x, w\), but must have one"),
        (
            graph(CONV, helper.make_node("NonMaxSuppression", ["b", "s"], ["n"]), *HEAD, w=KERNEL),
            "non-maximum suppression",
        ),
        (graph(helper.make_node("Unheard", ["x"], ["h"], domain="acme"), *HEAD), r"no Unheard\): export .* \.pt2 file"),
        (
            graph(helper.make_node("Resize", ["x", "", "s"], ["h"], antialias=1), *HEAD, opset=18, s=[1.0, 1, 2, 2]),
            r"no Resize with antialias\): export the network with torch.export",
        ),
    ],
)
def test_wrong_files(content: bytes | onnx.ModelProto, said: str, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    if isinstance(content, onnx.ModelProto) and "2 inputs" in said:
        content.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, KERNEL.shape))
    path.write_bytes(content if isinstance(content, bytes) else content.SerializeToString())
    with pytest.raises(ConfigurationError, match=said) as caught:
        ebcli.load_model(str(path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def nested(depth: int, cyclic: bool = False) -> onnx.ModelProto:
    """A function that calls another one ten times, and so on, or itself."""
    domain, model = "acme", graph(helper.make_node("f0", ["x"], ["h"], domain="acme"), *HEAD)
    for i in range(depth):
        callee = (f"f{i + 1}", domain) if i + 1 < depth else ("f0", domain) if cyclic else ("Relu", "")
        calls = [helper.make_node(callee[0], [f"v{j}"], [f"v{j + 1}"], domain=callee[1]) for j in range(10)]
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
        model.functions.append(helper.make_function(domain, f"f{i}", ["v0"], ["v10"], calls, opsets))
    return model


def looped(operator: str, **inputs: Any) -> onnx.ModelProto:
    """A constant that a loop counts up to, or a condition chooses."""
    value = helper.make_tensor_value_info
    one = helper.make_node("Constant", [], ["n"], value=numpy_helper.from_array(np.float32(1)))
    keep = helper.make_node("Identity", ["c"], ["d"])
    if operator == "Loop":
        given = [value("i", TensorProto.INT64, []), value("c", TensorProto.BOOL, []), value("v", TensorProto.FLOAT, [])]
        add = helper.make_node("Add", ["v", "n"], ["w"])
        made = [value("d", TensorProto.BOOL, []), value("w", TensorProto.FLOAT, [])]
        attributes = {"body": helper.make_graph([one, keep, add], "body", given, made)}
    else:
        branch = helper.make_graph([one], "branch", [], [value("n", TensorProto.FLOAT, [])])
        attributes = {"then_branch": branch, "else_branch": branch}
    node = helper.make_node(operator, [*inputs], ["s"], **attributes)
    return graph(node, helper.make_node("Mul", ["x", "s"], ["h"]), *HEAD, **inputs)


def untyped() -> onnx.ModelProto:
    """Weights of a type that does not exist."""
    model = graph(CONV, *HEAD, w=KERNEL)
    model.graph.initializer[0].data_type = 999
    return model


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n(%pipe%touch ran) (w) file\n%%EOF\n"
MUCH = [
    ("loop", lambda: looped("Loop", m=np.int64(2**62), t=np.bool_(1), z=np.float32(0)), "has Loop, whose parts run"),
    ("condition", lambda: looped("If", t=np.bool_(1)), "has If, whose parts run or not as the values decide: export"),
    ("functions", lambda: nested(12), "has more than 20,000 nodes: export it without"),
    ("a function of itself", lambda: nested(1, cyclic=True), "has more than 20,000 nodes: export it without"),
    (
        "nodes",
        lambda: graph(*[helper.make_node("Relu", [f"{i}" if i else "x"], [f"{i + 1}"]) for i in range(100_000)], *HEAD),
        "has more than 20,000 nodes",
    ),
    (
        "a picture",
        lambda: graph(
            helper.make_node("ImageDecoder", ["e"], ["i"]),
            helper.make_node("Cast", ["i"], ["f"], to=1),
            helper.make_node("Mul", ["x", "f"], ["h"]),
            *HEAD,
            opset=20,
            e=np.frombuffer(EPS, np.uint8),
        ),
        "the converter has no ImageDecoder",
    ),
    (
        "a type",
        untyped,
        r"\(it is not valid, or the converter does not know how to\): export",
    ),
    ("a circle", lambda: graph(*HEAD[:1], helper.make_node("Identity", ["y"], ["y"])), "cannot convert"),
    (
        "much of little",
        lambda: graph(
            *[helper.make_node("Tile", [f"c{i}", "n"], [f"c{i + 1}"]) for i in range(9)],
            helper.make_node("ReduceSum", ["c9"], ["s"]),
            helper.make_node("Mul", ["x", "s"], ["h"]),
            *HEAD,
            c0=np.ones(100, np.float32),
            n=np.array([100]),
        ),
        "",
    ),
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("make", "said"), [one[1:] for one in MUCH], ids=[one[0] for one in MUCH])
def test_nothing_runs_while_a_file_is_converted(make: Any, said: str, tmp_path: Path) -> None:
    path = saved(make(), tmp_path / "net.onnx")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(EbcliError, match=said) as caught:
        ebcli.load_model(path)
    assert "\n" not in str(caught.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # KB


def test_a_pipe_in_place_of_data_is_not_opened(tmp_path: Path) -> None:
    path = external(tmp_path, "weights.bin")
    path.with_name("weights.bin").unlink()
    os.mkfifo(path.with_name("weights.bin"))
    with pytest.raises(ConfigurationError, match=r"cannot read '.*weights.bin', the data of .*: it is not a regular"):
        ebcli.load_model(str(path))


def test_data_are_not_read_again_and_again(tmp_path: Path) -> None:
    path = external(tmp_path, "weights.bin")
    model = onnx.load(path, load_external_data=False)
    for i in range(5):
        model.graph.initializer.append(model.graph.initializer[0])
        model.graph.initializer[-1].name = f"again {i}"
    onnx.save(model, path)
    with pytest.raises(ConfigurationError, match=r"reads '.*weights.bin' again and again"):
        ebcli.load_model(str(path))


def test_a_file_that_does_not_exist() -> None:
    with pytest.raises(ConfigurationError, match=r"the file maps/none\.onnx does not exist"):
        ebcli.load_model("maps/none.onnx")
