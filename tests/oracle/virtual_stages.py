"""What a step of virtual stages lasts at least, in plain Python: the twin of `_kernels.best.virtual_stages`."""

from __future__ import annotations

import math
from typing import Any

__all__ = ["least_step"]


def least_step(layers: Any, stages: Any, m: float, split_backward: bool, mixed_backward: bool = False) -> float:
    """Return the largest of what every rank says of the step; inf where one does not fit."""
    n_stages = len(stages.ends) - 1
    found, before, behind, first_end = [], 0.0, 0.0, 0.0
    for rank, own in enumerate(stages.own.tolist()):
        kind = stages.of_rank[rank]
        parts = [_stage(layers, stages, kind, stage, n_stages) for stage in own]
        work, forward, backward, returns, static, kept, reduce, update = (list(column) for column in zip(*parts, strict=True))
        largest = [max(layers.reduce_seconds[kind][stages.ends[stage] : stages.ends[stage + 1]], default=0.0) for stage in own]
        moments = []
        for times, at in zip(stages.held[rank], stages.at[rank], strict=True):
            stage, overhead = own[at], []
            if stages.ends[stage + 1] > stages.ends[stage]:
                overhead.append(layers.overhead[kind][0])
            overhead += [layers.overhead[kind][1]] if stage == 0 else []
            overhead += [layers.overhead[kind][2]] if stage == n_stages - 1 else []
            moments.append((sum(t * b for t, b in zip(times, kept, strict=True)) + max(overhead, default=0.0), list(times)))
        fullest = max(n_bytes for n_bytes, _ in moments)
        held = next(times for n_bytes, times in moments if n_bytes == fullest)
        excess = sum(static) + fullest - stages.memory_bytes[rank]
        counts = [int(stages.ends[stage + 1] - stages.ends[stage]) for stage in own]
        again = (
            max(_extra(layers, stages, kind, own, excess, held, counts), stages.again_seconds[rank]) if excess > 0.0 else 0.0
        )
        seconds = sum(work) + again
        if seconds == math.inf:
            return math.inf
        done = []  # from each stage on: its backward passes and those of later ones, the last task of that stage left out
        for i in range(len(own)):
            later = m * sum((returns if split_backward else backward)[i:])
            done.append(later + (m - 1) * (backward[i] - returns[i]) if split_backward else later - backward[i])
            done[-1] -= returns[i] if mixed_backward else 0.0
        end = sum(update) + min(largest)
        first_end = end if rank == 0 else first_end
        ways = [m * seconds + end, m * sum(forward) + min(done) + sum(reduce) + sum(update)]
        ways += [] if split_backward else [m * seconds + behind + first_end]
        found.append(before + max(ways))
        before, behind = before + forward[0], behind + backward[0]
    return max(found)


def _stage(layers: Any, stages: Any, kind: int, stage: int, n_stages: int) -> list[float]:
    """Return the eight sums of a stage."""
    own = [layers.sums[kind][q][stages.ends[stage + 1]] - layers.sums[kind][q][stages.ends[stage]] for q in range(8)]
    for end, of in ((0, 0), (1, n_stages - 1)):
        if stage == of:
            own = [value + more for value, more in zip(own, layers.pinned[kind][end], strict=True)]
    return own


def _extra(layers: Any, stages: Any, kind: int, own: list[int], excess: float, held: list[float], counts: list[int]) -> float:
    """Return the least seconds of recomputing that frees the excess: every number of layers by either way is tried."""
    times = sorted((t for t, count in zip(held, counts, strict=True) for _ in range(count)), reverse=True)
    saved, extra = layers.saved[kind], layers.extra[kind]
    if excess > max(saved) * sum(times) * (1.0 + 1e-9):
        return math.inf
    ways = [
        strong * extra[1] + weak * extra[0]
        for strong in range(len(times) + 1)
        for weak in range(len(times) + 1 - strong)
        if max(saved) * sum(times[:strong]) + saved[0] * sum(times[strong : strong + weak]) >= excess * (1.0 - 1e-9)
    ]
    prices = [
        layers.prices[kind][i] * excess / max([1.0, *times])
        - sum(layers.worth[kind][i][stages.ends[s + 1]] - layers.worth[kind][i][stages.ends[s]] for s in own)
        for i in range(layers.n_prices[kind])
    ]
    return max([min(ways, default=math.inf), *prices])
