"""Of plans nearly as quick as the best the simplest is the answer; the order of simplicity; what is said of the fastest."""

from __future__ import annotations

import pathlib
from dataclasses import replace

import numpy as np
import pytest

from meshwright import api
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch
from meshwright.core.result import Bound, Result
from meshwright.core.timeline import Timeline
from meshwright.planners.best.beside import simplest
from meshwright.planners.best.beside.simplest import SimplestWithin, chosen, complexity, least_complexity
from meshwright.planners.best.incumbents import Incumbent
from meshwright.planners.best.space import Config, MeshDegrees

TINY = str(pathlib.Path(__file__).resolve().parents[3] / "data" / "tiny_llama.json")
SLOW = "two-level:4,per_node=1,device=a100-sxm-80gb,bandwidth=2 GB/s"


def incumbent(
    seconds: float, *, word: str = "none", schedule: str = "1f1b", chunks: int = 1, shard: int = 0, **degrees: int
) -> Incumbent:
    mesh = MeshDegrees(**{"pipeline": 1, "data": 1, "context": 1, "tensor": 1, "expert": 1, "micro_batch": 1, **degrees})
    timeline = Timeline(seconds, *(np.zeros(0),) * 6, (0.0,), causes=(("compute", seconds),))
    plan = Plan((Stage((0,), tuple(range(mesh.rank_size)), recompute=(word,)),))
    return Incumbent(0, Config(mesh, shard, 0, schedule, chunks, "pipeline"), plan, timeline)


RISING = [
    incumbent(9.0),
    incumbent(8.9, data=2),
    incumbent(8.8, data=2, shard=1),
    incumbent(8.7, data=2, word="selective"),
    incumbent(8.6, data=2, word="full"),
    incumbent(8.5, data=2, tensor=2),
    incumbent(8.4, data=2, context=2),
    incumbent(8.3, pipeline=2),
    incumbent(8.2, pipeline=2, schedule="zb_h1"),
    incumbent(8.1, pipeline=2, data=2),
    incumbent(8.0, pipeline=2, schedule="interleaved_1f1b", chunks=2),
    incumbent(7.9, pipeline=2, schedule="zb_v", chunks=2),
]
"""Ever quicker, and ever less simple."""


def test_no_pipeline_is_simpler_than_one_no_virtual_stages_than_some_then_fewer_axes_count() -> None:
    figures = [complexity(found) for found in RISING]
    assert figures == sorted(figures) and len(set(figures)) == len(figures)


@pytest.mark.parametrize("word", ["mlp", "core_attn+layernorm", "every_second_product"])
def test_recomputing_a_module_is_no_simpler_than_recomputing_selectively_and_less_simple_than_nothing(word: str) -> None:
    nothing, selective = incumbent(8.9, data=2), incumbent(8.9, data=2, word="selective")
    assert complexity(nothing) < complexity(incumbent(8.9, data=2, word=word)) == complexity(selective)


def test_what_is_known_of_a_set_is_never_less_simple_than_its_plans() -> None:
    for found in RISING:
        for item in (found.config, found.config.mesh):
            assert least_complexity(item) <= complexity(found)


@pytest.mark.parametrize(("within", "seconds"), [(0.0, 7.9), (0.02, 8.0), (0.051, 8.3), (0.2, 9.0)])
def test_the_simplest_of_those_within_is_chosen(within: float, seconds: float) -> None:
    assert chosen(RISING, within).step_seconds == seconds


def test_of_plans_as_simple_the_quicker_is_chosen() -> None:
    slower, quicker = incumbent(10.05, data=2, micro_batch=1), incumbent(10.0, data=2, micro_batch=4)
    assert chosen([slower, quicker], 0.01) is quicker


def test_only_what_may_be_simpler_is_looked_at_and_only_up_to_the_tolerance() -> None:
    found = [incumbent(10.0, pipeline=2, data=2), incumbent(10.2, pipeline=1)]
    goal = SimplestWithin(found, 0.01)
    assert goal.cutoff_seconds == pytest.approx(10.1)
    assert goal.limit(MeshDegrees(1, 4, 1, 1, 1, 1)) == pytest.approx(10.1)
    assert goal.limit(MeshDegrees(2, 2, 1, 2, 1, 1)) == 0.0  # one axis more than the simplest within
    found.append(incumbent(10.05, data=4))
    assert goal.limit(MeshDegrees(2, 2, 1, 1, 1, 1)) == 0.0


def test_the_fastest_is_told_where_it_is_not_the_answer() -> None:
    quick, simple = incumbent(10.0, pipeline=2), incumbent(10.08, data=2)
    assert simplest.fastest_json([quick, simple], quick, Bound(9.9, "")) is None
    entry = simplest.fastest_json([quick, simple], simple, Bound(9.9, ""))
    assert entry is not None
    assert entry["step_seconds"] == 10.0 and entry["gap_ratio"] == pytest.approx(10.0 / 9.9 - 1)
    assert entry["quicker_ratio"] == pytest.approx(1 - 10.0 / 10.08)


def asked(within: float) -> Result:
    return api.plan(TINY, SLOW, batch=Batch(16), within=within)


def test_a_wider_tolerance_gives_a_simpler_plan_and_the_bound_stays_that_of_all() -> None:
    fastest, simple = asked(0.0), asked(1.0)
    assert fastest.answer.objective and simple.answer.objective and fastest.answer.bound and simple.answer.bound
    assert fastest.answer.extra["fastest"] is None
    assert len(fastest.plan.ranks()) > 1 and len(simple.plan.ranks()) == 1
    assert simple.answer.objective.value <= 2.0 * fastest.answer.objective.value
    assert simple.answer.bound.value == pytest.approx(fastest.answer.bound.value, rel=1e-9)
    told = simple.answer.extra["fastest"]
    assert isinstance(told, dict) and told["step_seconds"] == pytest.approx(fastest.answer.objective.value, rel=1e-9)


def test_every_simpler_plan_is_slower_by_more_than_the_tolerance() -> None:
    """Degrees without a pipeline, each optimised by itself, against the answer within 5 %."""
    answer = asked(0.05)
    assert answer.answer.objective is not None and len(answer.plan.ranks()) > 1
    for data, context, tensor in ((1, 1, 1), (2, 1, 1), (4, 1, 1), (1, 2, 1), (1, 1, 2), (1, 1, 4), (2, 1, 2)):
        fixed = {"data": str(data), "context": str(context), "tensor": str(tensor), "pipeline": "1", "alternatives": "1"}
        other = api.plan(replace(answer.problem, batch=Batch(16)), settings=fixed)
        assert other.answer.objective is not None
        told = answer.answer.extra["fastest"]
        quickest = told["step_seconds"] if isinstance(told, dict) else answer.answer.objective.value
        assert other.answer.objective.value > 1.05 * quickest
