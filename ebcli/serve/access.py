"""Who may ask the server: checks before every request, and the headers of every answer."""

import ipaddress
import re
import secrets
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_MOST_CONNECTIONS = 500
_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_HEADERS = {
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(self), microphone=(), geolocation=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}


@dataclass(frozen=True)
class Guard:
    """Passes on requests that are allowed, and answers the others with one sentence.

    Attributes:
        app: what answers requests.
        names: the names by which the server may be asked, besides numeric addresses: a page of another site that
            points its own name at this server (DNS rebinding) asks by that name.
        token: what a request must have in its header ``authorization``, as in ``Bearer TOKEN``, unless it asks for the
            page: that has no secrets, and its script gets the token from the printed address, behind the ``#``, which
            browsers send to nobody. Only the page's own memory has it, not a cookie, which all ports of a host get.
        connections: those that are open, also ones that have asked nothing yet.
    """

    app: ASGIApp
    names: frozenset[str]
    token: str
    connections: Collection[object] = ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("content-security-policy", _POLICY)  # the page's own allows its script
            await send(message)

        await (self._refusal(Request(scope)) or self.app)(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        """The answer to a request that is not passed on."""
        if len(self.connections) > _MOST_CONNECTIONS:
            return refuse(503, "too many ask at once: try again in a moment")
        host = request.headers.get("host", "")
        if not self._is_name(host):
            return refuse(
                400, "this server does not answer to that name: open the address that the terminal shows"
            )
        if request["path"] == "/" and request.method in ("GET", "HEAD"):  # another site may link to the page
            return None
        site = request.headers.get("sec-fetch-site", "none")  # of a browser
        origin = request.headers.get("origin")
        own_origin = f"{request['scheme']}://{host}"
        if site not in ("none", "same-origin") or origin not in (None, own_origin):
            return refuse(403, "another site may not ask this server")
        if self._has_token(request):
            return None
        answer = refuse(401, "this server needs its token: open the address that the terminal shows")
        answer.headers["www-authenticate"] = "Bearer"
        return answer

    def _is_name(self, host: str) -> bool:
        name = re.sub(r":\d*\Z", "", host).lower().strip("[]")
        with suppress(ValueError):
            return bool(ipaddress.ip_address(name))
        return name in self.names

    def _has_token(self, request: Request) -> bool:
        expected = f"Bearer {self.token}"
        header = request.headers.get("authorization", "")
        return secrets.compare_digest(header.encode(errors="replace"), expected.encode())


def refuse(status: int, sentence: str) -> Response:
    """The answer to a request that is not answered: why, in one sentence."""
    return JSONResponse({"problem": sentence}, status)
