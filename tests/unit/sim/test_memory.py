"""The memory of a rank at its peak: by cause, and what of it is allocated, reserved, and the context's."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright import sim
from meshwright.core.graph import Graph, Op
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import ModelSpec, Problem
from meshwright.core.stage_cost import StageCost

LOAD = StageCost(
    1.0, 1.0, weight_bytes=20.0, gradient_bytes=10.0, optimizer_bytes=60.0, activation_bytes=11.0, working_bytes=5.5,
    reserved_bytes=9.0, communication_bytes=6.0, fragmentation_ratio=0.1,
)  # fmt: skip


def _timeline(loads: tuple[StageCost, ...], n_microbatches: int = 4) -> sim.engine.Timeline:
    graph = Graph("chain", tuple(Op(f"layer{i}", "other") for i in range(len(loads))))
    plan = Plan(tuple(Stage((i,), (i,)) for i in range(len(loads))), n_microbatches, 1, "1f1b", n_microbatches)
    return sim.simulate(Problem(ModelSpec("chain", "test", "chain", graph)), plan, loads)


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
