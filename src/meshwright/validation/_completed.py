"""What a set leaves out of a plan, completed: layers dealt so that stages balance, the least recomputation that fits."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from meshwright import schedules, sim
from meshwright.base.errors import InputError
from meshwright.core import peaks
from meshwright.core.problem import ModelSpec, Problem
from meshwright.core.stage_cost import StageCost
from meshwright.costs import analytic
from meshwright.validation._runs import Predicted, Run, fits, layers_of_stages, predict

__all__ = ["NOTE", "cluster_of", "completed", "least_recomputed"]

NOTE = "plan completed: layers dealt so that stages balance, least recomputation that fits; {}"
"""What a completed row says about itself."""


LEAST = "recomputation is not told: {} recomputed, the least that fits"
"""What a row says that fits only if something is recomputed."""


@dataclass(frozen=True, slots=True)
class _Rank:
    """One pipeline rank while layers are dealt: its layer with each way to recompute, what else it holds, and its room.

    Parameters
    ----------
    layers : mapping of str to StageCost
        One layer between embedding and head, by what it recomputes.
    others : tuple of StageCost
        Embedding or head, where the rank holds them.
    room_bytes : float
        What a process may take on each of its devices.
    in_flight : int
        Micro-batches whose activations it holds at once (1F1B).
    """

    layers: Mapping[str, StageCost]
    others: tuple[StageCost, ...]
    room_bytes: float
    in_flight: int


def completed(run: Run) -> Predicted:
    """Return what we predict of a run that `complete` completes; raises `InputError` as that does."""
    predicted = predict(complete(run))
    own = predicted.planned or predicted
    if not own.safe:
        own = replace(own, safe=_fits_with_room(run))
    own = replace(own, recompute_told=False)
    return own if predicted.planned is None else replace(predicted, planned=own)


def _fits_with_room(run: Run) -> bool:
    """Tell whether some deal of a run's layers fits with the room that ``plan`` leaves."""
    try:
        complete(run, peaks.peaks(run.framework.holds_as).share(peaks.RISK))
    except InputError:
        return False
    return True


def complete(run: Run, memory_ratio: float = 1.0) -> Run:
    """Return a run whose stages are told, with the layers of each stage and how many of them recompute.

    `run`: with a strategy for each pipeline rank; what it says of layers and recomputation is not read. `memory_ratio`: share
    of each device that may be filled.
    Returns: the slowest stage as quick as possible; each stage recomputes nothing, or attention in as few layers as fit, or
    all of the layer in as few as fit beside attention in the others.
    Raises `InputError` when no deal fits the devices' memory.
    """
    inner = [i for i, op in enumerate(run.graph.ops) if op.kind not in ("embedding", "head")]
    ranks = _ranks(run, inner[0], inner[-1], memory_ratio)
    ways = [[_least(rank, n) for n in range(len(inner) + 1)] for rank in ranks]
    times = sorted({seconds for row in ways for _, seconds in row if seconds < float("inf")})
    first, last = 0, len(times)
    while first < last:  # the smallest time in which all layers can be dealt
        middle = (first + last) // 2
        if sum(max(_most(row, times[middle]), 0) for row in ways) >= len(inner):
            last = middle
        else:
            first = middle + 1
    if first == len(times):
        raise InputError("no deal of the layers to the stages of this run fits the devices' memory")
    dealt = [_most(row, times[first]) for row in ways]
    while sum(dealt) > len(inner):  # spare layers are taken from the ranks that are then quickest
        takes = [i for i, n in enumerate(dealt) if n > 1]
        i = max(takes, key=lambda i: (ways[i][dealt[i]][1], i))
        dealt[i] -= 1
    recompute = tuple(ways[i][n][0] for i, n in enumerate(dealt))
    return replace(run, layers_per_stage=tuple(dealt), recompute_of_stage=recompute)


def least_recomputed(run: Run) -> tuple[Predicted, str]:
    """Return what we predict of a run whose recomputation is not told, and what was assumed about it.

    `run`: what it says of recomputation is not read.

    Returns
    -------
    predicted : Predicted
        With nothing recomputed, or with norms and activation functions, or with as few whole layers of every pipeline rank
        beside them as fit; with nothing where not even all layers fit.
    note : str
        What is recomputed; empty for nothing.
    """
    plain = replace(run, recompute="none")
    everything = replace(run, recompute="full")
    if fits(plain):
        return _untold(predict(plain), everything), ""
    sizes = layers_of_stages(run)
    rank_of_stage = schedules.looped(run.pipeline, run.virtual).tolist()
    most = max(sum(size for size, of in zip(sizes, rank_of_stage, strict=True) if of == rank) for rank in range(run.pipeline))

    def recomputing(n_full: int) -> Run:
        left, ways = [n_full] * run.pipeline, []
        for size, rank in zip(sizes, rank_of_stage, strict=True):
            n_here = min(size, left[rank])
            left[rank] -= n_here
            ways.append(("full",) * n_here + ("selective",) * (size - n_here))
        return replace(run, recompute_of_stage=tuple(ways))

    n_full = bisect_left(range(most + 1), True, key=lambda n: fits(recomputing(n)))
    if n_full > most:
        return _untold(predict(plain), everything), ""
    return _untold(predict(recomputing(n_full)), everything), LEAST.format(
        "norms and activation functions" + (" and whole layers" if n_full else "")
    )


