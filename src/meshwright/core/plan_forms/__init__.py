"""What of a plan one option of a configuration says: which axis is outermost, what layers recompute."""

from __future__ import annotations

from meshwright.core.graph import Graph
from meshwright.core.plan import Plan

__all__ = ["inner_words", "layout_of", "recomputed_in_block"]

_ENDS = ("embedding", "head")


def layout_of(plan: Plan) -> str:
    """Return which axis changes slowest over the devices in order, ``pipeline`` or ``data``; empty where neither does."""
    ranks = plan.ranks()
    size = len(ranks[0])
    if any(len(devices) != size for devices in ranks):
        return ""
    if all(list(devices) == list(range(r * size, (r + 1) * size)) for r, devices in enumerate(ranks)):
        return "pipeline"
    width = plan.stages[0].strategy.tensor * plan.stages[0].strategy.context
    row = width * len(ranks)
    if size % width == 0 and all(
        list(devices) == [d * row + r * width + k for d in range(size // width) for k in range(width)]
        for r, devices in enumerate(ranks)
    ):
        return "data"
    return ""


def recomputed_in_block(words: list[list[str]], most: str = "full") -> int:
    """Return how many first layers of every stage recompute everything, the others nothing; -1 where it is otherwise.

    `most`: the word of the first layers; ``offload`` for those whose activations go to the host.

    `words`: what the layers between embedding and head of each stage recompute. A stage with fewer layers recomputes all.
    """
    full = [[word == most for word in stage] for stage in words]
    if any(word not in ("none", most) for stage in words for word in stage):
        return -1
    counts = [sum(stage) for stage in full]
    largest = max(counts, default=0)
    first = all(stage == [True] * count + [False] * (len(stage) - count) for stage, count in zip(full, counts, strict=True))
    return largest if first and all(n == min(largest, len(stage)) for n, stage in zip(counts, full, strict=True)) else -1


def inner_words(plan: Plan, graph: Graph) -> list[list[str]]:
    """Return what the layers between embedding and head of each stage recompute."""
    return [
        [
            word
            for op, word in zip(stage.ops, stage.recompute or ("none",) * len(stage.ops), strict=True)
            if graph.ops[op].kind not in _ENDS
        ]
        for stage in plan.stages
    ]
