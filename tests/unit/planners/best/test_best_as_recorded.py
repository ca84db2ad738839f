"""What every function of the joint search returned on small questions, as one check sum of each, is as it was recorded."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright import api
from recorded import Recorded
from returned import Returned
from small_questions import question

UNSAID = tuple(f"planners/best/{name}" for name in (
    # large tables, handed on again and again: what is made of them is watched, and `test_recorded_joint` looks at them once
    "costs:Costs.rows", "costs:Costs._least_rows", "costs:Costs.without_sharding", "costs:Costs.digests",
    "costs:Costs.settled", "costs:Costs.stacked", "costs:Costs.classes", "costs:Costs.recomputing", "costs:Costs._main_layers",
    "costs:Costs.stage_costs", "costs:Costs.peaks", "ranks:JoinedLoads.least", "ranks:JoinedLoads.with_state",
    "plans:ranks_of", "memory:RowFigures.of", "memory:RowFigures.layers", "inequalities:_memory", "inequalities:chain_to_cut",
    "inequalities:_Asked.of", "inequalities:_Asked.later", "layer_sums:digest", "layer_sums:stacked",
))  # fmt: skip

ASKED: tuple[tuple[str, str, float, dict[str, str], dict[str, Any]], ...] = (
    ("like", "nodes", 0.6, {"tensor": "1"}, {}),
    ("mixed", "kinds", 0.5, {"tensor": "1", "shard": "0,2", "schedules": "1f1b,zb_v,looped_bfs"}, {}),
    ("mixed", "sorts", 4.0, {"tensor": "1", "shard": "0,2", "schedules": "1f1b,zb_h1", "micro_batch": "2"}, {}),
    ("like", "sorts", 0.16, {"tensor": "1", "micro_batch": "1,2"}, {}),
    ("mixed", "nodes", 0.35, {"tensor": "1", "within_ratio": "0.3", "expert": "1"}, {}),
    ("like", "nodes", 0.42, {"tensor": "1,2", "pipeline": "1,2", "alternatives": "1"},
     {"recompute_scope": "plan", "block_recompute": True}),
)  # fmt: skip


@pytest.mark.parametrize("case", range(len(ASKED)))
def test_what_the_functions_of_a_search_return(recorded: Recorded, case: int) -> None:
    model, cluster, gigabytes, settings, limits = ASKED[case]
    problem = question(model, cluster, gigabytes=gigabytes, **limits)
    with Returned("planners/best/", "_kernels/best/", without=UNSAID) as found:
        answer = api.plan(problem, search="best", settings={"context": "1", "micro_batch": "1", **settings}).answer
    recorded([answer.objective and answer.objective.value, answer.bound and answer.bound.value, answer.missing_bytes], "answer")
    recorded(found.lines(), "functions")
