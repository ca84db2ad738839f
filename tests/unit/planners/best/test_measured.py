"""Planning from a measured profile: against every plan of a small space, on a network where places matter,
and what is refused.
"""

from __future__ import annotations

import itertools
import json
import pathlib
from typing import Any

import pytest

from meshwright import api
from meshwright.base.errors import InputError
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch
from meshwright.core.strategy import Strategy

RACKS = str(pathlib.Path(__file__).resolve().parents[4] / "examples" / "two_racks.yaml")


def profile(folder: pathlib.Path, *, weights: list[float], output_bytes: float = 1000.0, links: float = 0.0) -> str:
    """Write a profile of layers that take `weights` milliseconds per row forward, and twice that backward."""
    layers = [
        {"name": f"{i}", "like": f"{i}", "n_parameters": 100, "weight_bytes": 400.0, "output_bytes": output_bytes}
        for i in range(len(weights))
    ]
    measures = [
        {"layer": f"{i}", "rows": rows, "tensor": 1, "forward_seconds": 1e-3 * weight * rows, "saved_bytes": 1e3 * rows,
         "backward_input_seconds": 1e-3 * weight * rows, "backward_weight_seconds": 1e-3 * weight * rows}
        for i, weight in enumerate(weights) for rows in (1, 8)
    ]  # fmt: skip
    entry: dict[str, Any] = {
        "format": "meshwright/profile/1", "model": "by hand", "sequence_length": 1, "device": "CPU", "n_cores": 4,
        "memory_bytes": 4e9, "optimizer_seconds_per_byte": 1e-9, "layers": layers, "measures": measures,
    }  # fmt: skip
    if links:
        pairs = [
            {"source": a, "target": b, "latency_seconds": 1e-5, "seconds_per_byte": links}
            for a, b in itertools.permutations(range(2), 2)
        ]
        entry["links"] = {"n_ranks": 2, "pairs": pairs, "collectives": []}
    path = folder / "profile.json"
    path.write_text(json.dumps(entry))
    return str(path)


def test_best_reads_a_profile_and_no_plan_of_its_space_is_faster(tmp_path: pathlib.Path) -> None:
    problem = api.make_problem(profile(tmp_path, weights=[1.0, 2.0, 1.0, 3.0, 1.5], links=1e-9), batch=Batch(8))
    result = api.plan(problem, search="best")
    assert result.timeline is not None and result.answer.bound is not None and result.answer.objective is not None
    every = []
    for m, schedule in itertools.product((1, 2, 4, 8), ("1f1b", "zb_h1", "gpipe")):
        for at in range(1, 5):
            cut = (Stage(tuple(range(at)), (0,)), Stage(tuple(range(at, 5)), (1,)))
            every.append(Plan(cut, m, 8 // m, schedule, 8))
        every.append(Plan((Stage(tuple(range(5)), (0,)),), m, 8 // m, schedule, 8))
        if m < 8:
            every += [
                Plan((Stage(tuple(range(5)), (0, 1), Strategy(data=2, shard=shard)),), m, 4 // m, schedule, 8)
                for shard in range(4)
            ]
    fastest = min(timeline.step_seconds for plan in every if (timeline := api.evaluate(problem, plan)[1]) is not None)
    assert result.timeline.step_seconds == pytest.approx(fastest, rel=1e-9)
    assert result.answer.bound.value <= fastest


def test_stages_are_placed_so_that_the_slow_trunk_is_crossed_once(tmp_path: pathlib.Path) -> None:
    path = profile(tmp_path, weights=[0.1] * 8, output_bytes=8192.0)
    settings = {"pipeline": "4", "data": "1", "micro_batch": "8"}
    plan = api.plan(api.make_problem(path, RACKS, batch=Batch(64)), search="best", settings=settings).plan
    racks = [stage.devices[0] % 2 for stage in plan.stages]
    assert sorted(device for stage in plan.stages for device in stage.devices) == [0, 1, 2, 3]
    assert sum(a != b for a, b in itertools.pairwise(racks)) == 1


def test_what_does_not_fit_is_said_with_the_bytes_missing(tmp_path: pathlib.Path) -> None:
    path = profile(tmp_path, weights=[1.0, 1.0], links=1e-9)
    entry = json.loads(pathlib.Path(path).read_text())
    for layer in entry["layers"]:
        layer["weight_bytes"] = 4e9
    pathlib.Path(path).write_text(json.dumps(entry))
    answer = api.plan(path, search="best", batch=Batch(8)).answer
    assert answer.plan is None
    assert answer.missing_bytes > 1e9


def test_a_profile_without_links_asks_for_a_cluster(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match="--cluster"):
        api.plan(profile(tmp_path, weights=[1.0, 1.0]), search="best", batch=Batch(8))
