"""The memory of a rank at its peak: by cause, and what of it is allocated, reserved, and the context's."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright import sim
from meshwright.core.cluster import Cluster, Device, Links
from meshwright.core.graph import Graph, Op
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import ModelSpec, Problem
from meshwright.core.stage_cost import StageCost
from meshwright.core.strategy import Strategy

LOAD = StageCost(
    1.0, 1.0, weight_bytes=20.0, gradient_bytes=10.0, optimizer_bytes=60.0, activation_bytes=11.0, working_bytes=5.5,
    reserved_bytes=9.0, communication_bytes=6.0, fragmentation_ratio=0.1,
)  # fmt: skip


def _timeline(stage_costs: tuple[StageCost, ...], n_microbatches: int = 4) -> sim.engine.Timeline:
    graph = Graph("chain", tuple(Op(f"layer{i}", "other") for i in range(len(stage_costs))))
    plan = Plan(tuple(Stage((i,), (i,)) for i in range(len(stage_costs))), n_microbatches, 1, "1f1b", n_microbatches)
    return sim.simulate(Problem(ModelSpec("chain", "test", "chain", graph)), plan, stage_costs)


def test_a_peak_is_tensors_what_the_allocator_wastes_and_the_context() -> None:
    timeline = _timeline((LOAD,))
    assert dict(timeline.memory_causes[0]) == pytest.approx(
        {"weights": 20, "gradients": 10, "optimizer": 60, "activations": 10, "working": 5, "communication": 6, "allocator": 1.5,
         "context": 3}
    )  # fmt: skip
    assert timeline.allocated_bytes == pytest.approx((111,))
    assert timeline.reserved_bytes == pytest.approx((112.5,))
    assert timeline.peak_bytes == pytest.approx((115.5,))


def test_every_micro_batch_in_flight_wastes_its_share() -> None:
    timeline = _timeline((LOAD, LOAD))
    first, last = (dict(causes) for causes in timeline.memory_causes)
    assert first["activations"] == pytest.approx(20) and last["activations"] == pytest.approx(10)
    assert first["allocator"] == pytest.approx(2.5) and last["allocator"] == pytest.approx(1.5)
    assert timeline.peak_bytes[0] == pytest.approx(max(np.asarray(timeline.memory_bytes[0])))


def test_a_plan_fits_if_the_smallest_device_of_every_rank_has_room() -> None:
    """Rank 0 on devices of 80 and 40 bytes holds 50: 10 too many; rank 1 on two of 80 holds 79: one to spare."""
    large, small = (Device(name, (("bf16", 1.0),), n_bytes, 1.0) for name, n_bytes in (("large", 80.0), ("small", 40.0)))
    ids, switch = np.arange(4), np.full(4, 4)
    links = Links(np.r_[ids, switch], np.r_[switch, ids], np.ones(8), np.zeros(8))
    cluster = Cluster("mixed", (large, small), np.array([0, 1, 0, 0]), 1, links, np.zeros((1, 4), dtype=np.int64))
    plan = Plan((Stage((0,), (0, 1), Strategy(data=2)), Stage((1,), (2, 3), Strategy(data=2))), 2, 1, "1f1b", 2)
    problem = Problem(ModelSpec("two", "test", "two", Graph("two", (Op("a", "x"), Op("b", "x")))), cluster)
    assert sim.excess_bytes(problem, plan, (50.0, 79.0)) == pytest.approx(10.0)
    assert sim.excess_bytes(problem, plan, (30.0, 79.0)) == pytest.approx(-1.0)
    assert sim.excess_bytes(problem, plan, (39.0, 60.0)) == pytest.approx(-1.0)
