"""Memory that a plan fills to the last byte: no rounding of sums makes a bound refuse it, or ask it to recompute."""

from __future__ import annotations

import dataclasses
import math

import pytest

from meshwright import sim
from meshwright.core.plan import Plan
from meshwright.planners.best import bounds, plans
from meshwright.planners.best import space as joint
from meshwright.planners.best.check import device_pools, space
from meshwright.planners.best.check.prices import LayerPrices
from meshwright.planners.best.check.proof import BoundProof, Open
from meshwright.planners.best.costs import Costs
from meshwright.planners.best.layer_sums import chain_of
from meshwright.planners.best.search.best import Params
from meshwright.planners.best.space import Config, MeshDegrees
from meshwright.planners.best.virtual import spread
from small_questions import question

FORMS = (  # schedule, stages per rank, pipeline and data degree
    ("1f1b", 1, 1, 2), ("1f1b", 1, 2, 1), ("1f1b", 1, 3, 2), ("gpipe", 1, 2, 2), ("zb_h1", 1, 3, 1),
    ("interleaved_1f1b", 2, 2, 2), ("looped_bfs", 2, 2, 2), ("zb_v", 2, 2, 1), ("v_half", 2, 2, 1),
    ("dualpipe_v", 2, 2, 1),
)  # fmt: skip
WAYS = (("none",), ("none", "full"), ("none", "selective", "full"), ("full",))


def filled(costs: Costs, config: Config, plan: Plan, m: int) -> tuple[float, float]:
    """Return the step of a plan and the memory that it fills, under ZB-H1 with all that the schedule allows."""
    timeline = sim.simulate(costs.problem, plan, costs.model.stage_costs(costs.problem, plan))
    if config.schedule != "zb_h1":
        return timeline.step_seconds, max(timeline.peak_bytes)
    loads = costs.stage_costs(config, plan)
    held = costs.peaks(config, m).held[:, 0, 0]
    every = zip(loads, held, strict=True)
    most = max(own.static_bytes + own.reserved_bytes + own.working_bytes + n * own.activation_bytes for own, n in every)
    return timeline.step_seconds, most


@pytest.mark.parametrize(
    ("model", "sequence", "shard"), [("like", 1502, 0), ("like", 1778, 2), ("mixed", 1234, 2), ("mixed", 1502, 0)]
)
def test_a_plan_that_fills_the_memory_fits_by_every_bound(model: str, sequence: int, shard: int) -> None:
    roomy = question(model, "nodes", sequence=sequence, gigabytes=60.0)
    chain, pool = chain_of(roomy.graph), joint.pools(roomy.required_cluster)[0]
    for schedule, chunks, pipeline, data in FORMS:
        config = Config(MeshDegrees(pipeline, data, 1, 1, 1, 1), shard if data > 1 else 0, 0, schedule, chunks, "pipeline")
        counts, m = spread(len(chain.layers), pipeline, chunks), 8 // data
        for words in WAYS:
            costs = Costs(roomy, pool, chain, words)
            plan = plans.bare(costs, config, m, counts)
            assert plan is not None
            step, memory = filled(costs, config, plan, m)
            kinds = tuple(dataclasses.replace(kind, memory_bytes=memory) for kind in roomy.required_cluster.kinds)
            problem = dataclasses.replace(roomy, cluster=dataclasses.replace(roomy.required_cluster, kinds=kinds))
            own, told = Costs(problem, pool, chain, words), (config, words)
            assert plans.with_counts(own, config, m, counts) == plan and not plans.never_fits(own, config, m, counts), told
            assert bounds.of_config(own, config, m, 1e6) <= step * (1 + 1e-9), told
            limits = space.inside(problem, dataclasses.asdict(Params(recompute=words)))
            proof = BoundProof(problem, limits, math.inf)
            only = space.recompute_spaces(problem, limits)[0]
            prices = LayerPrices(problem, device_pools.pools(problem)[0], proof.chain, limits, only)
            mesh = space.CheckedMesh(1, 1, 1, 1, data, pipeline)
            one = Open(prices, mesh, space.Form(schedule, chunks), config.strategy, "pipeline")
            assert not proof.refuted(one, step * (1 + 1e-6)), told
