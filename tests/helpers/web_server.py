"""A web server that answers as a test wants."""

import io
import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from PIL import Image

from ebcli.errors import ImageError
from ebcli.files.paths import RemoteOptions
from ebcli.files.sources import Source

ONCE_MORE = RemoteOptions(retries=1, max_bytes=100_000)


def photo(color: str = "teal") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (40, 30), color).save(buffer, "png")
    return buffer.getvalue()


class Server:
    """Answers each path with bytes, or with what a function does; counts the requests."""

    def __init__(self, host: str = "127.0.0.1") -> None:
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

        self._server = ThreadingHTTPServer((host, 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://{host}:{self._server.server_address[1]}"

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

    def redirect(self, path: str, target: str) -> None:
        """Answer a path with another address."""

        def redirect(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(302)
            handler.send_header("Location", target)
            handler.end_headers()

        self.answers[path] = redirect

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def reason(url: str, options: RemoteOptions = ONCE_MORE) -> str:
    with pytest.raises(ImageError) as caught:
        Source(Path(url), remote=options).open_content()
    return str(caught.value)
