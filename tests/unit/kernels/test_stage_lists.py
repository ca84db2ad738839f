"""Downsets and the stages between them, uncompiled, against plain sets of nodes."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from stage_sets import Plain, Set, border, items, least, menu_of, needs, prepared_of, sets_of

SEEDS = range(4)


def closed_sets(n: int, pairs: list[tuple[int, int]]) -> set[Set]:
    every = (frozenset(chosen) for size in range(n + 1) for chosen in itertools.combinations(range(n), size))
    return {one for one in every if all(v in one for u, v in pairs if u in one)}


@pytest.mark.parametrize("seed", range(8))
def test_downsets_and_their_links_are_those_of_the_definition(plain: Plain, seed: int) -> None:
    dice = np.random.default_rng(seed)
    n = int(dice.integers(1, 8))
    pairs = [(u, v) for u in range(n) for v in range(u + 1, n) if dice.random() < 0.3]
    name = dice.permutation(n)
    pairs = [(int(name[u]), int(name[v])) for u, v in pairs]
    ends = np.array(pairs, np.int64).reshape(-1, 2)
    expected = closed_sets(n, pairs)
    module = plain("solvers.pipeline.downsets")
    words, first, link = module.all_downsets(n, ends[:, 0].copy(), ends[:, 1].copy(), len(expected))
    assert module.all_downsets(n, ends[:, 0].copy(), ends[:, 1].copy(), len(expected) - 1) is None
    found = [frozenset(v for v in range(n) if int(row[0]) >> v & 1) for row in words]
    assert len(found) == len(expected) and set(found) == expected
    assert [len(one) for one in found] == sorted(len(one) for one in found)
    links = {(high, low) for high in range(len(found)) for low in link[first[high] : first[high + 1]].tolist()}
    assert len(links) == len(link)
    assert links == {
        (i, j) for i, j in itertools.product(range(len(found)), repeat=2)
        if found[j] < found[i] and len(found[i]) == len(found[j]) + 1
    }  # fmt: skip


def test_downsets_of_more_nodes_than_a_word_has_bits_and_of_more_than_the_first_table_holds(plain: Plain) -> None:
    every = plain("solvers.pipeline.downsets").all_downsets
    n = 66
    words, first, link = every(n, np.arange(1, n), np.arange(n - 1), n + 1)  # a chain backwards
    assert [sum(int(word).bit_count() for word in row) for row in words] == list(range(n + 1))
    assert link.tolist() == list(range(n)) and first.tolist() == [0, *range(n + 1)]
    assert every(n, np.arange(1, n), np.arange(n - 1), n) is None
    assert every(65, np.arange(1, 65), np.arange(64), 66)[0].shape == (66, 2)
    assert every(64, np.arange(1, 64), np.arange(63), 65)[0].shape == (65, 1)
    none = np.zeros(0, np.int64)
    words, first, link = every(11, none, none, 2048)
    assert sorted(words[:, 0].tolist()) == list(range(2048)) and len(link) == 11 * 1024
    assert every(11, none, none, 2047) is None


def possible(menu: Any, upper: Set, lower: Set, every: Set, threshold: float) -> bool:
    """Return whether a stage may be one of a pipeline that keeps the threshold, by its fastest and smallest choices."""
    stage = upper - lower
    degrees = [t for t in (0, 1) if all(len(menu.choices(v, t)) for v in stage)]
    others, other_replicas, _, _ = needs(menu, every - stage)
    held = {
        t: least(menu, stage, t, menu.per_microbatch_bytes)
        + least(menu, stage, t, menu.fixed_bytes - menu.weight_bytes * menu.sharded)
        for t in degrees
    }
    if not any(held[t] <= menu.memory_bytes and least(menu, stage, t, menu.seconds) <= 3 * threshold for t in degrees):
        return False
    for t in degrees:
        load = (border(menu, upper, lower, t) + least(menu, stage, t, menu.seconds)) / threshold
        d = max(1, math.ceil(load))
        if d <= 3 and d * (t + 1) + others / threshold <= menu.n_devices and d + other_replicas / threshold <= menu.n_replicas:
            return True
    return False


@pytest.mark.parametrize("changes", [{}, {"tensor_once": True}, {"sharded": True, "n_devices": 3}], ids=str)
def test_stages_of_plans_within_a_threshold_are_listed_with_what_crosses_their_borders(plain: Plain, changes: Any) -> None:
    n_out = 0
    for seed, threshold in itertools.product(SEEDS, (math.inf, 9.0, 5.0, 3.5)):
        menu = menu_of(plain, seed, alike=seed % 2 == 0, **changes)
        prepared = prepared_of(plain, menu, threshold)
        sets, pairs = sets_of(prepared), prepared.pairs
        listed = {
            (upper, int(pairs.lower[p])): pairs.seconds[p]
            for upper in range(1, len(sets)) for p in range(pairs.first[upper], pairs.first[upper + 1])
        }  # fmt: skip
        assert len(listed) == len(pairs.lower)
        nested = [(i, j) for i, j in itertools.product(range(len(sets)), repeat=2) if sets[j] < sets[i]]
        limit = min(threshold, 1e300)
        expected = {(i, j) for i, j in nested if possible(menu, sets[i], sets[j], sets[-1], limit)}
        assert set(listed) == expected, (seed, threshold)
        n_out += len(nested) - len(expected)
        for (i, j), seconds in listed.items():
            assert seconds == pytest.approx([border(menu, sets[i], sets[j], t) for t in (0, 1)], abs=1e-12)
    assert n_out > 60


def test_a_list_of_stages_longer_than_allowed_is_none(plain: Plain) -> None:
    menu = menu_of(plain, 0)
    family = plain("solvers.pipeline.downsets").all_downsets(menu.n_nodes, menu.edge_source, menu.edge_target, 1000)
    prepare = plain("solvers.pipeline.prepared").prepare
    n = len(prepare(menu, family).pairs.lower)
    assert len(prepare(menu, family, n_pairs=n).pairs.lower) == n
    assert prepare(menu, family, n_pairs=n - 1) is None
    assert prepare(menu, family, n_steps=2) is None


@pytest.mark.parametrize("seed", SEEDS)
def test_items_of_a_stage_are_what_its_nodes_take_and_hold(plain: Plain, seed: int) -> None:
    menu = menu_of(plain, seed, alike=False, n_choices=3, sharded=seed % 2 == 1)
    prepared = prepared_of(plain, menu)
    sets = sets_of(prepared)
    for upper, lower in itertools.product(range(len(sets)), repeat=2):
        stage = sets[upper] - sets[lower]
        if not sets[lower] < sets[upper]:
            continue
        for t, r, y in itertools.product((0, 1), (0, 2), (1, 3)):
            first, cost, memory, position = plain("_kernels.pipeline.choice").stage_items(
                prepared.space, prepared.kernel_menu, prepared.rules, upper, lower, t, r, y
            )
            expected = items(menu, stage, t, r, y)
            assert np.diff(first).tolist() == [len(item) for item in expected]
            flat = np.array([choice for item in expected for choice in item]).reshape(-1, 3)
            assert cost == pytest.approx(flat[:, 0]) and memory == pytest.approx(flat[:, 1])
            assert position.tolist() == flat[:, 2].astype(int).tolist()
