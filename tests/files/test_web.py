"""Photos on web servers: slow, broken, endless and hostile ones; each ends as one failed image with its reason."""

from __future__ import annotations

import base64
import contextlib
import io
import os
import re
import socket
import tarfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from PIL import Image
from runs import invoke, records, tree

from ebcli.errors import ConfigurationError, ImageError
from ebcli.files import web
from ebcli.files.remote import RemoteOptions, path_of, url_of, without_secrets
from ebcli.files.sources import Source, find

QUICK = RemoteOptions(timeout=0.5, retries=1, max_bytes=100_000)


def photo(color: str = "teal") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (40, 30), color).save(buffer, "png")
    return buffer.getvalue()


class Server:
    """Answers each path with bytes, or with what a function does; counts the requests."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes | Callable[[BaseHTTPRequestHandler], None]] = {}
        self.requests: Counter[tuple[str, str]] = Counter()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests[self.command, self.path] += 1
                answer = outer.answers.get(self.path)
                if callable(answer):
                    answer(self)
                elif answer is None:
                    self.send_error(404)
                else:
                    outer.send(self, answer)

            do_HEAD = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def send(self, handler: BaseHTTPRequestHandler, content: bytes) -> None:
        first, last, wanted = 0, len(content) - 1, handler.headers.get("Range")
        if wanted:
            first, last = map(int, wanted.removeprefix("bytes=").split("-"))
        handler.send_response(206 if wanted else 200)
        handler.send_header("Content-Length", str(min(last, len(content) - 1) - first + 1))
        if wanted:
            handler.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
        handler.end_headers()
        if handler.command == "GET":
            handler.wfile.write(content[first : last + 1])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    started = Server()
    yield started
    started.close()


def reason(url: str, options: RemoteOptions = QUICK) -> str:
    with pytest.raises(ImageError) as caught:
        Source(Path(url), remote=options).opened()
    return str(caught.value)


def test_a_photo_is_fetched_once_to_load_it_and_once_to_draw_on_it(working_directory: Path, server: Server) -> None:
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
    server.answers["/silent.jpg"] = lambda handler: stop.wait(20) and None

    def slow(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while not stop.wait(0.02):
            handler.wfile.write(b".")
            handler.wfile.flush()

    server.answers["/slow.jpg"] = slow
    start = time.monotonic()
    once = RemoteOptions(timeout=1, retries=0)
    assert reason(f"{server.url}/silent.jpg", once) == "the server did not answer within 1 s"
    assert 1 <= time.monotonic() - start < 2
    twice = RemoteOptions(timeout=0.2, retries=1)
    assert reason(f"{server.url}/silent.jpg", twice) == "the server did not answer within 0.2 s (tried 2 times)"
    start = time.monotonic()
    once = RemoteOptions(timeout=0.05, retries=0)
    assert reason(f"{server.url}/slow.jpg", once) == "the server did not answer within 0.05 s"
    assert time.monotonic() - start < 20
    stop.set()


def test_a_photo_that_takes_too_long_fails_alone(working_directory: Path, server: Server) -> None:
    """The limit on an image holds for all of its requests together."""
    stop = threading.Event()
    server.answers["/silent.jpg"] = lambda handler: stop.wait(60) and None
    result = invoke(f"{server.url}/silent.jpg", "--image-timeout", "1", "--timeout", "60", "--workers", "1")
    stop.set()
    assert result.exit_code == 1
    assert f"{server.url}/silent.jpg: it took longer than 1 s: raise --image-timeout\n" in result.stderr


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
    assert Source(Path(f"{server.url}/busy.png"), remote=QUICK).opened()
    assert reason(f"{server.url}/down.png") == "the server answered 503 Try [31mlater (tried 2 times)"
    assert reason(f"{server.url}/secret.png") == "the server answered 403 Forbidden"
    assert reason(f"{server.url}/gone.png") == "it cannot be found (the server answered 404 Not Found)"
    assert reason(f"{server.url}/cut.png") == "the connection failed: it ended early (tried 2 times)"
    server.close()
    assert "Connection refused (tried 2 times)" in reason(f"{server.url}/busy.png")


def test_a_redirect_to_another_protocol_is_not_followed(server: Server, tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(photo())
    for target in (f"file://{tmp_path}/secret.png", "ftp://127.0.0.1/a.png"):

        def redirect(handler: BaseHTTPRequestHandler, target: str = target) -> None:
            handler.send_response(302)
            handler.send_header("Location", target)
            handler.end_headers()

        server.answers["/a.png"] = redirect
        assert re.search("No host specified|Not supported URL scheme ftp", reason(f"{server.url}/a.png"))


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
    result = invoke(f"{server.url}/a.png", f"{server.url}/dir", f"{server.url}/b.png", "-o", "maps", "--retries", "0")
    assert result.exit_code == 1
    done, *failed = sorted(records(Path("maps")), key=lambda record: record["status"])
    assert (done["input"], done["status"]) == (f"{server.url}/b.png", "done")
    assert [record["status"] for record in failed] == ["failed", "failed"]
    assert not re.search("Error|unexpected", result.stderr)


@pytest.mark.parametrize("header", ["Retry-After: " + "9" * 5000, "Retry-After: Wed, 21 Oct 9999999 07:28:00 GMT"])
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


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n"])
def test_headers_without_end_are_given_up(start: bytes) -> None:
    """A byte at a time, or one interim response after another, so that no single read takes long."""
    stop = threading.Event()

    def drip(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.sendall(start)
            while not stop.wait(0.05):
                connection.sendall(b"\r\nHTTP/1.1 100 Continue\r\n" if b"100" in start else b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=drip, args=[listener.accept()[0]], daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        url, began = f"http://127.0.0.1:{listener.getsockname()[1]}", time.monotonic()
        options = RemoteOptions(timeout=0.4, retries=1)
        assert reason(f"{url}/a.png", options) == "the server did not answer within 0.4 s (tried 2 times)"
        assert [source.name for source in find([Path(url)], remote=options)] == [url]
        stop.set()
        assert time.monotonic() - began < 6


def test_redirects_without_end_are_given_up(server: Server) -> None:
    def redirect(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(302)
        handler.send_header("Location", "/a.png")
        handler.end_headers()

    server.answers["/a.png"] = redirect
    assert "too many redirects" in reason(f"{server.url}/a.png")
    assert server.requests["GET", "/a.png"] == 11


def test_a_server_that_asks_to_wait_is_obeyed_within_limits(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert Source(Path(f"{server.url}/busy.png"), remote=RemoteOptions(retries=2)).opened()
    assert waited == [7, 30]


def test_connections_are_reused(server: Server) -> None:
    ports = set[int]()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.protocol_version, handler.close_connection = "HTTP/1.1", False
        ports.add(handler.client_address[1])
        server.send(handler, photo())

    server.answers["/a.png"] = answer
    source = Source(Path(f"{server.url}/a.png"), remote=QUICK)
    for _ in range(3):
        assert source.opened()
        assert source.stamp().bytes == len(photo())
    assert len(ports) == 1
    assert sum(server.requests.values()) == 6


def all_written(directory: Path) -> bytes:
    """Every name and every byte below a directory."""
    return b"".join(os.fsencode(path) + (path.read_bytes() if path.is_file() else b"") for path in directory.rglob("*"))


@pytest.mark.parametrize(
    "signature",
    [
        "X-Amz-Credential=id%2Fs3&X-Amz-Date={0}&X-Amz-Expires=60&X-Amz-Signature=s3cr3t{0}",
        "X-Goog-Algorithm=GOOG4-RSA-SHA256&X-Goog-Date={0}&X-Goog-Signature=s3cr3t{0}",
        "sv=2022-11-02&sr=b&sp=r&se={0}&skoid=s3cr3t&sig=s3cr3t{0}%2B",
        "Expires={0}&Signature=s3cr3t{0}&Key-Pair-Id=s3cr3t",
        "AWSAccessKeyId=s3cr3t&Expires={0}&Signature=s3cr3t{0}",
    ],
)
def test_signatures_are_used_and_kept_nowhere(working_directory: Path, server: Server, signature: str) -> None:
    def signed(handler: BaseHTTPRequestHandler) -> None:
        if handler.command == "HEAD":  # signed for GET
            handler.send_error(403)
        else:
            server.send(handler, photo())

    wanted = ["--report", "--panel", "--raw"]
    for now in ("1", "2"):
        server.answers[f"/p/a.jpg?{signature.format(now)}"] = signed
    result = invoke(f"{server.url}/p/a.jpg?{signature.format(1)}", "-o", "maps", *wanted)
    assert result.exit_code == 0, result.stderr
    assert records(Path("maps"))[0]["input"] == f"{server.url}/p/a.jpg"
    again = invoke(f"{server.url}/p/a.jpg?{signature.format(2)}", "-o", "maps", *wanted, "--skip-existing")
    assert "1 up to date" in again.stderr, again.stderr
    failed = invoke(f"{server.url}/p/a.jpg?{signature.format(3)}", f"{server.url}/p/a.jpg?bad", "-o", "maps")
    assert failed.exit_code == 1
    empty = invoke(f"{server.url}/p/a?{signature.format(3)}", "--exclude", "*")
    everything = all_written(Path("maps")) + f"{result} {result.output} {again.output} {failed.output}".encode()
    assert not re.search(rb"s3cr3t|X-Amz|Expires=|sig=", everything + empty.output.encode())


def test_user_names_and_passwords_are_used_and_kept_nowhere(working_directory: Path, server: Server) -> None:
    given: dict[str, str | None] = {}

    def protected(handler: BaseHTTPRequestHandler) -> None:
        given[handler.path] = handler.headers.get("Authorization")
        if handler.path == "/away.png":
            handler.send_response(302)
            handler.send_header("Location", server.url.replace("127.0.0.1", "localhost") + "/c.png")
            handler.end_headers()
        elif given[handler.path] is None and handler.path != "/c.png":
            handler.send_error(401)
        else:
            server.send(handler, b"<a href=a.png>a</a> <a href=c.tar>" if handler.path == "/dir/" else photo())

    server.answers = dict.fromkeys(("/dir/", "/dir/a.png", "/b.png", "/away.png", "/c.png"), protected)
    with tarfile.open("c.tar", "w") as tar:
        member = tarfile.TarInfo("in.png")
        member.size = len(photo())
        tar.addfile(member, io.BytesIO(photo()))
    server.answers["/dir/c.tar"] = Path("c.tar").read_bytes()
    host = server.url.replace("//", "//visitor:p%40ss@")
    result = invoke(f"{host}/dir", f"{host}/b.png", f"{host}/away.png", f"{host}/gone.png", "-o", "maps", "--report")
    assert result.exit_code == 1
    done = {record["input"] for record in records(Path("maps")) if record["status"] == "done"}
    assert done == {f"{server.url}/{name}" for name in ("dir/a.png", "dir/c.tar/in.png", "b.png", "away.png")}
    basic = "Basic " + base64.b64encode(b"visitor:p@ss").decode()
    assert given == {"/dir/": basic, "/dir/a.png": basic, "/b.png": basic, "/away.png": basic, "/c.png": None}
    none = invoke(f"{host}/dir", "--exclude", "*")
    assert "no images found" in none.stderr
    everything = all_written(Path("maps")) + (result.output + none.output).encode()
    assert not re.search(rb"p%40ss|p@ss|visitor", everything)


def test_other_parameters_tell_files_apart(working_directory: Path, server: Server) -> None:
    server.answers = {f"/p.php?id={i}&key={key}&u=a%2F%2Fb": photo() for i in (1, 2) for key in ("cat", "dog")}
    result = invoke(*(f"{server.url}{path.replace('%2F', '/')}" for path in server.answers), "-o", "maps")
    assert result.exit_code == 0, result.stderr
    inputs = {record["input"] for record in records(Path("maps"))}
    assert len(inputs) == 4
    assert all(re.fullmatch(r".*/p\.php\?id=[12]&key=~[0-9a-f]{16}&u=a%2F%2Fb", one) for one in inputs)


@pytest.mark.parametrize(
    ("name", "public"),
    [
        ("http://host?token=s3cr3t", r"http://host\?token=~\w{16}"),
        ("https://a:s3cr3t@host", "https://host"),
        ("https://s3cr3t@host/dir/", "https://host/dir"),
        ("https://host/@me/a.jpg?w=2&h=3", r"https://host/@me/a\.jpg\?w=2&h=3"),
        ("s3://s3cr3t:s3cr3t@bucket/what?.png", r"s3://bucket/what\?\.png"),
        ("file:///a@b/c.png?key=d", r"file://a@b/c\.png\?key=d"),
        ("hf://datasets/me/photos@main/a.png", "hf://datasets/me/photos@main/a.png"),
    ],
)
def test_what_is_kept_of_a_url(name: str, public: str) -> None:
    path, options = without_secrets(path_of(name))
    assert re.fullmatch(public, str(url_of(path)))
    assert "s3cr3t" not in repr(options)
    assert without_secrets(path)[0] == path or "~" in str(path)


def test_slashes_in_succession_are_kept(working_directory: Path, server: Server) -> None:
    server.answers = {"/p//x.png": photo(), "/q/http://y.png": photo()}
    result = invoke(*(server.url + path for path in server.answers), "-o", "maps")
    assert result.exit_code == 0, result.stderr
    assert [record["input"] for record in records(Path("maps"))] == [server.url + path for path in server.answers]


def test_links_of_a_listing_that_lead_out_of_it_are_not_followed(working_directory: Path, server: Server) -> None:
    links = ["b.png", "sub/", "../", "../../../up.png", "/root.png", "%2e%2e/dots.png", "sub/../../x.png", "?C=N"]
    links += ["http://example.org/other.png", "file:///etc/passwd", "./", "b.png#again", "sub/..%2f..%2fup.png"]
    server.answers["/dir/"] = "".join(f'<A class=x href="{link}">x</A>' for link in links).encode()
    server.answers["/dir/sub/"] = b"<a href='c%20d.png'>c</a><a href='../'>up</a><a href='/dir/'>again</a>"
    for name in ("/dir/b.png", "/dir/sub/c%20d.png", "/up.png", "/root.png", "/dots.png", "/x.png"):
        server.answers[name] = photo()
    result = invoke(f"{server.url}/dir", "-o", "maps")
    assert result.exit_code == 0, result.stderr
    assert [record["input"] for record in records(Path("maps"))] == [
        f"{server.url}/dir/b.png",
        f"{server.url}/dir/sub/c%20d.png",
    ]
    assert all(name.startswith("http:") for name in tree(Path("maps")))


@pytest.mark.parametrize(
    "page",
    [
        *("<a ", "<", "<a href=", "<a href='", "<!--", "<a x x=", "</a", "<a\t/", "<![CDATA[", "<?", "&#", "&" * 100),
        *("<a " + " " * 500, "<a " + "x='\"" * 2000, "<a href='&#" + "9" * 4000 + ";'>", "<a href='http://['>"),
        *("<script>", "<textarea>", "<a href=javascript:>", "<!doctype "),
    ],
)
def test_any_listing_is_read_in_no_time(server: Server, page: str) -> None:
    server.answers["/dir/"] = f"<a href='first.png'>{page * (1_000_000 // len(page))}".encode()
    start = time.monotonic()
    found = [source.name for source in find([Path(f"{server.url}/dir")])]
    assert time.monotonic() - start < 3
    assert f"{server.url}/dir/first.png" in found


def test_links_are_found_however_they_are_written(server: Server) -> None:
    server.answers["/dir/"] = b"""<A HREF=1.png> <a class=">" href='2.png' >2</a ><a
        title = x href = "a&amp;b%20&#99;.png"> <area href=no.png> <a name=no.png> text <a/href=3.png>"""
    found = [source.name.rpartition("/")[2] for source in find([Path(f"{server.url}/dir")])]
    assert found == ["1.png", "2.png", "3.png", "a&b%20c.png"]


def test_listings_without_end_are_given_up(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "_MOST_LISTINGS", 20)
    server.answers["/dir/"] = b"<a href='deeper/'>x</a>"
    for depth in range(1, 40):
        server.answers["/dir/" + "deeper/" * depth] = b"<a href='deeper/'>x</a>"
    assert [source.name for source in find([Path(f"{server.url}/dir")])] == [f"{server.url}/dir"]
    assert sum(server.requests.values()) <= 21


def test_a_tar_file_on_a_server_is_read_in_parts(working_directory: Path, server: Server) -> None:
    with tarfile.open("a.tar", "w") as tar:
        for number in range(3):
            member = tarfile.TarInfo(f"{number}.png")
            member.size = len(photo())
            tar.addfile(member, io.BytesIO(photo()))
    server.answers["/a.tar"] = Path("a.tar").read_bytes()
    result = invoke(f"{server.url}/a.tar", "-o", "maps")
    assert result.exit_code == 0, result.stderr
    assert len(records(Path("maps"))) == 3


@pytest.mark.parametrize("wrong", [{"timeout": 0}, {"timeout": float("nan")}, {"retries": -1}, {"max_bytes": 0}])
def test_limits_that_make_no_sense(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="must be"):
        RemoteOptions(**wrong)  # type: ignore[arg-type]
