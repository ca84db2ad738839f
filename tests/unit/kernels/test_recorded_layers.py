"""Kernels that cut chains of layers, and bounds by prices, uncompiled, on many small instances: as they were recorded."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from stage_sets import Plain, menu_of, prepared_of

from gists import gist
from recorded import Recorded


def rank_memory(plain: Plain, dice: np.random.Generator, n_layers: int, n_ranks: int, n_sorts: int, n_ways: int) -> Any:
    """Return layers of some sorts; every third row of figures is whole, so that some are equal."""
    shape = (int(dice.integers(1, 3)), n_sorts, n_ways)
    kept, extra = np.sort(dice.uniform(0.0, 3.0, shape))[:, :, ::-1].copy(), np.sort(dice.uniform(0.0, 2.0, shape))
    extra[:, :, 0] = 0.0
    kept[:, ::3] = np.round(kept[:, ::3])
    held = dice.integers(1, 5, n_ranks).astype(float)
    return plain("solvers.pipeline.rank_memory").RankMemory(
        dice.integers(0, n_sorts, n_layers), dice.integers(0, shape[0], n_ranks), dice.uniform(0.0, 2.0, shape[:2]),
        dice.uniform(0.0, 1.0, shape[:2]), kept, dice.uniform(0.0, 6.0, shape), extra, held,
        dice.uniform(2.0, 7.0, n_ranks) * held, dice.uniform(0.0, 2.0, n_ranks), dice.uniform(0.0, 1.0, n_ranks),
    )  # fmt: skip


def held_one_by_one(arrays: Any) -> tuple[Any, ...]:
    """Return each figure of what layers hold by itself: kernels read them in few arrays."""
    own = arrays.sorts
    figures = (own[..., 0], own[..., 1], own[..., 2:5], own[..., 5:8], own[..., 8:11])
    return arrays.counts, *figures, arrays.of_rank, *arrays.ranks.T


def test_what_ranks_recompute_to_hold_their_layers(plain: Plain, recorded: Recorded) -> None:
    module, found = plain("solvers.pipeline.rank_memory"), []
    for seed in range(16):
        dice = np.random.default_rng(seed)
        memory = rank_memory(plain, dice, 3 + seed % 5, 3, 1 + seed % 4, 1 + seed % 3)
        n = len(memory.sort)
        again = [
            module.least_again(memory, rank, first, last)
            for rank in range(3) for first, last in itertools.combinations_with_replacement(range(n + 1), 2)
        ]  # fmt: skip
        found.append([memory.dearest_seconds, *gist(again), *gist(held_one_by_one(memory.arrays()))])
    nothing = module.RankMemory.unlimited(4, 2)
    assert nothing.dearest_seconds == 0.0 and module.least_again(nothing, 1, 0, 4) == 0.0
    recorded([*found, gist(held_one_by_one(nothing.arrays()))])


def test_many_sorts_of_layers_are_only_refused(plain: Plain, recorded: Recorded) -> None:
    dice, found = np.random.default_rng(3), []
    for n_sorts in (2, 3, 5):
        memory = rank_memory(plain, dice, 14, 2, n_sorts, 3)
        again = [
            plain("solvers.pipeline.rank_memory").least_again(memory, rank, 0, last) for rank in (0, 1) for last in range(15)
        ]
        found.append(gist(again))
    recorded(found)


def test_whole_layers_that_free_bytes(plain: Plain, recorded: Recorded) -> None:
    least = plain("solvers.pipeline.layer_split").least_extra
    ways = [(np.array(saved), np.array(extra)) for saved, extra in (
        ([1.0, 2.0], [0.5, 1.5]), ([0.0, 2.0], [0.5, 1.5]), ([1.0, 3.0], [1.0, 1.0]), ([2.0, 2.5], [0.1, 3.0]),
    )]  # fmt: skip
    recorded(
        [[least(excess, n, *way) for n in (0, 1, 2, 5) for excess in (-1.0, 0.0, 1.0, 2.0, 2.5, 5.0, 9.9)] for way in ways]
    )


def chain_of(plain: Plain, seed: int) -> Any:
    """Return three to seven unlike layers for one to four ranks, with every term of the inequalities."""
    module, dice = plain("solvers.pipeline.layer_split"), np.random.default_rng(seed)
    n, n_ranks, m = 3 + seed % 5, 1 + seed % 4, float(2 + seed % 3)
    forward, none, lead = dice.uniform(0.5, 1.0, n), np.zeros(n_ranks), np.arange(n_ranks, 0, -1.0)
    saved, extra = np.sort(dice.uniform(0.2, 1.0, (n, 2))), np.sort(dice.uniform(0.1, 0.6, (n, 2)))
    return module.UnequalChain(
        inequalities=(
            module.Inequality(m, m * forward, forward, 0.5 * forward, dice.uniform(0.0, 1.0, n_ranks), none, False, 0.0, 0.5),
            module.Inequality(m - 1.0, m * forward, 0.3 * forward, 0.1 * forward, dice.uniform(0.0, 2.0, n_ranks), lead),
            module.Inequality(m, m * forward, 0.2 * forward, forward, dice.uniform(0.0, 1.0, n_ranks), none, True, 1.0, m),
        ),
        end_seconds=dice.uniform(0.0, 0.5, n), forward_seconds=forward, static_bytes=dice.uniform(0.2, 1.0, n),
        activation_bytes=dice.uniform(1.0, 2.0, n), budget_bytes=dice.uniform(3.0, 9.0, n_ranks) * n / n_ranks,
        in_flight=np.minimum(np.arange(n_ranks, 0, -1.0), m), saved_bytes=np.tile(saved.max(axis=0), (n_ranks, 1)),
        extra_seconds=np.tile(extra.min(axis=0), (n_ranks, 1)),
        relief=module.relief(saved, extra) if seed % 3 else module.Relief.none(n),
        memory=rank_memory(plain, dice, n, n_ranks, 2, 3) if seed % 2 else None,
    )  # fmt: skip


def one_by_one(arrays: Any) -> list[Any]:
    """Return each figure of a chain by itself: kernels read them in few arrays."""
    (hidden, static, kept, end, passing), ranks = arrays.sums, arrays.ranks
    return [
        *arrays.delays, hidden, static, kept, *arrays.offsets, *arrays.times.T, end, ranks[:, 0], ranks[:, 1], ranks[:, 2:4],
        ranks[:, 4:6], arrays.prices, arrays.worth, arrays.dearest, arrays.turn, *arrays.turn_seconds.T, passing,
        *held_one_by_one(arrays.holding),
    ]  # fmt: skip


@pytest.mark.parametrize("part", range(4))
def test_cuts_of_unlike_layers(plain: Plain, recorded: Recorded, part: int) -> None:
    module, kernel = plain("solvers.pipeline.layer_split"), plain("_kernels.pipeline.chain_cuts")
    for seed in range(part, 32, 4):
        chain = chain_of(plain, seed)
        arrays = module._chain_arrays(chain)
        seconds, counts = module.bottleneck(chain)
        found: dict[str, Any] = {
            "chain": gist(*one_by_one(arrays)),
            "best": [seconds, counts],
            "relief": gist(chain.relief),
        }
        if seconds < math.inf:
            found["asked"] = [
                module.bottleneck(chain, least_seconds=1.2 * seconds)[0],
                module.bottleneck(chain, limit_seconds=0.8 * seconds)[0],
            ]
            for ratio in (1.0001, 1.2, 1.6):
                space = kernel._space(arrays)
                kernel._recomputing(arrays, space, ratio * seconds)
                known, again = space.known, space.again
                starts, ends = np.zeros((2, len(chain.in_flight) + 1), np.int64)
                kernel._starts(arrays, again, known, ratio * seconds, 0.1, starts)
                filled = [
                    bool(kernel._fill(arrays, again, known, ratio * seconds, n, ends[:-1])) for n in range(arrays.sums.shape[1])
                ]
                cuts = module.cuts(chain, ratio * seconds, 40)
                found[f"cuts {ratio}"] = [
                    gist(again),
                    starts.tolist(),
                    filled,
                    gist(cuts),
                    module.cuts(chain, ratio * seconds, 1) is None,
                ]
        recorded(found, str(seed))


def ranks_of(plain: Plain, seed: int) -> Any:
    dice = np.random.default_rng(seed)
    n = 1 + seed % 4
    f, b = dice.uniform(0.5, 1.5, n), dice.uniform(1.0, 2.0, n)
    return plain("solvers.pipeline.layer_split").PipelineRanks(
        (f + b)[:, None] * np.array([1.0, 1.2, 1.3]), dice.uniform(0.5, 1.5, (n, 1)) * np.array([1.0, 0.7, 0.4]), f, b,
        dice.uniform(0.2, 0.6, n) * (np.arange(n) == 0), dice.uniform(0.0, 0.2, n), dice.uniform(2.0, 5.0, n),
        np.arange(n, 0, -1.0), dice.uniform(0.0, 0.5, n),
    )  # fmt: skip


def test_splits_of_equal_layers(plain: Plain, recorded: Recorded) -> None:
    module, rows = plain("solvers.pipeline.layer_split"), []
    for seed in range(12):
        ranks = ranks_of(plain, seed)
        for n_layers, m, split_backward in ((5, 4, False), (5, 4, True), (9, 1, False), (9, 6, True)):
            for whole in (True, False):
                seconds = module.bound(ranks, n_layers, m, split_backward=split_backward, whole=whole, limit_seconds=500.0)
                counts = module.split(ranks, n_layers, m, split_backward=split_backward, step_seconds=min(seconds, 400.0))
                rows.append([seconds, counts])
        low = module.bound(ranks, 3, 2, split_backward=False, whole=True, limit_seconds=500.0, tolerance_ratio=0.1)
        rows.append([low, module.bound(ranks, 3, 2, split_backward=False, whole=True, limit_seconds=0.5 * min(low, 99.0))])
    recorded([gist(*rows[i : i + 9]) for i in range(0, len(rows), 9)])


def test_a_stage_is_timed_with_every_edge_or_with_every_tensor_once(plain: Plain, recorded: Recorded) -> None:
    threshold, kernel, rows = plain("solvers.pipeline.threshold"), plain("_kernels.pipeline.threshold"), []
    for seed in range(12):
        menu = menu_of(plain, 400 + seed, alike=seed % 2 == 0, exact=seed % 3 < 2, all_or_none=seed % 3 == 2 and seed > 5)
        prepared = prepared_of(plain, menu)
        reached = threshold.check(prepared, 30.0, n_stages=4)
        for label in reached.answers:
            for once, memory in itertools.product((False, True), (menu.memory_bytes, 1.4 * menu.memory_bytes)):
                rows.append(kernel.label_seconds(
                    prepared.space, prepared.pairs, prepared.kernel_menu, prepared.rules, reached.labels, label, memory, once,
                ))  # fmt: skip
    recorded(gist(*rows))


def test_downsets_and_stages_beyond_the_first_tables(plain: Plain, recorded: Recorded) -> None:
    module, none = plain("solvers.pipeline.downsets"), np.zeros(0, np.int64)
    free = module.all_downsets(11, none, none, 2048)
    assert module.all_downsets(11, none, none, 2047) is None and module.all_downsets(3, none, none, 7) is None
    eight = module.all_downsets(3, none, none, 8)
    long = module.all_downsets(70, np.arange(69), np.arange(1, 70), 100)
    wide = module.all_downsets(68, np.array([*range(63), 0, 63, 63, 66]), np.array([*range(1, 64), 64, 65, 66, 67]), 3000)
    recorded({"free": gist(*free), "eight": gist(*eight), "long": gist(*long), "wide": gist(*wide)})


def test_sums_over_sets(plain: Plain) -> None:
    kernel = plain("_kernels.pipeline.blocks")
    dice = np.random.default_rng(9)
    members = dice.random((12, 83)) < 0.4
    words = np.zeros((12, 2), np.uint64)
    for v in range(83):
        words[:, v >> 6] |= members[:, v].astype(np.uint64) << np.uint64(v & 63)
    value = dice.random(83)
    assert kernel.sums_of_sets(words, value) == pytest.approx(members @ value, rel=1e-12)
    few = words[:, :1] & np.uint64(2**57 - 1)
    assert kernel.sums_of_sets(few, value[:57]) == pytest.approx(members[:, :57] @ value[:57], rel=1e-12)
