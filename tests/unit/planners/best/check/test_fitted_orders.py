"""Schedules whose order is fitted to durations keep to the memory of the devices: what fits by the least of all is a plan."""

from __future__ import annotations

import dataclasses
import math
import pathlib

import pytest

from meshwright import api, sim
from meshwright.core.plan import Plan
from meshwright.core.problem import Batch, Problem
from meshwright.core.strategy import Strategy
from meshwright.planners.best.check import device_pools, space
from meshwright.planners.best.check.plays import Plays
from meshwright.planners.best.check.prices import LayerPrices
from meshwright.planners.best.check.proof import BoundProof, Open
from meshwright.planners.best.limits import Limits
from questions import fused

MODEL = pathlib.Path(__file__).resolve().parents[4] / "data" / "proofs" / "l7.json"
ONE = {"pipeline": "3", "data": "1", "tensor": "1", "context": "1", "micro_batch": "1"}


def pose(memory_bytes: float) -> Problem:
    """Return a small question on devices with so much memory."""
    problem = fused(api.make_problem(str(MODEL), "dgx-a100:8", batch=Batch(16, sequence_length=2048), memory_risk=0.5))
    kinds = tuple(dataclasses.replace(kind, memory_bytes=memory_bytes) for kind in problem.required_cluster.kinds)
    return dataclasses.replace(problem, cluster=dataclasses.replace(problem.required_cluster, kinds=kinds))


def plays_of(problem: Problem, schedule: str) -> tuple[Plays, BoundProof, space.CheckedMesh, space.Form]:
    """Return the plans of three ranks of one device with two stages each."""
    limits = space.inside(problem, dataclasses.asdict(Limits(schedules=(schedule,))))
    chain = space.chain_of(problem.graph)
    spaces = space.recompute_spaces(problem, limits)
    prices = LayerPrices(problem, device_pools.pools(problem)[0], chain, limits, spaces[0])
    mesh, form = space.CheckedMesh(1, 1, 1, 1, 1, 3), space.Form(schedule, 2)
    priced = prices.of_ranks(mesh, Strategy(), "pipeline", inside_only=False, spare=prices.spare(mesh, form))
    return Plays(prices, mesh, form, Strategy(), "pipeline", priced), BoundProof(problem, limits, math.inf), mesh, form


@pytest.mark.parametrize(("schedule", "memory_bytes"), [("zb_v", 6.7e9), ("zb_v", 7.1e9), ("v_half", 6.4e9), ("v_min", 6.4e9)])
def test_the_least_that_fits_some_order_is_played_and_mixtures_stay_open(schedule: str, memory_bytes: float) -> None:
    problem = pose(memory_bytes)
    plays, proof, mesh, form = plays_of(problem, schedule)
    counts, held = space.even_counts(proof.n_layers, 6), proof._held(mesh, form)

    def played(plan: Plan | None) -> tuple[float, bool]:
        assert plan is not None
        timeline = sim.simulate(problem, plan, plays.prices.model.stage_costs(problem, plan))
        return timeline.step_seconds, sim.excess_bytes(problem, plan, timeline.peak_bytes) <= 0.0

    first = plays.plan(counts, plays._least_work(counts, held))
    assert first is not None
    seconds, fits = played(first)
    assert fits  # although the shortest of its orders would hold more
    roomy = dataclasses.replace(problem, cluster=pose(80e9).cluster)
    held_by_shortest = sim.simulate(roomy, first, plays.prices.model.stage_costs(roomy, first)).peak_bytes
    assert max(held_by_shortest) > memory_bytes

    # which layers recompute is open: what a rank recomputes at least bounds all of them, and no play does
    assert plays.refuted(counts, None, held, seconds * (1 - 1e-9)) == (not first.recomputes)
    bound = proof.refuted(Open(plays.prices, mesh, form, Strategy(), "pipeline", (tuple(counts),)), 0.9 * seconds)
    assert bound

    answer = api.plan(problem, settings={**ONE, "schedules": schedule}).answer
    assert answer.objective is not None and answer.bound is not None
    assert answer.objective.value <= seconds * (1 + 1e-12)  # another spread of the layers may be quicker
    assert 0.8 * answer.objective.value <= answer.bound.value <= answer.objective.value
    only = {name: (int(value),) for name, value in ONE.items()}
    limits = space.inside(problem, dataclasses.asdict(Limits(**only, schedules=(schedule,))))
    confirmed = BoundProof(problem, limits, answer.bound.value)
    confirmed.run()
    assert not confirmed.open
