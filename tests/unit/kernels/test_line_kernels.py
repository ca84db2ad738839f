"""Kernels of pipelines along one order, of prices and of equal layers, uncompiled, against loops over everything."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from stage_sets import Plain, menu_of, prepared_of, sets_of


def line_of(plain: Plain, dice: np.random.Generator, *, edges: bool) -> Any:
    """Return six nodes in a line with up to three choices, edges to the next and to the one after."""
    n = 6
    sizes = dice.integers(1, 4, n)
    first = np.concatenate(([0], np.cumsum(sizes)))
    m = int(first[-1])
    seconds = dice.uniform(1.0, 3.0, m)
    fast = np.array([first[i] + int(np.argmin(seconds[first[i] : first[i + 1]])) for i in range(n)])
    pairs = [(u, v) for u in range(n) for v in (u + 1, u + 2) if v < n] if edges else []
    ends: list[list[tuple[int, float]]] = [[] for _ in range(n)]
    for u, v in pairs:
        ends[u].append((v, float(dice.uniform(0.0, 0.5))))
        ends[v].append((-1 - u, float(dice.uniform(0.0, 0.5))))
    return plain("_kernels.pipeline.fill").Line(
        first, fast, seconds, np.repeat(dice.uniform(0, 2, n), sizes), dice.uniform(0, 2, m), dice.uniform(0, 3, m),
        np.cumsum([0] + [len(one) for one in ends]), np.array([e for one in ends for e, _ in one], np.int64),
        np.array([c for one in ends for _, c in one]),
    )  # fmt: skip


def stretch_fits(line: Any, begin: int, end: int, y: int, options: tuple[float, ...], memory: float, threshold: float) -> bool:
    """Return whether the fastest choices, swapped in parts, best saving first, keep memory and time."""
    share, reduce, spared = options
    nodes = range(begin, end)
    crossing = 0.0
    for i in nodes:
        for e in range(line.edge_first[i], line.edge_first[i + 1]):
            other = line.edge_end[e] if line.edge_end[e] >= 0 else -1 - line.edge_end[e]
            crossing += line.edge_cost[e] * (not begin <= other < end)
    weight = sum(line.weight[line.fast[i]] for i in nodes)
    held = line.per_microbatch * y + line.fixed
    need = sum(held[line.fast[i]] for i in nodes) - spared * weight - memory
    seconds = (sum(line.seconds[line.fast[i]] for i in nodes) + crossing) * share + weight * reduce
    swaps = [
        ((line.seconds[c] - line.seconds[line.fast[i]]) / (held[line.fast[i]] - held[c]), held[line.fast[i]] - held[c], i)
        for i in nodes for c in range(line.first[i], line.first[i + 1]) if held[c] < held[line.fast[i]]
    ]  # fmt: skip
    if sum(max((saved for _, saved, of in swaps if of == i), default=0.0) for i in nodes) < need:
        return False
    for ratio, saved, _ in sorted(swaps):
        seconds += max(0.0, min(saved, need)) * ratio * share
        need -= saved
    return seconds <= threshold


@pytest.mark.parametrize("seed", range(12))
def test_stretches_fit_and_reach_back_as_far_as_each_one_does(plain: Plain, seed: int) -> None:
    dice = np.random.default_rng(seed)
    module = plain("_kernels.pipeline.fill")
    line = line_of(plain, dice, edges=True)
    answers = set()
    for begin, end, y in itertools.product(range(6), range(1, 7), (1, 3)):
        for memory, threshold in itertools.product((4.0, 8.0, 16.0), (2.0, 5.0, 9.0)):
            if begin < end:
                expected = stretch_fits(line, begin, end, y, (0.5, 0.1, 0.5), memory, threshold)
                assert module._fits(line, begin, end, y, 0.5, 0.1, 0.5, memory, threshold) == expected
                answers.add(expected)
    assert len(answers) == 2
    # where borders cost nothing, what reaches back furthest with so many replicas
    line = line_of(plain, dice, edges=False)
    replicas, share = np.array([1, 2, 3]), np.array([1.0, 0.5, 1 / 3])
    reduce, spared = np.array([0.0, 0.1, 0.2]), np.array([0.0, 0.5, 2 / 3])
    for memory, threshold in itertools.product((5.0, 9.0, 30.0), (2.0, 4.0, 8.0)):
        begin, option = module.fill(line, replicas, share, reduce, spared, memory, 5, threshold)
        expected = [6]
        for s in range(1, 6):
            best = expected[s - 1]
            for r, d in enumerate(replicas.tolist()):
                for start in range(6 if d <= s else 0):
                    end, y = expected[s - d], -(-s // d)
                    options = (share[r], reduce[r], spared[r])
                    if start < end and stretch_fits(line, start, end, y, options, memory, threshold):
                        best = min(best, start)
            expected.append(best)
        assert begin.tolist() == expected, (memory, threshold)
        for s in range(1, 6):
            assert (option[s] >= 0) == (expected[s] < expected[s - 1])
            if option[s] >= 0:
                d, r = int(replicas[option[s]]), int(option[s])
                options = (share[r], reduce[r], spared[r])
                assert stretch_fits(line, expected[s], expected[s - d], -(-s // d), options, memory, threshold)


def most(work: np.ndarray, size: np.ndarray, seconds: float, n_bytes: float) -> float:
    """Return the most layers of a mixture of two variants: a vertex of the linear programme."""
    if seconds < 0.0 or n_bytes < 0.0:
        return -1.0
    rows = [(work, seconds), (size, n_bytes)]
    found = [0.0]
    for i, j in itertools.product(range(len(work)), repeat=2):
        one = min((limit / row[i] for row, limit in rows if row[i] > 0.0), default=math.inf)
        found.append(one)
        matrix = np.array([[work[i], work[j]], [size[i], size[j]]])
        if i < j and np.linalg.det(matrix):
            mixed = np.linalg.solve(matrix, [seconds, n_bytes])
            found.append(mixed.sum() if (mixed >= 0.0).all() else 0.0)
    return max(found)


@pytest.mark.parametrize("seed", range(12))
def test_unlike_ranks_take_as_many_layers_as_both_inequalities_of_the_order_let_them(plain: Plain, seed: int) -> None:
    """The inequalities written out: a rank's own work beside earlier returns, and the round trip it waits for."""
    module, dice = plain("_kernels.pipeline.layer_split"), np.random.default_rng(seed)
    n, m, n_layers = int(dice.integers(1, 4)), 4, 6
    f, b = dice.uniform(0.5, 1.5, n), dice.uniform(1.0, 2.0, n)
    work = (f + b)[:, None] * np.array([1.0, 1.3])
    size = dice.uniform(0.5, 1.5, (n, 1)) * np.array([1.0, 0.4])
    pinned, pinned_forward, after = dice.uniform(0.2, 0.6, n), dice.uniform(0.0, 0.2, n), dice.uniform(0.1, 0.5, n)
    budget, lead = dice.uniform(1.0, 4.0, n), np.arange(n, 0, -1.0)
    ranks = module.Ranks(work, size, np.array((f, b, pinned, pinned_forward, budget, lead, after)))
    seen = set()
    for step, split, whole in itertools.product((10.0, 25.0, 32.0, 40.0, 60.0), (False, True), (False, True)):
        room = [min(most(work[s] * m, size[s], step - m * pinned[s], budget[s]), n_layers) for s in range(n)]
        room = [math.floor(value + 1e-9) if whole else value for value in room]
        limits = []
        for s in range(n):
            before, later = max(0.0, n_layers - sum(room[s:])), max(0.0, n_layers - sum(room[: s + 1]))
            once, returns = after[s] * (s == 0), min(f) + (0.0 if split else min(b))
            own = most(work[s] * m + once, size[s], step - m * pinned[s] - before * returns, budget[s])
            if split:
                wait = sum(pinned_forward) + n_layers * min(f) + later * min(b) + m * pinned[s] - lead[s] * pinned_forward[s]
                hidden = work[s] * m + once - lead[s] * f[s]
            else:
                wait = sum(pinned) + n_layers * (min(f) + min(b)) + (m - 1) * pinned[s] - (lead[s] - 1) * pinned_forward[s]
                hidden = work[s] * (m - 1) + once - (lead[s] - 1) * f[s]
            limit = min(own, most(hidden, size[s], step - wait, budget[s]), room[s])
            limits.append(math.floor(limit + 1e-9) if whole and limit >= 0.0 else limit)
        expected = -1.0 if min(room + limits) < 0.0 else sum(limits)
        found = np.zeros(n)
        assert module.capacities(ranks, n_layers, m, split, whole, step, found) == pytest.approx(expected), (step, split, whole)
        if expected >= 0.0:
            assert found == pytest.approx(limits)
        seen.add(expected)
    assert len(seen) > 4


