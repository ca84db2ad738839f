"""Inner choices and the labels of pipelines, uncompiled, against every combination and every pipeline."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from stage_sets import Plain, cheapest, items, menu_of, pipelines, prepared_of, relaxed, sets_of, undominated


@pytest.mark.parametrize("seed", range(10))
def test_swaps_bound_the_seconds_of_fitting_by_their_relaxation_and_by_whole_swaps(plain: Plain, seed: int) -> None:
    menu = menu_of(plain, seed, n_choices=2 + seed % 2)
    prepared = prepared_of(plain, menu)
    sets = sets_of(prepared)
    every = len(sets) - 1
    for t, y in itertools.product((0, 1), (1, 2)):
        if not all(len(menu.choices(v, t)) for v in sets[every]):
            continue
        alone = [[(menu.seconds[c], held, c) for _, held, c in item] for item in items(menu, sets[every], t, 0, y)]
        fastest = sum(min(alone_of)[0] for alone_of in alone)
        low_held, high_held = (sum(pick(held for _, held, _ in item) for item in alone) for pick in (min, max))
        for limit in np.linspace(low_held + 1e-6, high_held, 7):
            low, high = plain("_kernels.pipeline.choice").swap_bounds(
                prepared.space, prepared.kernel_menu, prepared.memo, prepared.rules, every, 0, t, y, limit
            )
            best = cheapest(alone, limit) - fastest
            assert low == pytest.approx(relaxed(alone, limit) - fastest, abs=1e-9)
            assert best <= high + 1e-9
            steps = [max(choice[0] for choice in item) - min(choice[0] for choice in item) for item in alone]
            assert high <= low + max(steps) + 1e-9, "only one swap is taken in part"
    low, high = plain("_kernels.pipeline.choice").swap_bounds(
        prepared.space, prepared.kernel_menu, prepared.memo, prepared.rules, every, 0, 0, 1, 0.0
    )
    assert low == high == math.inf


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("size", [1, 4096])
def test_inner_choices_are_decided_the_same_from_memory(plain: Plain, alike: bool, size: int) -> None:
    """With one place in the memory every question pushes out the one before."""
    for seed in range(3):
        menu = menu_of(plain, seed, alike=alike, sharded=seed == 2)
        prepared = prepared_of(plain, menu)
        memo = prepared.memo._replace(
            pair=np.full(size, -1), rest=np.full(size, -1), lower=np.zeros(size), upper=np.zeros(size)
        )
        sets, asked = sets_of(prepared), []
        for upper, lower, t, r, y in itertools.product(range(len(sets)), range(len(sets)), (0, 1), (0, 1), (1, 2)):
            stage = sets[upper] - sets[lower]
            if sets[lower] < sets[upper] and all(len(menu.choices(v, t)) for v in stage):
                found = items(menu, stage, t, r, y)
                shared = 0.0
                if alike:
                    found = [[(menu.seconds[c], held, c) for _, held, c in item] for item in found]
                    shared = sum(min(item)[0] for item in found)
                best = cheapest(found, menu.memory_bytes) - shared
                asked += [(upper, lower, t, r, y, best, share) for share in (0.5, 0.999, 1.001)]
        np.random.default_rng(seed).shuffle(asked)
        for upper, lower, t, r, y, best, share in (asked * 2)[:700]:
            upper, lower, t, r, y = (int(value) for value in (upper, lower, t, r, y))
            budget = min(best * share + (share - 1.0), 1e9)
            answer = plain("_kernels.pipeline.choice").decide(
                prepared.space, prepared.kernel_menu, memo, prepared.rules, upper, lower, t, r, y, menu.memory_bytes, budget
            )
            assert answer == (best <= budget), (upper, lower, t, r, y, best, budget)


@pytest.mark.parametrize("seed", range(10))
def test_labels_are_the_undominated_pipelines_of_every_set(plain: Plain, seed: int) -> None:
    menu = menu_of(plain, seed, alike=seed % 2 == 0, sharded=seed % 5 == 4)
    threshold = plain("solvers.pipeline.threshold")
    n_found = 0
    for seconds in (4.0, 7.0, 12.0):
        prepared = prepared_of(plain, menu, seconds)
        sets = sets_of(prepared)
        ways = pipelines(menu, sets, seconds, sets[-1])
        reached = threshold.check(prepared, seconds)
        labels = reached.labels
        for row, one in enumerate(sets):
            found = [(int(labels.replicas[i]), int(labels.devices[i])) for i in range(labels.first[row], labels.first[row + 1])]
            expected = undominated({(s, k) for s, k, _ in ways[one]})
            assert len(found) == len(set(found)) and set(found) == expected, (seconds, one)
        n_found += len(found)
        for label in reached.answers:
            pipeline = threshold.found(prepared, reached, label)
            taken = plain("_kernels.pipeline.threshold").label_seconds(
                prepared.space, prepared.pairs, prepared.kernel_menu, prepared.rules, labels, label, menu.memory_bytes, False
            )
            assert taken == pytest.approx(pipeline.seconds) and taken <= seconds * (1 + 1e-9)
            once = plain("_kernels.pipeline.threshold").label_seconds(
                prepared.space, prepared.pairs, prepared.kernel_menu, prepared.rules, labels, label, menu.memory_bytes, True
            )
            assert once == pytest.approx(taken) if menu.alike else once <= taken * (1 + 1e-9)
        counted = threshold.check(prepared, seconds, n_stages=3).labels
        found = {
            (int(counted.replicas[i]), int(counted.devices[i]), int(counted.stages[i]))
            for i in range(counted.first[-2], counted.first[-1])
        }
        assert found == undominated({way for way in ways[sets[-1]] if way[2] <= 3})
    assert n_found or seed not in (0, 1, 2)


def test_what_the_rest_of_the_model_leaves_is_by_hand(plain: Plain) -> None:
    """Of 8 device-seconds, 6 replica-seconds, 4 bytes per micro-batch and 10 fixed, the set holds 2, 3, 1 and 4."""
    module = plain("_kernels.pipeline.threshold")
    work = np.array([[0.0] * 4, [2.0, 3.0, 1.0, 4.0], [8.0, 6.0, 4.0, 10.0]])
    limits = np.array([2.0, 12.0, 7.0, 5.0])
    assert module.left_by_the_rest(work, 1, limits, 7) == pytest.approx((4 + 1e-6, 3.5 + 1e-6, 0.25, 0.5), rel=1e-8)
    assert module.left_by_the_rest(work, 2, limits, 7) == pytest.approx((7 + 1e-6, 5 + 1e-6, 0.0, 0.0), rel=1e-8)
    one_more = module.left_by_the_rest(work, 1, np.array([100.0, 12.0, 7.0, 5.0]), 7)  # one stage at least
    assert one_more[:2] == pytest.approx((6 + 1e-6, 4 + 1e-6), rel=1e-9)
    # 0.25 (s + 1) + 0.5 devices hold the rest, at most 7 - k
    rest = (4.0 + 1e-6, 9.0 + 1e-6, 0.25, 0.5)
    too_little = [(s, k) for s in range(1, 12) for k in range(1, 7) if module.leaves_too_little(s, k, rest, 7)]
    assert too_little == [
        (s, k) for s in range(1, 12) for k in range(1, 7) if k > 4 or s > 9 or 0.25 * (s + 1) + 0.5 > 7 - k
    ]  # fmt: skip


def test_the_most_micro_batches_in_flight_are_those_that_fit(plain: Plain) -> None:
    module = plain("_kernels.pipeline.threshold")
    for low_a, low_b, free, most in [
        (2.0, 3.0, 9.0, 5), (2.0, 3.0, 8.9, 5), (2.0, 3.0, 5.0, 5), (2.0, 3.0, 4.9, 5),
        (0.0, 3.0, 3.0, 5), (1.0, 0.0, 9.0, 5), (1.0, 0.5, 4.0, 4), (1.0, 0.0, 5.0, 5),
    ]:  # fmt: skip
        found = module._most_in_flight(low_a, low_b, free, most)
        assert found == max((y for y in range(1, most + 1) if low_a * y + low_b <= free), default=0), (low_a, low_b, free)


def test_the_first_option_is_the_first_with_few_enough_in_flight(plain: Plain) -> None:
    module, menu = plain("_kernels.pipeline.threshold"), menu_of(plain, 0, replicas=np.array([1, 3, 4]))
    rules = plain("solvers.pipeline.menu").rules(menu)
    assert rules.next_replica.tolist() == [0, 0, 1, 1, 2]
    for start, s0, in_flight in itertools.product(range(3), range(8), range(1, 7)):
        expected = [r for r, d in enumerate((1, 3, 4)) if r >= start and 1 + -(-s0 // d) <= in_flight]
        found = module._first_option(rules, start, s0, in_flight)
        assert found == (expected[0] if expected else -1), (start, s0, in_flight)


def test_a_way_is_looked_up_first_by_what_dominates_it(plain: Plain) -> None:
    """A window of 96 larger sums of replicas is filled, up to where as few devices are known."""
    module = plain("_kernels.pipeline.threshold")
    prepared = prepared_of(plain, menu_of(plain, 0))
    labels = plain("solvers.pipeline.threshold").empty_labels(prepared, 4, 2, 120)
    far = int(module.FAR)
    module._enter(labels, 1, 7, 5, 3, 2, 4)
    assert labels.cell_floor[1].tolist() == [far] * 7 + [5] * 96 + [far] * 18
    module._enter(labels, 1, 3, 6, 0, 1, 2)
    assert labels.cell_floor[1, :8].tolist() == [far] * 3 + [6] * 4 + [5]
    module._enter(labels, 1, 5, 5, 0, 1, 2)
    assert labels.cell_floor[1, :8].tolist() == [far] * 3 + [6] * 2 + [5] * 3
    assert (labels.cell_below[1, 7], labels.cell_lower[1, 7], labels.cell_option[1, 7]) == (3, 2, 4)
    assert labels.cell_devices[1, [3, 5, 7]].tolist() == [6, 5, 5] and labels.cell_devices[0].min() == far


@pytest.mark.parametrize("seed", range(6))
def test_greedy_swaps_cost_what_the_greedy_choice_costs(plain: Plain, seed: int) -> None:
    menu = menu_of(plain, seed, exact=False)
    prepared = prepared_of(plain, menu)
    whole = sets_of(prepared)[-1]
    for t, y in itertools.product((0, 1), (1, 2)):
        if not all(len(menu.choices(v, t)) for v in whole):
            continue
        alone = [[(menu.seconds[c], held, c) for _, held, c in item] for item in items(menu, whole, t, 0, y)]
        first = np.cumsum([0] + [len(item) for item in alone])
        cost, held = (np.array([choice[k] for item in alone for choice in item]) for k in (0, 1))
        fastest = sum(min(item)[0] for item in alone)
        smallest, largest = (sum(pick(choice[1] for choice in item) for item in alone) for pick in (min, max))
        for limit in np.linspace(smallest - 0.1, largest, 9):
            expected = plain("_kernels.pipeline.knapsack").greedy(first, cost, held, limit, False, np.zeros(4, int)) - fastest
            found = plain("_kernels.pipeline.choice").swap_bounds(
                prepared.space,
                prepared.kernel_menu,
                prepared.memo,
                prepared.rules,
                len(prepared.space.words) - 1,
                0,
                t,
                y,
                limit,
            )
            assert found == pytest.approx((expected, expected), abs=1e-9)


@pytest.mark.parametrize("sharded", [False, True])
def test_a_stage_may_fit_where_swaps_keep_memory_and_time(plain: Plain, sharded: bool) -> None:
    answers = set()
    for seed in range(6):
        menu = menu_of(plain, seed, sharded=sharded)
        prepared = prepared_of(plain, menu)
        whole = sets_of(prepared)[-1]
        for t, r, y in itertools.product((0, 1), (0, 2), (1, 3)):
            if not all(len(menu.choices(v, t)) for v in whole):
                continue
            found = items(menu, whole, t, r, y)
            alone = [[(menu.seconds[c], held, c) for _, held, c in item] for item in found]
            fastest = sum(min(item)[0] for item in alone)
            held = sum(min(item)[1] for item in alone)
            smallest = sum(min(choice[1] for choice in item) for item in alone)
            share, loaded = float(menu.share[r]), fastest + 0.7
            for limit in np.linspace(smallest * 0.9, held * 1.13, 5):
                stage = plain("_kernels.pipeline.pairs").stage_between(
                    prepared.space.sums, len(prepared.space.words) - 1, 0, t, limit
                )
                extra = cheapest(alone, limit) - fastest
                for threshold in (0.3 + (loaded + extra) * share * ratio for ratio in (0.99, 1.01)):
                    answer = plain("_kernels.pipeline.nodes")._may_fit(
                        prepared.space, prepared.kernel_menu, prepared.memo._replace(pair=np.full(4096, -1)), prepared.rules,
                        stage, r, y, loaded, 0.3, min(threshold, 1e9),
                    )  # fmt: skip
                    assert answer == (held <= limit or (extra < np.inf and (loaded + extra) * share + 0.3 <= threshold))
                    answers.add((answer, held <= limit))
    assert len(answers) == 3
