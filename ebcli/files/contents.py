"""What libraries get of a file that is not trusted: its bytes without its name, and no more than it may unpack to."""

import sys
import zlib
from typing import Any

from ebcli.errors import ImageError

_PACKED, _UNPACKED = 1 << 14, 1 << 22  # bytes at a time; deflate makes at most 1032 of one
TOO_MANY = "it has too many pixels: raise EB_SALIENCY_MAX_PIXELS"


class Contents:
    """A stream without a name or a descriptor: who reads it can open no other file beside it.

    Args:
        stream: a file, or what unpacks one.
        most: the number of bytes that may be read of it, which can be raised later; more are an ImageError.
    """

    def __init__(self, stream: Any, most: int = sys.maxsize) -> None:
        self._stream, self.most = stream, most
        self.tell = stream.tell

    def read(self, size: int = -1) -> bytes:
        """Like that of a file."""
        content: bytes = self._stream.read(size if 0 <= size <= self._rest else self._rest + 1)
        self._check()
        return content

    def readinto(self, buffer: Any) -> int:
        """Like that of a file."""
        count: int = self._stream.readinto(memoryview(buffer)[: self._rest + 1])
        self._check()
        return count

    def seek(self, offset: int, whence: int = 0) -> int:
        """Like that of a file."""
        if whence == 0 and offset > self.most:
            raise ImageError(TOO_MANY)
        return int(self._stream.seek(offset, whence))

    @property
    def _rest(self) -> int:
        return self.most - int(self.tell())

    def _check(self) -> None:
        if self._rest < 0:
            raise ImageError(TOO_MANY)


def check_deflated(stream: Any, size: int, most: float, bits: int = zlib.MAX_WBITS) -> None:
    """Raise ImageError if deflated bytes unpack to more than ``most``.

    Args:
        stream: where they begin.
        size: their number.
        most: bytes.
        bits: how they are wrapped; see ``zlib.decompressobj``.
    """
    unpacker = zlib.decompressobj(bits)
    while (part := stream.read(min(size, _PACKED))) and not unpacker.eof:
        size -= len(part)
        while part:
            most -= len(unpacker.decompress(part, _UNPACKED))
            part = unpacker.unconsumed_tail
            if most < 0:
                raise ImageError(TOO_MANY)
