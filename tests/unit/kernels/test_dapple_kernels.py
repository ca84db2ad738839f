"""Kernels of DAPPLE's and PipeDream's planners, uncompiled, against the recursions that their docstrings state."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import pytest

Plain = Callable[[str], ModuleType]


def case(module: ModuleType, seed: int, n_positions: int = 4) -> tuple[Any, Any, Any, np.ndarray]:
    """Return layers, places and rules drawn at random; a stage may skip to any later node."""
    dice = np.random.default_rng(seed)
    n = 4
    sums = [np.concatenate(([0.0], np.cumsum(dice.uniform(0.1, 1.0, n - 1)))) for _ in range(4)]
    ends = [list(range(k + 1, n)) for k in range(n)]
    layers = module.Layers(*sums, dice.uniform(0.1, 1.0, n), np.cumsum([0, *map(len, ends)]), np.concatenate(ends).astype(int))
    units = np.array([1, 2, 3])
    samples = np.array([6, 3, 0 if seed % 3 == 0 else 2])
    shape = (n_positions + 1, 3)
    places = module.Places(
        units, samples, dice.integers(0, 3, shape), dice.uniform(0.0, 0.5, (3, 2, 2)), dice.integers(0, 2, (*shape, 3)),
        dice.uniform(0.0, 0.3, (2, 2)), dice.uniform(3.0, 12.0, shape), dice.random(shape) < 0.4,
    )  # fmt: skip
    rules = module.RunSettings(3, 6, 1 + seed % 2, 1.5, seed % 3, 1e3, 1)
    reduce_lines = np.array([places.reduce_lines[0], places.reduce_lines[1], places.reduce_lines[2]])
    return layers, places, rules, reduce_lines


def stage_bytes(layers: Any, rules: Any, k: int, j: int, n: int, depth: int, *, recomputes: bool) -> float:
    kept = (layers.activation_bytes[j] - layers.activation_bytes[k]) * n
    static = (layers.parameter_bytes[j] - layers.parameter_bytes[k]) * max(rules.scaling_ratio, 1.0)
    return float(static + (depth * layers.cut_bytes[k] * n + kept if recomputes else depth * kept))


def best_suffixes(layers: Any, places: Any, rules: Any) -> Callable[[int, int, int], tuple[float, float, int, int]]:
    """Return the recursion over stages, node and position: end, drain, next node and column."""
    n_positions, last = len(places.gate) - 1, len(layers.cut_bytes) - 1
    m = rules.n_microbatches

    @cache
    def best(r: int, k: int, p: int) -> tuple[float, float, int, int]:
        found = (math.inf, math.inf, -1, -1)
        depth = min(m, r if rules.warm_up == 1 else 2 * r - 1)
        for j, i in itertools.product(range(k + 1, last + 1), range(3)):
            n, q = int(places.n_samples[i]), p + int(places.n_units[i])
            if n == 0 or q > n_positions or (r == 1) != (j == last):
                continue
            forward = (layers.forward_seconds[j] - layers.forward_seconds[k]) * n
            compute = forward + (layers.backward_seconds[j] - layers.backward_seconds[k]) * n
            room = places.memory_bytes[p, i]
            if rules.recompute == 2 or stage_bytes(layers, rules, k, j, n, depth, recomputes=False) > room:
                if rules.recompute == 0 or stage_bytes(layers, rules, k, j, n, depth, recomputes=True) > room:
                    continue
                compute += forward
            drain, end = m * compute, 0.0
            if r > 1:
                tail = best(r - 1, j, q)
                if tail[0] == math.inf:
                    continue
                latency, per_byte = places.send_lines[places.send_class[q, i, tail[3]]]
                send = latency + per_byte * layers.cut_bytes[j] * rules.n_samples
                drain = max(drain, compute + 2 * send + tail[1], compute + (m + 1) * send)
                if places.gate[p, i]:
                    both = per_byte * (layers.cut_bytes[j] + layers.cut_bytes[k]) * rules.n_samples
                    drain = max(drain, compute + m * both)
                end = forward + send + tail[0]
            n_bytes = layers.parameter_bytes[j] - layers.parameter_bytes[k]
            lines = places.reduce_lines[places.reduce_class[p, i]]
            end = max(end, drain + min(latency + per_byte * n_bytes for latency, per_byte in lines))
            if (end, drain) < found[:2]:
                found = (float(end), float(drain), j, i)
        return found

    return best


@pytest.mark.parametrize("seed", range(24))
def test_suffixes_are_the_best_of_the_recursion_and_stay_so_under_a_limit(plain: Plain, seed: int) -> None:
    module = plain("_kernels.dapple.pipeline_suffix")
    layers, places, rules, _ = case(module, seed)
    best = best_suffixes(layers, places, rules)
    found = module.by_stages(layers, places, rules, 3)
    for r, k, p in itertools.product((1, 2, 3), range(3), range(4)):
        if k > 0 and p == 0:  # layers before have had no device
            assert found.end_seconds[r, k, p] == math.inf
            continue
        end, drain, node, column = best(r, k, p)
        assert found.end_seconds[r, k, p] == pytest.approx(end) and found.drain_seconds[r, k, p] == pytest.approx(drain)
        assert (found.next_node[r, k, p], found.column[r, k, p]) == (node, column)
    for r in (1, 2, 3):
        end = best(r, 0, 0)[0]
        if end < math.inf:
            tight = module.by_stages(layers, places, rules._replace(upper_seconds=end * (1 + 1e-9)), 3)
            assert tight.end_seconds[r, 0, 0] == pytest.approx(end)
            none = module.by_stages(layers, places, rules._replace(upper_seconds=end * 0.7), 3)
            assert none.end_seconds[r, 0, 0] >= end * (1 - 1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_the_bound_is_the_recursion_without_transfers_and_memory(plain: Plain, seed: int) -> None:
    module = plain("_kernels.dapple.pipeline_suffix")
    layers, places, rules, lines = case(module, seed)
    m, last = rules.n_microbatches, len(layers.cut_bytes) - 1

    @cache
    def least(k: int, left: int) -> tuple[float, float]:
        found = (math.inf, math.inf)
        for j, i in itertools.product(range(k + 1, last + 1), range(3)):
            n, rest = int(places.n_samples[i]), left - int(places.n_units[i])
            if n == 0 or rest < 0:
                continue
            forward = (layers.forward_seconds[j] - layers.forward_seconds[k]) * n
            compute = forward * (2 if rules.recompute == 2 else 1)
            compute += (layers.backward_seconds[j] - layers.backward_seconds[k]) * n
            drain, end = m * compute, 0.0
            if j < last:
                drain, end = max(drain, compute + least(j, rest)[0]), forward + least(j, rest)[1]
            n_bytes = layers.parameter_bytes[j] - layers.parameter_bytes[k]
            end = max(end, drain + min(latency + per_byte * n_bytes for latency, per_byte in lines[i]))
            found = (min(found[0], float(drain)), min(found[1], float(end)))
        return found

    bound = module.lower_bound(layers, places.n_units, places.n_samples, lines, rules, 4)
    for k, left in itertools.product(range(3), range(1, 5)):
        assert tuple(bound[:, k, left]) == pytest.approx(least(k, left))
    end = bound[1, 0, 4]
    assert module.lower_bound(layers, places.n_units, places.n_samples, lines, rules._replace(upper_seconds=end), 4)[
        1, 0, 4
    ] == pytest.approx(end)


def test_bytes_and_reductions_of_a_stage_by_hand(plain: Plain) -> None:
    module = plain("_kernels.dapple.pipeline_suffix")
    layers = module.Layers(*np.array([[0, 1, 3], [0, 2, 4], [0, 5, 9], [0, 7, 8], [4, 6, 3]], float), np.zeros(1), np.zeros(1))
    rules = module.RunSettings(4, 8, 1, 2.0, 1, 1e9, 1)
    assert module.stage_bytes(layers, rules, 1, 2, 3, 5, False) == 1 * 2.0 + 5 * 4 * 3
    assert module.stage_bytes(layers, rules, 1, 2, 3, 5, True) == 1 * 2.0 + 5 * 6 * 3 + 4 * 3
    assert module.stage_bytes(layers, rules._replace(scaling_ratio=0.5), 0, 1, 1, 1, False) == 7 + 5
    lines = np.array([[1.0, 2.0], [5.0, 0.5]])
    assert [module.reduce_seconds(lines, n_bytes) for n_bytes in (0.0, 1.0, 4.0)] == [0.0, 3.0, 7.0]


def test_published_seconds_of_reductions_and_transfers(plain: Plain) -> None:
    module = plain("_kernels.dapple.published")
    assert [tuple(module.ends(np.array(cards))) for cards in ([0, 2, 0], [1, 0, 3], [0, 0, 0])] == [(1, 1), (0, 2), (-1, -1)]
    assert module.all_reduce_seconds(1, 0, 1, 1e9) == 0.0
    assert module.all_reduce_seconds(4, 0, 1, 3e9) == pytest.approx(2 * 3e9 * 0.75 / 3e9)
    assert module.all_reduce_seconds(4, 2, 2, 25e9) == pytest.approx(2 * 0.75 / 2)
    for source, target, seconds in (
        ([1, 0], [0, 2], 1.0), ([3, 1], [0, 2], 0.75), ([2, 0], [2, 0], 0.04), ([2, 0], [1, 1], 1 / 3),
        ([0, 2, 0], [0, 1, 1], 1 / 3), ([2, 2], [3, 0], 0.5),
    ):  # fmt: skip
        assert module.split_concat_seconds(np.array(source), np.array(target), 1e9) == pytest.approx(seconds), (source, target)


def published_tables(module: ModuleType, dice: np.random.Generator, n: int) -> Any:
    each, weights = dice.uniform(1.0, 3.0, n), dice.uniform(1e8, 4e9, n)
    seconds, parameters = np.zeros((n + 1, n)), np.zeros((n + 1, n))
    for i, j in itertools.product(range(n), range(n)):
        seconds[i, j], parameters[i, j] = each[i : j + 1].sum(), weights[i : j + 1].sum()
    return module.Tables(seconds, parameters, dice.uniform(1e8, 2e9, n))


@pytest.mark.parametrize("seed", range(4))
def test_two_stages_have_the_largest_speed_up_of_the_closed_form(plain: Plain, seed: int) -> None:
    module, dice = plain("_kernels.dapple.published"), np.random.default_rng(seed)
    n, m, sizes = 5, 4, np.array([2, 2])
    tables = published_tables(module, dice, n)
    first_cards = np.array([[1, 0], [2, 0], [2, 1], [1, 1]])
    alone = tables.seconds[0, n - 1]

    def speed_up(state: int, cards: np.ndarray) -> float:
        rest = sizes - cards
        hop = module.split_concat_seconds(cards, rest, tables.cut_bytes[state])
        block = max(tables.seconds[0, state] / cards.sum(), tables.seconds[state + 1, n - 1] / rest.sum(), hop)
        length = block / m * (m - 1) + alone / m + module.split_concat_seconds(cards, rest, tables.cut_bytes[state] / m)
        reduce = [
            module.all_reduce_seconds(mine.sum(), *module.ends(mine), tables.parameter_bytes[a, b])
            for mine, a, b in ((cards, 0, state + 1), (rest, state + 1, n - 1))
        ]  # fmt: skip
        return alone / (length + max(0.0, reduce[0], reduce[1] - block / m))

    every = {(s, p): speed_up(s, first_cards[p]) for s in range(n - 1) for p in range(4)}
    best, state, placement = module.bipartition(tables, m, sizes, first_cards, first_cards.sum(axis=1))
    assert best == pytest.approx(max(every.values())) and every[state, placement] == pytest.approx(best)
    assert module.analytical_speedup(tables, 0, 1, 1.0, np.zeros(1, int), np.array([n - 1]), sizes[None]) == 0.0


@pytest.mark.parametrize(("n_blocks", "n_microbatches"), [(1, 1), (1, 4), (3, 1), (3, 2), (3, 6), (5, 4)])
def test_the_authors_simulation_is_the_longest_chain_of_its_rules(plain: Plain, n_blocks: int, n_microbatches: int) -> None:
    dice = np.random.default_rng(n_blocks)
    block, reduce = dice.uniform(0.5, 2.0, n_blocks), dice.uniform(0.0, 3.0, (n_blocks + 1) // 2)

    @cache
    def forward(i: int, x: int) -> float:
        if i < 0 or x < 0:
            return 0.0
        return block[x] + max(backward(i - n_blocks + x, x), forward(i - 1, x), forward(i, x - 1))

    @cache
    def backward(i: int, x: int) -> float:
        if i < 0 or x == n_blocks:
            return 0.0
        beside = i + n_blocks - 1 - x  # the forward pass that runs before it
        return block[x] + max(backward(i, x + 1), forward(beside, x) if beside < n_microbatches else 0.0)

    last = n_microbatches - 1
    expected = max(backward(last, x) + (reduce[x // 2] if x % 2 == 0 else 0.0) for x in range(n_blocks))
    found = plain("_kernels.dapple.published").recursive_seconds(block, n_microbatches, reduce)
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(4))
def test_a_level_has_the_quickest_slowest_stage_of_all_ways_to_cut(plain: Plain, seed: int) -> None:
    dice = np.random.default_rng(seed)
    n, n_components, speed = 5, 3, 2.0
    inner = np.triu(dice.uniform(0.5, 4.0, (n, n)), 1)
    weights, cut_bytes = np.cumsum(dice.uniform(0.0, 1.0, n)), dice.uniform(0.0, 2.0, n)
    allowed = dice.random((n, n)) < 0.8

    def whole(i: int, j: int, m: int) -> float:
        return max(inner[i, j], 2.0 * (m - 1) * (weights[j] - weights[i]) / speed) / m if allowed[i, j] else math.inf

    @cache
    def best(i: int, j: int, m: int) -> float:
        ways = [whole(i, j, m)]
        for s, last in itertools.product(range(i + 1, j), range(1, m)):
            ways.append(max(best(i, s, m - last), 2.0 * cut_bytes[s] / speed, whole(s, j, last)))
        return min(ways)

    level = plain("_kernels.dapple.pipedream").level
    seconds, split, replicas = level(inner, weights, cut_bytes, allowed, n_components, speed, False)
    for i, j, m in itertools.product(range(n), range(n), range(1, n_components + 1)):
        if i < j:
            assert seconds[i, j, m] == pytest.approx(best(i, j, m))
            s, last = int(split[i, j, m]), int(replicas[i, j, m])
            told = whole(i, j, m) if s < 0 else max(best(i, s, m - last), 2.0 * cut_bytes[s] / speed, whole(s, j, last))
            assert told == pytest.approx(seconds[i, j, m]) and (s >= 0 or last == m)
    first = level(inner, weights, cut_bytes, allowed, n_components, speed, True)[0]
    assert np.array_equal(first[0], seconds[0]) and np.isinf(first[1:]).all()


@pytest.mark.parametrize("n_units", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_a_straight_pipeline_has_the_smallest_bottleneck_of_all_cuts(plain: Plain, seed: int, n_units: int) -> None:
    """Stages of two devices each, one machine after the other, so that there is one way to take them."""
    module, dice = plain("_kernels.dapple.published"), np.random.default_rng(seed)
    n = 6
    tables = published_tables(module, dice, n)
    cards = np.array([[2, 0], [0, 2], [2, 0]])[:n_units]
    # arc m leads from the cell after stage m to the next one; the last arc leads from the empty cluster to the first
    order = [*range(1, n_units), 0]
    arcs = module.Arcs(
        np.array([*range(n_units), n_units - 1]),
        np.array([*range(n_units - 1), -1]),
        np.array([*range(1, n_units), 0]),
        cards[order],
    )
    before_first = np.cumsum([0, *range(n)])
    before = np.concatenate([np.arange(j) for j in range(n)]).astype(int)
    status, bottleneck, stops, taken = module.straight(tables, before_first, before, 2, arcs, np.arange(n_units + 1))

    def slowest(cuts: tuple[int, ...]) -> float:
        ends = [*cuts, n - 1]
        begins = [0, *(cut + 1 for cut in cuts)]
        sends = [module.split_concat_seconds(cards[i], cards[i + 1], 2 * tables.cut_bytes[cut]) for i, cut in enumerate(cuts)]
        return max([tables.seconds[a, b] / 2 for a, b in zip(begins, ends, strict=True)] + sends)

    every = {cuts: slowest(cuts) for cuts in itertools.combinations(range(n - 1), n_units - 1)}
    assert status == 0 and bottleneck == pytest.approx(min(every.values()))
    assert every[tuple(int(stop) - 1 for stop in stops[:-1])] == pytest.approx(bottleneck) and stops[-1] == n - 1
    assert taken.tolist() == [n_units - 1, *range(n_units - 1)]
    none = module.straight(
        tables, before_first, before, 2, arcs._replace(first=np.zeros(n_units + 1, int)), np.arange(n_units + 1)
    )
    assert none[0] == (0 if n_units == 1 else 1)
