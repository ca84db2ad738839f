"""The independent check of Piper plans: agrees with the search where that is right, and refuses what is not."""

from __future__ import annotations

import pathlib
import sys
from dataclasses import replace
from typing import Any

import pytest

from meshwright.planners.piper import solve
from meshwright.planners.piper.check.plans import ClaimedStage, check
from meshwright.planners.piper.costs.piper import evaluate
from meshwright.planners.piper.menu import Options

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "oracle"))

import piper_by_definition as oracle


def claimed(stages: Any) -> list[ClaimedStage]:
    return [ClaimedStage(stage.nodes, stage.data, stage.tensor, stage.choices) for stage in stages]


@pytest.mark.parametrize("change", [
    {}, {"any_replicas": True}, {"shard_optimizer": True}, {"layer_buffers": True}, {"tensor_once": True}, {"fill_drain": True},
    {"node_size": 2, "node_bytes_per_second": 20.0},
], ids=str)  # fmt: skip
def test_what_the_search_answers_is_confirmed_and_a_bound_above_the_best_is_not(change: dict[str, Any]) -> None:
    refused = 0
    for seed in range(10):
        instance = oracle.random_instance(seed, n_nodes=5, n_choices=2, alike=True)
        instance = replace(instance, counting=replace(instance.counting, **change))
        solution = solve.solve(instance, Options(), nearly_ratio=0.0)
        if not solution.stages:
            continue
        value = evaluate(instance, solution.stages).seconds
        verdict = check(instance, Options(), claimed(solution.stages), value, solution.lower_seconds)
        assert verdict.valid, verdict.reason
        assert verdict.value == pytest.approx(value, rel=1e-12)
        assert not check(instance, Options(), claimed(solution.stages), value * 1.001, solution.lower_seconds).valid
        slow = next(iter(_single(instance)), None)
        if solution.method == "exact" and not change and slow is not None and slow[0] > value * 1.01:
            verdict = check(instance, Options(), [slow[1]], slow[0], value * 1.005)
            assert not verdict.valid and "there is a plan" in verdict.reason
            refused += 1
    assert change or refused >= 3


def _single(instance: oracle.PiperInstance) -> list[tuple[float, ClaimedStage]]:
    """Return plans of one stage on one device that fit."""
    nodes = tuple(range(len(instance.nodes)))
    if any(not instance.nodes[v].at(1) for v in nodes):
        return []
    stage = solve.PiperStage(nodes, 1, 1, tuple(instance.nodes[v].at(1)[-1].id for v in nodes))
    evaluation = evaluate(instance, [stage])
    return [(evaluation.seconds, claimed([stage])[0])] if evaluation.missing_bytes == 0.0 else []


@pytest.mark.parametrize("all_or_none", [False, True])
def test_the_greedy_choice_is_checked_by_its_description(all_or_none: bool) -> None:
    """Two and three choices a layer: the search's answer is confirmed, a bound above it is not."""
    options = Options(exact=False, all_or_none=all_or_none)
    n_checked = 0
    for seed in range(24):
        instance = oracle.random_instance(seed, n_nodes=5, n_choices=2 + seed % 2, alike=True)
        instance = replace(instance, memory_bytes=0.8 * instance.memory_bytes)
        solution = solve.solve(instance, options, nearly_ratio=0.0)
        if not solution.stages:
            continue
        value = evaluate(instance, solution.stages).seconds
        verdict = check(instance, options, claimed(solution.stages), value, solution.lower_seconds)
        assert verdict.valid, (seed, verdict.reason)
        slow = next(iter(_single(instance)), None)
        if slow is not None and slow[0] > value * 1.01:
            verdict = check(instance, options, [slow[1]], slow[0], value * 1.005)
            assert not verdict.valid and "there is a plan" in verdict.reason
            n_checked += 1
    assert n_checked >= 2


def test_with_fill_and_drain_a_bound_above_the_best_of_all_plans_is_refused() -> None:
    n_refused = 0
    for seed in range(16):
        instance = oracle.random_instance(seed, n_nodes=4, n_choices=2, alike=True)
        instance = replace(instance, counting=replace(instance.counting, fill_drain=True))
        best = oracle.best_counted(instance)
        if best == float("inf"):
            continue
        solution = solve.solve(instance, Options(), nearly_ratio=0.0)
        value = evaluate(instance, solution.stages).seconds
        assert check(instance, Options(), claimed(solution.stages), value, min(best, value)).valid
        slow = next(iter(_single(instance)), None)
        if slow is not None and slow[0] > best * 1.01:
            verdict = check(instance, Options(), [slow[1]], slow[0], best * 1.005)
            assert not verdict.valid and "there is a plan" in verdict.reason
            n_refused += 1
    assert n_refused >= 2
