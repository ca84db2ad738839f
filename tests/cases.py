"""How many random cases a test of kernels tries: a tenth where they run as plain Python (``NUMBA_DISABLE_JIT=1``), which takes long."""  # noqa: E501

from __future__ import annotations

from numba import config

__all__ = ["cases"]


def cases(n: int) -> int:
    """Return how many cases stand for `n` compiled ones."""
    return max(2, n // 10) if config.DISABLE_JIT else n
