"""The pipeline solver against every plan of small random instances."""

from __future__ import annotations

from dataclasses import replace

import piper_by_definition as oracle
import pytest

from meshwright.planners.piper import menu as _piper_menu
from meshwright.planners.piper import solve
from meshwright.planners.piper.costs.piper import evaluate, first_devices
from meshwright.planners.piper.menu import Options


def _solve(instance: oracle.PiperInstance, **options: object) -> solve.Solution:
    return solve.solve(instance, Options(**options), nearly_ratio=0.01)  # type: ignore[arg-type]


CASES = [
    (seed, n_choices, alike, whole)
    for seed in range(12)
    for n_choices, alike, whole in ((2, True, False), (3, False, False), (2, False, True))
]


@pytest.mark.parametrize(("seed", "n_choices", "alike", "whole"), CASES)
def test_the_exact_search_finds_the_best_of_all_plans_and_breaks_ties_as_promised(
    seed: int, n_choices: int, alike: bool, whole: bool
) -> None:
    instance = oracle.random_instance(seed, n_nodes=4 if n_choices == 3 else 5, n_choices=n_choices, alike=alike, whole=whole)
    best = oracle.best(instance)
    solution = _solve(instance)
    if best is None:
        assert solution.stages == ()
        return
    evaluation = evaluate(instance, solution.stages)
    assert evaluation.missing_bytes == 0.0
    assert evaluation.seconds == pytest.approx(best.seconds, rel=1e-11)
    assert solution.lower_seconds <= evaluation.seconds * (1 + 1e-15)
    assert solution.lower_seconds >= evaluation.seconds * (1 - 1e-11)
    devices = sum(stage.data * stage.tensor for stage in solution.stages)
    assert (len(solution.stages), devices) == (best.n_stages, best.n_devices)
    peak = max(cost.memory_bytes for cost in evaluation.stages)
    assert peak == pytest.approx(best.peak_bytes, rel=3e-6, abs=1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_the_greedy_search_equals_the_published_dynamic_program(seed: int) -> None:
    instance = oracle.random_instance(seed, n_nodes=5, alike=seed % 2 == 0)
    value = oracle.published(instance)
    solution = _solve(instance, exact=False)
    if value >= oracle.INFEASIBLE:
        assert solution.stages == ()
    else:
        assert evaluate(instance, solution.stages).seconds == pytest.approx(value, rel=1e-11)


@pytest.mark.parametrize("seed", range(8))
def test_a_small_independent_checker_confirms_the_bound(seed: int) -> None:
    instance = oracle.random_instance(seed, n_nodes=5, n_choices=3, alike=seed % 2 == 0)
    solution = _solve(instance)
    if not solution.stages:
        assert oracle.nothing_below(instance, 1e30)
        return
    assert oracle.nothing_below(instance, solution.lower_seconds * (1 - 1e-11))
    assert not oracle.nothing_below(instance, evaluate(instance, solution.stages).seconds * (1 + 1e-11))


@pytest.mark.parametrize("ratio", [0.01, 1.5])
def test_plans_within_a_ratio_are_those_of_fewest_stages_and_of_fewest_devices_of_all(ratio: float) -> None:
    saved = 0
    for seed in range(30):
        instance = oracle.random_instance(seed, n_nodes=5, alike=seed % 2 == 0, whole=seed % 3 == 0)
        instance = replace(instance, bandwidth=400.0)
        solution = solve.solve(instance, Options(), nearly_ratio=ratio)
        if not solution.stages:
            continue
        value = evaluate(instance, solution.stages).seconds
        near = [plan for plan in oracle.rated(instance) if plan.seconds <= value * (1 + ratio) * (1 - 1e-12)]
        for stages in solution.nearly:
            other = evaluate(instance, stages)
            assert other.missing_bytes == 0.0 and other.seconds <= value * (1 + ratio) * (1 + 1e-9)
        found = [
            (len(stages), sum(stage.data * stage.tensor for stage in stages)) for stages in (*solution.nearly, solution.stages)
        ]
        assert min(found) == min((plan.n_stages, plan.n_devices) for plan in near)
        assert min(n for _, n in found) == min(plan.n_devices for plan in near)
        saved += bool(solution.nearly)
    assert saved >= 1 or ratio < 0.1


NODES = {"node_size": 2, "node_bytes_per_second": 20.0}


def _with_buffers(instance: oracle.PiperInstance) -> oracle.PiperInstance:
    """Return the instance with recomputing choices that keep part of what their activations shrink by as a buffer."""
    nodes = []
    for node in instance.nodes:
        menu = []
        for t, choices in node.choices:
            plain = replace(choices[0], id="vanilla")
            rest = [
                replace(c, activation_bytes=0.3 * plain.activation_bytes,
                static_bytes=plain.static_bytes + 0.7 * plain.activation_bytes)
                for c in choices[1:]
            ]  # fmt: skip
            menu.append((t, (plain, *rest)))
        nodes.append(replace(node, choices=tuple(menu)))
    return replace(instance, nodes=tuple(nodes))


@pytest.mark.parametrize("change", [
    {"any_replicas": True}, {"shard_optimizer": True}, {"layer_buffers": True}, {"tensor_once": True}, {"fill_drain": True},
    NODES,
    {"layer_buffers": True, "shard_optimizer": True, "any_replicas": True}, {"fill_drain": True} | NODES,
    {"tensor_once": True} | NODES,
], ids="+".join)  # fmt: skip
def test_what_is_counted_beyond_the_paper_is_best_of_all_plans_or_between_bound_and_best(change: dict[str, object]) -> None:
    exactly = not {"fill_drain", "node_size"} & set(change)
    n_feasible = n_best = 0
    for seed in range(12):
        instance = oracle.random_instance(seed, n_nodes=4, alike=True)
        if "layer_buffers" in change:
            instance = _with_buffers(instance)
        instance = replace(instance, counting=replace(instance.counting, **change))  # type: ignore[arg-type]
        best = oracle.best_counted(instance)
        solution = _solve(instance)
        assert bool(solution.stages) == (best < float("inf")), seed
        if not solution.stages:
            continue
        evaluation = evaluate(instance, solution.stages)
        assert evaluation.missing_bytes == 0.0
        assert evaluation.seconds >= best * (1 - 1e-11)
        assert solution.lower_seconds <= best * (1 + 1e-11)
        if exactly or solution.method == "exact":
            assert solution.method == "exact"
            assert evaluation.seconds == pytest.approx(best, rel=1e-11), seed
        n_feasible += 1
        n_best += evaluation.seconds <= best * (1 + 1e-11)
    assert n_feasible >= 6
    assert n_best >= 0.7 * n_feasible, "not proven, but nearly always found"


@pytest.mark.parametrize("node_size", [2, 3, 4])
def test_the_bound_with_nodes_is_below_every_plan_and_mostly_meets_the_best(node_size: int) -> None:
    n_solved = n_exact = 0
    for seed in range(30):
        instance = oracle.random_instance(seed, n_nodes=3 + seed % 2, alike=True)
        counting = replace(
            instance.counting,
            node_size=node_size,
            node_bytes_per_second=20.0 if seed % 2 else 9.0,
            any_replicas=seed % 3 == 0,
            shard_optimizer=seed % 5 == 0,
        )
        instance = replace(instance, counting=counting, bandwidth=instance.bandwidth * (0.3 if seed % 4 == 0 else 1.0))
        best = oracle.best_counted(instance)
        solution = _solve(instance)
        assert solution.lower_seconds <= best * (1 + 1e-11), seed
        if solution.stages:
            n_solved += 1
            n_exact += solution.method == "exact"
            assert solution.method != "exact" or evaluate(instance, solution.stages).seconds == pytest.approx(best, rel=1e-11)
    assert n_exact >= 0.7 * n_solved > 0


def test_a_stage_that_fits_into_a_node_is_not_laid_across_two_where_devices_are_to_spare() -> None:
    instance = oracle.random_instance(0, n_nodes=3)
    counting = replace(instance.counting, node_size=4, node_bytes_per_second=9.0)
    stages = [solve.PiperStage((v,), data, 1, ("",)) for v, data in enumerate((3, 2, 4))]
    for n_devices, expected in ((12, (0, 4, 8)), (11, (0, 4, 6)), (10, (0, 4, 6)), (9, (0, 3, 5))):
        assert first_devices(replace(instance, n_devices=n_devices, counting=counting), stages) == expected


@pytest.mark.parametrize("exact", [True, False])
def test_memory_that_is_just_enough_to_the_last_bit_is_enough(exact: bool) -> None:
    for seed in (*range(40), 568, 577, 585, 593):
        instance = oracle.random_instance(seed, n_nodes=6, n_choices=2 + seed % 2, alike=True)
        solution = _solve(instance, exact=exact)
        if not solution.stages:
            continue
        evaluation = evaluate(instance, solution.stages)
        tight = replace(instance, memory_bytes=max(cost.memory_bytes for cost in evaluation.stages))
        again = _solve(tight, exact=exact)
        assert again.stages
        result = evaluate(tight, again.stages)
        assert result.missing_bytes == 0.0
        assert not exact or result.seconds <= evaluation.seconds * (1 + 1e-11)


def test_sizes_of_buffer_that_are_rounded_are_told_apart_where_it_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    """With two ranges of sizes to begin with: what fits is found, what does not is not, and the best is the best of all."""
    monkeypatch.setattr(_piper_menu, "MOST_LEVELS", 2)
    n_refined = n_infeasible = 0
    solved = solve._solved
    calls: list[int] = []
    monkeypatch.setattr(solve, "_solved", lambda *given: (calls.append(0), solved(*given))[1])
    for seed in range(20):
        instance = _with_buffers(oracle.random_instance(seed, n_nodes=4, alike=True))
        instance = replace(
            instance,
            counting=replace(instance.counting, layer_buffers=True),
            memory_bytes=instance.memory_bytes * (0.5 + 0.1 * (seed % 5)),
        )
        calls.clear()
        best = oracle.best_counted(instance)
        solution = _solve(instance)
        n_refined += len(calls) > 1
        n_infeasible += best == float("inf")
        assert bool(solution.stages) == (best < float("inf")), seed
        if solution.stages:
            assert evaluate(instance, solution.stages).seconds == pytest.approx(best, rel=1e-11)
            assert evaluate(instance, solution.stages).missing_bytes <= 1e-9
    assert n_refined and n_infeasible


def test_rounded_sizes_of_buffer_give_a_plan_between_bound_and_best_where_refining_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_piper_menu, "MOST_LEVELS", 2)
    monkeypatch.setattr(solve, "N_REFINED", 1)
    told = 0
    for seed in range(20):
        instance = _with_buffers(oracle.random_instance(seed, n_nodes=4, alike=True))
        instance = replace(
            instance,
            counting=replace(instance.counting, layer_buffers=True),
            memory_bytes=instance.memory_bytes * (0.5 + 0.1 * (seed % 5)),
        )
        best = oracle.best_counted(instance)
        solution = _solve(instance)
        assert solution.lower_seconds <= best * (1 + 1e-11)
        if not solution.stages:
            assert best == float("inf") or solution.notes == (solve.UNPROVEN,)
            continue
        assert evaluate(instance, solution.stages).missing_bytes <= 1e-9
        told += any("rounded up" in note for note in solution.notes)
    assert told
