"""Who may ask the server: checks before every request, and the headers of every answer."""

import ipaddress
import re
import secrets
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_MOST_CONNECTIONS = 500
_COOKIE = "eb-saliency"
_TOKEN = "token"
_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_HEADERS = {
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
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
        token: what a request must know.
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
        # of a browser; another site may link to the page, but neither embed nor ask anything
        site = request.headers.get("sec-fetch-site", "none")
        origin = request.headers.get("origin")
        is_page = request.method == "GET" and request["path"] == "/"
        own_origin = f"{request['scheme']}://{host}"
        is_foreign = site not in ("none", "same-origin") or origin not in (None, own_origin)
        if is_foreign and not is_page:
            return refuse(403, "another site may not ask this server")
        return self._without_token(request)

    def _is_name(self, host: str) -> bool:
        name = re.sub(r":\d*\Z", "", host).lower().strip("[]")
        with suppress(ValueError):
            return bool(ipaddress.ip_address(name))
        return name in self.names

    def _without_token(self, request: Request) -> Response | None:
        """The answer to a request without a cookie that has the token: a page that knows it gets the cookie."""
        name = f"{_COOKIE}-{request['server'][1]}"  # cookies do not tell ports apart
        if request["path"] == "/" and self._is_token(request.query_params.get(_TOKEN, "")):
            address = request.url.remove_query_params(_TOKEN)
            answer = RedirectResponse(address.replace(scheme="", netloc=""), 303)
            answer.set_cookie(name, self.token, httponly=True, samesite="strict")
            return answer
        if self._is_token(request.cookies.get(name, "")):
            return None
        return refuse(403, "this server needs its token: open the address that the terminal shows")

    def _is_token(self, word: str) -> bool:
        return secrets.compare_digest(word.encode(errors="replace"), self.token.encode())


def refuse(status: int, sentence: str) -> Response:
    """The answer to a request that is not answered: why, in one sentence."""
    return JSONResponse({"problem": sentence}, status)
