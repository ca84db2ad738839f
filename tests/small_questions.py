"""Small questions whose devices, links and framework a test states itself: no built-in figure of these counts."""

from __future__ import annotations

import dataclasses
import pathlib
from functools import cache
from typing import Any

from meshwright import api
from meshwright.core.cluster import Device
from meshwright.core.framework import Framework, FrameworkLimits
from meshwright.core.problem import Batch, Problem

__all__ = ["question"]

FOLDER = pathlib.Path(__file__).parent / "data" / "small"
CLUSTERS = {"torus": "torus:2x3,bandwidth=25 GB/s,latency=2 us,launch=3 us"}  # the others lie in files
FIGURES = {
    "matmul_ratio": 0.7, "attention_ratio": 0.5, "memory_ratio": 0.8, "launch_seconds": 4e-6, "n_multiprocessors": 0,
    "reserved_bytes": 1e7,
}  # fmt: skip


def question(
    model: str,
    cluster: str,
    *,
    batch: int = 8,
    micro_batch: int = 0,
    sequence: int = 2048,
    gigabytes: float = 4.0,
    **limits: Any,
) -> Problem:
    """Return a question on devices of so much memory; the second kind is half as quick and has three quarters of it."""
    problem = _read(model, cluster, batch, micro_batch, sequence)
    kinds = tuple(
        Device(f"own-{i}", (("bf16", 1e14 / n), ("fp32", 1e13 / n)), gigabytes * 1e9 * (1 - i / 4), 1e12 / n, **FIGURES)
        for i, n in enumerate(range(1, len(problem.required_cluster.kinds) + 1))
    )
    framework = Framework(name="own", limits=FrameworkLimits(**limits))
    cluster_of_ours = dataclasses.replace(problem.required_cluster, kinds=kinds)
    return dataclasses.replace(problem, cluster=cluster_of_ours, framework=framework)


@cache
def _read(model: str, cluster: str, batch: int, micro_batch: int, sequence: int) -> Problem:
    model, cluster = str(FOLDER / f"{model}.json"), CLUSTERS.get(cluster, str(FOLDER / f"{cluster}.yaml"))
    return api.make_problem(model, cluster, batch=Batch(batch, micro_batch, sequence), memory_risk=0.5)
