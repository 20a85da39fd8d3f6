"""Rights to files: tests run as root, too."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_VERSION = 0x20080522
_OVERRIDES = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH


@contextmanager
def no_override() -> Iterator[None]:
    """Without the right to read and write whatever the permissions say, which root has."""
    if not hasattr(os, "geteuid"):
        pytest.skip("permissions differ")
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_VERSION, 0)
    rights = (ctypes.c_uint32 * 6)()  # effective, permitted and inheritable, for two halves
    if libc.capget(header, rights) or not rights[1] & _OVERRIDES:
        pytest.skip("the rights of root are unknown")
    rights[0] &= ~_OVERRIDES
    assert libc.capset(header, rights) == 0
    try:
        yield
    finally:
        rights[0] |= rights[1] & _OVERRIDES
        assert libc.capset(header, rights) == 0
