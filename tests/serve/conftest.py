"""Live pages of tiny networks, in this process."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvicorn
from asking import HERE, admitted, told, until_loaded
from asking import page as page_of
from browser import Browser, start
from live import SIZE
from PIL import Image
from runs import photos as write_photos
from starlette.testclient import TestClient

from ebcli.serve.access import Guard
from ebcli.serve.network import Network

chromium = pytest.fixture(scope="session")(start)


@pytest.fixture
def ten_photos(working_directory: Path) -> Path:
    """The working directory; the networks are tiny."""
    told.clear()
    write_photos(working_directory / "photos", 10)
    return working_directory


@pytest.fixture
def opened(ten_photos: Path) -> Iterator[Callable[..., TestClient]]:
    """Opens a page of some networks, without a socket."""
    with ExitStack() as stack:

        def open_page(*networks: Network, **options: Any) -> TestClient:
            client = stack.enter_context(TestClient(admitted(page_of(*networks, **options)), HERE))
            until_loaded(client)
            return client

        yield open_page


@pytest.fixture
def client(opened: Callable[..., TestClient]) -> TestClient:
    return opened()


@pytest.fixture
def served(ten_photos: Path) -> Iterator[Callable[..., str]]:
    """Starts a server of a page in a thread, and returns its address; with a token, only those who know it may ask."""
    servers = []

    def start_server(*networks: Network, port: int = 0, token: str = "", **options: Any) -> str:
        app = page_of(*networks, **options)
        guarded = Guard(app.app, frozenset({"localhost"}), token) if token else admitted(app)
        config = uvicorn.Config(guarded, port=port, log_config=None, access_log=False, ws="none")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run)
        thread.start()
        servers.append((server, thread))
        while not server.started:
            time.sleep(0.005)
        (address,) = (one.getsockname() for one in server.servers[0].sockets)
        return f"http://127.0.0.1:{address[1]}"

    def stop() -> None:
        server, thread = servers.pop()
        server.should_exit = True
        thread.join()

    start_server.connections = lambda: len(servers[0][0].server_state.connections)  # type: ignore[attr-defined]
    start_server.stop = stop  # type: ignore[attr-defined]
    yield start_server
    while servers:
        stop()


@pytest.fixture
def browser(chromium: Browser, served: object) -> Iterator[Browser]:
    """It leaves a page before its server ends."""
    yield chromium
    chromium.driver.get("about:blank")


@pytest.fixture
def pictures(ten_photos: Path) -> None:
    """Two photos, and one whose name is hostile, in a directory."""
    Path("cats").mkdir()
    generator = np.random.default_rng(1)
    for name in ("a cat.jpg", "b cat.png", "<img src=x onerror=alert(1)>.png"):
        cells = generator.integers(0, 256, (4, 6, 3), dtype=np.uint8)
        Image.fromarray(cells).resize(SIZE, Image.Resampling.BICUBIC).save(f"cats/{name}", quality=95)


@pytest.fixture
def page(pictures: None, served: Callable[..., str]) -> str:
    return served(paths=("cats",))
