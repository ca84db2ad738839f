"""What a step takes at least with one stage per rank: against every split of small chains, played in its schedule's order."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from meshwright import schedules
from meshwright.planners.best.check.prices import PricedLayer, Table
from meshwright.planners.best.check.space import CheckedChain, CheckedMesh, Form
from meshwright.planners.best.check.whole_stages import WholeStages

N_LAYERS, N_RANKS = 6, 4


def _posed(rows: tuple[int, ...], seconds: list[tuple[float, float, float]], n_microbatches: int) -> tuple[Any, Table]:
    """Return a chain between an embedding and a head as prices, and their table; `seconds`: there, back, and of the update."""
    table = {
        (row, "none"): PricedLayer(there, back, 0.6 * back, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, update, 0.0, True)
        for row, (there, back, update) in enumerate(seconds)
    }
    prices = SimpleNamespace(
        chain=CheckedChain((0,), tuple(range(1, N_LAYERS + 1)), (len(seconds) - 1,), rows, rows[0]), sums={},
        problem=SimpleNamespace(batch=SimpleNamespace(global_batch=n_microbatches)), words=lambda _: ("none",),
        pinned_word=lambda _: "none", memory_bytes=lambda _: 1.0,
    )  # fmt: skip
    return prices, table


def _played(schedule: str, stages: list[tuple[float, float, float]], hops: list[float], n_microbatches: int) -> float:
    """Return the step of stages in the order of a schedule, one transfer at a time on each channel."""
    actions = schedules.load(schedule).order(len(stages), 1, n_microbatches)
    tasks = [list(zip(actions.microbatch[a:b], actions.phase[a:b], strict=True)) for a, b in itertools.pairwise(actions.first)]
    arrived = {(0, int(i), schedules.FORWARD): 0.0 for i in range(n_microbatches)}
    free, ends = dict.fromkeys(itertools.product((-1, 1), range(len(stages))), 0.0), [0.0] * len(stages)
    while any(tasks):
        for rank, (there, back, _) in enumerate(stages):
            while tasks[rank] and (key := (rank, int(tasks[rank][0][0]), tasks[rank][0][1])) in arrived:
                tasks[rank].pop(0)
                down = key[2] == schedules.FORWARD
                ends[rank] = max(ends[rank], arrived[key]) + (there if down else back)
                to = rank + (1 if down else -1)
                if to == len(stages):
                    arrived[rank, key[1], schedules.BACKWARD] = ends[rank]
                elif to >= 0:
                    way = (to - rank, rank)
                    free[way] = arrived[to, key[1], key[2]] = max(free[way], ends[rank]) + hops[min(rank, to)]
    return max(end + update for end, (_, _, update) in zip(ends, stages, strict=True))


def _steps(schedule: str, prices: Any, table: Table, hops: list[float], n_microbatches: int) -> dict[tuple[int, ...], float]:
    """Return the step of every split: layers of each rank."""
    found = {}
    for cut in itertools.combinations_with_replacement(range(N_LAYERS + 1), N_RANKS - 1):
        starts = (0, *cut, N_LAYERS)
        counts = tuple(np.diff(starts).tolist())
        if 0 in counts[1:-1]:  # at the ends there are pinned layers
            continue
        own = [[table[row, "none"] for row in prices.chain.rows[a:b]] for a, b in itertools.pairwise(starts)]
        own[0].insert(0, table[prices.chain.prefix[0], "none"])
        own[-1].append(table[prices.chain.suffix[0], "none"])
        stages = [tuple(sum(getattr(one, of) for one in rank) for of in ("forward", "backward", "update")) for rank in own]
        found[counts] = _played(schedule, stages, hops, n_microbatches)
    return found


def _bound(schedule: str, prices: Any, table: Table, hops: list[float]) -> WholeStages:
    zeros = [0] * N_RANKS
    return WholeStages(prices, CheckedMesh(1, 1, 1, 1, 1, N_RANKS), Form(schedule, 1), [table], zeros, zeros, hops)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "early_backward_b"])
@pytest.mark.parametrize("n_microbatches", [1, 2, 3, 4, 7])
def test_no_rank_takes_longer_at_least_than_the_step_of_a_split(schedule: str, n_microbatches: int) -> None:
    for seed in range(4):
        rng = np.random.default_rng(seed)
        seconds = [tuple(rng.uniform(0.1, 1.0, 3).tolist()) for _ in range(4)]
        hops = rng.uniform(0.0, (0.1, 1.5)[seed % 2], N_RANKS - 1).tolist()
        prices, table = _posed(tuple(rng.integers(1, 3, N_LAYERS).tolist()), seconds, n_microbatches)
        bound, steps = _bound(schedule, prices, table, hops), _steps(schedule, prices, table, hops, n_microbatches)
        for counts, step in steps.items():
            starts = (0, *itertools.accumulate(counts))
            for rank, (start, stop) in enumerate(itertools.pairwise(starts)):
                assert bound.seconds(rank, start, stop, bound.least_end[counts[0]]) <= step * (1.0 + 1e-9), (counts, rank)
        best = min(steps.values())
        assert not bound.refuted(best * (1.0 + 1e-9))
        left = set(bound.cuts(best * 1.1))
        assert left >= {counts for counts, step in steps.items() if step < best * 1.1}


@pytest.mark.parametrize("n_microbatches", [1, 2, 3, 4, 7])
def test_under_gpipe_like_layers_take_what_the_busiest_rank_and_a_trip_do(n_microbatches: int) -> None:
    """However few micro-batches there are: without transfers the bound is the step of the best split."""
    prices, table = _posed((1,) * N_LAYERS, [(0.0, 0.0, 0.0), (1.0, 2.0, 0.0), (0.5, 1.0, 0.0)], n_microbatches)
    bound, steps = _bound("gpipe", prices, table, []), _steps("gpipe", prices, table, [0.0] * (N_RANKS - 1), n_microbatches)
    best = min(steps.values())
    assert bound.refuted(best * (1.0 - 1e-9)) and not bound.refuted(best * (1.0 + 1e-9))
