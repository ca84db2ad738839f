"""A plan as Piper's figures write it: replicas x tensor degree of each stage, and whether it recomputes: ``4x2:4x2r``."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from meshwright.base.errors import InputError
from meshwright.core.plan_forms import typed
from meshwright.planners.piper.costs.piper import PiperStage, fastest_choice
from meshwright.planners.piper.problem import PiperInstance

__all__ = ["stages"]


def stages(instance: PiperInstance, order: Sequence[int], text: str) -> tuple[tuple[PiperStage, ...], tuple[str, ...]]:
    """Return the stages that were typed, and notes on what was left open.

    `order`: nodes in a topological order, which stages follow.
    `text`: ``DATAxTENSOR[r]:...[@LAYERS:...]``; with ``r`` every layer of the stage takes its fastest choice that recomputes,
    else its fastest that does not.
    Raises `InputError` when the text is no such plan, or a layer has no such choice.
    """
    told = typed.parse(text, len(order))
    degrees, words = [], []
    for one in told.words:
        found = re.fullmatch(r"(\d+)x(\d+)(r?)", one)
        if found is None:
            raise InputError(
                f"--fix {text}: '{one}' must be replicas x tensor degree of a stage, with r where it recomputes: 4x2 or 4x2r"
            )
        degrees.append(tuple(typed.whole(found[i], text, what) for i, what in ((1, "replicas"), (2, "a tensor degree"))))
        words.append("full" if found[3] else "none")
    notes: tuple[str, ...] = ()
    counts = told.counts
    if not counts and len(degrees) > 1:
        counts = typed.balanced(_seconds(instance, order, degrees, words))
        notes = (
            f"the plan does not say which layers: they are split @{':'.join(map(str, counts))}, where the slowest stage "
            "computes for the least time",
        )
    made, begin = [], 0
    for (data, tensor), word, count in zip(degrees, words, counts or (len(order),), strict=True):
        nodes = tuple(order[begin : begin + count])
        made.append(PiperStage(nodes, data, tensor, tuple(fastest_choice(instance, v, tensor, word) for v in nodes)))
        begin += count
    return tuple(made), notes


def _seconds(
    instance: PiperInstance, order: Sequence[int], degrees: Sequence[tuple[int, ...]], words: Sequence[str]
) -> np.ndarray:
    """Return what each node computes in each stage per micro-batch of the batch."""
    rows: dict[tuple[int, str], list[float]] = {}
    for (_, tensor), word in zip(degrees, words, strict=True):
        if (tensor, word) not in rows:
            names = [fastest_choice(instance, v, tensor, word) for v in order]
            rows[tensor, word] = [
                next(choice.seconds for choice in instance.nodes[v].at(tensor) if choice.id == name)
                for v, name in zip(order, names, strict=True)
            ]
    return np.array([np.array(rows[tensor, word]) / data for (data, tensor), word in zip(degrees, words, strict=True)])
