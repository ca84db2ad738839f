"""The states of the joint search on small questions, step by step, are as they were recorded."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from gists import gist
from meshwright.core.problem import Stop
from meshwright.planners.best import certificate, costs, plans, ranks, splits
from meshwright.planners.best.branch_and_bound import BestFirstSearch
from meshwright.planners.best.limits import Limits
from meshwright.planners.best.space import Config, MeshDegrees, pools
from recorded import Recorded
from small_questions import question

ASKED: tuple[tuple[Any, ...], ...] = (
    ("like", "nodes", 0.6, Limits(micro_batch=(1,)), {}),
    ("mixed", "kinds", 0.5, Limits(context=(1,), micro_batch=(1,), schedules=("1f1b", "zb_v", "looped_bfs")), {}),
    ("mixed", "sorts", 4.0, Limits(expert=(1, 2), shard=(0, 2), schedules=("1f1b", "zb_h1"), micro_batch=(2,)), {}),
    ("like", "nodes", 0.45, Limits(uniform=True, micro_batch=(1, 2)), {"recompute_scope": "plan"}),
    ("like", "sorts", 0.16, Limits(tensor=(1, 2)), {}),
)  # fmt: skip


def state_of(search: BestFirstSearch) -> dict[str, Any]:
    return {
        "heap": gist([entry[:4] for entry in sorted(search.heap, key=lambda entry: (entry[:3], repr(entry[3])))]),
        "later": gist([entry[:4] for entry in search.later]), "open": gist(search.open),
        "found": [[one.pool, gist(one.config), one.step_seconds] for one in search.found],
        "counts": [search.n_evaluations, search.n_built, search.n_looked, len(search.too_large), len(search.heap)],
        "refused": search.refused, "large": gist(search.too_large), "proven": search.proven, "spent": search.is_spent,
    }  # fmt: skip


@pytest.mark.parametrize("case", range(len(ASKED)))
def test_the_search_goes_on_as_it_did(recorded: Recorded, case: int) -> None:
    model, cluster, gigabytes, params, limits = ASKED[case]
    problem = question(model, cluster, gigabytes=gigabytes, **limits)
    search = BestFirstSearch(problem, params, Stop())
    for pool in pools(problem.required_cluster):
        search.add(pool)
    states = [state_of(search)]
    for n in (1, 2, 40):
        search.allow(n)
        search.run()
        states.append(state_of(search))
    splits.improve(search, n_most=4)
    splits.close(search, 12)
    states.append(state_of(search))
    asked = []
    for one in search.found[:8]:
        own, config = search.costs[one.pool], one.config
        asked.append([
            search._closed(own, config, one.plan), search._with_transfers(own, config, one.plan),
            search.least_seconds(own, config, one.plan), search._limit_of_bound(config),
            plans.only_split_never_fits(own, config, search.n_microbatches(config.mesh)),
            gist(plans.even(own, config, search.n_microbatches(config.mesh))), search.limit(config),
        ])  # fmt: skip
    left = [
        [plans.only_split_never_fits(search.costs[pool], config, search.n_microbatches(config.mesh))]
        for pool, config, light in search.too_large
        if not light
    ][:20]
    told = search.certificate()
    recorded(
        {
            "states": states,
            "asked": asked,
            "left": gist(left),
            "sets": gist(told["sets"]),
            "asks": gist(told["question"]["limits"]),
        }
    )
    answer = search.answer(("first",))
    extra = {name: value for name, value in answer.extra.items() if name != "certificate"}
    recorded([answer.notes, answer.nearest, answer.missing_bytes, answer.infeasible_proven, gist(extra)], "answer")


def test_what_loads_depend_on_by_hand() -> None:
    mesh = MeshDegrees(3, 4, 2, 2, 4, 1)
    one = Config(mesh, 0, 0, "1f1b", 1, "data")
    assert ranks.loads_key(one, light=False) == (4, 2, 2, 4, 1, 0, 0, 3, False)
    assert ranks.loads_key(one, light=True) == (0, 2, 2, 4, 1, 0, 0, 0, True)
    blocks = dataclasses.replace(one, layout="pipeline", shard=3, shard_degree=2)
    assert ranks.loads_key(blocks, light=False) == (4, 2, 2, 4, 1, 3, 2, 0, False)
    assert ranks.loads_key(blocks, light=True)[0] == 4
    odd = dataclasses.replace(one, mesh=dataclasses.replace(mesh, data=3))
    assert ranks.loads_key(odd, light=True)[0] == 3
    assert costs.after_name(one) == "after_seconds"
    assert costs.after_name(dataclasses.replace(one, schedule="zb_h1")) == "split_after_seconds"


def test_a_certificate_counts_meshes_by_what_closes_them() -> None:
    problem, record = question("like", "nodes"), certificate.Record()
    pool = list(pools(problem.required_cluster))
    first, second, third = (MeshDegrees(1, data, 1, 1, 1, 1) for data in (1, 2, 4))
    record.illegal[0, first] = record.illegal[0, dataclasses.replace(first, pipeline=2)] = None
    record.illegal[0, dataclasses.replace(first, tensor=3)] = None
    for seconds in (1.0, 3.0):
        record.bound(0, second, seconds)
    for seconds in (2.0 * (1.0 - 1e-10), 5.0):
        record.bound(0, third, seconds)
    for seconds in (1.0, 1.1, 1.2):
        record.bound(0, dataclasses.replace(third, pipeline=2), seconds)
    assert record.bounds[0, second] == (1.0, 3.0)
    found = certificate.certificate(problem, Limits(shard=(0, 1)), pool, record, 5, 2.0)
    shape = {"pool": 0, "tensor": 1, "context": 1, "expert": 1, "micro_batch": 1}
    assert found["bound_seconds"] == 2.0 and found["format"] == certificate.FORMAT
    two_ranks = dataclasses.replace(third, pipeline=2)
    counts = certificate.Counts(problem, Limits(shard=(0, 1)), 5, (True, True))
    n = counts.of(pool[0], two_ranks, ("ring",))
    # 1F1B, ZB-H1, two virtual stages in three spreads, three in one (the last has no layer); two shardings, two layouts
    assert n == (2 + 3 + 1) * 2 * 2
    assert found["sets"] == [
        {**shape, "by": "compute", "n_meshes": 1, "seconds": 3.0},
        {**shape, "by": "configurations", "n_meshes": 1, "seconds": 2.0, "n_configurations": n},
        {**shape, "by": "illegal", "n_meshes": 2}, {**shape, "by": "peak", "n_meshes": 1, "seconds": 2.0 * (1.0 - 1e-10)},
        {**shape, "tensor": 3, "by": "illegal", "n_meshes": 1},
    ]  # fmt: skip
    nothing = certificate.certificate(problem, Limits(), pool, record, 5, math.inf)
    assert nothing["bound_seconds"] is None and {one["by"] for one in nothing["sets"]} == {"illegal", "memory"}
