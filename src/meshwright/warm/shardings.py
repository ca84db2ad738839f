"""Kernels of the search for shardings of operators."""

from __future__ import annotations

__all__ = ["run"]


def run() -> object:
    """Plan the smallest published graph."""
    from meshwright import api

    return api.plan("pase:alexnet")
