"""Photos on web servers: slow, broken, endless and hostile ones; each ends as one failed image with its reason."""

import contextlib
import re
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from runs import invoke, records
from web_server import ONCE_MORE, Server, photo, reason

from ebcli.errors import ConfigurationError
from ebcli.files.paths import RemoteOptions
from ebcli.files.sources import Source, find_sources
from ebcli.files.web import _is_public


def test_a_photo_is_fetched_once_to_load_it_and_once_to_draw_on_it(
    working_directory: Path, server: Server
) -> None:
    server.answers["/a%20b.png"] = photo()
    result = invoke(f"{server.url}/a b.png", "-o", "maps")
    assert result.exit_code == 0, result.stderr
    assert server.requests == {("GET", "/a%20b.png"): 2}
    assert "1 up to date" in invoke(f"{server.url}/a b.png", "-o", "maps", "--skip-existing").stderr
    assert server.requests == {("GET", "/a%20b.png"): 2, ("HEAD", "/a%20b.png"): 1}


def test_a_body_without_end_is_given_up_at_the_limit(server: Server) -> None:
    sent = []

    def endless(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while len(sent) < 10_000:
            handler.wfile.write(bytes(1 << 16))
            sent.append(1 << 16)

    server.answers["/endless.jpg"] = endless
    server.answers["/large.jpg"] = lambda handler: (  # says so beforehand
        handler.send_response(200),
        handler.send_header("Content-Length", "3000000000"),
        handler.end_headers(),
    )  # type: ignore[assignment, return-value]
    for name in ("endless", "large"):
        assert reason(f"{server.url}/{name}.jpg") == "it is larger than 100000 bytes"
        assert server.requests["GET", f"/{name}.jpg"] == 1
    assert sum(sent) < 100 << 20


def test_a_server_that_does_not_answer_is_given_up(server: Server) -> None:
    stop = threading.Event()
    server.answers["/silent.jpg"] = lambda handler: stop.wait() and None

    def slow(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while not stop.wait(0.02):
            handler.wfile.write(b".")
            handler.wfile.flush()

    server.answers["/slow.jpg"] = slow
    start = time.monotonic()
    once = RemoteOptions(timeout=0.2, retries=0)
    assert reason(f"{server.url}/silent.jpg", once) == "the server did not answer within 0.2 s"
    assert time.monotonic() - start >= 0.2
    twice = RemoteOptions(timeout=0.05, retries=1)
    assert (
        reason(f"{server.url}/silent.jpg", twice) == "the server did not answer within 0.05 s (tried 2 times)"
    )
    once = RemoteOptions(timeout=0.05, retries=0)
    assert (
        reason(f"{server.url}/slow.jpg", once) == "the server did not answer within 0.05 s"
    )  # it sends without end
    stop.set()


def test_a_photo_that_takes_too_long_fails_alone(working_directory: Path, server: Server) -> None:
    """The limit on an image holds for all of its requests together."""
    stop = threading.Event()
    server.answers["/silent.jpg"] = lambda handler: stop.wait() and None
    result = invoke(f"{server.url}/silent.jpg", "--workers", "1", image_timeout="0.3", timeout="60")
    stop.set()
    assert result.exit_code == 1
    assert (
        f"{server.url}/silent.jpg: it took longer than 0.3 s: raise EB_SALIENCY_IMAGE_TIMEOUT\n"
        in result.stderr
    )


def test_what_may_be_over_soon_is_tried_again_and_the_rest_is_not(server: Server) -> None:
    def busy_once(handler: BaseHTTPRequestHandler) -> None:
        if server.requests["GET", "/busy.png"] == 1:
            handler.send_error(503)
        else:
            server.send(handler, photo())

    def cut(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b"half")

    server.answers["/busy.png"] = busy_once
    server.answers["/down.png"] = lambda handler: handler.send_error(503, "Try \x1b[31mlater")
    server.answers["/secret.png"] = lambda handler: handler.send_error(403)
    server.answers["/cut.png"] = cut
    assert Source(Path(f"{server.url}/busy.png"), remote=ONCE_MORE).open_content()
    assert reason(f"{server.url}/down.png") == "the server answered 503 Try [31mlater (tried 2 times)"
    assert reason(f"{server.url}/secret.png") == "the server answered 403 Forbidden"
    assert reason(f"{server.url}/gone.png") == "it cannot be found (the server answered 404 Not Found)"
    assert reason(f"{server.url}/cut.png") == "the connection failed: it ended early (tried 2 times)"
    server.close()
    assert "Connection refused (tried 2 times)" in reason(f"{server.url}/busy.png")


def test_a_redirect_to_another_protocol_is_not_followed(server: Server, tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(photo())
    for target in (f"file://{tmp_path}/secret.png", "ftp://127.0.0.1/a.png"):
        server.redirect("/a.png", target)
        assert re.search("No host specified|Not supported URL scheme ftp", reason(f"{server.url}/a.png"))


def test_a_public_server_cannot_have_a_private_one_asked(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = Server("127.0.0.2")
    private.answers["/b.png"] = photo()
    server.redirect("/a.png", f"{private.url}/b.png")
    private.redirect("/a.png", f"{server.url}/a.png")
    assert Source(
        Path(f"{server.url}/a.png"), remote=ONCE_MORE
    ).open_content()  # from one private address to another
    private.requests.clear()
    monkeypatch.setattr("ebcli.files.web._is_public", "127.0.0.1".__eq__)
    assert "a public server redirects to a private address" in reason(f"{server.url}/a.png")
    assert not private.requests
    assert Source(Path(f"{private.url}/a.png"), remote=ONCE_MORE).open_content()  # the first one is private
    private.close()


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "::1", "10.1.2.3", "fe80::1%eth0", "::ffff:127.0.0.1", "169.254.169.254"]
)
def test_addresses_of_machines_and_their_networks_are_private(address: str) -> None:
    assert not _is_public(address)
    assert _is_public("1.1.1.1")
    assert _is_public("2606:4700:4700::1111")


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "target", ["http://[::1", "http://[::1/b.png", "//a]b/", "http://\xff.\xff/", "http://a:b/", "/%"]
)
def test_a_redirect_to_an_address_that_is_none_fails_alone(
    working_directory: Path, server: Server, target: str
) -> None:
    def redirect(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(302)
        handler.send_header("Location", target)
        handler.end_headers()

    server.answers = {"/a.png": redirect, "/dir/": redirect, "/dir": redirect, "/b.png": photo()}
    result = invoke(
        f"{server.url}/a.png", f"{server.url}/dir", f"{server.url}/b.png", "-o", "maps", retries="0"
    )
    assert result.exit_code == 1
    done, *failed = sorted(records(Path("maps")), key=lambda record: record["status"])
    assert (done["input"], done["status"]) == (f"{server.url}/b.png", "done")
    assert [record["status"] for record in failed] == ["failed", "failed"]
    assert not re.search("Error|unexpected", result.stderr)


@pytest.mark.parametrize(
    "header", ["Retry-After: " + "9" * 5000, "Retry-After: Wed, 21 Oct 9999999 07:28:00 GMT"]
)
def test_headers_that_cannot_be_read_fail_alone(server: Server, header: str) -> None:
    def busy(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(503)
        handler.send_header(*header.split(": "))
        handler.end_headers()

    server.answers["/a.png"] = busy
    assert re.search("is not valid|Retry-After", reason(f"{server.url}/a.png"))


@pytest.mark.parametrize("url", ["http://[::1/a.png", "http://a:b/a.png", "http://127.0.0.1:99999999/a.png"])
def test_a_url_that_is_none_fails_alone(url: str) -> None:
    assert reason(url) == "the URL, or what the server answers, is not valid: open it in a browser to see"


@pytest.mark.one_in(3)
@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n"])
def test_headers_without_end_are_given_up(start: bytes) -> None:
    """A byte at a time, or one interim response after another, so that no single read takes long."""
    stop = threading.Event()

    def drip(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.sendall(start)
            while not stop.wait(0.02):
                connection.sendall(b"\r\nHTTP/1.1 100 Continue\r\n" if b"100" in start else b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=drip, args=[listener.accept()[0]], daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        options = RemoteOptions(timeout=0.1, retries=1)
        assert reason(f"{url}/a.png", options) == "the server did not answer within 0.1 s (tried 2 times)"
        assert [source.name for source in find_sources([Path(url)], remote=options)] == [url]
        stop.set()


def test_redirects_without_end_are_given_up(server: Server) -> None:
    def redirect(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(302)
        handler.send_header("Location", "/a.png")
        handler.end_headers()

    server.answers["/a.png"] = redirect
    assert "too many redirects" in reason(f"{server.url}/a.png")
    assert server.requests["GET", "/a.png"] == 11


def test_a_server_that_asks_to_wait_is_obeyed_within_limits(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr("urllib3.util.retry.time.sleep", waited.append)

    def busy_twice(handler: BaseHTTPRequestHandler) -> None:
        count = server.requests["GET", "/busy.png"]
        if count == 3:
            return server.send(handler, photo())
        handler.send_response(429)
        handler.send_header("Retry-After", "7" if count == 1 else "86400")
        handler.send_header("Content-Length", "0")
        return handler.end_headers()

    server.answers["/busy.png"] = busy_twice
    assert Source(Path(f"{server.url}/busy.png"), remote=RemoteOptions(retries=2)).open_content()
    assert waited == [7, 30]


def test_connections_are_reused(server: Server) -> None:
    ports = set[int]()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.protocol_version, handler.close_connection = "HTTP/1.1", False
        ports.add(handler.client_address[1])
        server.send(handler, photo())

    server.answers["/a.png"] = answer
    source = Source(Path(f"{server.url}/a.png"), remote=ONCE_MORE)
    for _ in range(3):
        assert source.open_content()
        assert source.stamp().bytes == len(photo())
    assert len(ports) == 1
    assert sum(server.requests.values()) == 6


@pytest.mark.parametrize(
    "wrong", [{"timeout": 0}, {"timeout": float("nan")}, {"retries": -1}, {"max_bytes": 0}]
)
def test_limits_that_make_no_sense(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="must be"):
        RemoteOptions(**wrong)  # type: ignore[arg-type]
