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
from meshwright.planners.best.check.virtual_stages import Spreads
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


@pytest.mark.parametrize("schedule", ["interleaved_1f1b", "looped_bfs", "zb_v", "dualpipe_v"])
@pytest.mark.parametrize("model", ["llama-3.2-1b", "gpt-oss-20b"])
def test_stages_added_up_from_layers_are_those_of_the_model(model: str, schedule: str) -> None:
    """Of every spread, with all kinds of communication; in the order of its tasks none takes longer than as it is played."""
    batch = Batch(16, sequence_length=512)
    problem = api.make_problem(model, "two-level:8,per_node=2,bandwidth=0.1 GB/s", batch=batch)
    limits = space.inside(problem, dataclasses.asdict(Limits(schedules=(schedule,))))
    chain = space.chain_of(problem.graph)
    prices = LayerPrices(problem, device_pools.pools(problem)[0], chain, limits, space.recompute_spaces(problem, limits)[0])
    expert = 2 if any(operator.expert for op in problem.graph.ops for operator in op.body) else 1
    mesh, form = space.CheckedMesh(2, 1, expert, 1, 2, 2), space.Form(schedule, 2)
    strategy = Strategy(2, 2, 1, expert, True, shard=2)
    priced = prices.of_ranks(mesh, strategy, "pipeline", inside_only=False, spare=prices.spare(mesh, form))
    plays = Plays(prices, mesh, form, strategy, "pipeline", priced)
    every = space.split_counts(chain, form, 2, limits)
    spreads = Spreads(prices, mesh, form, priced, every)
    for i, counts in enumerate(every):
        plan, found = plays.plan(counts), spreads.stage_costs(i)
        assert plan is not None
        wanted = prices.model.stage_costs(problem, plan)
        for name in ("forward_total_seconds", "backward_total_seconds", "backward_weight_seconds", "reduce_seconds",
                     "overlap_ratio", "output_bytes", "output_gradient"):  # fmt: skip
            assert [getattr(load, name) for load in found] == pytest.approx(
                [getattr(load, name) for load in wanted], rel=1e-9
            ), name
        assert [own.optimizer_seconds for own in found] == pytest.approx(
            [own.optimizer_seconds + own.gather_seconds for own in wanted]
        )
        step = sim.simulate(problem, plan, wanted).step_seconds
        assert 0.5 * step < plays.least_in_order(counts, found) <= step * (1.0 + 1e-9)
        if not form.is_split:  # a given order: all that is left out is that traffic shares links
            assert plays.least_in_order(counts, found) <= sim.least_seconds(problem, plan, wanted) * (1.0 + 1e-9)
