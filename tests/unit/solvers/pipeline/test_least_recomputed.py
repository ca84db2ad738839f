"""What ranks of several stages recompute at least: the programs of search and check against every choice."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from meshwright.planners.best.check.prices import PricedLayer
from meshwright.planners.best.check.rank_memory import least_program
from meshwright.planners.best.memory import RankLayers
from meshwright.solvers.pipeline.recomputed import RankSorts, least_recomputed

N_WAYS = 3


def random_rank(dice: np.random.Generator) -> tuple[RankSorts, np.ndarray, np.ndarray, float]:
    """Return a few sorts of layers on a rank of one to three stages, what is held at its moments, and its room."""
    n_stages, n_sorts = int(dice.integers(1, 4)), int(dice.integers(1, 4))
    kept = np.sort(dice.integers(0, 20, (N_WAYS, n_sorts)).astype(float), axis=0)[::-1]
    working, reserved = (dice.integers(0, 10, (N_WAYS, n_sorts)).astype(float) for _ in range(2))
    extra = np.sort(dice.integers(0, 30, (N_WAYS, n_sorts)).astype(float), axis=0)
    sorts = RankSorts(
        dice.integers(1, 4, n_sorts), dice.integers(0, n_stages, n_sorts), kept, working, reserved, extra - extra[:1]
    )
    n_moments = int(dice.integers(1, 5))
    held = dice.integers(0, 5, (n_moments, n_stages)).astype(float)
    return sorts, held, dice.integers(0, n_stages, n_moments), float(dice.integers(10, 200))


def tried(sorts: RankSorts, held: np.ndarray, at: np.ndarray, room: float) -> float:
    """Return the least work of all choices of every layer that fit."""
    layers = [sort for sort, count in enumerate(sorts.n_layers.tolist()) for _ in range(count)]
    best = math.inf
    for ways in itertools.product(range(N_WAYS), repeat=len(layers)):
        chosen = list(zip(ways, layers, strict=True))
        reserved = max(sorts.reserved_bytes[way, sort] for way, sort in chosen)
        peak = max(
            sum(times[sorts.stage[sort]] * sorts.kept_bytes[way, sort] for way, sort in chosen)
            + max([sorts.working_bytes[way, sort] for way, sort in chosen if sorts.stage[sort] == stage], default=0.0)
            for times, stage in zip(held, at.tolist(), strict=True)
        )
        if peak + reserved <= room:
            best = min(best, sum(sorts.extra_seconds[way, sort] for way, sort in chosen))
    return best


def priced(sorts: RankSorts, way: int, sort: int) -> PricedLayer:
    """Return a layer as the check knows it."""
    figures = dict.fromkeys(PricedLayer._fields, 0.0) | {
        "forward": 1.0, "again": float(sorts.extra_seconds[way, sort]), "kept_bytes": float(sorts.kept_bytes[way, sort]),
        "working_bytes": float(sorts.working_bytes[way, sort]), "reserved_bytes": float(sorts.reserved_bytes[way, sort]),
    }  # fmt: skip
    return PricedLayer(**figures)


def test_what_is_proven_is_the_least_of_all_choices_and_no_more() -> None:
    n_infinite = n_recomputing = 0
    for seed in range(150):
        sorts, held, at, room = random_rank(np.random.default_rng(seed))
        if sorts.n_layers.sum() > 7:
            continue
        expected = tried(sorts, held, at, room)
        own = [
            (int(stage), int(count), [priced(sorts, way, sort) for way in range(N_WAYS)])
            for sort, (stage, count) in enumerate(zip(sorts.stage, sorts.n_layers, strict=True))
        ]
        for found in (least_recomputed(sorts, held, at, room), least_program(own, held, at, room)):
            assert found <= expected, seed
            if sorts.extra_seconds.max() > 0.0:  # where nothing takes longer, nothing is proven
                assert found == pytest.approx(expected, rel=1e-4, abs=1e-3), seed
        n_infinite += math.isinf(expected)
        n_recomputing += 0.0 < expected < math.inf
    assert n_infinite > 10 and n_recomputing > 40


def test_like_layers_of_a_rank_are_counted_together() -> None:
    """Four layers in two stages, of which one is held twice as often: two of those recompute, or four of the others."""
    one = np.ones(4)
    layers = RankLayers(
        ("none", "full"), np.zeros(4, dtype=bool), np.array([0, 0, 1, 1]), 0.0 * one, np.array([4.0 * one, 0.0 * one]),
        np.zeros((2, 4)), np.zeros((2, 4)), np.array([0.0 * one, 3.0 * one]), np.array([[2.0, 1.0]]), np.array([0]),
    )  # fmt: skip
    assert layers.least_work(24.0) == 0.0
    assert layers.least_work(23.0) == pytest.approx(3.0, rel=1e-5)
    assert layers.least_work(8.0) == pytest.approx(6.0, rel=1e-5)
    assert layers.least_work(0.0) == pytest.approx(12.0, rel=1e-5)
    assert layers.least_work(-1.0) == math.inf
