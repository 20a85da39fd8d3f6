"""Who may ask the server: checks before every request, and the headers of every answer."""

import ipaddress
import secrets
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import URL, Headers, MutableHeaders, QueryParams
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

        await (self._refusal(scope) or self.app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        """The answer to a request that is not passed on."""
        if len(self.connections) > _MOST_CONNECTIONS:
            return _refuse(503, "too many ask at once: try again in a moment")
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._is_name(host):
            return _refuse(400, "this server does not answer to that name: open the address that the terminal shows")
        # of a browser; another site may link to the page, but neither embed nor ask anything
        is_page = scope["method"] == "GET" and scope["path"] == "/"
        site = headers.get("sec-fetch-site", "none")
        origin = headers.get("origin")
        url = URL(scope=scope)
        is_foreign = site not in ("none", "same-origin") or origin not in (None, f"{url.scheme}://{host}")
        if is_foreign and not is_page:
            return _refuse(403, "another site may not ask this server")
        return self._without_token(scope, headers)

    def _is_name(self, host: str) -> bool:
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        name = name.lower().strip("[]")
        with suppress(ValueError):
            return bool(ipaddress.ip_address(name))
        return name in self.names

    def _without_token(self, scope: Scope, headers: Headers) -> Response | None:
        """The answer to a request without a cookie that has the token: a page that knows it gets the cookie."""
        name = f"{_COOKIE}-{scope['server'][1]}"  # cookies do not tell ports apart
        token_given = QueryParams(scope["query_string"]).get(_TOKEN)
        if token_given is not None and scope["path"] == "/" and _equal_tokens(token_given, self.token):
            address = URL(scope=scope).remove_query_params(_TOKEN)
            answer = RedirectResponse(f"/?{address.query}" if address.query else "/", 303)
            answer.set_cookie(name, self.token, httponly=True, samesite="strict")
            return answer
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(name)
        except CookieError:
            cookie = None
        if cookie is not None and _equal_tokens(cookie.value, self.token):
            return None
        return _refuse(403, "this server needs its token: open the address that the terminal shows")


def _equal_tokens(value: str, token: str) -> bool:
    return secrets.compare_digest(value.encode(errors="replace"), token.encode())


def _refuse(status: int, sentence: str) -> Response:
    return JSONResponse({"problem": sentence}, status)
