"""What ranks put on the same links at the end of a step: no step that is played is shorter, by the search and by the check."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_least_of_fitted_orders import SCHEDULES, posed

from meshwright import clusters, sim
from meshwright.core.plan import Plan, Stage
from meshwright.core.stage_cost import Collective
from meshwright.core.strategy import Strategy
from meshwright.planners.best import fitted_orders, step_ends
from meshwright.planners.best.check.fitted_orders import least_step
from meshwright.planners.best.check.step_ends import LastTraffic
from meshwright.sim import transfers

SLOW = clusters.cluster("two-level:8,per_node=4,bandwidth=1 GB/s")
KINDS = tuple(replace(kind, memory_bytes=1e15) for kind in SLOW.kinds)


@pytest.mark.parametrize("word", SCHEDULES)
def test_no_step_is_shorter_than_its_links_take_at_its_end(word: str) -> None:
    """Ranks of two devices, one on each side of a slow link, reduce gradients and gather weights over it."""
    raised, near = 0, []
    for seed in range(30):
        problem, plan, loads, dice = posed(seed, word)
        problem = replace(problem, cluster=replace(SLOW, kinds=KINDS))
        stages = tuple(
            Stage(own.ops, (rank, rank + 4), Strategy(data=2))
            for own, rank in zip(plan.stages, plan.rank_of_stage(), strict=True)
        )
        plan = Plan(stages, plan.n_microbatches, 1, word, 2 * plan.n_microbatches)
        loads = tuple(
            replace(
                load, recompute_seconds=0.0, output_bytes=1e6, reduce_seconds=reduced, gather_seconds=gathered,
                collectives=(
                    Collective("reduce", "all_reduce", 2, 1, reduced * 1e9, 1.0, reduced),
                    Collective("gather", "all_gather", 2, 1, gathered * 1e9, 1.0, gathered),
                ),
            )
            for load, (reduced, gathered) in zip(loads, 0.1 + dice.exponential((4.0, 1.0), (len(loads), 2)), strict=True)
        )  # fmt: skip
        step = sim.simulate(problem, plan, loads).step_seconds
        on_links, last = step_ends.link_work(problem, plan, loads), LastTraffic(problem, plan, loads)
        found = fitted_orders.least_seconds(problem, plan, loads, on_links=on_links)
        none, ranks = [0.0] * len(loads), [0.0] * len(plan.ranks())
        checked = least_step(plan, loads, transfers.transfers(problem, plan, loads).seconds, none, ranks, (), last)
        assert found <= step * (1 + 1e-9) and checked <= step * (1 + 1e-9), seed
        assert found == pytest.approx(checked, rel=1e-9), seed
        raised += found > fitted_orders.least_seconds(problem, plan, loads) * (1 + 1e-9)
        near.append(found / step)
    assert raised > 15 and np.median(near) > 0.8
