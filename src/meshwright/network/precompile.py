"""Kernels of routes, compiled by pricing a small model's collectives."""

from __future__ import annotations

from collections.abc import Callable

from meshwright.core.problem import Batch

__all__ = ["run"]


def run(plan: Callable[..., object]) -> None:
    """Plan replicas on nodes behind switches and on a torus."""
    for cluster in ("dgx-h100:16", "torus:2x2"):
        plan("gpt2", cluster, search="data_parallel", batch=Batch(global_batch=16))
