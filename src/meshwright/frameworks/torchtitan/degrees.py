"""torchtitan's degrees of a plan, and what of a plan no degrees of its say."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from meshwright.core.plan import Plan

__all__ = ["IN_A_V", "SCHEDULES", "refusals"]

SCHEDULES: Mapping[str, str] = MappingProxyType({
    "1f1b": "1F1B", "gpipe": "GPipe", "interleaved_1f1b": "Interleaved1F1B", "looped_bfs": "LoopedBFS", "zb_h1": "1F1B",
    "zb_v": "ZBVZeroBubble", "dualpipe_v": "DualPipeV",
})  # fmt: skip
"""What ``parallelism.pipeline_parallel_schedule`` says. With a file of the order of work it still decides how stages lie: 1F1B
in a loop, ZBVZeroBubble in a V. DualPipeV needs no such file: PyTorch's own order (2.9 and later) is ours."""

IN_A_V = ("zb_v", "dualpipe_v")
"""Schedules whose stages lie on the ranks there and back."""

_SINGLE = ("1f1b", "gpipe", "zb_h1")


def refusals(plan: Plan) -> list[str]:
    """Return what of a plan torchtitan's degrees cannot say, sentences without a full stop."""
    found = []
    n_ranks, n_stages = len(plan.ranks()), len(plan.stages)
    if n_ranks == 1:
        if n_stages > 1:
            found.append(f"{n_stages} stages on one pipeline rank; it has virtual stages in a pipeline only")
        elif plan.schedule != "1f1b":
            found.append(f"schedule {plan.schedule} without a pipeline; that is 1f1b")
        return found
    chunks, loop = n_stages // n_ranks, tuple(i % n_ranks for i in range(n_stages))
    v_shape = (*range(n_ranks), *range(n_ranks - 1, -1, -1))
    if (chunks > 1) == (plan.schedule in _SINGLE) or n_stages % n_ranks:
        found.append(f"schedule {plan.schedule} over {n_stages} stages on {n_ranks} ranks")
    if plan.rank_of_stage() != (v_shape if plan.schedule in IN_A_V else loop):
        found.append("stages that lie on the ranks otherwise than in turn, or, of zb_v and dualpipe_v, there and back")
    if plan.schedule == "interleaved_1f1b" and plan.n_microbatches % n_ranks:
        found.append(f"{plan.n_microbatches} micro-batches; interleaving runs whole rounds of {n_ranks}")
    if plan.schedule == "dualpipe_v" and plan.n_microbatches < n_stages:
        found.append(f"{plan.n_microbatches} micro-batches; DualPipeV asks for as many as stages, {n_stages}")
    return found
