"""How the C library treats the memory that a program frees. Imports nothing, so that every command can use it."""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
_KEPT_BYTES = 256 << 20


def keep_memory() -> None:
    """Tells glibc to keep freed memory.

    Returning it to the system and faulting it in again would cost more than the work of a step.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return  # not glibc
    for option, value in ((_M_TRIM_THRESHOLD, 2**31 - 1), (_M_TOP_PAD, _KEPT_BYTES), (_M_MMAP_MAX, 0)):
        mallopt(option, value)
