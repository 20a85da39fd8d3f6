"""Files on web servers: every request is limited in time and size, and repeated if that may help."""

import errno
import io
import ipaddress
import re
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from email.utils import parsedate_to_datetime
from functools import lru_cache
from html.parser import HTMLParser
from http.client import HTTPResponse
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, unquote_to_bytes, urldefrag, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from fsspec.spec import AbstractBufferedFile
from urllib3 import exceptions
from urllib3.connection import HTTPConnection, HTTPSConnection

from ebcli.files.paths import SLOWEST, FileState, RemoteOptions, too_large, unreadable

_CHUNK = 1 << 20
_LARGEST_LISTING = 16 << 20  # bytes
_MOST_LISTINGS = 10_000
_MOST_REDIRECTS = 10
_LONGEST_WAIT = 30  # seconds between two attempts, whatever the server asks for
_MAY_PASS = {408, 425, 429, *range(500, 600)}
_LONGEST_TAG = 4096  # characters
_INVALID = "the URL, or what the server answers, is not valid: open it in a browser to see"


class _TimedStream(io.RawIOBase):
    """What a connection receives, until the time for a response is over."""

    def __init__(self, stream: io.RawIOBase, connection: socket.socket) -> None:
        self._stream = stream
        self._connection = connection
        self.timeout = connection.gettimeout() or 0.0
        self.deadline = time.monotonic() + self.timeout

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        seconds = self.deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        self._connection.settimeout(min(seconds, self.timeout))
        return self._stream.readinto(buffer)

    def close(self) -> None:
        self._stream.close()
        super().close()


