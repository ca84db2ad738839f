"""What never fits, whatever layers recompute: against every split and every choice of small chains."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from meshwright import schedules
from meshwright.planners.best.check.held_bytes import never_fits
from meshwright.planners.best.check.prices import PricedLayer, Table
from meshwright.planners.best.check.rank_ways import RankWays
from meshwright.planners.best.check.space import CheckedChain, CheckedMesh, Form, split_counts
from meshwright.planners.best.check.virtual_stages import Spreads, VirtualStages, stage_rows

WORDS, N_MICROBATCHES = ("none", "selective", "full"), 8


def _posed(rng: np.random.Generator, n_layers: int, n_sorts: int) -> tuple[Any, Table]:
    """Return a chain between an embedding and a head, whose layers hold what was drawn, as prices and their table."""
    rows = tuple(int(row) for row in rng.integers(1, 1 + n_sorts, n_layers))
    table: Table = {}
    for row in range(n_sorts + 2):
        static, kept, working = rng.uniform(0.0, 2.0), np.sort(rng.uniform(0.0, 3.0, 3))[::-1], rng.uniform(0.0, 4.0, 3)
        reserved = rng.uniform(0.0, 4.0)
        for word, keeps, needs in zip(WORDS, kept, working, strict=True):
            table[row, word] = PricedLayer(1.0, 2.0, 1.0, 0.0, static, keeps, needs, reserved, 0.0, 0.0, 0.0, True)
    last = n_sorts + 1
    prices = SimpleNamespace(
        chain=CheckedChain((0,), tuple(range(1, n_layers + 1)), (last,), rows, rows[0]), sums={},
        problem=SimpleNamespace(batch=SimpleNamespace(global_batch=N_MICROBATCHES)), words=lambda _: WORDS,
        pinned_word=lambda _: "none",
    )  # fmt: skip
    return prices, table


def _least(prices: Any, table: Table, counts: tuple[int, ...], rank_of_stage: list[int], moments: Any) -> float:
    """Return the memory with which a split fits: of its fullest rank, by the choice of ways that needs least there."""
    found, rows = 0.0, stage_rows(prices, counts)
    for rank in range(max(rank_of_stage) + 1):
        own = RankWays(prices, [rows[i] for i, at in enumerate(rank_of_stage) if at == rank], table, moments[rank])
        ways = [range(3) if not word else (0,) for word in own.pinned]
        found = max(found, min(own.peak(np.array(choice, dtype=np.int64)) for choice in itertools.product(*ways)))
    return found


@pytest.mark.parametrize("seed", range(12))
def test_one_stage_per_rank_never_fits_only_where_no_split_does(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_ranks, n_layers = int(rng.integers(1, 4)), int(rng.integers(3, 6))
    prices, table = _posed(rng, n_layers, 1 + seed % 2)
    mesh, form = CheckedMesh(1, 1, 1, 1, 1, n_ranks), Form("1f1b", 1)
    held = schedules.load("1f1b").in_flight(n_ranks, 1, N_MICROBATCHES)
    moments = [(np.array([[float(n)]]), np.zeros(1, dtype=np.int64)) for n in held]
    cuts = itertools.combinations_with_replacement(range(n_layers + 1), n_ranks - 1)
    every = [tuple(np.diff((0, *cut, n_layers)).tolist()) for cut in cuts]
    every = [counts for counts in every if 0 not in counts[1:-1]]  # at the ends there are pinned layers
    least = min(_least(prices, table, counts, list(range(n_ranks)), moments) for counts in every)

    def closed(memory: float) -> bool:
        prices.memory_bytes = lambda _: memory
        return never_fits(prices, mesh, form, ([table], [0] * n_ranks, [0] * n_ranks))

    assert not closed(least)  # with that some split fits
    assert closed(least * (1.0 - 1e-6) if seed % 2 == 0 else 0.8 * least)  # of like layers it says all


@pytest.mark.parametrize("seed", range(6))
def test_virtual_stages_never_fit_only_where_no_choice_does(seed: int) -> None:
    rng = np.random.default_rng(seed)
    prices, table = _posed(rng, 6, 1 + seed % 2)
    form = (Form("interleaved_1f1b", 2), Form("zb_v", 2))[seed % 3 > 0]
    mesh, priced = CheckedMesh(1, 1, 1, 1, 1, 2), ([table], [0, 0], [0, 0])
    moments = VirtualStages.least_moments(form, 2, N_MICROBATCHES)
    every = split_counts(prices.chain, form, 2, {"uniform": False})
    rank_of_stage = schedules.load(form.schedule).placement(2, 2).tolist()
    least = np.array([_least(prices, table, counts, rank_of_stage, moments) for counts in every])
    spreads = Spreads(prices, mesh, form, priced, every)
    for share in (*np.linspace(0.7, 1.2, 11), 1.0):
        closed = spreads.never_fit([share * least.min()] * 2, moments)
        assert not (closed & (least <= share * least.min())).any()
    assert spreads.never_fit([0.7 * least.min()] * 2, moments).all()


def test_what_one_sort_of_layers_reserves_is_not_asked_of_ranks_without_it() -> None:
    """Two ranks of 10 bytes: a layer that reserves 8 on the first, one whose state is 9 on the second."""
    prices, table = _posed(np.random.default_rng(0), 2, 2)
    own = PricedLayer(1.0, 2.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, True)
    figures = [own, own._replace(reserved_bytes=8.0), own._replace(static_bytes=9.0), own]
    table.update({(row, word): figures[row] for row, word in table})
    prices.chain = prices.chain._replace(rows=(1, 2))
    for memory, closed in ((10.0, False), (8.5, True)):
        prices.memory_bytes = lambda _, memory=memory: memory
        assert never_fits(prices, CheckedMesh(1, 1, 1, 1, 1, 2), Form("1f1b", 1), ([table], [0, 0], [0, 0])) is closed
