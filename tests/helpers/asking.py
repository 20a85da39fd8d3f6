"""Pages of the server, and what is asked of them."""

import json
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from click.testing import CliRunner
from starlette.types import ASGIApp, Receive, Scope, Send

from ebcli.cli.saliency import main
from ebcli.files.paths import RemoteOptions
from ebcli.run.plan import RunPlan
from ebcli.serve.access import Guard
from ebcli.serve.app import Page
from ebcli.serve.network import Network
from ebcli.serve.photos import Photos
from ebcli.workers import Workers

HERE, TOKEN = "http://127.0.0.1:8722", "thetoken"
HERE_ONLY = Workers(0)
TEN = sorted(
    f"photos/{number % 3}/{number:04}.jpg" for number in range(10)
)  # as the page lists and calls them

told: list[str] = []  # on the terminal


def network(name: str = "tiny", *layers: str, **more: Any) -> Network:
    return Network(
        RunPlan.from_values(images=(Path("photo"),), model=name, layer=layers, device="cpu", **more),
        HERE_ONLY,
    )


def page(*networks: Network, paths: tuple[str, ...] = ("photos",), max_bytes: int = 1 << 20) -> Page:
    found = Photos([*map(Path, paths)], HERE_ONLY, RemoteOptions(max_bytes=max_bytes), None)
    return Page(found, networks or [network()], HERE_ONLY, told.append)


def admitted(app: Page) -> ASGIApp:
    """A page for those who know its token, as all do who ask this application."""
    guard = Guard(app.app, frozenset({"localhost"}), TOKEN)

    async def ask(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = [(name, value) for name, value in scope["headers"] if name != b"authorization"]
            scope["headers"] = [*headers, (b"authorization", f"Bearer {TOKEN}".encode())]
        await guard(scope, receive, send)

    return ask


@contextmanager
def entered(address: str) -> Iterator[httpx.Client]:
    """A client that has the token of an address."""
    url, _, token = address.partition("/#token=")
    with httpx.Client(base_url=url, timeout=60, headers={"authorization": f"Bearer {token}"}) as client:
        yield client


def until_loaded(client: httpx.Client) -> dict[str, Any]:
    """The status once no network is loading any more."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        status: dict[str, Any] = client.get("/status").json()
        if all(one["ready"] or one["problem"] for one in status["networks"]):
            return status
        time.sleep(0.01)
    raise AssertionError("it never loads")


def maps(client: httpx.Client, path: str = "/maps", **query: str) -> tuple[dict[str, Any], list[np.ndarray]]:
    """The description of some maps, and their values (h, w); of a volume, those in each plane, map by map."""
    answer = client.get(path, params=query)
    assert answer.status_code == 200, answer.json()
    return decode_maps(answer.content)


def decode_maps(content: bytes) -> tuple[dict[str, Any], list[np.ndarray]]:
    length = int.from_bytes(content[:4], "little")
    about = json.loads(content[4 : 4 + length])
    values = np.frombuffer(content[4 + length :], "<f4")
    shapes = [part["shape"] for one in about["maps"] for part in one.get("planes", [one])]
    parts = np.split(values, np.cumsum([height * width for height, width in shapes]))[:-1]
    return about, [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def run_command(client: httpx.Client, query: dict[str, str]) -> tuple[bytes, str]:
    """What the command line of an address writes, and the command line."""
    answer = client.get("/command", params=query).json()
    words = shlex.split(answer["command"])
    start = words.index("eb-saliency")  # behind settings without an option: env EB_SALIENCY_CELLS=true
    settings = dict(word.split("=", 1) for word in words[1:start])
    done = CliRunner().invoke(main, words[start + 1 :], env={"EB_SALIENCY_WORKERS": "0", **settings})
    assert done.exit_code == 0, done.output
    return Path(done.stdout.strip()).read_bytes(), answer["command"]
