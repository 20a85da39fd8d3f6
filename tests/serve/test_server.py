"""The command as a process of its own: its address, and its end."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest
import uvicorn
from asking import entered, until_loaded
from asking import page as page_of
from click.testing import CliRunner
from runs import Forked, until
from runs import photos as write_photos

from ebcli.cli.saliency import main
from ebcli.serve.server import serve

PHOTO = Path(__file__).parents[2] / "sample_images/coffee.jpg"
SLOW = """
import time
from pathlib import Path
from torch import nn

class Net(nn.Sequential):
    preprocessing = None

    def __init__(self):
        super().__init__(nn.Conv2d(3, 4, 8, 8), nn.ReLU(), nn.Conv2d(4, 4, 2, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
                         nn.Flatten(), nn.Linear(4, 3))

    def forward(self, x):
        if Path("slow").exists():
            Path("busy").touch()
            time.sleep(600)
        return super().forward(x)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    write_photos(folder / "photos", 3)
    (folder / "slow.py").write_text(SLOW)
    return folder


@pytest.fixture
def started(folder: Path) -> Iterator[list[Forked]]:
    """Servers, which are ended afterwards: a killed one leaves its temporary directory."""
    servers = list[Forked]()
    yield servers
    for server in servers:
        server.kill(signal.SIGTERM)
        server.wait()


def start(started: list[Forked], folder: Path, *arguments: str) -> tuple[Forked, str]:
    server = Forked(folder, "serve", *arguments, "--port", "0", "--no-open", "--device", "cpu")
    started.append(server)
    until(lambda: server.out.exists() and server.out.read_text().endswith("\n"))
    return server, server.out.read_text().strip()


@pytest.mark.parametrize("how", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_it_ends_at_once_while_a_map_is_computed(started: list[Forked], folder: Path, how: int) -> None:
    server, address = start(started, folder, "photos", "-m", "slow.py:Net")
    with entered(address) as client:
        (status,) = until_loaded(client)["networks"]
        assert status["ready"], status
        (folder / "slow").touch()

        def ask() -> None:
            with suppress(httpx.HTTPError):
                client.get("/maps", params={"photo": "photos/0/0000.jpg", "target": "1"})

        asking = threading.Thread(target=ask)
        asking.start()
        until((folder / "busy").exists)
        server.kill(how)
        assert server.wait() == 0  # which waits for less than the 600 s of the map
        asking.join()
    assert server.err.read_text() == ""


def test_it_ends_while_the_network_loads(started: list[Forked], folder: Path) -> None:
    (folder / "slow").touch()
    server, address = start(started, folder, "photos", "-m", "slow.py:Net")
    until((folder / "busy").exists)
    with entered(address) as client:
        assert not client.get("/status").json()["networks"][0]["ready"]
    server.kill(signal.SIGINT)
    assert server.wait() == 0


@pytest.mark.one_in(2)
@pytest.mark.parametrize("how", [signal.SIGHUP, signal.SIGKILL])
def test_uploads_are_kept_in_memory_only(how: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ebcli", "serve", "--no-open", "--port", "0", "-m", "nothing"]
    with subprocess.Popen(
        command, env=os.environ | {"TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE
    ) as server:
        assert server.stdout is not None
        try:
            with entered(server.stdout.readline().decode().strip()) as client:
                assert client.post("/photos?name=a.png", content=PHOTO.read_bytes()).status_code == 200
                assert list(tmp_path.iterdir()) == []
            server.send_signal(how)
            server.wait(timeout=120)
        finally:
            server.kill()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def served_here(ten_photos: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server in a thread, which waits five seconds for headers."""
    servers, addresses, make = list[uvicorn.Server](), list[str](), uvicorn.Server
    monkeypatch.setattr("ebcli.serve.server._HEADERS", 5)
    monkeypatch.setattr("uvicorn.Server", lambda config: servers.append(make(config)) or servers[0])
    thread = threading.Thread(target=serve, args=(page_of(), "127.0.0.1", 0, False, addresses.append))
    thread.start()
    until(lambda: bool(servers) and servers[0].started)
    yield addresses[0]
    servers[0].should_exit = True
    thread.join()


@pytest.mark.release
def test_half_a_request_is_not_waited_for(served_here: str) -> None:
    address = served_here
    url = httpx.URL(address)
    with ExitStack() as stack, entered(address) as client:
        waiting = [stack.enter_context(socket.create_connection((url.host, url.port))) for _ in range(520)]
        for one in waiting:
            one.sendall(b"GET / HTTP/1.1\r\nHost: 127")
        answers = (client.get("/status") for _ in range(1000))  # until the server has seen all that wait
        refused = next(answer for answer in answers if answer.status_code == 503)
        assert refused.json()["problem"] == "too many ask at once: try again in a moment"
        for one in waiting:
            one.settimeout(60)
            assert one.recv(1) == b""
    with entered(address) as later:  # the connection before may be closed just when it is asked again
        assert later.get("/status").status_code == 200


@pytest.mark.parametrize("host", ["localhost", "0.0.0.0"])
def test_the_address_has_a_token(host: str, started: list[Forked], folder: Path) -> None:
    _, address = start(started, folder, "photos", "-m", "nothing", "--host", host)
    here, _, token = address.partition("/#token=")
    here = str(httpx.URL(here).copy_with(host="127.0.0.1"))
    assert httpx.get(here).status_code == 200
    assert httpx.get(f"{here}/status").status_code == 401
    assert httpx.get(f"{here}/status", headers={"authorization": f"Bearer {token}"}).status_code == 200


def test_a_network_that_does_not_exist_is_a_sentence_here_and_there(
    started: list[Forked], folder: Path
) -> None:
    server, address = start(started, folder, "-m", "resnt18")
    with entered(address) as client:
        (status,) = until_loaded(client)["networks"]
    assert "did you mean 'resnet18'" in status["problem"]
    until(lambda: server.err.read_text().endswith("\n"))
    assert server.err.read_text() == f"Error: {status['problem']}\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nothing.jpg"], "'nothing.jpg' does not exist: name photos or directories of photos"),
        (["--weights", "none", "--weights", "none"], "there are 2 --weights for 1 --model: drop some"),
        (["--host", "256.1.1.1"], "cannot listen at 256.1.1.1"),
        (["--port", "70000"], "Invalid value for '--port': 70000 is not in the range 0<=x<=65535."),
        (["--dtype", "bfloat16"], "no such option --dtype: set EB_SALIENCY_DTYPE"),
    ],
)
def test_wrong_options_are_one_sentence(arguments: list[str], sentence: str) -> None:
    done = CliRunner().invoke(main, ["serve", "--no-open", "--port", "0", *arguments])
    assert done.exit_code == 2
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_port_that_is_taken_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = CliRunner().invoke(main, ["serve", "--no-open", "--port", port])
    assert done.exit_code == 2
    assert f"cannot listen at 127.0.0.1, port {port}" in done.stderr
    assert "choose another --port" in done.stderr
