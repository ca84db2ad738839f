"""Which other splits of the layers are tried from one, and that the climb ends at a plan that none of its moves improves."""

from __future__ import annotations

import json
import pathlib

from meshwright import api, sim
from meshwright.core.problem import Batch, Stop
from meshwright.core.stage_cost import StageCost
from meshwright.planners.best import plans, splits
from meshwright.planners.best.branch_and_bound import BestFirstSearch
from meshwright.planners.best.limits import Limits
from meshwright.planners.best.space import pools

TINY = pathlib.Path(__file__).resolve().parents[3] / "data" / "tiny_llama.json"
LOADS = tuple(StageCost(forward, forward, forward) for forward in (1.0, 4.0, 2.0, 3.0))


def test_layers_move_to_neighbours_from_the_busiest_stage_first() -> None:
    found = list(splits._moves((1, 4, 1, 3), LOADS, far=False))
    assert found[0] == (2, 3, 1, 3) and found[1] == (1, 3, 2, 3)  # to the idlest neighbour first
    assert sorted(found) == sorted([(2, 3, 1, 3), (1, 3, 2, 3), (1, 4, 2, 2), (0, 5, 1, 3)])


def test_far_from_the_bound_layers_move_between_any_stages_and_change_places() -> None:
    near, found = list(splits._moves((1, 4, 1, 3), LOADS, far=False)), list(splits._moves((1, 4, 1, 3), LOADS, far=True))
    assert found[: len(near)] == near and found == list(splits._moves((1, 4, 1, 3), LOADS, far=True))
    assert {(4, 1, 1, 3), (1, 1, 4, 3), (1, 3, 1, 4), (3, 4, 1, 1), (1, 4, 3, 1)} <= set(found)  # exchanged
    assert {(1, 3, 1, 4), (1, 5, 1, 2), (2, 4, 1, 2), (0, 4, 2, 3), (0, 4, 1, 4)} <= set(found)  # one moved
    assert all(sum(own) == 9 and min(own[1:-1]) >= 1 and min(own) >= 0 and own != (1, 4, 1, 3) for own in found)


def test_a_climb_where_links_are_slow_ends_where_no_move_is_quicker(tmp_path: pathlib.Path) -> None:
    model = tmp_path / "eleven_layers.json"
    model.write_text(json.dumps(json.loads(TINY.read_text()) | {"num_hidden_layers": 11}))
    cluster = "two-level:4,per_node=2,device=a100-sxm-80gb,bandwidth=0.1 GB/s"
    problem = api.make_problem(str(model), cluster, batch=Batch(12), memory_risk=0.5)
    one = (1,)
    search = BestFirstSearch(
        problem, Limits(pipeline=(4,), schedules=("zb_h1",), data=one, tensor=one, context=one, micro_batch=one), Stop()
    )
    for pool in pools(problem.required_cluster):
        search.add(pool)
    search.run()
    first = search.found[0]
    last = splits._move_layers(search, first, 200)
    assert last.step_seconds < 0.99 * first.step_seconds and last in search.found
    costs, counts = (
        search.costs[last.pool],
        tuple(sum(op in search.chain.layers for op in stage.ops) for stage in last.plan.stages),
    )
    for trial in splits._moves(counts, costs.stage_costs(last.config, last.plan), far=True):
        plan = plans.with_counts(costs, last.config, 12, trial)
        assert plan is None or sim.least_seconds(problem, plan, costs.stage_costs(last.config, plan)) >= last.step_seconds
