"""The server: its socket and its end."""

from __future__ import annotations

import secrets
import signal
import socket
import threading
import webbrowser
from collections.abc import Callable

import uvicorn

from ebcli.errors import ConfigurationError
from ebcli.serve.access import Guard, is_loopback
from ebcli.serve.app import Page

_MOST_REQUESTS = 500  # at once; further ones are refused


def serve(page: Page, host: str, port: int, show: bool, tell: Callable[[str], None]) -> None:
    """Answer requests until Ctrl-C or SIGTERM.

    Args:
        page: the page.
        host: the address to listen at; others than those of this machine need a token, which the URL has.
        port: the port; 0 for any that is free.
        show: open the page in the browser.
        tell: what prints the URL.

    Raises:
        KeyboardInterrupt: it was ended.
        ConfigurationError: the address or the port is not free.
    """
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        raise ConfigurationError(f"cannot listen at {host}, port {port} ({error}): choose another --port") from error
    with listening:
        address, port = listening.getsockname()[:2]
        is_public = not is_loopback(address)
        token = secrets.token_urlsafe(16) if is_public else None
        name = socket.gethostname() if is_public and host in ("", "0.0.0.0", "::") else host
        url = f"http://{f'[{name}]' if ':' in name else name}:{port}/" + (f"?token={token}" if token else "")
        tell(url)
        if show:
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
        names = frozenset({"localhost", name.lower(), host.lower()})
        config = uvicorn.Config(
            Guard(page.app, names, token),
            log_level="critical",  # the page's own sentences are on the terminal
            server_header=False,
            proxy_headers=False,
            ws="none",
            limit_concurrency=_MOST_REQUESTS,
            timeout_graceful_shutdown=0,
        )
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # which is raised again in the end
        uvicorn.Server(config).run([listening])
