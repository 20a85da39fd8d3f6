"""Networks that only answer: NumPy, ONNX Runtime and a web service, explained by covering parts of the picture."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from click.testing import CliRunner
from color_net import RED, color_net, painted
from onnx import TensorProto, helper
from torch import Tensor

import ebcli
from ebcli.cli.saliency import main
from ebcli.errors import ConfigurationError, ImageError
from ebcli.methods import table
from ebcli.methods.call import MethodCall
from ebcli.models import LoadedModel, default_layer, load_model

PHOTO = painted((48, 32), (RED, (26, 6, 34, 14)))  # left, top, right, bottom
REFUSED = "only answers and cannot be looked into: choose --method occlusion or rise"
CODE = '''
import json
import urllib.request

import numpy as np
import onnxruntime
import torch

import ebcli

class Answering:
    """Logits 0, 1 and 2 are 20 times the mean of red, green and blue, as those of color_net."""

    preprocessing = ebcli.Preprocessing(resize=32, crop=32, mean=0.0, std=1.0, fit="squash")
    categories = ["red", "green", "blue"]

class Numpy(Answering):
    def __call__(self, images):
        assert (images.dtype, images.device.type, images.requires_grad) == (torch.float32, "cpu", False)
        return 20 * np.asarray(images, dtype=np.float64).mean((2, 3))

class Torch(Answering):
    def __call__(self, images):
        return 20 * images.double().mean((2, 3))

class Heads(Answering):
    def __call__(self, images):
        return {"logits": 20 * images.numpy().mean((2, 3)), "size": images.numpy().mean((1, 2, 3))[:, None]}

class Service(Answering):
    url = open("url.txt").read()

    def __call__(self, images):
        request = urllib.request.Request(self.url, json.dumps(images.tolist()).encode())
        with urllib.request.urlopen(request) as response:
            return json.load(response)["scores"]

class Runtime(Answering):
    def __init__(self):
        self.session = onnxruntime.InferenceSession("net.onnx")

    def __call__(self, images):
        return self.session.run(None, {"images": images.numpy()})

def function():
    def predict(images):
        return 20 * images.numpy().mean((2, 3))

    predict.categories = Answering.categories
    predict.preprocessing = Answering.preprocessing
    predict.scores = "sigmoid"
    return predict

class Mask(Answering):
    categories = ["tumor"]

    def __call__(self, images):
        return images[:, :1].numpy() - 0.5

class Bad(Answering):
    def __call__(self, images):
        return [0.1, 0.2, 0.7]

class Words(Answering):
    def __call__(self, images):
        return {"error": "too many requests"}

class Down(Answering):
    def __call__(self, images):
        raise ConnectionRefusedError("no service")
'''


class Server:
    """A web service that answers images, as JSON, with scores; and fails where it is told to."""

    def __init__(self) -> None:
        outer = self
        self.is_down = False
        self.num_images = 0

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                images = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                means = 20 * np.array(images).mean((2, 3))
                outer.num_images += len(images)
                answer = json.dumps({"scores": means.tolist()}).encode()
                self.send_response(503 if outer.is_down else 200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    """A model file, and what it reads."""
    monkeypatch.chdir(tmp_path)
    Path("answers.py").write_text(CODE)
    Path("url.txt").write_text(server.url)
    PHOTO.save("img.png")
    scale = helper.make_tensor("scale", TensorProto.FLOAT, [], [20.0])
    nodes = [
        helper.make_node("ThresholdedRelu", ["images"], ["bright"], alpha=1e-6),  # which no converter knows
        helper.make_node("GlobalAveragePool", ["bright"], ["means"]),
        helper.make_node("Flatten", ["means"], ["rows"]),
        helper.make_node("Mul", ["rows", "scale"], ["scores"]),
    ]
    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["B", 3, 32, 32])
    scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["B", 3])
    graph = helper.make_graph(nodes, "colors", [images], [scores], [scale])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, "net.onnx")


def first_class(output: Tensor) -> Tensor:
    priors = torch.zeros_like(output)
    priors[:, 0] = 1
    return priors[:, None]


def maps_of(name: str, loaded: LoadedModel) -> Tensor:
    images = loaded.transforms(PHOTO)[None]
    call = MethodCall(net=loaded.net, inputs=images, priors=first_class, layers=[None])
    return table.find_method(name).compute(call)[0].maps


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("name", "factory"),
    [
        ("rise", "Runtime"),
        *(("occlusion", name) for name in "Numpy Torch Heads Service Runtime function".split()),
    ],
)
def test_answers_explain_as_well_as_the_network(name: str, factory: str, server: Server) -> None:
    loaded = load_model(f"answers.py:{factory}")
    assert loaded.categories == ("red", "green", "blue")
    assert loaded.scores == ("sigmoid" if factory == "function" else "softmax")
    assert default_layer(loaded) == "input"
    before = server.num_images
    maps = maps_of(name, loaded)
    passes = table.find_method(name).passes_of((32, 32))
    assert server.num_images - before == (passes if factory == "Service" else 0)
    known = LoadedModel("colors", color_net(), transforms=loaded.transforms)
    torch.testing.assert_close(maps, maps_of(name, known), rtol=1e-4, atol=1e-5)
    y, x = divmod(int(maps[0, 0].argmax()), 32)
    assert 6 <= y < 14
    assert 26 <= x * 48 / 32 < 34


def test_the_operation_of_the_file_has_no_rule() -> None:
    with pytest.raises(ConfigurationError, match="the converter has no ThresholdedRelu"):
        load_model("net.onnx")


@pytest.mark.parametrize("factory", ["Numpy", "Mask"])
def test_what_looks_into_a_network_is_refused_before_the_run(factory: str) -> None:
    result = CliRunner().invoke(main, ["img.png", "--model", f"answers.py:{factory}", "-o", "map.png"])
    assert result.exit_code == 2
    assert f"Error: answers.py:{factory} {REFUSED}\n" in result.output
    assert not Path("map.png").exists()
    loaded = load_model(f"answers.py:{factory}")
    with pytest.raises(ConfigurationError, match=f"^answers.py:{factory} {REFUSED}$"):
        ebcli.explain(loaded, "img.png")
    inputs = loaded.transforms(PHOTO)[None]
    with pytest.raises(ConfigurationError, match=REFUSED):
        ebcli.excitation_backprop(loaded.net, inputs, 0)
    for name in ("contrastive", "gradient", "gradient-x-input"):
        with pytest.raises(ConfigurationError, match=REFUSED):
            maps_of(name, loaded)


def test_pixels_of_a_segmentation() -> None:
    loaded = load_model("answers.py:Mask")
    assert (loaded.task, loaded.categories) == ("segmentation", ("tumor", "background"))

    def one_pixel(output: Tensor) -> Tensor:
        priors = torch.zeros_like(output)
        priors[:, 0, 10, 20] = 1
        return priors[:, None]

    images = torch.ones(1, 3, 32, 32)
    call = MethodCall(net=loaded.net, inputs=images, priors=one_pixel, layers=[None])
    (occlusion,) = table.find_method("occlusion").compute(call)
    y, x = occlusion.maps[0, 0].nonzero().T
    assert (y - 10).abs().max() <= 3  # only windows that cover the pixel matter
    assert (x - 20).abs().max() <= 3


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        ("Bad", r"returned values of shape \(3,\) for 1 image: return a row of logits for each image"),
        ("Words", r"returned a str for 1 image: return a row of logits for each image"),
        ("Down", r"failed \(ConnectionRefusedError: no service\)"),
    ],
)
def test_wrong_answers_are_told_in_a_sentence(factory: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^answers.py:{factory} {said}$"):
        load_model(f"answers.py:{factory}")


def test_a_service_that_breaks_down_costs_an_image(server: Server) -> None:
    loaded = load_model("answers.py:Service")
    server.is_down = True
    with pytest.raises(ImageError, match=r"answers.py:Service failed \(HTTPError: .*503"):
        maps_of("occlusion", loaded)
    server.is_down = False
    assert maps_of("occlusion", loaded).any()


def test_other_types_and_classes_of_a_function() -> None:
    def means(images: Tensor) -> Any:
        assert images.dtype == torch.float32
        return images.numpy().mean((2, 3))

    loaded = load_model(means, transform=load_model("answers.py:Numpy").transforms, class_names=list("abc"))
    assert (loaded.name, loaded.num_classes, loaded.category(1)) == ("means", 3, "b")
    answer = loaded.net(torch.ones(2, 3, 8, 8, dtype=torch.half))
    assert answer.dtype == torch.float32
    assert answer.tolist() == [[1.0] * 3] * 2
