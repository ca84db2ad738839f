"""Runners-up of the joint search: how many, of which degrees, in which order, and why they lost."""

from __future__ import annotations

import itertools
import math
import pathlib

import numpy as np
import pytest

from meshwright import api
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch, Stop
from meshwright.core.timeline import Timeline
from meshwright.planners.best import bounds, incumbents
from meshwright.planners.best.beside import runners_up
from meshwright.planners.best.branch_and_bound import BestFirstSearch
from meshwright.planners.best.incumbents import Incumbent
from meshwright.planners.best.limits import Limits
from meshwright.planners.best.space import Config, MeshDegrees, pools

TINY = str(pathlib.Path(__file__).resolve().parents[3] / "data" / "tiny_llama.json")


@pytest.mark.parametrize("n", [1, 3, 12])
def test_as_many_plans_of_different_degrees_are_played_as_asked_for(n: int) -> None:
    answer = api.plan(TINY, "flat:4", search="best", batch=Batch(16), settings={"alternatives": str(n)}).answer
    assert len(answer.alternatives) == n - 1  # the answer is one of them
    assert answer.objective is not None
    steps = [answer.objective.value, *(other.objective.value for other in answer.alternatives)]
    assert steps == sorted(steps)
    assert all(other.why for other in answer.alternatives)


def incumbent(seconds: float, causes: dict[str, float], **degrees: int) -> Incumbent:
    mesh = MeshDegrees(**{"pipeline": 1, "data": 1, "context": 1, "tensor": 1, "expert": 1, "micro_batch": 1, **degrees})
    empty = np.zeros(0)
    timeline = Timeline(seconds, *(empty,) * 6, (0.0,), causes=tuple(causes.items()))
    return Incumbent(0, Config(mesh, 0, 0, "1f1b", 1, "pipeline"), Plan((Stage((0,), (0,)),)), timeline)


def test_a_runner_up_lost_by_the_two_causes_that_cost_it_most_against_the_best() -> None:
    """Ten seconds against thirteen: 2 s more bubble and 1.5 s of a transfer that the best has not, for half a second less compute."""  # noqa: E501
    best = incumbent(10.0, {"compute": 8.0, "bubble": 2.0}, data=2)
    other = incumbent(13.0, {"compute": 7.5, "bubble": 4.0, "transfer": 1.5}, pipeline=2)
    third = incumbent(10.5, {"compute": 8.5, "bubble": 1.0, "reduce": 1.0}, tensor=2)
    same_degrees = incumbent(14.0, {"compute": 14.0}, pipeline=2)
    tied = incumbent(10.0 * (1 + 1e-7), {"compute": 10.0}, context=2)
    found = runners_up.alternatives([best, tied, third, other, same_degrees], best, 7)
    assert [entry.why for entry in found] == ["reduce +10.0%, compute +5.0%", "bubble +20.0%, transfer +15.0%"]
    assert [entry.objective.value for entry in found] == [10.5, 13.0]


def test_of_steps_alike_the_simpler_plan_is_first() -> None:
    plain, split = incumbent(10.0, {}, data=4), incumbent(10.0 * (1 - 1e-12), {}, data=2, tensor=2)
    long, ring = incumbent(10.0, {}, data=2, pipeline=2), incumbent(10.0, {}, data=2, context=2)
    quick = incumbent(9.9, {}, context=4)
    assert sorted([ring, split, long, plain, quick], key=incumbents.rank) == [quick, plain, long, split, ring]


def test_a_configuration_is_said_by_its_degrees() -> None:
    assert incumbents.describe(incumbent(1.0, {}).config) == "one device, micro-batch 1, sharding level 0"
    words = incumbents.describe(incumbent(1.0, {}, pipeline=2, data=3, context=4, tensor=5, expert=6, micro_batch=7).config)
    assert words == "pipeline 2, data 3, context 4, tensor 5, expert 6, micro-batch 7, sharding level 0"


def degrees(plan: Plan) -> tuple[int, ...]:
    own = plan.stages[0].strategy
    return (len(plan.ranks()), own.data, own.context, own.tensor)


