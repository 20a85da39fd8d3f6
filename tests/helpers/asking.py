"""Pages of the server, and what is asked of them."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from click.testing import CliRunner

from ebcli.cli.saliency import main
from ebcli.files.remote import RemoteOptions
from ebcli.run.plan import RunPlan
from ebcli.serve.app import Page
from ebcli.serve.network import Network
from ebcli.serve.photos import Photos

HERE = "http://127.0.0.1:8722"

told: list[str] = []  # on the terminal


def network(name: str = "tiny", *layers: str, **more: Any) -> Network:
    return Network(RunPlan.of(images=(Path("photo"),), model=name, layer=layers, device="cpu", **more))


def page(folder: Path, *networks: Network, paths: tuple[str, ...] = ("photos",), max_bytes: int = 1 << 20) -> Page:
    uploads = folder / "uploads"
    uploads.mkdir()
    found = Photos([*map(Path, paths)], uploads, RemoteOptions(max_bytes=max_bytes), None)
    return Page(found, networks or [network()], told.append, max_bytes)


def until_loaded(client: httpx.Client) -> dict[str, Any]:
    """The status once no network is loading any more."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        status: dict[str, Any] = client.get("/status").json()
        if all(one["ready"] or one["problem"] for one in status["networks"]):
            return status
        time.sleep(0.01)
    raise AssertionError("it never loads")


def maps(client: httpx.Client, **query: str) -> tuple[dict[str, Any], list[np.ndarray]]:
    """The description of some maps, and their values (h, w)."""
    answer = client.get("/maps", params=query)
    assert answer.status_code == 200, answer.json()
    length = int.from_bytes(answer.content[:4], "little")
    about = json.loads(answer.content[4 : 4 + length])
    values = np.frombuffer(answer.content[4 + length :], "<f4")
    shapes = [one["shape"] for one in about["maps"]]
    parts = np.split(values, np.cumsum([height * width for height, width in shapes]))[:-1]
    return about, [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def run_command(client: httpx.Client, query: dict[str, str]) -> tuple[bytes, str]:
    """What the command line of an address writes, and the command line."""
    answer = client.get("/command", params=query).json()
    words = shlex.split(answer["command"])
    done = CliRunner().invoke(main, words[1:], env={"EB_SALIENCY_WORKERS": "0"})
    assert done.exit_code == 0, done.output
    return Path(done.stdout.strip()).read_bytes(), answer["command"]
