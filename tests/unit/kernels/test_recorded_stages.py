"""Kernels of pipelines and the solvers on them, uncompiled, on many small instances: what they give is as it was recorded."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from stage_sets import Plain, menu_of, prepared_of

from gists import gist
from recorded import Recorded

KINDS: tuple[dict[str, Any], ...] = (
    {}, {"n_choices": 1}, {"n_choices": 3}, {"alike": False, "n_choices": 3}, {"sharded": True}, {"exact": False},
    {"exact": False, "all_or_none": True}, {"exact": False, "n_choices": 3, "alike": False}, {"tensor_once": True},
    {"tensor_once": True, "alike": False, "sharded": True}, {"reserve_bytes": None, "border_ratio": None},
    {"n_devices": 1, "n_replicas": 1}, {"n_devices": 8, "n_replicas": 6, "memory_bytes": 9.0},
    {"degrees": np.array([2, 2]), "n_devices": 9, "n_replicas": 7}, {"exact": False, "sharded": True, "n_replicas": 9},
)  # fmt: skip
ROOMS = ("_kernels.pipeline", "solvers.pipeline")
PARTS = {
    "_kernels.pipeline": ("choice", "downsets", "knapsack", "layer_split", "nodes", "pairs", "rank_memory", "threshold"),
    "solvers.pipeline": ("fill", "filling", "layer_split", "nodes", "prepared", "search", "threshold"),
}


@pytest.mark.parametrize("room", ROOMS)
def test_limits_and_tolerances_are_those_recorded(plain: Plain, recorded: Recorded, room: str) -> None:
    def numbers(name: str) -> dict[str, object]:
        found = vars(plain(f"{room}.{name}"))
        kinds = (int, float, tuple, np.integer)
        return {word: value for word, value in found.items() if word.isupper() and isinstance(value, kinds)}

    recorded({name: numbers(name) for name in PARTS[room]})


def knapsacks() -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return items with one to four choices, of whole numbers (ties) and of any."""
    found = []
    for seed in range(24):
        dice = np.random.default_rng(seed)
        first = np.concatenate(([0], np.cumsum(dice.integers(1, 3 if seed % 3 == 0 else 5, 1 + seed % 6))))
        cost, memory = dice.uniform(0.0, 6.0, (2, first[-1]))
        found.append((first, np.floor(cost), np.ceil(memory)) if seed % 2 else (first, cost, memory))
    return found