def test_runners_up_are_the_best_of_all_other_degrees_each_as_good_as_alone() -> None:
    """Every set of degrees on four devices is searched by itself; the list must be the beginning of theirs."""
    problem = api.make_problem(TINY, "flat:4", batch=Batch(16))
    answer = api.plan(problem, settings={"alternatives": "5"}).answer
    assert answer.plan is not None and answer.objective is not None
    alone = {}
    for pipeline, data, context, tensor in itertools.product((1, 2, 3, 4), (1, 2, 4), (1, 2), (1, 2, 4)):
        if pipeline * data * context * tensor > 4:
            continue
        fixed = {"pipeline": pipeline, "data": data, "context": context, "tensor": tensor, "alternatives": 1}
        found = api.plan(problem, settings={key: str(value) for key, value in fixed.items()}).answer
        if found.objective is not None:
            alone[pipeline, data, context, tensor] = found.objective.value
    assert degrees(answer.plan) == min(alone, key=alone.__getitem__)
    listed = [degrees(other.plan) for other in answer.alternatives]
    assert len({*listed, degrees(answer.plan)}) == 5
    for other in answer.alternatives:
        assert other.objective.value == pytest.approx(alone[degrees(other.plan)], rel=1e-6)
    proof = answer.extra["runners_up"]
    assert isinstance(proof, dict) and proof["proven"] is True
    left = {key: value for key, value in alone.items() if key not in {*listed, degrees(answer.plan)}}
    shown = [answer.objective.value, *(other.objective.value for other in answer.alternatives)]
    apart = {key for key, value in left.items() if any(abs(value / own - 1) < 1e-6 for own in shown)}
    assert all(value >= proof["others_at_least_seconds"] * (1 - 1e-9) for key, value in left.items() if key not in apart)
    assert all(value >= shown[-1] * (1 - 1e-9) for key, value in left.items() if key not in apart)


def test_what_is_left_decides_whether_the_list_is_proven() -> None:
    answer, second, third = incumbent(10.0, {}, data=2), incumbent(11.0, {}, pipeline=2), incumbent(12.0, {}, tensor=2)
    quicker, found = incumbent(9.95, {}, context=2), [answer, second, third]
    other, own = MeshDegrees(4, 1, 1, 1, 1, 1), MeshDegrees(2, 1, 1, 1, 1, 4)
    assert runners_up.rest(found, [(11.5, other)], answer, 1) == {
        "proven": True, "others_at_least_seconds": 11.5, "n_left_out": 0
    }  # fmt: skip
    assert runners_up.rest(found, [(10.5, own)], answer, 1)["others_at_least_seconds"] == 12.0  # a variant of the second
    below = runners_up.rest([*found, quicker], [(10.5, other)], answer, 2)
    assert below == {"proven": False, "others_at_least_seconds": 10.5, "n_left_out": 1}
    assert runners_up.rest(found, [], answer, 2)["others_at_least_seconds"] is None


def test_the_goal_looks_at_other_degrees_up_to_their_best_and_the_last_one_wanted() -> None:
    answer, second, third = incumbent(10.0, {}, data=2), incumbent(11.0, {}, pipeline=2), incumbent(12.0, {}, tensor=2)
    found = [answer, second]
    goal = runners_up.NextBest(found, answer, 2, new_only=False)
    unseen = MeshDegrees(4, 1, 1, 1, 1, 1)
    assert goal.limit(answer.config) == 0.0 and goal.limit(second.config) == 11.0
    assert goal.limit(unseen) == goal.cutoff_seconds == float("inf")
    found.append(third)
    assert goal.limit(unseen) == goal.cutoff_seconds == 12.0
    new_only = runners_up.NextBest(found, answer, 2, new_only=True)
    assert new_only.limit(second.config) == 0.0 and new_only.limit(unseen) == 12.0


def test_virtual_stages_that_fit_nothing_are_not_looked_at_again() -> None:
    """Their bound has no limit: it is infinite only where nothing fits, and what is aside may fit for another goal."""
    small = api.make_problem(TINY, "dgx-h100:8", batch=Batch(64))
    state = BestFirstSearch(
        small, Limits(schedules=("1f1b", "interleaved_1f1b", "zb_v"), alternatives=3, memory_ratio=0.035), Stop()
    )
    for pool in pools(small.required_cluster):
        state.add(pool)
    n_dropped, put = 0, state._set_aside

    def counted(pool: int, config: Config, level: int, least: float) -> None:
        nonlocal n_dropped
        before = len(state.later)
        put(pool, config, level, least)
        if state.found and len(state.later) == before:
            n_dropped += 1
            own = bounds.of_config(state.costs[pool], config, state.n_microbatches(config.mesh), math.inf, light=True)
            assert own == math.inf

    state._set_aside = counted  # type: ignore[method-assign]
    state.allow(50)
    state.run()
    state.pursue(runners_up.NextBest(state.found, min(state.found, key=incumbents.rank), 20, new_only=False))
    state.allow(50)
    state.run()
    assert state.found and n_dropped
    for _, _, pool, item, plan in state.later:
        if isinstance(item, Config) and item.chunks > 1 and plan is None:
            n_microbatches = state.n_microbatches(item.mesh)
            assert math.isfinite(bounds.of_config(state.costs[pool], item, n_microbatches, math.inf, light=True))
