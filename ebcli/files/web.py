"""Files on web servers: every request is limited in time and size, and repeated if that may help."""

from __future__ import annotations

import errno
import io
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from email.message import Message
from email.utils import parsedate_to_datetime
from functools import partial
from html import unescape
from http.client import HTTPException
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urldefrag, urljoin, urlsplit

from ebcli.files.remote import RemoteOptions, too_large

T = TypeVar("T")

_CHUNK = 1 << 20
_LARGEST_LISTING = 16 << 20  # bytes
_MOST_LISTINGS = 10_000
_SLOWEST = 20  # timeouts that a whole response may take
_LINK = re.compile(rb"""<a\s[^>]*?href\s*=\s*["']([^"']+)["']""", re.IGNORECASE)


class _Redirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if urlsplit(newurl).scheme not in ("http", "https"):
            raise urllib.error.HTTPError(req.full_url, code, "a redirect to another protocol", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


_opener = urllib.request.build_opener(_Redirects)


def head(url: str, options: RemoteOptions) -> tuple[int, int]:
    """A file's size and modification time in nanoseconds; 0 if the server does not report them.

    Raises:
        OSError: the file does not exist, or the server does not answer.
    """
    return state(_repeated(lambda: _response(url, options, "HEAD", options.max_bytes)[0], options))


def fetch(url: str, options: RemoteOptions, part: tuple[int, int] | None = None) -> tuple[Message, bytes]:
    """Fetch a file, or the part from one byte up to another one; returns the response's headers as well.

    Raises:
        OSError: the file does not exist or is too large, or the server does not answer.
    """
    return _repeated(lambda: _response(url, options, "GET", options.max_bytes, part), options)


def state(headers: Message) -> tuple[int, int]:
    """The size and the modification time in nanoseconds that a response reports."""
    length, date = headers.get("Content-Length", ""), headers.get("Last-Modified")
    try:
        changed = int(parsedate_to_datetime(date).timestamp()) * 10**9 if date else 0
    except (ValueError, OverflowError):
        changed = 0
    return int(length) if re.fullmatch(r"[0-9]{1,18}", length) else 0, changed


def files_below(url: str, options: RemoteOptions) -> Iterator[str]:
    """The files that a listing and the listings below it link to; no links that lead out of it are followed.

    Raises:
        OSError: a listing cannot be read.
    """
    root = quote_url(url.rstrip("/")) + "/"
    seen, listings = {root}, [root]
    for number, listing in enumerate(listings):
        if number == _MOST_LISTINGS:
            raise OSError(errno.EIO, f"it has more than {_MOST_LISTINGS} directories")
        page = _repeated(partial(_response, listing, options, "GET", _LARGEST_LISTING), options)[1]
        for link in _LINK.findall(page):
            target, _ = urldefrag(urljoin(listing, unescape(link.decode(errors="replace"))))
            below = target.removeprefix(root)
            if target in seen or below == target or "?" in below or {".", ".."} & set(unquote(below).split("/")):
                continue
            seen.add(target)
            if target.endswith("/"):
                listings.append(target)
            else:
                yield f"{url.rstrip('/')}/{below}"


def quote_url(url: str) -> str:
    """A URL in which characters that may not be in one are escaped."""
    return quote(url, safe="%/:=&?~#+!$,;'@()*[]", errors="surrogateescape")


class WebFile(io.RawIOBase):
    """A file that is read in parts, for servers that support that."""

    def __init__(self, url: str, options: RemoteOptions) -> None:
        self._url, self._options, self._position = url, options, 0
        self._size = head(url, options)[0]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        end = min(self._position + len(buffer), self._size)
        if end <= self._position:
            return 0
        content = fetch(self._url, self._options, (self._position, end))[1]
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)


def _response(
    url: str, options: RemoteOptions, method: str, limit: int, part: tuple[int, int] | None = None
) -> tuple[Message, bytes]:
    ends = time.monotonic() + _SLOWEST * options.timeout
    headers = {"Accept-Encoding": "identity", "User-Agent": "eb-saliency"}
    if part is not None:
        headers["Range"] = f"bytes={part[0]}-{part[1] - 1}"
    request = urllib.request.Request(quote_url(url), method=method, headers=headers)
    with _opener.open(request, timeout=options.timeout) as response:
        if method == "HEAD":
            return response.headers, b""
        if part is not None and response.status != 206:
            raise OSError(errno.EIO, "the server cannot send parts of a file")
        size, content = state(response.headers)[0], io.BytesIO()
        limit = limit if part is None else part[1] - part[0]
        while size <= limit and (chunk := response.read1(_CHUNK)):
            size = max(size, content.tell() + len(chunk))
            content.write(chunk)
            if time.monotonic() > ends:
                raise TimeoutError
        if size > limit:
            raise too_large(limit)
        if content.tell() < size:
            raise ConnectionError("it ended early")
        return response.headers, content.getvalue()


def _repeated(action: Callable[[], T], options: RemoteOptions) -> T:
    for attempt in range(options.retries + 1):
        try:
            return action()
        except urllib.error.HTTPError as error:
            answer = f"the server answered {error.code} {''.join(filter(str.isprintable, str(error.reason)[:80]))}"
            error.close()
            if error.code in (404, 410):
                raise FileNotFoundError(errno.ENOENT, f"it cannot be found ({answer})") from error
            reason, may_help = answer, error.code in (408, 425, 429) or error.code >= 500
        except (urllib.error.URLError, TimeoutError, ConnectionError, HTTPException) as error:
            cause = error.reason if isinstance(error, urllib.error.URLError) else error
            reason, may_help = f"the connection failed: {cause}", True
            if isinstance(cause, TimeoutError):
                reason = f"the server did not answer within {options.timeout:g} s"
        if not may_help:
            break
        if attempt < options.retries:
            time.sleep(min(0.5 * 2**attempt, 30))
    raise OSError(errno.EIO, reason if attempt == 0 else f"{reason} (tried {attempt + 1} times)")
