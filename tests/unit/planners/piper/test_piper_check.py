"""The independent check of Piper plans: agrees with the search where that is right, and refuses what is not."""

from __future__ import annotations

import pathlib
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshwright.planners.piper import solve
from meshwright.planners.piper.check import plans, sums
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


def test_prices_of_a_byte_decide_many_stages_and_none_otherwise_than_going_through_choices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weighed, n_asked, n_left = sums._Reached._weighed, 0, 0

    def compared(self: Any, k: int, upper: int, some: Any, found: Any) -> Any:
        nonlocal n_asked, n_left
        truth = {}
        for at in range(len(some.replicas)):
            stage = self._stage(upper, int(some.lower[at]), self.kinds[k].degree)
            least = stage.least(int(some.data[at]), int(some.in_flight[at]), self.seconds, False) if stage else float("inf")
            truth[tuple(int(field[at]) for field in some[:5])] = least <= self.seconds
        kept: list[tuple[int, int]] = []

        class Noted:
            def add(self, replicas: Any, devices: Any) -> None:
                kept.extend(zip(replicas.tolist(), devices.tolist(), strict=True))

        noted: Any = Noted()
        left = weighed(self, k, upper, some, noted)
        undecided = {tuple(int(field[at]) for field in left[:5]) for at in range(len(left.replicas))}
        for key, holds in truth.items():
            told = key in undecided or ((key[0], key[1]) in kept if holds else True)
            assert told, "a stage that keeps the threshold was left out"
        wrong = {pair for pair in kept if not any(holds for key, holds in truth.items() if key[:2] == pair)}
        assert not wrong, "a stage that does not keep the threshold was taken"
        n_asked, n_left = n_asked + len(truth), n_left + len(undecided)
        if kept:
            found.add(*np.array(kept, np.int64).T)
        return left

    monkeypatch.setattr(sums._Reached, "_weighed", compared)
    for seed in range(60):
        instance = oracle.random_instance(seed, n_nodes=7, n_choices=3, alike=seed % 2 == 0)
        if seed % 3 == 1:
            instance = replace(instance, counting=replace(instance.counting, shard_optimizer=True))
        instance = replace(instance, memory_bytes=instance.memory_bytes * (0.6 + 0.1 * (seed % 5)))
        for seconds in (4.0, 6.0, 9.0, 13.0):
            plans._exists(instance, Options(), seconds)
    assert n_asked > 150 and n_left < 0.6 * n_asked, (n_asked, n_left)


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
