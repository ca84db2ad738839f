"""Keeping freed memory in the process, so that steps, and measures of them, pay no page faults for tensors they made before."""

from __future__ import annotations

import ctypes
import sys

__all__ = ["keep_freed_memory"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of glibc's mallopt
_KEPT_BYTES = 2**30
_MAPPED_BYTES = 2**25  # the most that glibc takes


def keep_freed_memory() -> bool:
    """Ask the C library to keep freed memory instead of handing it back to the system; return whether it does.

    Notes
    -----
    glibc hands the top of its heap back whenever much of it is free, and every large tensor that it maps by itself. A training
    step frees and makes the same tensors again and again, so every step would pay for the same pages: measured here, weight
    gradients of a layer took twice as long in some processes as in others, by chance of where the heap ended. Other C libraries
    are left alone.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)) and bool(mallopt(_MMAP_THRESHOLD, _MAPPED_BYTES))
