"""The server: its socket and its end."""

from __future__ import annotations

import secrets
import socket
import threading
import webbrowser
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlunsplit

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ebcli.errors import ConfigurationError
from ebcli.serve.access import Guard

if TYPE_CHECKING:
    from ebcli.serve.app import Page

_HEADERS = 10  # seconds that they may take


class _Impatient(H11Protocol):
    """Closes connections that keep it waiting for the headers of a request."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait()

    def _wait(self) -> None:
        self.loop.call_later(_HEADERS, self._give_up, self.cycle)  # each request has a cycle

    def _give_up(self, before: object) -> None:
        if self.cycle is before:
            self.transport.close()


def serve(
    page: Page, host: str, port: int, show: bool, tell: Callable[[str], None], photo: str | None = None
) -> None:
    """Answer requests until Ctrl-C, SIGTERM or SIGHUP.

    Args:
        page: the page.
        host: the address to listen at.
        port: the port; 0 for any that is free.
        show: open the page in the browser.
        tell: what prints the URL, which has the token.
        photo: what the page shows first, as ``Photos.names`` and `CAMERA` call it; by default, the first photo.

    Raises:
        KeyboardInterrupt: it was ended.
        ConfigurationError: the address or the port is not free.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise ConfigurationError(
            f"cannot listen at {host}, port {port} ({error}): choose another --port"
        ) from error
    with listening:
        port = listening.getsockname()[1]
        token = secrets.token_urlsafe(16)
        name = socket.gethostname() if host in ("", "0.0.0.0", "::") else host
        address = f"[{name}]" if ":" in name else name
        query = urlencode({"photo": photo}) if photo else ""
        url = urlunsplit(("http", f"{address}:{port}", "/", query, f"token={token}"))
        tell(url)
        if show:
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
        names = frozenset({"localhost", name.lower(), host.lower()})
        config = uvicorn.Config(
            page.app,
            http=_Impatient,
            log_level="critical",  # the page's own sentences are on the terminal
            server_header=False,
            proxy_headers=False,
            ws="none",
            timeout_graceful_shutdown=0,
        )
        server = uvicorn.Server(config)
        config.app = Guard(page.app, names, token, server.server_state.connections)
        server.run([listening])
