"""What a split takes at least in all orders of a zero-bubble schedule: below every one that is played, and near it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from meshwright import clusters, schedules, sim
from meshwright.core.graph import Graph, Op
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import ModelSpec, Problem
from meshwright.core.stage_cost import StageCost
from meshwright.planners.best import fitted_orders
from meshwright.planners.best.check.fitted_orders import least_step
from meshwright.sim import transfers

SCHEDULES = ("zb_v", "v_half", "v_min", "dualpipe_v", "zb_h1", "zb_h2")


def posed(seed: int, word: str) -> tuple[Problem, Plan, tuple[StageCost, ...], np.random.Generator]:
    """Return a random pipeline of unlike stages whose transfers share links, on devices of some memory."""
    dice = np.random.default_rng(seed)
    n_ranks, n_chunks = int(dice.integers(2, 5)), 1 if word.startswith("zb_h") else 2
    n, m = n_ranks * n_chunks, int(dice.integers(1, 4 * n_ranks))
    graph = Graph("random", tuple(Op(f"layers.{i}", "mlp") for i in range(n)))
    cluster = clusters.cluster("two-level:4,per_node=2")
    kinds = tuple(replace(kind, memory_bytes=float(dice.uniform(20e9, 60e9)), reserved_bytes=1e9) for kind in cluster.kinds)
    problem = Problem(ModelSpec("random", "random", "random", graph), replace(cluster, kinds=kinds))
    rank = schedules.load(word).placement(n_ranks, n_chunks)
    plan = Plan(tuple(Stage((i,), (int(rank[i]),)) for i in range(n)), m, 1, word, m)
    long = dice.uniform(0.1, 1.0, (6, n)) * dice.choice((0.05, 1.0), (6, n), p=(0.2, 0.8))
    sizes = dice.uniform(1e9, 3e9, (3, n))
    loads = tuple(
        StageCost(
            long[0, i], long[1, i], long[2, i], recompute_seconds=long[3, i] * (dice.random() < 0.5),
            reduce_seconds=3.0 * long[4, i], gather_seconds=0.1 * long[5, i], optimizer_seconds=0.1 * long[5, i],
            overlap_ratio=float(dice.choice((0.0, 0.5, 1.0))),
            activation_bytes=sizes[0, i], working_bytes=sizes[1, i], weight_bytes=sizes[2, i],
            output_bytes=float(dice.choice((0.0, 1e9, 25e9))),
        )
        for i in range(n)
    )  # fmt: skip
    return problem, plan, loads, dice


@pytest.mark.parametrize("word", SCHEDULES)
def test_no_order_is_quicker_than_the_least_of_all_and_the_check_finds_the_same(word: str) -> None:
    ratios = []
    for seed in range(60):
        problem, plan, loads, dice = posed(seed, word)
        bare = tuple(replace(load, recompute_seconds=0.0) for load in loads)
        again = np.array([load.recompute_seconds for load in loads])
        told = again * dice.choice((0.0, 0.5, 1.0), len(again))
        of_rank = np.bincount(plan.rank_of_stage(), again, len(plan.ranks()))
        step = sim.simulate(problem, plan, loads).step_seconds
        for stages, ranks in ((0.0 * told, 0.0 * of_rank), (told, of_rank), (again, of_rank)):
            found = fitted_orders.least_seconds(problem, plan, bare, fitted_orders.LeastRepeated(stages, ranks))
            assert found <= step * (1 + 1e-12), seed
            sent = transfers.transfers(problem, plan, bare).seconds
            assert found == pytest.approx(least_step(plan, bare, sent, stages.tolist(), ranks.tolist()), rel=1e-12)
        ratios.append(found / step)
        assert fitted_orders.least_seconds(problem, plan, loads) == pytest.approx(found, rel=1e-12)
    assert np.median(ratios) > 0.8


def test_of_tasks_alike_the_least_is_what_is_played() -> None:
    """Tasks alike, transfers that take nothing: ZB-V waits nowhere from 2 n - 1 micro-batches on."""
    problem, plan, loads, _ = posed(3, "zb_v")
    alike = tuple(StageCost(1.0, 1.0, 1.0) for _ in loads)
    plan = replace(plan, n_microbatches=12, global_batch=12)
    step = sim.simulate(problem, plan, alike).step_seconds
    assert fitted_orders.least_seconds(problem, plan, alike) == pytest.approx(step)


@pytest.mark.parametrize(("word", "n_least"), [("zb_v", 3), ("v_half", 0), ("v_min", 0), ("zb_h1", 0)])
def test_an_order_that_does_not_fit_is_not_played_where_another_one_does(word: str, n_least: int) -> None:
    """Devices are filled to what the hand-made order holds: so much is enough, and the step no longer than that order's."""
    n_changed = 0
    for seed, ratio in itertools.product(range(30), (1.0, 1.05)):
        problem, plan, loads, _ = posed(seed, word)
        cluster = problem.cluster
        assert cluster is not None
        n_ranks = len(plan.ranks())
        made = schedules.load(word).order(n_ranks, len(loads) // n_ranks, plan.n_microbatches, None)
        room = sim.fits.room(problem, plan, loads)
        assert room is not None
        free = sim.simulate(replace(problem, cluster=_with(cluster, 1e15)), plan, loads)
        held = schedules._fitted._peak_bytes(made, room.kept_bytes, room.working_bytes, schedules.BACKWARD_WEIGHT)
        most = float((held + (cluster.kinds[0].memory_bytes - room.rank_bytes)).max()) * ratio * (1 + 1e-12)
        tight = sim.simulate(replace(problem, cluster=_with(cluster, most)), plan, loads)
        assert max(tight.peak_bytes) <= most
        n_changed += max(free.peak_bytes) > most
        if max(free.peak_bytes) <= most:
            assert tight.step_seconds == free.step_seconds
    assert n_changed >= n_least


def _with(cluster: clusters.Cluster, memory_bytes: float) -> clusters.Cluster:
    return replace(cluster, kinds=tuple(replace(kind, memory_bytes=memory_bytes) for kind in cluster.kinds))
