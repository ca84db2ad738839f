"""Kernels of the search partition."""

from __future__ import annotations

__all__ = ["run"]


def run() -> object:
    """Plan a small model on one node."""
    from meshwright import api
    from meshwright.problem import Batch

    return api.plan("gpt2", "dgx-h100:4", search="partition", batch=Batch(global_batch=16), settings={"n_stages": "4"})