class _Response(HTTPResponse):
    """A response whose headers arrive within the timeout, and all of it within some more.

    A timeout of the connection alone holds for each read, so a server that sends a byte at a time has no end.
    """

    def __init__(self, connection: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(connection, *args, **kwargs)
        self._timed_stream = _TimedStream(self.fp.detach(), connection)
        self.fp = io.BufferedReader(self._timed_stream)

    def begin(self) -> None:
        super().begin()
        self._timed_stream.deadline = time.monotonic() + SLOWEST * self._timed_stream.timeout


# whether the first address of a request is public; None before it
_asks_public: ContextVar[bool | None] = ContextVar("asks_public", default=None)


class _PrivateAddressError(exceptions.HTTPError):
    """A public server redirects to what only this machine can reach."""


class _Connection(HTTPConnection):
    """Sends nothing to a private address that a public one redirects to: it may be a service of this machine.

    What counts is the address that it is connected to, so names may mean whatever they want.
    """

    response_class = _Response

    def request(self, *args: Any, **kwargs: Any) -> None:
        if self.sock is None:
            self.connect()
        if self.proxy is None:  # which connects as it likes
            is_public = _is_public(self.sock.getpeername()[0])
            if _asks_public.get() is None:
                _asks_public.set(is_public)
            if _asks_public.get() and not is_public:
                raise _PrivateAddressError("a public server redirects to a private address")
        super().request(*args, **kwargs)


class _SecureConnection(_Connection, HTTPSConnection):
    pass


def _is_public(address: str) -> bool:
    """Whether an IP address is one of the internet, and neither of this machine nor of its network."""
    ip = ipaddress.ip_address(address.partition("%")[0])  # without the network's interface
    return (getattr(ip, "ipv4_mapped", None) or ip).is_global


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


class _Links(HTMLParser):
    """The addresses that a page links to."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.hrefs: list[str] = []
        for tag in page.decode(errors="replace").split(
            "<"
        ):  # for some pages, the parser takes quadratic time
            if tag.startswith(("a", "A")):
                self.reset()
                self.feed(f"<{tag[:_LONGEST_TAG]}")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        href = dict(attrs).get("href")
        if tag == "a" and href:
            self.hrefs.append(href)


class Response(NamedTuple):
    """What a server answers."""

    headers: Mapping[str, str]
    content: bytes

    @property
    def state(self) -> FileState:
        """The size and the modification time in nanoseconds that the headers report; 0 if they do not."""
        mtime_ns = 0
        with suppress(KeyError, ValueError, OverflowError):
            mtime_ns = int(parsedate_to_datetime(self.headers["Last-Modified"]).timestamp()) * 10**9
        return FileState(_number(self.headers.get("Content-Length", "")), mtime_ns)


def _number(header: str) -> int:
    if re.fullmatch(r"[0-9]{1,18}", header):
        return int(header)
    return 0


def head(url: str, options: RemoteOptions) -> FileState:
    """A file's size and modification time in nanoseconds; 0 if the server does not report them.

    Raises:
        OSError: the file does not exist, or the server does not answer.
    """
    if not options.query:
        return fetch(url, options, method="HEAD").state
    first_byte = fetch(url, options, (0, 1))  # a signature is for GET only
    size = first_byte.headers.get("Content-Range", "").rpartition("/")[2]
    return first_byte.state._replace(bytes=_number(size))


def files_below(url: str, options: RemoteOptions) -> Iterator[str]:
    """The files that a listing and the listings below it link to; no links that lead out of it are followed.

    There are none if the URL itself cannot be read as a listing.

    Raises:
        OSError: a listing below it cannot be read, or there are too many of them.
    """
    url = url.rstrip("/")
    root = f"{quote_url(url)}/"
    folders = [""]
    known_paths = {""}
    longest = SLOWEST * options.timeout
    deadline = time.monotonic() + longest
    options = replace(options, max_bytes=_LARGEST_LISTING)
    for number, folder in enumerate(folders):
        if number == _MOST_LISTINGS:
            raise unreadable(f"it has more than {_MOST_LISTINGS} directories: name some of them instead")
        if time.monotonic() > deadline:
            raise unreadable(
                f"listing its directories took longer than {longest:g} s: raise EB_SALIENCY_TIMEOUT"
            )
        try:
            page = fetch(root + folder, options).content
        except OSError as error:
            if not folder:
                return
            raise unreadable(f"'{folder}' cannot be listed: {error.strerror}") from error
        for path in _paths_below(root, root + folder, page):
            if path in known_paths:
                continue
            known_paths.add(path)
            if path.endswith("/"):
                folders.append(path)
            else:
                yield f"{url}/{path}"


def _paths_below(root: str, listing: str, page: bytes) -> Iterator[str]:
    """The paths below a root that a listing links to."""
    for href in _Links(page).hrefs:
        with suppress(ValueError):  # not an address
            target = urldefrag(urljoin(listing, href)).url
            path = target.removeprefix(root)
            leads_out = path == target or not {".", ".."}.isdisjoint(unquote(path).split("/"))
            if not leads_out and "?" not in path:
                yield path


def quote_url(url: str) -> str:
    """A URL in which characters that may not be in one are escaped."""
    return quote(url, safe="%/:=&?~#+!$,;'@()*[]", errors="surrogateescape")


class WebFile(AbstractBufferedFile):  # type: ignore[misc]
    """A file that is read in parts, for servers that support that."""

    def __init__(self, url: str, options: RemoteOptions) -> None:
        self._options = options
        super().__init__(None, url, block_size=_CHUNK, size=head(url, options).bytes)

    def _fetch_range(self, start: int, end: int) -> bytes:
        return fetch(self.path, self._options, (start, end)).content


def fetch(
    url: str, options: RemoteOptions, part: tuple[int, int] | None = None, method: str = "GET"
) -> Response:
    """Fetch a file, or the part from one byte up to another one.

    Raises:
        OSError: the file does not exist or is too large, or the server does not answer.
    """
    headers = urllib3.make_headers(accept_encoding="identity", user_agent="eb-saliency")
    limit = options.max_bytes
    if part is not None:
        start, end = part
        headers["Range"] = f"bytes={start}-{end - 1}"
        limit = end - start
    if options.query:
        url = f"{url.partition('?')[0]}?{options.query}"
    url = quote_url(url)
    retries = _retries(options.retries)
    _asks_public.set(None)
    try:
        if options.login:  # which is not sent to other servers that this one redirects to
            name, _, password = options.login.partition(":")
            login = unquote_to_bytes(f"{name}:{password}")
            headers |= urllib3.make_headers(basic_auth=login.decode("latin-1"))
        while True:
            try:
                response = _pool(url).request(
                    method,
                    url,
                    headers=headers,
                    timeout=options.timeout,
                    retries=retries,
                    preload_content=False,
                )
                retries = response.retries or retries
                with response:
                    return Response(response.headers, _body(response, limit, part is not None))
            except (exceptions.ProtocolError, exceptions.TimeoutError) as error:  # in the middle of the body
                retries = retries.increment(method, url, error=error)
                retries.sleep()
    except exceptions.HTTPError as error:
        raise unreadable(_reason(error, options)) from error
    # an address or a header that the standard library cannot parse
    except (ValueError, OverflowError) as error:
        raise unreadable(_INVALID) from error


def _retries(count: int) -> urllib3.Retry:
    return urllib3.Retry(
        total=None,
        connect=count,
        read=count,
        redirect=_MOST_REDIRECTS,
        status=count,
        other=count,
        status_forcelist=_MAY_PASS,
        allowed_methods=None,
        backoff_factor=0.5,
        backoff_max=_LONGEST_WAIT,
        retry_after_max=_LONGEST_WAIT,
        raise_on_status=False,
    )


def _body(response: urllib3.BaseHTTPResponse, limit: int, is_part: bool) -> bytes:
    """What a response holds; nothing if only its headers were asked for."""
    if response.status >= 400:
        raise _refusal(response)
    if is_part and response.status != 206:
        raise unreadable("the server cannot send parts of a file")
    if (response.length_remaining or 0) > limit:  # 0 if it has no body
        raise too_large(limit)
    content = io.BytesIO()
    while chunk := response.read1(_CHUNK, decode_content=False):
        content.write(chunk)
        if content.tell() > limit:
            raise too_large(limit)
    return content.getvalue()


def _refusal(response: urllib3.BaseHTTPResponse) -> OSError:
    phrase = "".join(filter(str.isprintable, (response.reason or "")[:80]))
    answer = f"the server answered {response.status} {phrase}"
    if response.status in (404, 410):
        return FileNotFoundError(errno.ENOENT, f"it cannot be found ({answer})")
    history = response.retries.history if response.retries else ()
    requests = [attempt for attempt in history if not attempt.redirect_location]
    return unreadable(answer + _attempts_words(len(requests) + 1))


def _reason(error: exceptions.HTTPError, options: RemoteOptions) -> str:
    attempts = ""
    if isinstance(error, exceptions.MaxRetryError):
        attempts = _attempts_words(options.retries + 1)
    cause: Any = getattr(error, "reason", None) or error
    if isinstance(cause, exceptions.LocationParseError):  # whose message has the whole address
        return _INVALID
    if isinstance(cause, exceptions.TimeoutError) and not isinstance(cause, exceptions.NewConnectionError):
        return f"the server did not answer within {options.timeout:g} s{attempts}"
    cause = cause.__cause__ or cause
    failure = "it ended early" if isinstance(cause, exceptions.IncompleteRead) else cause
    return f"the connection failed: {failure}{attempts}"


def _attempts_words(count: int) -> str:
    if count == 1:
        return ""
    return f" (tried {count} times)"


def _pool(url: str) -> urllib3.PoolManager:
    """The connections to use for a URL: those of the proxy that the environment names, if any."""
    parts = urlsplit(url)
    proxies = {} if proxy_bypass(parts.hostname or "") else getproxies()
    return _pool_of(proxies.get(parts.scheme))


@lru_cache
def _pool_of(proxy: str | None) -> urllib3.PoolManager:
    pool = urllib3.PoolManager()
    if proxy:
        login = unquote(urlsplit(proxy).netloc.rpartition("@")[0])
        headers = urllib3.make_headers(proxy_basic_auth=login or None)
        pool = urllib3.ProxyManager(proxy, proxy_headers=headers)
    pool.pool_classes_by_scheme = {"http": _Pool, "https": _SecurePool}
    return pool