def test_the_least_step_is_where_the_ranks_have_room_for_all_layers(plain: Plain) -> None:
    """One rank, 4 micro-batches of 3 s a layer and 1 s that is pinned, 0.5 s a layer once: 2 layers take 24 + 4 + 1."""
    module = plain("_kernels.pipeline.layer_split")
    one = np.ones(1)
    figures = np.array((one, 2 * one, one, 0.5 * one, 2 * one, one, 0.5 * one))
    ranks = module.Ranks(3 * one[:, None], one[:, None], figures)
    no_room, just_none = (module.Ranks(3 * one[:, None], one[:, None], figures.copy()) for _ in range(2))
    no_room.figures[module._BUDGET], just_none.figures[module._BUDGET] = -1.0, 0.0
    assert module.least_step(ranks, 2, 4, False, False, 100.0, 1e-9) == pytest.approx(29.0, rel=1e-8)
    assert module.least_step(ranks, 2, 4, False, False, 29.1, 1e-9) == pytest.approx(29.0, rel=1e-8)
    assert module.least_step(ranks, 2, 4, False, False, 28.9, 1e-9) == math.inf
    assert module.least_step(ranks, 3, 4, False, False, 100.0, 1e-9) == math.inf
    assert module.least_step(no_room, 0, 4, False, False, 100.0, 1e-9) == math.inf
    assert module.least_step(just_none, 0, 4, False, False, 100.0, 1e-9) < 8.0


