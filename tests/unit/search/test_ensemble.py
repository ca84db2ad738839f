"""Several searches on one problem: who wins, who wins a tie, what the others are told and what is said of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.base import registry
from meshwright.base.errors import InputError
from meshwright.core.problem import Problem, Stop
from meshwright.core.result import Answer, Result
from meshwright.search import ensemble


def answers(monkeypatch: pytest.MonkeyPatch, problem: Problem, made: dict[str, Answer], **asked: Any) -> Answer:
    """Return the ensemble's answer where searches give these."""
    told: list[Stop] = []

    def module(name: str) -> SimpleNamespace:
        def search(problem: Problem, params: object, *, seed: int, stop: Stop) -> Answer:
            told.append(stop)
            return made[name]

        return SimpleNamespace(search=search, Params=SimpleNamespace, STOPS_EARLY=name.startswith("stops"))

    load = registry.load
    monkeypatch.setattr(registry, "load", lambda room, name, what: module(name) if room == "search" else load(room, name, what))
    stop = Stop(**asked)
    found = ensemble.search(problem, ensemble.Params(tuple(made)), seed=0, stop=stop)
    assert [one.seconds for one in told] == [stop.seconds / len(made)] * len(made)
    return found


def test_the_best_by_simulation_wins_and_of_two_alike_the_first(monkeypatch: pytest.MonkeyPatch, planned: Result) -> None:
    plan = planned.plan
    slower = replace(plan, stages=tuple(replace(stage, recompute=("full",) * len(stage.ops)) for stage in plan.stages))
    bad, first, second = (Answer(plan=one, notes=(word,)) for one, word in ((slower, "bad"), (plan, "first"), (plan, "second")))
    found = answers(monkeypatch, planned.problem, {"bad": bad, "first": first, "nothing": Answer(None), "second": second})
    assert found.plan == plan and found.notes == ("first", "the best of bad, first, nothing, second is first")
    reached = found.extra["searches"]
    assert reached["bad"] > reached["first"] == reached["second"] == found.objective.value and reached["nothing"] is None
    assert found.objective.value == pytest.approx(planned.timeline.step_seconds / plan.global_batch, rel=1e-12)
    assert found.bound is None


def test_of_answers_without_a_plan_that_which_misses_least_is_given(monkeypatch: pytest.MonkeyPatch, planned: Result) -> None:
    proven = {
        "a": Answer(None, missing_bytes=3.0, infeasible_proven=True),
        "b": Answer(None, missing_bytes=2.0, infeasible_proven=True),
    }
    found = answers(monkeypatch, planned.problem, proven)
    assert (found.missing_bytes, found.infeasible_proven) == (2.0, True)
    found = answers(monkeypatch, planned.problem, {**proven, "c": Answer(None, infeasible_proven=False)})
    assert (found.missing_bytes, found.infeasible_proven) == (2.0, False), "what is not told is not the least"


def test_a_plan_that_does_not_fit_is_none(monkeypatch: pytest.MonkeyPatch, planned: Result) -> None:
    cluster = planned.problem.required_cluster
    small = replace(cluster, kinds=tuple(replace(kind, memory_bytes=1e6, reserved_bytes=0.0) for kind in cluster.kinds))
    found = answers(monkeypatch, replace(planned.problem, cluster=small), {"a": Answer(plan=planned.plan)})
    assert found.plan is None and found.missing_bytes > 0.0 and not found.infeasible_proven
    assert found.nearest == "more devices, or devices with more memory"


def test_searches_that_cannot_stop_are_named(monkeypatch: pytest.MonkeyPatch, planned: Result) -> None:
    made = {"stops": Answer(plan=planned.plan), "goes_on": Answer(plan=planned.plan)}
    found = answers(monkeypatch, planned.problem, made, seconds=8.0)
    assert [note.partition(" cannot")[0] for note in found.notes if "cannot stop" in note] == ["search goes_on"]
    assert not any("cannot stop" in note for note in answers(monkeypatch, planned.problem, made).notes)


def test_each_search_has_options_of_its_own(monkeypatch: pytest.MonkeyPatch, planned: Result) -> None:
    @dataclass(frozen=True)
    class Told:
        n_stages: int = 3
        quick: bool = False

    seen: list[Told] = []

    def search(problem: Problem, params: Told, *, seed: int, stop: Stop) -> Answer:
        seen.append(params)
        return Answer(plan=planned.plan)

    load = registry.load
    fake = SimpleNamespace(search=search, Params=Told, STOPS_EARLY=True)
    monkeypatch.setattr(registry, "load", lambda room, name, what: fake if room == "search" else load(room, name, what))

    def ask(*told: str) -> list[Told]:
        seen.clear()
        ensemble.search(planned.problem, ensemble.Params(("one", "two_words"), told), seed=0, stop=Stop())
        return list(seen)

    assert ask() == [Told(), Told()]
    assert ask("two-words.n_stages=5", "one.quick=true", "two_words.quick=1") == [Told(3, True), Told(5, True)]
    for told, said in (
        (("one.n_stages",), "write SEARCH.OPTION=VALUE"), (("n_stages=5",), "write SEARCH.OPTION=VALUE"),
        (("three.n_stages=5",), "three is not among the searches: one, two_words"),
        (("one.n_stages=5", "one.n_stages=6"), "n_stages of one is told twice"), (("one.stages=5",), "no option of search one"),
        (("one.n_stages=x",), "options=one.n_stages .*'x' is not a whole number"),
        (("one.n_stages=5", "7"), "options=one.n_stages .*'5,7' is not a whole number"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=said):
            ask(*told)


def test_one_search_is_tried_with_several_options(monkeypatch: pytest.MonkeyPatch, planned: Result) -> None:
    @dataclass(frozen=True)
    class Told:
        k: int = 32
        tried: tuple[int, ...] = ()

    stages = planned.plan.stages
    slow = replace(planned.plan, stages=tuple(replace(stage, recompute=("full",) * len(stage.ops)) for stage in stages))
    load = registry.load

    def search(problem: Problem, params: Told, *, seed: int, stop: Stop) -> Answer:
        return Answer(plan=slow if params.k == 32 else planned.plan, notes=(f"{params}",))

    fakes = dict.fromkeys(("a_b", "one"), SimpleNamespace(search=search, Params=Told))
    monkeypatch.setattr(registry, "load", lambda room, name, what: fakes[name] if room == "search" else load(room, name, what))

    def ask(searches: tuple[str, ...], *told: str) -> Answer:
        return ensemble.search(planned.problem, ensemble.Params(searches, told), seed=0, stop=Stop(seconds=9.0))

    found = ask(("a-b:narrow", "a_b:wide", "a_b"), "a-b:wide.k=48", "a_b:wide.tried=8", "16")
    assert list(found.extra["searches"]) == ["a_b:narrow", "a_b:wide", "a_b"]
    assert found.extra["searches"]["a_b:narrow"] == found.extra["searches"]["a_b"] > found.extra["searches"]["a_b:wide"]
    assert f"{Told(48, (8, 16))}" in found.notes and found.notes[-1] == "the best of a_b:narrow, a_b:wide, a_b is a_b:wide"
    assert sum("cannot stop" in note or "a_b " in note for note in found.notes[:-1]) == 1  # that it cannot stop is said once
    for searches, told, said in (
        (("one:a", "one:a"), (), "different searches"), (("one:",), (), "behind the colon"),
        (("one:a b",), (), "behind the colon"),
        (("ensemble:a",), (), "not ensemble itself"), (("one:a",), ("one.k=3",), "one is not among the searches: one:a"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=said):
            ask(searches, *told)
