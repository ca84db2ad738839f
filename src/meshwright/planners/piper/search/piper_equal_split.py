"""Piper's baselines: equal groups of layers, the same replicas, tensor degree and recomputation in every stage."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from meshwright.base.errors import InputError
from meshwright.core.problem import Problem, Stop
from meshwright.core.result import Answer, Objective
from meshwright.planners.piper.answer import choices_json, instance_of, plan_of, problem_of
from meshwright.planners.piper.costs.piper import PiperStage, evaluate
from meshwright.planners.piper.menu import RECOMPUTES, VANILLA
from meshwright.planners.piper.problem import TRANSFORMER, PiperInstance

__all__ = ["Params", "search"]


@dataclass(frozen=True, slots=True)
class Params:
    """Options of the baseline; degrees left open are tried in ascending order.

    Parameters
    ----------
    max_devices, n_microbatches : int or None
        In place of the file's.
    bandwidth, memory : float or None
        In place of the file's; bytes per second and bytes.
    tensor_parallel : bool
        Whether tensor degrees above 1 are tried.
    separate : bool
        Whether giving what stands before and after the transformer layers stages of its own is tried too.
    layers : bool
        Split all layers in topological order; else transformer layers, with the rest at the two ends.
    recompute : str
        ``choose`` tries both everywhere; ``never`` or ``always`` one.
    stages, data, tensor : int or None
        Fix a degree; all three fix the plan, which is then evaluated.
    """

    max_devices: int | None = field(default=None, metadata={"minimum": 1})
    n_microbatches: int | None = field(default=None, metadata={"minimum": 1})
    bandwidth: float | None = field(default=None, metadata={"unit": "bytes_per_second"})
    memory: float | None = field(default=None, metadata={"unit": "bytes"})
    tensor_parallel: bool = True
    separate: bool = True
    layers: bool = False
    recompute: str = field(default="choose", metadata={"choices": ("choose", "never", "always")})
    stages: int | None = field(default=None, metadata={"minimum": 1})
    data: int | None = field(default=None, metadata={"minimum": 1})
    tensor: int | None = field(default=None, metadata={"minimum": 1})


@dataclass(frozen=True, slots=True)
class _Split:
    """Groups of nodes, a tensor degree and a choice id everywhere, with the sums that time and memory are made of."""

    groups: tuple[tuple[int, ...], ...]
    tensor: int
    choice: str
    once_seconds: np.ndarray
    weight_bytes: np.ndarray
    peak_bytes: float


def search(problem: Problem, params: Params, *, seed: int, stop: Stop) -> Answer:
    """Return the best equal split.

    `problem` is read from a Piper file; `seed` and `stop` are not used. The objective is in Piper's cost model; no bound.
    Raises `InputError` when the problem is no Piper file, has no transformer layers (and `layers` is off), or degrees given do
    not fit.

    References
    ----------
    Tarnawski et al., "Piper" (NeurIPS 2021), section 5: the baselines in the manner of PipeDream-2BW.
    """
    instance = instance_of(
        problem, "piper_equal_split", params.max_devices, params.n_microbatches, params.bandwidth, params.memory
    )
    _check(instance, params)
    best_value, best, least_excess = math.inf, None, math.inf
    for split in _splits(instance, params):
        if split.peak_bytes > instance.memory_bytes:
            least_excess = min(least_excess, split.peak_bytes - instance.memory_bytes)
            continue
        for data in _replicas(instance, params, split):
            n = instance.n_microbatches
            reduce = 4.0 * (data - 1) * split.weight_bytes / data / n / instance.bandwidth
            value = float((split.once_seconds / data + reduce).max())
            if value < best_value:
                best_value, best = value, (split, data)
    changed = problem_of(problem, instance)
    if best is None:
        missing = least_excess if math.isfinite(least_excess) else 0.0
        return Answer(None, missing_bytes=missing, notes=("no equal split fits",), problem=changed)
    split, data = best
    stages = tuple(PiperStage(group, data, split.tensor, (split.choice,) * len(group)) for group in split.groups)
    return Answer(
        plan_of(instance, stages),
        Objective("seconds_per_microbatch", evaluate(instance, stages).seconds),
        extra={"choices": choices_json(instance, stages)},
        problem=changed,
    )


def _check(instance: PiperInstance, params: Params) -> None:
    """Refuse degrees that no plan can have."""
    if not params.layers and not any(node.name == TRANSFORMER for node in instance.nodes):
        raise InputError(
            f"search piper_equal_split: no layer is called {TRANSFORMER}, so there is nothing to split equally; "
            "add --set layers=true to split all layers"
        )
    if params.data and instance.n_microbatches % params.data:
        raise InputError(
            f"--set data={params.data} (of search piper_equal_split): must divide the {instance.n_microbatches} micro-batches"
        )
    if params.tensor and not params.tensor_parallel and params.tensor > 1:
        raise InputError("--set tensor and tensor_parallel=false (of search piper_equal_split) contradict each other: drop one")
    used = (params.stages or 1) * (params.data or 1) * (params.tensor or 1)
    if used > instance.n_devices:
        raise InputError(
            f"search piper_equal_split: stages x data x tensor is {used}, but there are {instance.n_devices} devices; "
            "lower one, or give more with --set max_devices"
        )


def _replicas(instance: PiperInstance, params: Params, split: _Split) -> Iterator[int]:
    """Yield the numbers of replicas to try, ascending."""
    n_stages = len(split.groups)
    for data in range(1, min(instance.n_devices, instance.n_microbatches) // n_stages + 1):
        fits = instance.n_microbatches % data == 0 and n_stages * data * split.tensor <= instance.n_devices
        if fits and params.data in (None, data):
            yield data


def _splits(instance: PiperInstance, params: Params) -> Iterator[_Split]:
    """Yield the splits in the order in which the published search tries them, replicas aside."""
    degrees = [1]
    if params.tensor_parallel:
        degrees = [degree for degree, choices in instance.nodes[0].choices if choices and degree <= instance.n_devices]
    if params.tensor:
        degrees = [params.tensor]
    ids = {"never": (VANILLA,), "always": (RECOMPUTES,), "choose": (VANILLA, RECOMPUTES)}[params.recompute]
    for groups in _groups(instance, params):
        for degree in degrees:
            for choice in ids:
                split = _sums(instance, groups, degree, choice)
                if split is not None:
                    yield split


def _groups(instance: PiperInstance, params: Params) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yield the ways to cut the layers into stages."""
    order = _order(instance)
    if params.layers:
        for n_stages in range(1, min(instance.n_devices, len(order)) + 1):
            if params.stages in (None, n_stages):
                yield _equal(order, n_stages)
        return
    transformers = [v for v in order if instance.nodes[v].name == TRANSFORMER]
    initial, final = _ends(instance)
    for separate in (0, 1) if params.separate else (0,):
        for n_stages in range(1 + 2 * separate, min(instance.n_devices, len(transformers) + 2 * separate) + 1):
            if params.stages not in (None, n_stages):
                continue
            middle = _equal(transformers, n_stages - 2 * separate)
            if separate:
                yield (tuple(initial), *middle, tuple(final))
            else:
                first, rest = (*initial, *middle[0]), middle[1:]
                groups = [first, *rest]
                groups[-1] = (*groups[-1], *final)
                yield tuple(groups)


