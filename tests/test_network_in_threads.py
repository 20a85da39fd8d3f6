"""Many threads use one network at once: each gets what it would get alone, and the network stays as it is."""

import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient
from torch import nn
from torchvision.models.resnet import BasicBlock, ResNet

import ebcli
from ebcli.imports import printing_to
from ebcli.models import layer_per_resolution

ROOT = Path(__file__).parents[1]
THREADS = 4


def together(tasks: Sequence[Callable[[], Any]]) -> list[Any]:
    """What tasks return that start at the same time, each in a thread of its own."""
    start = threading.Barrier(len(tasks), timeout=60)

    def run(task: Callable[[], Any]) -> Any:
        start.wait()
        return task()

    with ThreadPoolExecutor(len(tasks)) as pool:
        return [one.result() for one in [pool.submit(run, task) for task in tasks]]


@pytest.fixture(autouse=True)
def often_switching() -> Any:
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(usual)


def small_net() -> nn.Module:
    torch.manual_seed(3)
    return ResNet(BasicBlock, [1, 1, 1, 1], num_classes=5).train()


def test_threads_explain_with_one_network_at_different_layers() -> None:
    net, images = small_net(), torch.rand(THREADS, 1, 3, 32, 32)
    layers = [None, "layer1", "layer2", "input"]

    def maps(i: int) -> np.ndarray:
        return ebcli.explain(net, images[i], i % 5, layer=layers[i])[0].maps

    alone = [maps(i) for i in range(THREADS)]
    found = together([lambda i=i: maps(i) for i in range(THREADS)])
    for one, other in zip(found, alone, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-9)
    assert all(module.training for module in net.modules())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())


def test_other_functions_at_the_same_time() -> None:
    net, x = small_net(), torch.rand(1, 3, 64, 64)
    loaded = ebcli.load_model(net, preprocessing=ebcli.Preprocessing(resize=64, crop=64))
    tasks: list[Callable[[], Any]] = [
        lambda: ebcli.default_layer(net, 64),
        lambda: [one.name for one in ebcli.layers(net, 64)],
        lambda: ebcli.default_layer(net, 128),
        lambda: layer_per_resolution(loaded),
        lambda: ebcli.load_model(net, transform=loaded.transforms).num_classes,
        lambda: ebcli.excitation_backprop(net, x, 2, ["layer1", "layer3"])[1].maps.sum().item(),
        lambda: float(ebcli.explain(loaded, x, 1, layer="layer2")[0].strength[0]),
        lambda: ebcli.load_model("shufflenet_v2_x0_5", "none").net.fc.weight.sum().item(),
    ]
    torch.manual_seed(0)
    state = torch.random.get_rng_state()
    alone = [task() for task in tasks]
    assert together(tasks) == [pytest.approx(one) if isinstance(one, float) else one for one in alone]
    assert torch.equal(torch.random.get_rng_state(), state)


def test_what_a_thread_redirects_is_what_it_prints_itself(capsys: pytest.CaptureFixture[str]) -> None:
    stdout, files, meet = sys.stdout, [BytesIO() for _ in range(2)], threading.Barrier(2, timeout=120)

    class Text:
        def __init__(self) -> None:
            self.written = ""

        def write(self, text: str) -> None:
            self.written += text

    texts = [Text() for _ in files]

    def work(i: int) -> None:
        with printing_to(texts[i]):
            meet.wait()
            print(f"thread {i}")
            meet.wait()
        meet.wait()
        print("not redirected")

    together([lambda: work(0), lambda: work(1)])
    assert [one.written for one in texts] == ["thread 0\n", "thread 1\n"]
    assert capsys.readouterr().out == "not redirected\n" * 2
    assert sys.stdout is stdout


@pytest.mark.release
def test_the_service_of_the_documentation_answers_many_at_once() -> None:
    spec = importlib.util.spec_from_file_location("service", ROOT / "docs/examples/service.py")
    assert spec and spec.loader
    service = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(service)
    photo, names = (
        (ROOT / "sample_images/mosaic.jpg").read_bytes(),
        ["tiger cat", "espresso", "tabby", "cup"] * 2,
    )
    with TestClient(service.app) as client:

        def ask(target: str) -> Any:
            return client.post("/saliency", params={"target": target}, files={"photo": photo})

        answers = together([lambda name=name: ask(name) for name in names])
        assert ask("nothing such").json()["detail"].startswith("unknown class 'nothing such'")
        assert client.post("/saliency", files={"photo": b"no photo"}).status_code == 422
    for answer, name in zip(answers, names, strict=True):
        expected = ebcli.explain(service.model, ROOT / "sample_images/mosaic.jpg", name)
        assert answer.headers["X-Class"] == name
        shown, other = np.asarray(Image.open(BytesIO(answer.content)), int), np.asarray(expected.picture, int)
        assert np.abs(shown - other).max() <= 1
