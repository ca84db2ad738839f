"""What a rank must recompute to hold its layers, against every choice of what each layer recomputes."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from meshwright.solvers.pipeline import layer_split
from meshwright.solvers.pipeline.rank_memory import RankMemory, least_again


def random_memory(rng: np.random.Generator, n_layers: int, n_ranks: int, n_sorts: int, n_ways: int) -> RankMemory:
    """Layers that keep less, need more and take longer the more they recompute, on one or two classes of ranks."""
    n_classes = int(rng.integers(1, 3))
    shape = (n_classes, n_sorts, n_ways)
    kept = np.sort(rng.uniform(0.0, 3.0, shape), axis=2)[:, :, ::-1]
    extra = np.sort(rng.uniform(0.0, 2.0, shape), axis=2)
    extra[:, :, 0] = 0.0
    held = rng.integers(1, 5, n_ranks).astype(float)
    return RankMemory(
        sort=rng.integers(0, n_sorts, n_layers),
        of_rank=rng.integers(0, n_classes, n_ranks),
        static_bytes=rng.uniform(0.0, 2.0, shape[:2]),
        reserved_bytes=rng.uniform(0.0, 1.0, shape[:2]),
        kept_bytes=np.ascontiguousarray(kept),
        working_bytes=np.sort(rng.uniform(0.0, 6.0, shape), axis=2),
        extra_seconds=extra,
        in_flight=held,
        room_bytes=rng.uniform(2.0, 7.0, n_ranks) * held,
        pinned_working_bytes=rng.uniform(0.0, 2.0, n_ranks),
        pinned_reserved_bytes=rng.uniform(0.0, 1.0, n_ranks),
    )


def by_choice(memory: RankMemory, rank: int, first: int, last: int) -> float:
    """The least seconds of all choices that fit, one layer after the other."""
    own, sorts, best = memory.of_rank[rank], memory.sort[first:last], math.inf
    for choice in itertools.product(range(memory.kept_bytes.shape[2]), repeat=len(sorts)):
        n_bytes = memory.static_bytes[own, sorts].sum() + memory.in_flight[rank] * memory.kept_bytes[own, sorts, choice].sum()
        n_bytes += max(memory.pinned_working_bytes[rank], memory.working_bytes[own, sorts, choice].max(initial=0.0))
        n_bytes += max(memory.pinned_reserved_bytes[rank], memory.reserved_bytes[own, sorts].max(initial=0.0))
        if n_bytes <= memory.room_bytes[rank]:
            best = min(best, float(memory.extra_seconds[own, sorts, choice].sum()))
    return best


@pytest.mark.parametrize("seed", range(60))
def test_the_least_recomputation_is_that_of_the_best_choice(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_sorts = int(rng.integers(1, 4))
    memory = random_memory(rng, int(rng.integers(0, 7)), 3, n_sorts, int(rng.integers(1, 4)))
    n_layers, found = len(memory.sort), set()
    for rank in range(3):
        for first, last in itertools.combinations_with_replacement(range(n_layers + 1), 2):
            least, known = by_choice(memory, rank, first, last), least_again(memory, rank, first, last)
            counts = np.bincount(memory.sort[first:last], minlength=n_sorts)
            if math.prod((n + 1) * (n + 2) // 2 for n in np.sort(counts)[:-1]) > 64:
                assert known in (0.0, math.inf) and known <= least
            else:
                assert known == pytest.approx(least, rel=1e-6)
            found.add(0 if least == 0.0 else 1 if math.isfinite(least) else 2)
    assert found


def test_layers_of_many_sorts_are_refused_only_where_the_least_of_every_figure_does_not_fit() -> None:
    rng = np.random.default_rng(7)
    memory = random_memory(rng, 30, 2, 5, 3)
    seconds = [least_again(memory, 0, 0, last) for last in range(31)]
    assert seconds[-1] == math.inf and seconds[0] == 0.0
    roomy = RankMemory(**{name: getattr(memory, name) for name in memory.__slots__} | {"room_bytes": np.full(2, 1e9)})
    assert [least_again(roomy, 0, 0, last) for last in (0, 10, 30)] == [0.0] * 3


def _tight_chain(rng: np.random.Generator, n_layers: int, n_ranks: int) -> layer_split.UnequalChain:
    """Inequalities in which what the others recompute counts too."""
    memory = random_memory(rng, n_layers, n_ranks, 2, 3)
    forward, m = rng.uniform(0.5, 1.0, n_layers), float(rng.integers(1, 4))
    none, fixed, nothing = np.zeros(n_layers), rng.uniform(0.0, 1.0, n_ranks), np.zeros(n_ranks)
    return layer_split.UnequalChain(
        inequalities=(
            layer_split.Inequality(m, m * forward, forward, none, fixed, nothing),
            layer_split.Inequality(m, m * forward, none, none, fixed + 3.0, nothing, n_later=m),
            layer_split.Inequality(m, m * forward, none, none, fixed, nothing, n_before=m, n_later=m, ends_first=True),
        ),
        end_seconds=rng.uniform(0.0, 1.0, n_layers),
        forward_seconds=forward,
        static_bytes=none,
        activation_bytes=none,
        budget_bytes=np.full(n_ranks, 1e9),
        in_flight=memory.in_flight,
        saved_bytes=np.zeros((n_ranks, 2)),
        extra_seconds=np.zeros((n_ranks, 2)),
        relief=layer_split.Relief.none(n_layers),
        memory=memory,
    )


def _every_cut(chain: layer_split.UnequalChain) -> dict[tuple[int, ...], tuple[float, float]]:
    """Of every cut that fits, the largest inequality; and the same where nobody waits for what others recompute."""
    n_layers, n_ranks, found = len(chain.forward_seconds), len(chain.in_flight), {}
    assert chain.memory is not None
    for cuts in itertools.combinations_with_replacement(range(n_layers + 1), n_ranks - 1):
        ends = (0, *cuts, n_layers)
        again = [by_choice(chain.memory, rank, ends[rank], ends[rank + 1]) for rank in range(n_ranks)]
        if not math.isfinite(sum(again)):
            continue
        both = [0.0, 0.0]
        for rank, one in itertools.product(range(n_ranks), chain.inequalities):
            alone = one.step_seconds[ends[rank] : ends[rank + 1]].sum() + one.fixed_seconds[rank] + one.n_times * again[rank]
            alone += one.before_seconds[: ends[rank]].sum() + one.ends_first * chain.end_seconds[: ends[1]].sum()
            others = one.n_before * sum(again[:rank]) + one.n_later * sum(again[rank + 1 :])
            both = [max(both[0], alone + others), max(both[1], alone)]
        found[tuple(np.diff(ends).tolist())] = (both[0], both[1])
    return found


def test_what_other_ranks_recompute_lengthens_the_step_of_no_cut_by_more_than_it_takes() -> None:
    n_closer = n_differ = n_exact = n_fit = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        chain = _tight_chain(rng, int(rng.integers(2, 6)), int(rng.integers(2, 4)))
        every = _every_cut(chain)
        seconds, _ = layer_split.bottleneck(chain)
        if not every:
            assert math.isinf(seconds)
            continue
        best, alone = (min(own[i] for own in every.values()) for i in range(2))
        assert seconds <= best * (1 + 1e-6)
        assert seconds >= alone * (1 - 1e-5)
        n_fit += 1
        n_differ += best > alone * (1 + 1e-3)
        n_closer += seconds > alone * (1 + 1e-3)
        n_exact += seconds > best * (1 - 1e-4)
        for limit in (best * (1 + 1e-6), 1.3 * best):
            found = layer_split.cuts(chain, limit, 1000)
            assert found is not None
            assert {counts for counts, own in every.items() if own[0] <= limit} <= {tuple(own) for own in found.tolist()}
    assert n_fit > 20 and n_exact > 0.8 * n_fit and n_differ > 5 and n_closer > 0.4 * n_differ, (n_exact, n_closer, n_differ)
