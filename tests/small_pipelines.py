"""Pipelines of a few stages with loads of their own, alone and on shared links: small steps of every schedule to play."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from meshwright.core.cluster import Cluster
from meshwright.core.graph import Edge, Graph, Op
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import ModelSpec, Problem
from meshwright.core.stage_cost import Collective, StageCost
from meshwright.core.strategy import Strategy
from small_clusters import boxes, mesh

__all__ = ["PIPELINES", "posed"]

PIPELINES: dict[str, tuple[Callable[[], Cluster], str, tuple[int, int, int], int]] = {
    # cluster; schedule; ranks, stages of each and devices of one; micro-batches
    "one_rank": (lambda: boxes([2]), "1f1b", (1, 1, 2), 2),
    "gpipe": (lambda: boxes([2, 2]), "gpipe", (2, 1, 2), 3),
    "1f1b": (lambda: boxes([2, 2, 2], across=1e10), "1f1b", (3, 1, 2), 5),
    "interleaved": (lambda: boxes([2, 2], across=1e10), "interleaved_1f1b", (2, 3, 2), 3),
    "zb_h1": (lambda: mesh(2, 3), "zb_h1", (3, 1, 2), 4),
    "zb_h2": (lambda: mesh(1, 4), "zb_h2", (4, 1, 1), 5),
    "zb_v": (lambda: boxes([2, 2], across=1e10), "zb_v", (2, 2, 2), 4),
    "v_half": (lambda: boxes([1, 2, 1]), "v_half", (2, 2, 2), 3),
    "dualpipe_v": (lambda: boxes([2, 2], across=1e10), "dualpipe_v", (2, 2, 2), 5),
    "early": (lambda: boxes([3, 3], across=1e10), "early_backward_b", (3, 1, 2), 6),
    "looped": (lambda: mesh(2, 2), "looped_bfs", (2, 2, 2), 4),
}


def posed(name: str, *, linked: bool = True) -> tuple[Problem, Plan, tuple[StageCost, ...]]:
    """Return question, plan and loads of one pipeline; `linked`: with collectives that take their links."""
    cluster, schedule, (n_ranks, n_chunks, width), n_microbatches = PIPELINES[name]
    dice = np.random.default_rng(len(name) + n_microbatches)
    n_stages = n_ranks * n_chunks
    ranks = [
        r
        for chunk in range(n_chunks)
        for r in (range(n_ranks)[::-1] if chunk % 2 and schedule in ("zb_v", "v_half", "dualpipe_v") else range(n_ranks))
    ]
    devices = [tuple(range(r * width, (r + 1) * width)) for r in range(n_ranks)]
    stages = tuple(Stage((i,), devices[rank], Strategy(data=width)) for i, rank in enumerate(ranks))
    ops = tuple(Op(f"layers.{i}", "mlp") for i in range(n_stages))
    graph = Graph("small", ops, tuple(Edge(i, i + 1, 1000) for i in range(n_stages - 1)))
    problem = Problem(ModelSpec("small", "test", "small", graph), cluster())
    plan = Plan(stages, n_microbatches, 2, schedule, 2 * n_microbatches * width)
    return problem, plan, tuple(_load(dice, width, linked=linked) for _ in range(n_stages))


def _load(dice: np.random.Generator, width: int, *, linked: bool) -> StageCost:
    forward, backward, weight, again, inside, update = (float(value) / 8 for value in dice.integers(1, 9, 6))
    reduce, gather, beside = 0.25 + inside, 0.125, 0.5
    used: tuple[Collective, ...] = ()
    if linked and width > 1:
        used = (
            Collective("forward", "all_gather", width, 1, 1e9, 2.0, inside / 4),
            Collective("backward", "all_reduce", width, 1, 2e9, 1.0, inside / 8),
            Collective("backward_beside", "reduce_scatter", width, 1, 3e9, 1.0, beside),
            Collective("forward_beside", "all_gather", width, 1, 1e9, 0.5, beside / 2),
            Collective("reduce", "all_reduce", width, 1, 5e9, 1.0, reduce),
            Collective("gather", "all_gather", width, 1, 1e9, 1.0, gather),
        )
    return StageCost(
        forward + inside / 4,
        backward,
        weight,
        again,
        (("tensor", inside / 4),),
        (("tensor", inside / 8),),
        output_bytes=float(dice.integers(0, 4)) * 1e9,
        reduce_seconds=reduce,
        overlap_ratio=float(dice.integers(0, 3)) / 4,
        gather_seconds=gather,
        optimizer_seconds=update / 4,
        weight_bytes=1e9 * forward,
        gradient_bytes=2e9 * forward,
        optimizer_bytes=3e9 * weight,
        activation_bytes=1e9 * backward,
        working_bytes=1e8 * again,
        reserved_bytes=1e7,
        model_flops=1e12 * forward,
        communication_bytes=1e9 * inside,
        fragmentation_ratio=0.125,
        collectives=used,
    )