def _untold(predicted: Predicted, everything: Run) -> Predicted:
    """Return a prediction that says that recomputation was assumed: with room, it fits where recomputing everything does.

    `everything`: the same run with all layers recomputed.
    """
    own = predicted.planned or predicted
    if not own.safe:
        least = predict(everything)
        own = replace(own, safe=(least.planned or least).safe)
    own = replace(own, recompute_told=False)
    return own if predicted.planned is None else replace(predicted, planned=own)


def cluster_of(name: str, n_devices: int) -> str:
    """Return the cluster of a row: AWS instances of eight.

    `name`: as the sets of Mist name it: ``a100-sxm4-40gb``, ``a10g`` or ``l4``, with anything after it.
    """
    for start, kind in (("a100", "p4d-a100"), ("a10g", "g5-a10g"), ("l4", "g6-l4")):
        if name.startswith(start):
            return f"{kind}:{max(8, n_devices)}"
    raise InputError(f"no cluster is known for '{name}'")


def _most(row: Sequence[tuple[tuple[str, ...], float]], seconds: float) -> int:
    """Return the most layers that a rank does within `seconds`; -1 for none."""
    return max((n for n, (_, needed) in enumerate(row) if needed <= seconds), default=-1)


def _ranks(run: Run, first: int, last: int, memory_ratio: float) -> list[_Rank]:
    """Price the layers on every rank."""
    problem = Problem(
        ModelSpec(run.graph.name, "validation", run.graph.name, run.graph),
        run.cluster, training=run.training, framework=run.framework,
    )  # fmt: skip
    rows = analytic.rows(problem)
    ranks, start = [], 0
    for i, strategy in enumerate(run.strategies):
        devices = range(start, start + strategy.n_devices)
        start = devices.stop
        if start > run.cluster.n_devices:
            raise InputError(f"the stages need {start} devices or more; {run.cluster.name} has {run.cluster.n_devices}")
        priced = analytic.row_costs(problem, strategy, devices, run.micro_batch)
        ends = [*range(first)] * (i == 0) + [*range(last + 1, len(rows))] * (i == len(run.strategies) - 1)
        ranks.append(
            _Rank(
                MappingProxyType({how: priced[rows[first], how] for how in ("none", "selective", "full")}),
                tuple(priced[rows[op], "none"] for op in ends),
                sim.free_bytes(map(run.cluster.device, devices), memory_ratio),
                len(run.strategies) - i,
            )
        )
    return ranks


def _least(rank: _Rank, n: int) -> tuple[tuple[str, ...], float]:
    """Return what each of `n` layers recomputes at least, and the seconds of a micro-batch; infinite where nothing fits."""
    layers, others = rank.layers, rank.others
    static = n * layers["none"].static_bytes + sum(load.static_bytes for load in others)
    kept = sum(load.activation_bytes for load in others) * rank.in_flight
    stage_costs = (*layers.values(), *others)
    free_bytes = rank.room_bytes - static - kept - max(load.communication_bytes for load in stage_costs)
    widest = max((load.working_bytes for load in others), default=0.0)
    seconds = sum(load.forward_total_seconds + load.backward_total_seconds for load in others)
    ways = (layers["none"], layers["selective"], layers["full"])
    mixes = [(n - k, k, 0) for k in range(n + 1)] + [(0, n - k, k) for k in range(1, n + 1)]
    for mix in mixes:
        kept, most = 0.0, widest  # a plain loop: of thousands of mixes the first that fits counts
        for load, k in zip(ways, mix, strict=True):
            if k:
                kept, most = kept + load.activation_bytes * k, max(most, load.working_bytes)
        if kept * rank.in_flight + most <= free_bytes:
            recompute = ("full",) * mix[2] + ("selective",) * mix[1] + ("none",) * mix[0]
            used = [(load, k) for load, k in zip(ways, mix, strict=True) if k]
            return recompute, seconds + sum((load.forward_total_seconds + load.backward_total_seconds) * k for load, k in used)
    return (), float("inf")
