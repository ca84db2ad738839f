"""Kernels of the searches parmesan and stage_mapping."""

from __future__ import annotations

__all__ = ["run"]


def run() -> object:
    """Map a small model's stages onto a few devices."""
    from meshwright import api
    from meshwright.problem import Batch

    batch = Batch(global_batch=16)
    return api.plan("gpt2", "parmesan-uniform:4", search="stage_mapping", batch=batch, settings={"n_stages": "2"})
