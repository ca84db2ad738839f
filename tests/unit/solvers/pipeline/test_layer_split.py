"""Splitting layers over pipeline ranks: the bound is below every split that can be played, and tight where it should be."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright import sim
from meshwright.solvers.pipeline import layer_split


def _ranks(
    n_ranks: int,
    n_microbatches: int,
    works: list[tuple[float, float, float]],
    held: list[float],
    *,
    static: float,
    budget: float,
    fixed=(0.0, 0.0),
) -> layer_split.PipelineRanks:
    """Equal ranks; `works` holds (forward, backward, recomputed) of each variant,
    `held` its bytes per micro-batch in flight.
    """
    lead = np.array([min(n_ranks - s, n_microbatches) for s in range(n_ranks)], float)
    work = np.array([[f + b + r for f, b, r in works]] * n_ranks)
    size = np.array([[static + k * a for a in held] for k in lead])
    ends = np.zeros(n_ranks)
    ends[0] += fixed[0]
    ends[-1] += fixed[1]
    return layer_split.PipelineRanks(
        work,
        size,
        np.full(n_ranks, works[0][0]),
        np.full(n_ranks, works[0][1]),
        3 * ends,
        ends,
        np.full(n_ranks, budget),
        lead,
        np.zeros(n_ranks),
    )


def _played(
    counts: tuple[int, ...], variants: tuple[int, ...], works, n_microbatches: int, fixed, split_backward: bool
) -> float:
    """The simulated step when all layers of a rank use one variant."""
    f = np.array([c * works[v][0] for c, v in zip(counts, variants, strict=True)])
    b = np.array([c * (works[v][1] + works[v][2]) for c, v in zip(counts, variants, strict=True)])
    f[0] += fixed[0]
    b[0] += 2 * fixed[0]
    f[-1] += fixed[1]
    b[-1] += 2 * fixed[1]
    n = len(counts)
    return sim.step_seconds("1f1b", n, 1, n_microbatches, f, b, np.zeros(n), np.zeros(n - 1))


@settings(max_examples=40, deadline=None)
@given(
    n_ranks=st.integers(1, 4),
    n_layers=st.integers(4, 9),
    n_microbatches=st.integers(1, 9),
    forward=st.floats(0.2, 2.0),
    ratio=st.floats(1.0, 3.0),
    budget=st.floats(2.0, 60.0),
    fixed=st.tuples(st.floats(0, 2), st.floats(0, 2)),
)
def test_no_split_that_fits_is_faster_than_the_bound(n_ranks, n_layers, n_microbatches, forward, ratio, budget, fixed) -> None:
    works = [(forward, forward * ratio, 0.0), (forward, forward * ratio, forward)]
    held = [2.0, 0.5]
    ranks = _ranks(n_ranks, n_microbatches, works, held, static=1.0, budget=budget, fixed=fixed)
    bound = layer_split.bound(ranks, n_layers, n_microbatches, split_backward=False, whole=True, limit_seconds=1e6)
    best = math.inf
    for counts in itertools.product(range(n_layers + 1), repeat=n_ranks):
        if sum(counts) != n_layers:
            continue
        for variants in itertools.product((0, 1), repeat=n_ranks):
            fits = all(c * ranks.layer_bytes[s, v] <= budget for s, (c, v) in enumerate(zip(counts, variants, strict=True)))
            if fits:
                best = min(best, _played(counts, variants, works, n_microbatches, fixed, False))
    assert bound <= best * (1 + 1e-5)


@pytest.mark.parametrize("n_ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("n_microbatches", [8, 32])
def test_the_bound_is_close_where_equal_stages_are_best(n_ranks: int, n_microbatches: int) -> None:
    works = [(1.0, 2.0, 0.0)]
    ranks = _ranks(n_ranks, n_microbatches, works, [0.0], static=0.0, budget=1.0)
    bound = layer_split.bound(ranks, 32, n_microbatches, split_backward=False, whole=True, limit_seconds=1e6)
    played = _played((32 // n_ranks,) * n_ranks, (0,) * n_ranks, works, n_microbatches, (0.0, 0.0), False)
    assert bound <= played * (1 + 1e-6)
    assert bound >= played * (0.9 if n_microbatches == 8 else 0.95)


def test_memory_too_small_for_all_layers_is_told_apart_from_slow() -> None:
    ranks = _ranks(2, 4, [(1.0, 2.0, 0.0)], [1.0], static=1.0, budget=5.0)
    assert math.isinf(layer_split.bound(ranks, 8, 4, split_backward=False, whole=True, limit_seconds=1e6))
    assert layer_split.split(ranks, 8, 4, split_backward=False, step_seconds=1.0) is None


def test_recomputation_is_charged_where_memory_asks_for_it() -> None:
    # 4 layers on one rank, 1 byte each when kept and none when recomputed, room for 2: two layers must be recomputed
    works = [(1.0, 2.0, 0.0), (1.0, 2.0, 1.0)]
    ranks = _ranks(1, 10, works, [1.0, 0.0], static=0.0, budget=2.0)
    bound = layer_split.bound(ranks, 4, 10, split_backward=False, whole=True, limit_seconds=1e6)
    assert bound == pytest.approx(10 * (4 * 3.0 + 2 * 1.0), rel=1e-5)


def test_a_split_gives_every_layer_a_rank_and_less_to_ranks_with_pinned_work() -> None:
    ranks = _ranks(4, 16, [(1.0, 2.0, 0.0)], [0.0], static=0.0, budget=1.0, fixed=(0.0, 2.0))
    bound = layer_split.bound(ranks, 18, 16, split_backward=False, whole=True, limit_seconds=1e6)
    counts = layer_split.split(ranks, 18, 16, split_backward=False, step_seconds=bound)
    assert counts is not None and counts.sum() == 18
    assert counts[-1] < counts[:-1].min() + 1


def _random_chain(rng: np.random.Generator, n_layers: int, n_ranks: int) -> layer_split.UnequalChain:
    forward, backward = rng.uniform(0.5, 2.0, n_layers), rng.uniform(0.5, 3.0, n_layers)
    m, none = float(rng.integers(1, 5)), np.zeros(n_layers)
    lead = np.minimum(np.arange(n_ranks, 0, -1.0), m)
    arrives = rng.uniform(0.0, 1.0, n_ranks)
    work = forward + backward
    return layer_split.UnequalChain(
        inequalities=(
            layer_split.Inequality(m, m * work, forward, none, arrives, np.zeros(n_ranks)),
            layer_split.Inequality(m, m * work, none, backward, arrives[::-1] + forward.sum(), lead),
            layer_split.Inequality(m, m * work, work, none, arrives, np.zeros(n_ranks), ends_first=True),
        ),
        end_seconds=rng.uniform(0.0, 4.0, n_layers),
        forward_seconds=forward,
        static_bytes=rng.uniform(1.0, 3.0, n_layers),
        activation_bytes=rng.uniform(0.5, 1.0, n_layers),
        budget_bytes=rng.uniform(4.0, 12.0, n_ranks),
        in_flight=lead,
        saved_bytes=np.tile([0.2, 0.4], (n_ranks, 1)),
        extra_seconds=np.tile([0.1, 0.5], (n_ranks, 1)),
        relief=layer_split.relief(np.tile([0.2, 0.4], (n_layers, 1)), np.tile([0.1, 0.5], (n_layers, 1))),
    )


def _all_cuts(chain: layer_split.UnequalChain) -> dict[tuple[int, ...], float]:
    """Every cut, every rank taking none or more layers, with the largest inequality of any rank."""
    n_layers, n_ranks = len(chain.forward_seconds), len(chain.budget_bytes)
    found = {}
    for cuts in itertools.combinations_with_replacement(range(n_layers + 1), n_ranks - 1):
        ends = (0, *cuts, n_layers)
        end = chain.end_seconds[: ends[1]].sum()
        worst, again = 0.0, []
        for rank in range(n_ranks):
            own = slice(ends[rank], ends[rank + 1])
            kept = chain.in_flight[rank] * chain.activation_bytes[own].sum()
            excess = chain.static_bytes[own].sum() + kept - chain.budget_bytes[rank]
            repeated = 0.0
            if excess > 0.0:
                repeated = math.inf
                for strong in range(ends[rank + 1] - ends[rank] + 1):
                    for weak in range(ends[rank + 1] - ends[rank] - strong + 1):
                        saved = chain.in_flight[rank] * (
                            weak * chain.saved_bytes[rank, 0] + strong * chain.saved_bytes[rank, 1]
                        )
                        if saved >= excess - 1e-12:
                            seconds = weak * chain.extra_seconds[rank, 0] + strong * chain.extra_seconds[rank, 1]
                            repeated = min(repeated, seconds)
            again.append(repeated)
        for rank, repeated in enumerate(again):
            own = slice(ends[rank], ends[rank + 1])
            for one in chain.inequalities:
                seconds = (
                    one.step_seconds[own].sum() + one.fixed_seconds[rank] - one.lead[rank] * chain.forward_seconds[own].sum()
                )
                seconds += one.before_seconds[: own.start].sum() + one.later_seconds[own.stop :].sum()
                waited = ((one.n_times, repeated), (one.n_before, sum(again[:rank])), (one.n_later, sum(again[rank + 1 :])))
                seconds += sum(n_times * of_rank for n_times, of_rank in waited if n_times and of_rank)
                worst = max(worst, seconds + (end if one.ends_first else 0.0))
        found[tuple(np.diff(ends).tolist())] = worst
    return found


@pytest.mark.parametrize("seed", range(40))
def test_the_bottleneck_of_a_chain_is_that_of_its_best_cut(seed: int) -> None:
    rng = np.random.default_rng(seed)
    chain = _random_chain(rng, int(rng.integers(2, 7)), int(rng.integers(1, 5)))
    seconds, counts = layer_split.bottleneck(chain)
    best = min(_all_cuts(chain).values())
    if math.isinf(best):
        assert math.isinf(seconds)
    else:
        assert seconds == pytest.approx(best, rel=1e-5)
        assert counts.sum() == len(chain.forward_seconds)


@pytest.mark.parametrize("seed", range(60))
def test_a_bottleneck_where_ranks_wait_for_what_others_recompute_is_a_bound_on_every_cut(seed: int) -> None:
    rng = np.random.default_rng(seed)
    alone = _random_chain(rng, int(rng.integers(4, 8)), int(rng.integers(2, 5)))
    alone = dataclasses.replace(alone, budget_bytes=0.8 * alone.budget_bytes)
    m = alone.inequalities[0].n_times * (0.01, 0.1, 1.0)[seed % 3]
    waits = [dataclasses.replace(one, n_before=rng.uniform(0.0, m), n_later=rng.uniform(0.0, m)) for one in alone.inequalities]
    chain = dataclasses.replace(alone, inequalities=tuple(waits))
    best, least = min(_all_cuts(chain).values()), layer_split.bottleneck(alone)[0]
    seconds, _ = layer_split.bottleneck(chain)
    assert math.isinf(best) == math.isinf(seconds) == math.isinf(least)
    if math.isfinite(best):
        assert least * (1.0 - 1e-6) <= seconds <= best * (1.0 + 1e-9)
        for low in (0.7 * best, best):
            assert layer_split.bottleneck(chain, least_seconds=low)[0] <= best * (1.0 + 1e-9)
        assert layer_split.bottleneck(chain, limit_seconds=best * (1.0 + 1e-6))[0] <= best * (1.0 + 1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_the_cuts_within_a_limit_are_those_of_all_cuts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    chain = _random_chain(rng, int(rng.integers(2, 7)), int(rng.integers(2, 5)))
    every = _all_cuts(chain)
    least = min(every.values())
    for limit in (0.9 * least, 1.2 * least, 2.0 * least) if math.isfinite(least) else (1e6,):
        expected = {counts for counts, seconds in every.items() if seconds <= limit}
        found = layer_split.cuts(chain, limit, max(1, len(expected)))
        assert found is not None
        assert {tuple(counts) for counts in found.tolist()} == expected
        assert len(found) == len(expected)
        if len(expected) > 1:
            assert layer_split.cuts(chain, limit, len(expected) - 1) is None


@pytest.mark.parametrize("seed", range(40))
def test_relief_is_a_bound_on_every_choice_of_what_unlike_layers_recompute(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_layers = int(rng.integers(1, 6))
    kinds = rng.integers(0, 2, n_layers)
    saved = np.sort(rng.uniform(0.0, 2.0, (2, 2)), axis=1)[kinds]
    extra = np.sort(rng.uniform(0.0, 1.0, (2, 2)), axis=1)[kinds]
    found = layer_split.relief(saved, extra)
    ways = list(itertools.product((-1, 0, 1), repeat=n_layers))
    for excess in rng.uniform(0.0, saved[:, 1].sum(), 5):
        by_price = found.seconds_per_byte * excess - found.worth_seconds[:, -1]
        bound = by_price.max(initial=0.0)
        frees = [sum(saved[i, w] for i, w in enumerate(way) if w >= 0) for way in ways]
        takes = [sum(extra[i, w] for i, w in enumerate(way) if w >= 0) for way in ways]
        least = min(seconds for freed, seconds in zip(frees, takes, strict=True) if freed >= excess)
        assert bound <= least + 1e-12
        # the linear program mixes two ways of one layer at most, so it misses the least by less than the dearest layer
        assert bound >= least - extra.max() - 1e-12
