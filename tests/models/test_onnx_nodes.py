"""ONNX files written node by node: what is read from them, and what a stranger may write into them."""

import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime  # noqa: F401  here, because it reads files that no test names
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from test_onnx_files import run_by_onnxruntime

import ebcli
from ebcli.errors import ConfigurationError, EbcliError
from ebcli.models.loaded import network_settings

pytestmark = pytest.mark.usefixtures("watched")


def graph(
    *nodes: onnx.NodeProto, shape: Any = ("batch", 3, 8, 8), opset: int = 17, **tensors: Any
) -> onnx.ModelProto:
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


def test_dense_scores_with_channels_last_get_them_first(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["t", "w"], ["h"]),
        helper.make_node("Transpose", ["h"], ["s"], perm=[0, 2, 3, 1]),
        helper.make_node("Softmax", ["s"], ["y"], axis=3),
    ]
    model, path = graph(*nodes, shape=("batch", 8, 12, 3), w=KERNEL), tmp_path / "dense.onnx"
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 6, 10, 4]))
    loaded, images = ebcli.load_model(saved(model, path)), torch.rand(2, 3, 8, 12)
    assert (loaded.task, loaded.num_classes, loaded.scores) == ("segmentation", 4, "softmax")
    expected = run_by_onnxruntime(path, images.movedim(1, -1)).movedim(-1, 1)
    torch.testing.assert_close(loaded.net(images).softmax(1), expected)


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
    with pytest.raises(
        ConfigurationError, match=r"cannot read '.*none.bin', the data of .*net.onnx: No such file"
    ):
        ebcli.load_model(str(external(tmp_path, "none.bin")))
    path = external(tmp_path, "weights.bin")
    path.with_name("weights.bin").write_bytes(KERNEL.tobytes()[:-1])
    with pytest.raises(
        ConfigurationError, match=r"weights.bin', the data of .*, is truncated: copy it again"
    ):
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
        (
            graph(helper.make_node("Unheard", ["x"], ["h"], domain="acme"), *HEAD),
            r"no Unheard\): export .* \.pt2 file",
        ),
        (
            graph(
                helper.make_node("Resize", ["x", "", "s"], ["h"], antialias=1),
                *HEAD,
                opset=18,
                s=[1.0, 1, 2, 2],
            ),
            r"no Resize with antialias\): export it with torch.export",
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
        given = [
            value("i", TensorProto.INT64, []),
            value("c", TensorProto.BOOL, []),
            value("v", TensorProto.FLOAT, []),
        ]
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
    (
        "loop",
        lambda: looped("Loop", m=np.int64(2**62), t=np.bool_(1), z=np.float32(0)),
        "has Loop, whose parts run",
    ),
    (
        "condition",
        lambda: looped("If", t=np.bool_(1)),
        "has If, whose parts run or not as the values decide: export",
    ),
    ("functions", lambda: nested(12), "has more than 20,000 nodes: export it without"),
    ("a function of itself", lambda: nested(1, cyclic=True), "has more than 20,000 nodes: export it without"),
    (
        "nodes",
        lambda: graph(
            *[helper.make_node("Relu", [f"{i}" if i else "x"], [f"{i + 1}"]) for i in range(100_000)], *HEAD
        ),
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
    ("a type", untyped, r"\(it is not valid, or the converter does not know how to\): export"),
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
        "its Tile makes more values than fit into memory",
    ),
    (
        "doubling",
        lambda: graph(
            *[helper.make_node("Concat", [f"c{i}", f"c{i}"], [f"c{i + 1}"], axis=0) for i in range(40)],
            helper.make_node("ReduceSum", ["c40"], ["s"]),
            helper.make_node("Mul", ["x", "s"], ["h"]),
            *HEAD,
            c0=np.ones(100, np.float32),
        ),
        "its Concat makes more values than fit into memory",
    ),
    (
        "doubling of the image",
        lambda: graph(
            helper.make_node("Relu", ["x"], ["c0"]),
            *[helper.make_node("Concat", [f"c{i}", f"c{i}"], [f"c{i + 1}"], axis=2) for i in range(40)],
            helper.make_node("ReduceMax", ["c40"], ["h"], keepdims=1),
            *HEAD,
        ),
        "its Concat makes more values than fit into memory",
    ),
    (
        "sizes that only a computation tells",
        lambda: graph(
            helper.make_node("NonZero", ["c0"], ["n"]),
            helper.make_node("Tile", ["c0", "n"], ["t"]),
            helper.make_node("ReduceSum", ["t"], ["s"]),
            helper.make_node("Mul", ["x", "s"], ["h"]),
            *HEAD,
            c0=np.ones(2, np.float32),
        ),
        "its NonZero makes more values than fit into memory",
    ),
]


@pytest.mark.one_in(3)
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
    with pytest.raises(
        ConfigurationError, match=r"cannot read '.*weights.bin', the data of .*: it is not a regular"
    ):
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
