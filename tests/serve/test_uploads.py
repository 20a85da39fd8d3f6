"""Uploads that are dropped, slow, too large or aborted, and parameters with any value."""

import gc
import io
import json
import socket
import tracemalloc
from collections.abc import Callable
from http.client import HTTPResponse
from itertools import product
from urllib.parse import urlencode, urlsplit

import httpx
import numpy as np
import pytest
from asking import TEN, told
from PIL import Image
from runs import until
from starlette.testclient import TestClient


def test_nothing_remains_of_dropped_uploads(opened: Callable[..., TestClient]) -> None:
    limit = 1 << 20
    client = opened(max_bytes=limit)
    noise = np.random.default_rng(0).integers(0, 256, (300, 300, 3), dtype=np.uint8)
    for number in range(25):
        if number == 1:  # the first one imports modules
            tracemalloc.start()
        noise[0] = number
        file = io.BytesIO()
        Image.fromarray(noise).save(file, "PNG")
        key = client.post("/photos", params={"name": "cat.png"}, content=file.getvalue()).json()["key"]
        client.get(f"/photo?photo={key}")
        assert client.get("/maps", params={"photo": key, "target": "1"}).status_code == 200
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 6 * limit  # 24 uploads have 6.5 MB; the previews of noise 2 MB, and what is kept 2 MB


VALUES = ["9" * 5000, "-1", "1e999", "nan", "\u0661", "[" * 5000, "\0", "\ud800", "%00", "/../"]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("value", VALUES)
def test_no_value_of_a_parameter_is_an_unexpected_error(value: str, client: TestClient) -> None:
    names = (
        "photo",
        "network",
        "target",
        "against",
        "layer",
        "method",
        "alpha",
        "where",
        "style",
        "signed",
        "cells",
    )
    for address, name in product(("/maps", "/subjects", "/photo", "/command"), names):
        query = urlencode({"photo": TEN[0], "target": "1"} | {name: value}, errors="surrogatepass")
        assert client.get(f"{address}?{query}").status_code in (200, 400), (address, name)
    assert not told


def raw_upload(address: str, length: int, content: bytes) -> socket.socket:
    """A connection that announces an upload of so many bytes, and sends some."""
    url = urlsplit(address)
    connection = socket.create_connection((url.hostname, url.port or 0), timeout=60)
    head = f"POST /photos?name=a.png HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Length: {length}\r\n\r\n"
    connection.sendall(head.encode() + content)
    return connection


def answer_of(connection: socket.socket) -> tuple[int, str]:
    """What is answered, though the upload has not arrived."""
    with connection, HTTPResponse(connection) as response:
        response.begin()
        return response.status, json.load(response)["problem"]


def test_an_upload_is_refused_by_its_announced_length(served: Callable[..., str]) -> None:
    address = served(max_bytes=1000)
    for length in (1001, 10**15):
        status, problem = answer_of(raw_upload(address, length, b""))
        assert (status, problem) == (413, "it is larger than 1000 bytes: raise EB_SALIENCY_MAX_BYTES")


def test_an_upload_that_does_not_arrive_has_a_deadline(
    served: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebcli.serve.app._UPLOAD_TIMEOUT", 0.2)
    status, problem = answer_of(raw_upload(served(), 1000, b"the beginning"))
    assert (status, problem) == (408, "it took longer than 0.2 s to arrive: upload a smaller one")


def test_an_aborted_upload_is_no_error(served: Callable[..., str]) -> None:
    address = served()
    raw_upload(address, 1000, b"the beginning").close()
    until(lambda: not served.connections())  # type: ignore[attr-defined]
    assert httpx.get(f"{address}/status").status_code == 200
    assert not told
