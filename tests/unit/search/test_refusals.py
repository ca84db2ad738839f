"""What searches made of other searches refuse, and with which words; which options they hand on."""

from __future__ import annotations

import dataclasses
import re
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.base import registry
from meshwright.base.errors import InputError, UnknownNameError
from meshwright.core.problem import Problem, Stop
from meshwright.core.result import Answer
from meshwright.search import data_parallel, ensemble
from small_questions import question

NONE = Stop()


def test_the_ensemble_asks_for_different_searches_that_are_there() -> None:
    problem = question("like", "nodes")
    for names in ((), ("best", "best"), ("best", "ensemble"), ("stage-mapping", "stage_mapping"), ("ensemble",)):
        said = f"--set searches={','.join(names)}: name one or more different searches (not ensemble itself)"
        with pytest.raises(InputError, match=f"^{re.escape(said)}$"):
            ensemble.search(problem, ensemble.Params(names), seed=0, stop=NONE)
    with pytest.raises(UnknownNameError, match="nowhere"):
        ensemble.search(problem, ensemble.Params(("nowhere",)), seed=0, stop=NONE)
    assert ensemble.Params().searches == ("parmesan", "stage_mapping")
    assert data_parallel.STOPS_EARLY and data_parallel.FROZEN and data_parallel.STATES and ensemble.STOPS_EARLY


def test_the_ensemble_says_who_won_and_what_each_reached() -> None:
    problem = question("like", "nodes")
    found = ensemble.search(problem, ensemble.Params(("data-parallel", "megatron_grid")), seed=0, stop=NONE)
    grid = registry.load("search", "megatron_grid", "search")
    alone = [
        data_parallel.search(problem, data_parallel.Params(), seed=0, stop=NONE),
        grid.search(problem, grid.Params(), seed=0, stop=NONE),
    ]
    seconds = {}
    for name, answer in zip(("data_parallel", "megatron_grid"), alone, strict=True):
        assert answer.objective is not None
        seconds[name] = answer.objective.value / 8
    winner = min(seconds, key=lambda name: seconds[name])
    assert found.extra["searches"] == pytest.approx(seconds)
    assert found.objective is not None and found.objective.name == "simulated_seconds_per_sample"
    assert found.objective.value == pytest.approx(seconds[winner]) and found.bound is None
    assert found.notes[-1] == f"the best of data_parallel, megatron_grid is {winner}"
    assert found.plan == alone[list(seconds).index(winner)].plan


def test_nothing_that_can_be_simulated_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = question("like", "nodes")
    plan = data_parallel.search(problem, data_parallel.Params(), seed=0, stop=NONE).plan
    load = registry.load
    costs = SimpleNamespace(stage_costs=lambda problem, plan: ())
    one = SimpleNamespace(search=lambda problem, params, *, seed, stop: Answer(plan), Params=SimpleNamespace, STOPS_EARLY=True)
    monkeypatch.setattr(
        registry, "load", lambda room, name, what: {"search": one, "costs": costs}.get(room) or load(room, name, what)
    )
    said = "none of the plans of a, b can be simulated: their cost models say nothing of this input"
    with pytest.raises(InputError, match=f"^{said}$"):
        ensemble.search(problem, ensemble.Params(("a", "b")), seed=0, stop=NONE)


def test_data_parallelism_hands_on_the_options_that_are_given_to_the_search_of_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[tuple[str, dict[str, Any]]] = []

    def offering(name: str) -> SimpleNamespace:
        def answer(problem: Problem, settings: dict[str, Any], stop: Stop) -> Answer:
            told.append((name, settings))
            return Answer(None)

        return SimpleNamespace() if name == "silent" else SimpleNamespace(data_parallel=answer)

    monkeypatch.setattr(registry, "load", lambda room, name, what: offering(name))
    problem = question("like", "nodes")
    for search, params in (
        ("own", data_parallel.Params()), ("silent", data_parallel.Params()),
        ("own", data_parallel.Params(batch=64, flops=2e12)),
        ("own", data_parallel.Params(4, 0, 256, 10e12, 3.0)),
    ):  # fmt: skip
        asked = dataclasses.replace(problem, model_spec=dataclasses.replace(problem.model_spec, search=search))
        data_parallel.search(asked, params, seed=0, stop=NONE)
    given = {"n_processors": 4, "model": 256, "bandwidth": 3.0}
    assert told == [("own", {}), ("best", {}), ("own", {"batch": 64, "flops": 2e12}), ("own", given)]
    limits = {field.name: dict(field.metadata) for field in dataclasses.fields(data_parallel.Params)}
    assert [limits[name] for name in ("n_processors", "batch", "model")] == [{"minimum": 1}] * 3
    assert data_parallel.Params() == data_parallel.Params(0, 0, 128, 10e12, 16e9)
