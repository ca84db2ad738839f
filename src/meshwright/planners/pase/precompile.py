"""Kernels of the search for shardings of operators."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["run"]


def run(plan: Callable[..., object]) -> object:
    """Plan the smallest published graph."""

    return plan("pase:alexnet")
