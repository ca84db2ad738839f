"""Kernels of the search piper."""

from __future__ import annotations

__all__ = ["run"]


def run() -> object:
    """Plan a small model on one node."""
    from meshwright import api
    from meshwright.problem import Batch

    return api.plan("gpt2", "dgx-h100:4", search="piper", batch=Batch(global_batch=16))