@pytest.mark.parametrize("node_size", [2, 3])
def test_what_crosses_borders_is_slow_but_where_both_ends_may_lie_in_one_node(plain: Plain, node_size: int) -> None:
    module, solver = plain("_kernels.pipeline.nodes"), plain("solvers.pipeline.nodes")
    n_fast = 0
    for seed in range(3):
        menu = menu_of(plain, seed)
        prepared = prepared_of(plain, menu)
        sets, crossing = sets_of(prepared), plain("solvers.pipeline.menu").crossing(menu)
        pairs = list(zip(menu.edge_source.tolist(), menu.edge_target.tolist(), strict=True))
        below = {v: {v} for v in range(4)}
        for u, v in sorted(pairs, reverse=True):
            below[u] |= below[v]
        device_seconds = [
            min(d * menu.seconds[c] for t, d in enumerate((1, 2)) for c in menu.choices(v, t)) for v in range(4)
        ]  # fmt: skip
        threshold = 5.0
        found = module.border_seconds(
            prepared.space, prepared.pairs, crossing, solver._behind(prepared), threshold, node_size, 3.0
        )
        for upper in range(1, len(sets)):
            for p in range(prepared.pairs.first[upper], prepared.pairs.first[upper + 1]):
                low, stage = sets[prepared.pairs.lower[p]], sets[upper] - sets[prepared.pairs.lower[p]]
                for t, near in itertools.product((0, 1), range(node_size)):
                    expected = [0.0, 0.0]
                    for e, (u, v) in enumerate(zip(crossing.source.tolist(), crossing.target.tolist(), strict=True)):
                        if u not in sets[upper] and v in stage:
                            between = sum(device_seconds[x] for x in below[u] - sets[upper])
                            fast = near > 0 and between <= near * threshold
                            expected[0] += crossing.into[e, t] * (1.0 if fast else 3.0)
                        elif u in stage and v in low:
                            between = sum(device_seconds[x] for x in low if v in below[x])
                            fast = near > 0 and between <= near * threshold
                            expected[1] += crossing.out_of[e, t] * (1.0 if fast else 3.0)
                        else:
                            continue
                        n_fast += fast
                    assert found[:, p, t, near] == pytest.approx(expected)
    assert n_fast > 20