def _equal(nodes: list[int], n_groups: int) -> tuple[tuple[int, ...], ...]:
    """Return consecutive groups; where sizes differ, the last ones have one node more."""
    size, rest = divmod(len(nodes), n_groups)
    ends = np.cumsum([size + (i >= n_groups - rest) for i in range(n_groups)])
    return tuple(tuple(nodes[int(end - size - (i >= n_groups - rest)) : int(end)]) for i, end in enumerate(ends))


def _order(instance: PiperInstance) -> list[int]:
    """Return Kahn's topological order with a stack, as the original visits nodes."""
    heads: list[list[int]] = [[] for _ in instance.nodes]
    waiting = [0] * len(instance.nodes)
    for edge in instance.edges:
        heads[edge.source].append(edge.target)
        waiting[edge.target] += 1
    stack = [v for v, count in enumerate(waiting) if count == 0]
    order = []
    while stack:
        v = stack.pop()
        order.append(v)
        for x in heads[v]:
            waiting[x] -= 1
            if waiting[x] == 0:
                stack.append(x)
    return order


def _ends(instance: PiperInstance) -> tuple[list[int], list[int]]:
    """Return the layers before and after the transformers, as the original classifies them along the edges."""
    kind = ["transformer" if node.name == TRANSFORMER else "" for node in instance.nodes]
    changed = True
    while changed:
        changed = False
        for edge in instance.edges:
            tail, head = kind[edge.source], kind[edge.target]
            if not tail and head in ("initial", "transformer"):
                kind[edge.source], changed = "initial", True
            if not head and tail in ("transformer", "final"):
                kind[edge.target], changed = "final", True
    initial = [v for v, word in enumerate(kind) if word in ("initial", "")]
    return initial, [v for v, word in enumerate(kind) if word == "final"]


def _sums(instance: PiperInstance, groups: tuple[tuple[int, ...], ...], degree: int, choice: str) -> _Split | None:
    """Return a split with its sums; None where a layer has no such choice."""
    chosen = []
    for node in instance.nodes:
        named = [entry for entry in node.at(degree) if entry.id == choice]
        if not named:
            return None
        chosen.append(named[0])
    stage_of = {v: i for i, group in enumerate(groups) for v in group}
    crossing = np.zeros(len(groups))
    for edge in instance.edges:
        u, v = edge.source, edge.target
        if stage_of[u] > stage_of[v]:
            return None
        if stage_of[u] < stage_of[v]:
            crossing[stage_of[u]] += 2.0 * (edge.bytes + dict(chosen[u].sync_backward)[v])
            crossing[stage_of[v]] += 2.0 * (edge.bytes + dict(chosen[v].sync_forward)[u])
    seconds = np.array([sum(chosen[v].seconds for v in group) for group in groups])
    weight = np.array([float(sum(chosen[v].weight_bytes for v in group)) for group in groups])
    peaks = [
        sum(chosen[v].activation_bytes * (len(groups) - i) + chosen[v].static_bytes for v in group)
        for i, group in enumerate(groups)
    ]
    return _Split(groups, degree, choice, seconds + crossing / instance.bandwidth, weight, max(peaks))
