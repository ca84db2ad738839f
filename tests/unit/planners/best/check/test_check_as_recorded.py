"""What every function of the check returned on small questions, as one check sum of each, is as it was recorded."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from meshwright.base import options
from meshwright.planners.best.check import space
from meshwright.planners.best.check.proof import BoundProof
from meshwright.planners.best.search.best import Params
from recorded import Recorded
from returned import Returned
from small_questions import question

UNSAID = tuple(f"planners/best/check/{name}" for name in (
    # tables of prices, handed on again and again: what is made of them is watched, and `test_recorded_check` looks at them once
    "prices:LayerPrices.of_ranks", "prices:LayerPrices._ranks", "prices:LayerPrices._table", "prices:LayerPrices.unsharded",
    "prices:LayerPrices.any_sharding", "prices:least", "whole_stages:sums_of", "plays:Plays.stage_costs",
    "proof:BoundProof._held", "proof:BoundProof._bounded", "virtual_stages:VirtualStages.least_moments",
))  # fmt: skip

ASKED: tuple[tuple[str, str, float, dict[str, str], tuple[float, ...], dict[str, Any]], ...] = (  # bounds in seconds
    ("like", "nodes", 0.6, {"tensor": "1"}, (0.0188501, 0.0194), {}),
    ("mixed", "kinds", 0.5, {"tensor": "1", "schedules": "1f1b,zb_v,looped_bfs", "shard": "0,2"}, (0.0077,), {}),
    ("mixed", "sorts", 4.0, {"schedules": "1f1b,zb_h1", "micro_batch": "2", "expert": "1,2", "shard": "0,2"}, (0.0084,), {}),
    ("like", "sorts", 0.16, {"tensor": "1", "micro_batch": "1,2"}, (math.inf,), {}),
    ("mixed", "nodes", 0.35, {"tensor": "1", "expert": "1"}, (0.0047, math.inf), {}),
    ("like", "nodes", 0.42, {"tensor": "1,2", "pipeline": "1,2"}, (0.0185, math.inf),
     {"recompute_scope": "plan", "block_recompute": True}),
)  # fmt: skip


@pytest.mark.parametrize("case", range(len(ASKED)))
def test_what_the_functions_of_a_proof_return(recorded: Recorded, case: int) -> None:
    model, cluster, gigabytes, settings, bounds, limits = ASKED[case]
    problem = question(model, cluster, gigabytes=gigabytes, **limits)
    asked = options.parse(Params, {"context": "1", "micro_batch": "1", **settings}, "search best")
    for bound in bounds:
        with Returned("planners/best/check/", without=UNSAID) as found:
            proof = BoundProof(problem, space.inside(problem, dataclasses.asdict(asked)), bound)
            proof.run()
        recorded([len(proof.open), proof.n_played, proof.flops, len(proof.sets)], f"{bound}")
        recorded(found.lines(), f"{bound}, functions")
