"""What would help: the changes are planned again, not guessed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright import api
from meshwright.api import sensitivity
from meshwright.core.result import Result


@pytest.fixture(scope="module")
def found(planned: Result) -> tuple[sensitivity.Change, ...]:
    """The changes of the shared answer."""
    return sensitivity.changes(replace(planned, search="best"))


def test_links_memory_and_batch_are_tried_and_ranked(found: tuple[sensitivity.Change, ...]) -> None:
    assert {change.name for change in found} >= {"twice the memory", "twice the batch"}
    assert any("links" in change.name for change in found)
    gains = [change.speedup_ratio for change in found]
    assert gains == sorted(gains, reverse=True)


def test_a_change_is_a_whole_answer_to_the_changed_question(planned: Result, found: tuple[sensitivity.Change, ...]) -> None:
    for change in found:
        assert change.result.timeline is not None and planned.timeline is not None
        rate = change.result.plan.global_batch / change.result.timeline.step_seconds
        assert change.speedup_ratio == pytest.approx(rate * planned.timeline.step_seconds / planned.plan.global_batch)
        again = api.plan(change.result.problem, search="best", settings=dict(change.result.settings))
        assert again.plan == change.result.plan


def test_degrees_and_schedules_near_the_plan_are_searched(planned: Result) -> None:
    near = sensitivity.near(planned.problem, planned.plan)
    n = len(planned.plan.ranks())
    assert {int(value) for value in near["pipeline"].split(",")} == {1, max(1, n // 2), n, 2 * n}
    assert "data" not in near  # what the devices leave
    assert set(near["schedules"].split(",")) == {planned.plan.schedule, "1f1b", "zb_h1"}


def test_twice_an_odd_batch_may_have_any_degrees(planned: Result) -> None:
    """Among how many devices it divides is new, so what is near the plan says little; of powers of two it is near."""
    twice = replace(planned.problem, batch=replace(planned.problem.batch, global_batch=14))
    assert "pipeline" not in sensitivity.near(twice, replace(planned.plan, global_batch=7))
    two = replace(twice, batch=replace(twice.batch, global_batch=2))
    assert "pipeline" in sensitivity.near(two, replace(planned.plan, global_batch=1))
    assert "pipeline" in sensitivity.near(twice, replace(planned.plan, global_batch=14))


def test_a_change_changes_only_what_it_names(planned: Result, found: tuple[sensitivity.Change, ...]) -> None:
    base = planned.problem.cluster
    assert base is not None
    for change in found:
        cluster = change.result.problem.cluster
        assert cluster is not None
        doubled = cluster.kinds[0].memory_bytes / base.kinds[0].memory_bytes
        assert doubled == (2 if "memory" in change.name else 1)
        faster = (cluster.links.bytes_per_second / base.links.bytes_per_second).max()
        assert faster == (2 if "links" in change.name else 1)
        assert change.result.plan.global_batch == planned.plan.global_batch * (2 if "batch" in change.name else 1)


def test_what_was_set_for_the_answer_holds_for_each_change(planned: Result) -> None:
    """Freed from it, other degrees would count as gained by memory or links."""
    one = replace(planned, search="best", settings={"micro_batch": "1", "evaluations": "3"})
    for change in sensitivity.changes(one):
        kept = change.result.plan.micro_batch in (1, planned.plan.micro_batch)  # the answer itself is known
        assert kept and change.result.settings["micro_batch"] == "1" and change.result.settings["evaluations"] == "6"


def test_answers_of_other_searches_get_no_changes(planned: Result) -> None:
    assert sensitivity.changes(replace(planned, search="megatron_grid")) == ()
    assert sensitivity.changes(replace(planned, timeline=None)) == ()


def test_micro_batches_that_the_answer_was_not_compared_with_are_left_out(planned: Result) -> None:
    """A larger one would count as gained by memory or links."""
    graph = planned.problem.graph
    long = replace(graph, sequence_length=65_536 // 8)
    problem = replace(planned.problem, model_spec=replace(planned.problem.model_spec, graph=long))
    for size, allowed in ((4, "1,2,4,8"), (8, "1,4,8"), (16, "1,8,16")):
        assert sensitivity.near(problem, replace(planned.plan, micro_batch=size))["micro_batch"] == allowed
