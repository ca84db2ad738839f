"""A table that embedding and head share, under every schedule: held once by a rank that has both, else by each of two ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright import api, sim
from meshwright.core.problem import Batch
from meshwright.costs import analytic
from meshwright.planners.best import plans
from meshwright.planners.best.costs import Costs
from meshwright.planners.best.layer_sums import chain_of
from meshwright.planners.best.space import Config, MeshDegrees, pools

SCHEDULES = (
    ("1f1b", 1), ("gpipe", 1), ("zb_h1", 1), ("zb_h2", 1), ("early_backward_b", 1), ("interleaved_1f1b", 2), ("looped_bfs", 2),
    ("zb_v", 2), ("v_half", 2), ("v_min", 2),
)  # fmt: skip


@pytest.mark.parametrize(("schedule", "n_chunks"), SCHEDULES)
@pytest.mark.parametrize("shard", [0, 1, 3])
def test_the_simulator_holds_a_table_on_each_rank_that_has_a_layer_of_it(schedule: str, n_chunks: int, shard: int) -> None:
    """Over all ranks the weights are those of the model, and the table once more where embedding and head lie on two ranks."""
    problem = api.make_problem("gpt2", "dgx-h100:8", batch=Batch(16, 1))
    costs = Costs(problem, pools(problem.required_cluster)[0], chain_of(problem.graph))
    config = Config(MeshDegrees(2, 4, 1, 1, 1, 1), shard, 0, schedule, n_chunks, "pipeline")
    counts = [12 // (2 * n_chunks)] * (2 * n_chunks)
    plan = plans.bare(costs, config, 4, tuple(counts))
    assert plan is not None
    loads = analytic.stage_costs(problem, plan)
    timeline = sim.simulate(problem, plan, loads)
    table = 50257 * 768
    on_two = plan.rank_of_stage()[0] != plan.rank_of_stage()[-1]
    n_held = problem.graph.n_parameters + on_two * table
    bytes_each = 4 if shard == 3 else problem.training.weight_bytes  # of an fp32 shard
    held = sum(dict(causes)["weights"] for causes in timeline.memory_causes)
    assert held == pytest.approx(bytes_each * n_held / (4 if shard == 3 else 1), rel=1e-12)
    # the search's prices of rows are those of its plans, and collectives say what their seconds are
    assert costs.stage_costs(config, plan) == tuple(replace(load, collectives=()) for load in loads)
    for load in loads:
        for part, seconds in (("reduce", load.reduce_seconds), ("gather", load.gather_seconds)):
            said = sum(one.seconds for one in load.collectives if one.part == part)
            assert said == pytest.approx(seconds, rel=1e-9, abs=1e-12)
