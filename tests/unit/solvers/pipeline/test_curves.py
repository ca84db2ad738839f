"""The curve over numbers of devices, or of replicas, against a search of its own for every number."""

from __future__ import annotations

import pathlib
import sys
from dataclasses import replace

import pytest

from meshwright.planners.piper import solve
from meshwright.planners.piper.costs.piper import evaluate
from meshwright.planners.piper.menu import Options, menu_of
from meshwright.solvers.pipeline import curves

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "oracle"))

import piper_by_definition as oracle


@pytest.mark.parametrize("seed", range(12))
def test_a_point_is_the_least_number_that_reaches_its_time_and_the_time_is_the_best_up_to_the_next(seed: int) -> None:
    instance = oracle.random_instance(seed, n_nodes=4, n_choices=2, alike=seed % 3 == 0)
    points = curves.steps(menu_of(instance, Options()), "devices")
    counts, times = [count for count, _ in points], [seconds for _, seconds in points]
    assert counts == sorted(set(counts)) and times == sorted(set(times), reverse=True)
    for k in range(1, instance.n_devices + 1):
        smaller = replace(instance, n_devices=k)
        alone = solve.solve(smaller, Options(), nearly_ratio=0.0)
        reached = [seconds for count, seconds in points if count <= k]
        if not alone.stages:
            assert not reached, (k, points)
        else:
            assert min(reached) == pytest.approx(evaluate(smaller, alone.stages).seconds, rel=1e-6), k


@pytest.mark.parametrize("seed", range(6))
def test_replicas_in_all_reach_the_same_best_time_and_fewer_never_a_better_one(seed: int) -> None:
    instance = oracle.random_instance(seed, n_nodes=4, n_choices=2)
    by_devices, by_replicas = (curves.steps(menu_of(instance, Options()), over) for over in ("devices", "replicas"))
    assert bool(by_devices) == bool(by_replicas)
    if by_devices:
        assert by_replicas[-1][1] == pytest.approx(by_devices[-1][1], rel=1e-6)
        assert by_replicas[-1][0] <= by_devices[-1][0], "a replica has a device at least"
        times = [seconds for _, seconds in by_replicas]
        assert times == sorted(set(times), reverse=True)
