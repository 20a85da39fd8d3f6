"""The server under load: one map at a time, in order, and none for nobody."""

import asyncio
import gc
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from asking import TEN, network, told, until_loaded
from runs import tiny_model

from ebcli.files.sources import Source
from ebcli.models import load_model
from ebcli.run.explainer import Explainer
from ebcli.run.plan import RunPlan
from ebcli.run.reading import Reader
from ebcli.serve.app import Page
from ebcli.serve.network import Network

VIDEO = """
from torch import nn

class Net(nn.Sequential):
    task, frames = "video", 4

    def __init__(self):
        super().__init__(nn.Conv3d(3, 4, 3, 4, 1), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(4, 3))
"""


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch, gate: threading.Event) -> Iterator[tuple[list[str], list[str]]]:
    """What has arrived, and what is explained, in order; each map waits for a gate. Two at a time are an error."""
    arrived, begun, busy = list[str](), list[str](), threading.Lock()
    arrive, compute = Page._parse_request, Network.explain

    def asked(self: Page, request: Any) -> Any:
        found = arrive(self, request)
        plan, _, source = found
        arrived.append(words(plan, source))
        return found

    def explain(self: Network, plan: RunPlan, source: Source) -> Any:
        begun.append(words(plan, source))
        assert busy.acquire(blocking=False), "two maps at a time"
        try:
            assert gate.wait(120)
            return compute(self, plan, source)
        finally:
            busy.release()

    with monkeypatch.context() as patched:
        patched.setattr(Page, "_parse_request", asked)
        patched.setattr(Network, "explain", explain)
        yield arrived, begun


