"""Kernels of the joint search and of the simulator."""

from __future__ import annotations

from collections.abc import Callable

from meshwright.core.problem import Batch

__all__ = ["run"]


def run(plan: Callable[..., object]) -> object:
    """Plan a small model on one node."""
    return plan("gpt2", "dgx-h100:8", batch=Batch(global_batch=16), settings={"evaluations": "4"})
