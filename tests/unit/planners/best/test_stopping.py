"""A search that is stopped answers with the best plan so far and a gap that is true."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable
from typing import Any

import pytest

from meshwright import api
from meshwright.base.errors import InputError
from meshwright.core.problem import Batch, Stop
from meshwright.planners.best import answer as joint
from meshwright.planners.best import branch_and_bound
from meshwright.planners.best.branch_and_bound import BestFirstSearch
from meshwright.planners.best.incumbents import STOPPED, STOPPED_WITHOUT

TINY = str(pathlib.Path(__file__).resolve().parents[3] / "data" / "tiny_llama.json")
CLUSTER = "two-level:6,per_node=3,device=a100-sxm-80gb,bandwidth=1 GB/s"


def after(n_questions: int) -> Stop:
    """Ask to stop once the search has asked so often."""
    left = iter(range(n_questions))
    return Stop(asked=lambda: next(left, None) is None)


def test_wherever_it_is_stopped_the_bound_holds_and_the_plan_is_whole() -> None:
    problem = api.make_problem(TINY, CLUSTER, batch=Batch(12))
    best = api.plan(problem).answer
    assert best.objective is not None and best.bound is not None
    steps = []
    for n_questions in (60, 90, 150, 400):
        answer = api.plan(problem, stop=after(n_questions)).answer
        if answer.plan is None:
            continue
        assert answer.objective is not None and answer.bound is not None
        assert STOPPED in answer.notes and answer.extra["stopped_early"] is True
        assert answer.bound.value <= best.objective.value * (1 + 1e-9) <= answer.objective.value * (1 + 2e-9)
        steps.append(answer.objective.value)
    assert len(steps) >= 2 and steps == sorted(steps, reverse=True)
    assert steps[0] < 2.0 * best.objective.value  # the first plans are good ones
    assert best.extra["stopped_early"] is False and STOPPED not in best.notes


def test_what_is_said_to_be_proven_meanwhile_holds_of_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[float, float]] = []  # the best so far, and what all plans take at least
    asked: list[Callable[[], str]] = []
    look = BestFirstSearch._look

    def ask() -> None:
        found = re.fullmatch(r"best so far (\S+) ms a step, proven within (\S+)%", asked[-1]())
        if found is not None:
            said.append((float(found[1]), float(found[1]) / (1.0 + float(found[2]) / 100.0)))

    def asking(search: BestFirstSearch, *entry: Any) -> None:  # the set that is looked at is on no list now
        ask()
        look(search, *entry)
        ask()

    monkeypatch.setattr(branch_and_bound, "_TELL_EVERY", 1)
    monkeypatch.setattr(BestFirstSearch, "_look", asking)
    problem = api.make_problem("gpt2", CLUSTER, batch=Batch(64, sequence_length=1024))
    answer = api.plan(problem, settings={"within_ratio": "0"}, stop=Stop(told=asked.append)).answer
    assert answer.objective is not None
    best_ms = 1e3 * answer.objective.value
    assert len(said) > 100 and max(least for _, least in said) > 0.5 * best_ms
    assert [own for own in said if own[1] > best_ms * 1.006] == []  # three digits are said


def test_without_a_plan_nothing_is_claimed() -> None:
    answer = api.plan(TINY, CLUSTER, batch=Batch(12), stop=after(0)).answer
    assert answer.plan is None and not answer.infeasible_proven and answer.missing_bytes == 0.0
    assert answer.notes[-1] == STOPPED_WITHOUT


def test_a_limit_of_time_stops_it() -> None:
    result = api.plan("llama-3.1-405b", "dgx-h100:4096", stop=Stop(seconds=0.5))
    assert result.planning_seconds < 60.0  # unlimited it takes longer; busy machines are slow
    assert result.answer.extra["stopped_early"] is True
    assert not result.answer.infeasible_proven


@pytest.mark.parametrize("cluster", [CLUSTER, "dgx-h100:64"])
def test_however_short_the_limit_there_is_a_plan_where_the_dive_finds_one(cluster: str) -> None:
    answer = api.plan(TINY, cluster, batch=Batch(64), stop=Stop(seconds=1e-9)).answer
    assert answer.plan is not None and answer.bound is not None
    assert STOPPED in answer.notes and answer.extra["stopped_early"] is True


@pytest.mark.parametrize(
    ("search", "words"), [("stage_mapping", "cannot stop early"), ("best", ""), ("partition", "cannot stop early")]
)
def test_a_search_that_cannot_stop_says_so(search: str, words: str) -> None:
    notes = " ".join(api.plan(TINY, "flat:2", search=search, batch=Batch(4), stop=Stop(seconds=1e4)).answer.notes)
    assert (words in notes) if words else "cannot stop early" not in notes
    assert "cannot stop early" not in " ".join(api.plan(TINY, "flat:2", search=search, batch=Batch(4)).answer.notes)


@pytest.mark.parametrize(("settings", "advice"), [({}, ", or --micro-batch 4"), ({"micro_batch": "1"}, "")])
def test_a_batch_of_more_tasks_than_can_be_played_is_refused_before_anything_is_built(
    settings: dict[str, str], advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joint, "answer", lambda *_: pytest.fail("the search was started"))
    problem = api.make_problem("gpt2", "dgx-h100:8", batch=Batch(10**8, sequence_length=1024))
    with pytest.raises(InputError, match=rf"micro-batches of 1 are 25000000 tasks .* give a smaller batch{advice}$"):
        api.plan(problem, settings=settings)