def words(plan: RunPlan, source: Source) -> str:
    return f"{TEN.index(source.name)} {plan.maps.targets[0]}"


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(12_000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it never came about")


def ask(photo: int, target: int) -> dict[str, str]:
    return {"photo": TEN[photo], "target": str(target)}


def test_fifty_requests_at_once_are_answered_in_order(
    served: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [ask(number % 10, number // 10) for number in range(50)]

    async def all_at_once(address: str) -> tuple[list[httpx.Response], list[str]]:
        gate = threading.Event()
        with watched(monkeypatch, gate) as (arrived, begun):
            async with httpx.AsyncClient(base_url=address, timeout=120) as client:
                tasks = [asyncio.create_task(client.get("/maps", params=query)) for query in asked]
                await until(lambda: len(arrived) == 50 and len(begun) > 0)
                assert begun == arrived[:1]
                gate.set()
                found = await asyncio.gather(*tasks)
        assert begun == arrived
        return found, begun

    with httpx.Client(base_url=served(), timeout=120) as client:
        until_loaded(client)
        answers, begun = asyncio.run(all_at_once(str(client.base_url)))
        assert sorted(begun) == sorted(f"{number % 10} {number // 10}" for number in range(50))
        assert [answer.status_code for answer in answers] == [200] * 50
        for query, answer in list(zip(asked, answers, strict=True))[::7]:
            assert client.get("/maps", params=query).content == answer.content


def test_requests_that_are_given_up_are_not_computed(
    served: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def some_give_up(address: str) -> list[str]:
        gate = threading.Event()
        with watched(monkeypatch, gate) as (arrived, begun):
            async with httpx.AsyncClient(base_url=address, timeout=120) as client:
                tasks = []
                for number in range(10):
                    tasks.append(asyncio.create_task(client.get("/maps", params=ask(number, 1))))
                    await until(lambda: len(arrived) == len(tasks))
                before = served.connections()  # type: ignore[attr-defined]
                for task in tasks[3:8]:
                    task.cancel()
                await until(lambda: served.connections() == before - 5)  # type: ignore[attr-defined]
                gate.set()
                kept = await asyncio.gather(*tasks[:3], *tasks[8:])
                assert [answer.status_code for answer in kept] == [200] * 5
        return begun

    with httpx.Client(base_url=served(), timeout=120) as client:
        until_loaded(client)
        assert asyncio.run(some_give_up(str(client.base_url))) == ["0 1", "1 1", "2 1", "8 1", "9 1"]


def test_the_page_is_there_while_a_network_loads(
    served: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()

    def load(*_: object, **__: object) -> Any:
        assert gate.wait(120)
        return tiny_model()

    monkeypatch.setattr("ebcli.run.explainer.load_model", load)
    with httpx.Client(base_url=served(), timeout=120) as client:
        assert "<title>" in client.get("/").text
        assert not client.get("/status").json()["networks"][0]["ready"]
        assert client.get("/photo", params={"photo": TEN[0]}).content.startswith(b"\xff\xd8")
        assert "still loading" in client.get("/classes").json()["problem"]
        gate.set()
        assert until_loaded(client)["networks"][0]["ready"]
        assert client.get("/maps", params=ask(0, 1)).status_code == 200


def test_a_network_that_cannot_be_loaded_is_a_sentence_and_others_work(
    served: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(name: str, *rest: object, **options: Any) -> Any:
        return tiny_model() if name == "tiny" else load_model(name, **options)

    monkeypatch.setattr("ebcli.run.explainer.load_model", load)
    Path("clips.py").write_text(VIDEO)
    with httpx.Client(
        base_url=served(network("resnt18"), network("tiny"), network("clips.py:Net"))
    ) as client:
        missing, tiny, video = until_loaded(client)["networks"]
        assert "did you mean 'resnet18'" in missing["problem"]
        assert (
            video["problem"]
            == "clips.py:Net is for video: the page is for images and volumes, the command is not"
        )
        assert told == [missing["problem"], video["problem"]]
        assert tiny["ready"]
        assert client.get("/maps", params={**ask(0, 1), "network": "1"}).status_code == 200
        assert (
            client.get("/maps", params={**ask(0, 1), "network": "0"}).json()["problem"] == missing["problem"]
        )


def test_a_network_that_fails_on_one_photo_answers_for_the_next(
    served: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, broken = Explainer.explain, Reader(tiny_model().transforms).load(Source(Path("photos/0/0003.jpg")))

    def explain(self: Explainer, images: Any, *rest: Any) -> Any:
        if broken is not None and np.array_equal(images[0].pixels, broken.pixels):
            raise RuntimeError("mat1 and mat2\nshapes cannot be multiplied")
        return real(self, images, *rest)

    monkeypatch.setattr(Explainer, "explain", explain)
    with httpx.Client(base_url=served(), timeout=120) as client:
        until_loaded(client)
        sentence = "this failed: the terminal of eb-saliency serve says why"
        for number in range(10):
            answer = client.get("/maps", params=ask(number, 1))
            assert (answer.status_code == 400) == (TEN[number] == "photos/0/0003.jpg")
            assert answer.status_code == 200 or answer.json()["problem"] == sentence
        assert told == ["RuntimeError: mat1 and mat2 shapes cannot be multiplied"]


@pytest.mark.slow
def test_memory_stays_flat_over_a_thousand_requests(served: Callable[..., str]) -> None:
    with httpx.Client(base_url=served(), timeout=120) as client:
        until_loaded(client)

        def many(count: int) -> int:
            for number in range(count):
                query = {**ask(number % 10, number % 7), "layer": ("2", "0", "every")[number % 3]}
                kind = ("/maps", "/maps", "/picture", "/photo", "/command", "/subjects")[number % 6]
                query |= {"layer": "2"} if kind == "/picture" else {}
                assert client.get(kind, params=query).status_code == 200
            gc.collect()
            return tracemalloc.get_traced_memory()[0]

        many(210)  # each question was asked, so all caches are full
        tracemalloc.start()
        try:
            before = many(100)
            assert many(1000) - before < 100_000  # bytes; an answer has thousands
        finally:
            tracemalloc.stop()