def test_inner_choices(plain: Plain, recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    module, rows = plain("_kernels.pipeline.knapsack"), []
    for first, cost, memory in knapsacks():
        n = len(first) - 1
        low, high = (sum(pick(memory[a:b]) for a, b in itertools.pairwise(first)) for pick in (min, max))
        chosen = np.zeros(n, np.int64)
        rows.append(
            [
                *module.cheapest(first, cost, memory, chosen),
                chosen.tolist(),
                *map(list, module.hull(first, cost, memory, chosen)),
            ]
        )
        whole = bool((memory == np.ceil(memory)).all())
        for ratio in (-0.01, 0.0 if whole else 1e-6, 0.3, 0.7, 1.0):
            limit = low + ratio * (high - low)
            for all_or_none in (False, True):
                chosen = np.zeros(n, np.int64)
                rows.append([module.greedy(first, cost, memory, limit, all_or_none, chosen), chosen.tolist()])
            chosen = np.zeros(n, np.int64)
            best = module.exact(first, cost, memory, limit, math.inf, chosen)
            rows.append([*best, chosen.tolist()])
            for share in (0.6, 0.97, 1.03):
                budget = best[1] * share if best[1] < math.inf else 1.0
                chosen = np.zeros(n, np.int64)
                bounds = module.exact(first, cost, memory, limit, budget, chosen)
                assert bounds[0] > budget or bounds[1] <= budget
                rows.append([*bounds, chosen.tolist()])
    recorded([gist(*rows[i : i + 8]) for i in range(0, len(rows), 8)], "choices")
    monkeypatch.setattr(module, "POOL", 7)
    rows = []
    for first, cost, memory in knapsacks()[4:]:
        chosen = np.zeros(len(first) - 1, np.int64)
        limit = 0.6 * sum(min(memory[a:b]) for a, b in itertools.pairwise(first)) + 0.4 * cost.sum()
        rows.append([*module.exact(first, cost, memory, limit, math.inf, chosen), chosen.tolist()])
    recorded(gist(*rows), "too many")


def test_whole_swaps_that_are_too_little_by_rounding_are_followed_by_the_next(plain: Plain) -> None:
    """The first swap frees 5 bytes, too few by 1e-12; the next one by price frees enough, and within the budget that is all."""
    first, cost = np.array([0, 2, 4, 6]), np.array([0.0, 1.0, 0.0, 1.0, 0.0, 100.0])
    memory, chosen = np.array([10.0, 5.0, 10.0, 9.0, 10.0, 9.5]), np.zeros(3, np.int64)
    bounds = plain("_kernels.pipeline.knapsack").exact(first, cost, memory, 25.0 - 1e-12, 2.5, chosen)
    assert bounds == pytest.approx((1.0, 2.0), rel=1e-9) and chosen.tolist() == [1, 3, 4]


@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_stages_labels_and_the_best_pipeline(plain: Plain, recorded: Recorded, kind: int) -> None:
    threshold, search = plain("solvers.pipeline.threshold"), plain("solvers.pipeline.search")
    for seed in (kind, 50 + kind):
        menu = menu_of(plain, seed, **KINDS[kind])
        prepared = prepared_of(plain, menu)
        memo, lower = prepared.memo, search.relaxation(menu)
        best, proven = threshold.minimise(prepared, lower)
        found = {
            "space": gist(prepared.space), "pairs": gist(prepared.pairs), "rules": gist(prepared.rules, menu.alike),
            "menu": gist(prepared.kernel_menu, plain("solvers.pipeline.menu").crossing(menu)),
            "memo": [len(memo.pair), *memo.node.shape], "bounds": [lower, proven], "memory": search.least_memory(menu),
            "fits": search.fits(menu), "best": gist(best),
        }  # fmt: skip
        if best is not None:
            found |= {
                "near": gist(prepared_of(plain, menu, best.seconds).pairs), "fewest": gist(search.fewest(prepared, best)),
                "savings": gist(search.savings(prepared, best, 0.5)), "by stages": gist(search.by_stages(prepared, best, 0.5)),
            }  # fmt: skip
            memory = menu.memory_bytes
            for ratio, options in (
                (1.0, {}), (1.3, {"n_stages": 3}), (2.0, {"optimistic": True}), (3.0, {"memory_bytes": 0.8 * memory}),
                (4.0, {"n_devices": 2, "n_replicas": 2}), (math.inf, {"memory_bytes": 0.5 * memory, "n_stages": 2}),
            ):  # fmt: skip
                reached = threshold.check(prepared, ratio * best.seconds, **options)
                n, labels, label = reached.n_labels, reached.labels, threshold.best_label(reached)
                stages = labels.stages[:n] if "n_stages" in options else None
                one = (
                    threshold.found(prepared, reached, label, **{k: v for k, v in options.items() if k == "memory_bytes"})
                    if label >= 0
                    else None
                )
                found[f"labels {ratio:g}"] = [reached.n_undecided, label, *gist(
                    labels.first, labels.replicas[:n], labels.devices[:n], stages, labels.below[1:n], labels.lower[1:n],
                    labels.option[1:n], one,
                )]  # fmt: skip
        recorded(found, str(seed))


@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_what_a_stage_takes_and_what_is_known_of_it(plain: Plain, recorded: Recorded, kind: int) -> None:
    """Items of every stage, bounds by swaps, decisions asked twice, and what is remembered of them."""
    module, rows, decided = plain("_kernels.pipeline.choice"), [], []
    menu = menu_of(plain, 100 + kind, **KINDS[kind])
    prepared = prepared_of(plain, menu)
    space, items, rules = prepared.space, prepared.kernel_menu, prepared.rules
    memo = prepared.memo._replace(
        pair=np.full(16, -1),
        rest=np.full(16, -1),
        lower=np.zeros(16),
        upper=np.zeros(16),
        sorted=prepared.memo.sorted[:, :3].copy(),
    )
    n_sets = len(space.words)
    for upper, lower, t, r, y in itertools.product(range(1, n_sets), range(0, n_sets, 2), (0, 1), (0, 2), (1, 2, 4)):
        sums = space.sums[upper, t] - space.sums[lower, t]
        if (space.words[lower] & ~space.words[upper]).any() or lower >= upper or sums[6] > 0:
            continue
        rows += [module.stage_items(space, items, rules, upper, lower, t, r, y)]
        held = sums[4] * y + sums[5] + 0.4 * (sums[2] * y + sums[3] - sums[4] * y - sums[5])
        for limit in (held, 0.9 * held):
            if y < memo.sorted.shape[1]:
                rows += [module.swap_bounds(space, items, memo, rules, upper, lower, t, y, limit)]
        decided += [(upper, lower, t, r, y, held, share * (sums[0] + 1.0)) for share in (0.2, 0.6, 2.0)]
    answers = [module.decide(space, items, memo, rules, *question) for question in decided[::3] + decided[:80:2] + decided[:60]]
    for at in range(16):  # asked again for just what is known
        questions = [one for one in decided if one[0] * n_sets + one[1] == memo.pair[at]]
        budgets = [float(known[at]) for known in (memo.lower, memo.upper) if known[at] < math.inf]
        answers += [module.decide(space, items, memo, rules, *one[:6], budget) for one in questions[:6] for budget in budgets]
    recorded(
        {"items": gist(*rows), "answers": gist(*answers), "known": gist(memo.pair, memo.rest, memo.lower, memo.upper)}, "stages"
    )
    count = memo.sorted.clip(0)
    kept = [memo.node[t, y, : count[t, y]] for t in (0, 1) for y in range(3)]
    kept += [table[t, y, : count[t, y]] for table in (memo.saving, memo.price) for t in (0, 1) for y in range(3)]
    recorded(gist(memo.sorted, *kept), "swaps")


@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_what_may_stand_in_nodes_and_what_others_take(plain: Plain, recorded: Recorded, kind: int) -> None:
    nodes, filling, kernel = (
        plain(f"{name}") for name in ("solvers.pipeline.nodes", "solvers.pipeline.filling", "_kernels.pipeline.nodes")
    )
    for seed in (200 + kind, 250 + kind)[: 1 + (kind < 8)]:
        menu = menu_of(plain, seed, **KINDS[kind])
        prepared = prepared_of(plain, menu)
        best, lower = plain("solvers.pipeline.threshold").minimise(prepared, plain("solvers.pipeline.search").relaxation(menu))
        if best is None:
            continue
        behind, crossing = nodes._behind(prepared), plain("solvers.pipeline.menu").crossing(menu)
        found = {"behind": gist(behind)}
        for size, slow, ratio in ((2, 1.5, 1.05), (3, 4.0, 1.3), (4, 2.0, 2.5)):
            if len(np.unique(menu.degrees)) == 2:
                limit = ratio * best.seconds
                found[f"borders {size}"] = gist(
                    kernel.border_seconds(prepared.space, prepared.pairs, crossing, behind, 0.2 * limit, size, slow)
                )
                reached = nodes._check(prepared, crossing, behind, limit, size, slow)
                labels, n = reached.labels, reached.n_labels
                found[f"nodes {size}"] = gist(
                    labels.first, labels.replicas[:n], labels.devices[:n], labels.stages[:n], labels.below[1:n],
                    labels.lower[1:n], labels.option[1:n],
                )  # fmt: skip
            found[f"bound {size}"] = gist(nodes.lower_bound(prepared, size, slow, lower, ratio * best.seconds))
        found["no slower"] = gist(nodes.lower_bound(prepared, 2, 1.0, lower, best.seconds))
        found["others"] = [filling._others(prepared, ratio * best.seconds) for ratio in (1.0, 1.2, 1.7, 3.0)]
        found["between"] = filling._between(prepared, 0.9 * best.seconds, 1.4 * best.seconds, 3)
        found["filling"] = [filling.lower_bound(prepared, lower, ratio * best.seconds, m) for ratio, m in ((1.5, 2), (1.2, 7))]
        recorded(found, str(seed))


def line_menu(plain: Plain, seed: int, **changes: Any) -> Any:
    """Return an instance of seven nodes that are not far from a chain."""
    dice = np.random.default_rng(seed)
    pairs = [(0, 1), (1, 2), (1, 3), (2, 4), (3, 4), (4, 5), (0, 6), (5, 6)]
    n, sizes = 7, dice.integers(1, 4, 14)
    if seed % 4 == 3:
        sizes[1::2][2] = 0
    first = np.concatenate(([0], np.cumsum(sizes)))
    m, group = int(first[-1]), np.repeat(np.arange(14) // 2, sizes)
    counts = [np.array([sum(pair[end] == v for pair in pairs) for v in group], np.int64) for end in (1, 0)]
    weight = dice.uniform(0.0, 3.0, 14)
    given = {
        "n_nodes": n, "edge_source": np.array([u for u, _ in pairs]), "edge_target": np.array([v for _, v in pairs]),
        "edge_seconds": dice.uniform(0.0, 0.4, len(pairs)), "degrees": np.array([1, 2]), "first": first,
        "seconds": dice.uniform(1.0, 3.0, m), "weight_bytes": np.repeat(weight, sizes),
        "per_microbatch_bytes": dice.uniform(0.0, 2.0, m), "fixed_bytes": dice.uniform(0.0, 3.0, m),
        "sync_in_first": np.concatenate(([0], np.cumsum(counts[0]))), "sync_in_seconds": np.zeros(int(counts[0].sum())),
        "sync_out_first": np.concatenate(([0], np.cumsum(counts[1]))), "sync_out_seconds": np.zeros(int(counts[1].sum())),
        "replicas": np.array([1, 2, 3]), "share": 1.0 / np.array([1, 2, 3]),
        "reduce_seconds": np.outer([0.02, 0.01], [0.0, 1.0, 1.5]), "n_devices": 6, "n_replicas": 5,
        "memory_bytes": float(dice.uniform(9.0, 25.0)),
    } | changes  # fmt: skip
    return plain("solvers.pipeline.menu").StageMenu(**given)


LINES: tuple[dict[str, Any], ...] = (
    {}, {"sharded": True}, {"reserve_bytes": np.array([1.0, 2.0])}, {"n_devices": 3}, {"memory_bytes": 7.0},
    {"memory_bytes": 1.0}, {"n_devices": 1, "memory_bytes": 90.0}, {"replicas": np.array([2, 3, 5])}, {"exact": False},
)  # fmt: skip


@pytest.mark.parametrize("seed", range(len(LINES)))
def test_cuts_along_orders_and_plans_near_them(
    plain: Plain, recorded: Recorded, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    search, fill, orders = (plain(f"solvers.pipeline.{name}") for name in ("search", "fill", "orders"))
    menu = line_menu(plain, seed, **LINES[seed])
    every, lower = orders.orders(menu.n_nodes, menu.edge_source, menu.edge_target), search.relaxation(menu)
    found = {"orders": gist(every), "lower": lower}
    for degree in (0, 1):
        line = fill._line(menu, every[-1], degree)
        found[f"line {degree}"] = gist(line) if line is None else gist(*line)
        found[f"cuts {degree}"] = [[*fill.cuts(menu, order, degree, lower)] for order in every]
    found["border"] = [gist(search._border(menu, order)) for order in every]
    found["suffixes"] = gist(*plain("solvers.pipeline.downsets").suffixes(7, every, [[2, 5], [3], [1, 4], [6]][: len(every)]))
    monkeypatch.setattr(search, "MOST_CUTS", 4)
    found["near"] = [sorted(search._near(menu, at)) for at in ([0, 3], [5], [0, 2, 4, 5, 6])]
    place = search._filled(menu, every, lower)
    found["filled"] = [sorted(cut) for cut in place]
    search._spread(menu, every, place)
    found["spread"] = [sorted(cut) for cut in place]
    best, prepared = search._along_orders(menu, lower)
    found["along"] = gist(best, prepared.space, prepared.pairs)
    whole = search.solve(menu, slack_ratio=0.2)
    found["whole"] = [
        gist(whole.found), whole.lower_seconds, whole.method, whole.n_downsets, whole.along_orders, whole.ties_near,
        whole.complete, gist(whole.prepared.space, whole.prepared.pairs),
    ]  # fmt: skip
    monkeypatch.setattr(search, "MOST_WORK", 1)
    near = search.solve(menu)
    found["ties near"] = [gist(near.found, near.lower_seconds), near.ties_near, gist(near.prepared.space)]
    monkeypatch.setattr(search, "FEW_DOWNSETS", 3)
    few = search.solve(menu)
    found["few"] = [gist(few.found), few.method, few.n_downsets, few.along_orders, few.complete]
    monkeypatch.setattr(search, "PAIR_BYTES", 40)
    none = search.solve(menu)
    found["no pairs"] = [none.method, none.n_downsets, none.along_orders, none.complete]
    monkeypatch.setattr(search, "MOST_DOWNSETS", 3)
    found["fits"] = [search.fits(menu), search.least_memory(menu)]
    found["quick"] = gist(search._quick(menu).space)
    recorded(found)
