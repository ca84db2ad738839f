"""A search of plan and network ends when it is asked to, with the best so far, and says what it did not begin."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from typing import Any

import pytest

from meshwright import api
from meshwright.base.errors import InputError
from meshwright.core.problem import Stop
from meshwright.planners.topoopt import finder
from meshwright.planners.topoopt.design import Design
from meshwright.planners.topoopt.fabric import Fabric
from meshwright.planners.topoopt.routing import shortest
from meshwright.planners.topoopt.step import Step, data_parallel

SPEC = "topoopt:dlrm,tables=3,rows=1000,width=8,bottom=16-16,top=16-16-1,batch=48"


def designed(stop: Stop | None = None, names: tuple[str, ...] = ("topoopt", "fat-tree"), **settings: str) -> Design:
    return api.codesign(
        SPEC, servers=4, degree=2, link_bandwidth="10 Gbit/s", topologies=names, budget=400, settings=settings, stop=stop
    )


def after(n_questions: int) -> Stop:
    """Ask for an end from some question on."""
    count = itertools.count()
    return Stop(asked=lambda: next(count) >= n_questions)


@pytest.mark.parametrize("search", ["improved", "published"])
@pytest.mark.parametrize("topology", ["topoopt", "fat-tree", "optical"])
def test_a_search_that_is_stopped_has_a_plan_that_is_no_better_than_the_whole_search(topology: str, search: str) -> None:
    whole = designed(names=(topology,), search=search).entries[0][1].found
    played = []
    for n_questions in (0, 5, 50):
        design = designed(after(n_questions), (topology,), search=search)
        found = design.entries[0][1].found
        assert whole.seconds <= found.seconds * (1 + 1e-9) and found.seconds <= found.start_seconds * (1 + 1e-9)
        assert any("stopped before its end, as asked" in note for note in design.notes)
        played.append(found.n_proposals)
    assert played[0] < whole.n_proposals and played == sorted(played)


@pytest.mark.parametrize("topology", ["topoopt", "fat-tree", "optical"])
def test_the_clock_is_looked_at_after_every_network_and_after_every_few_steps(
    topology: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step with and without who is last is played on a network; a plan on it comes with another, refitted."""
    n_done = {"seconds": 0, "route": 0}
    most = {"seconds": 0, "route": 0}

    def count(owner: type, name: str) -> None:
        whole = getattr(owner, name)

        def counted(*args: Any, **more: Any) -> Any:
            n_done[name] += 1
            return whole(*args, **more)

        monkeypatch.setattr(owner, name, counted)

    count(Step, "seconds")
    count(Fabric, "route")

    def asked() -> bool:
        for name, n in n_done.items():
            most[name] = max(most[name], n)
            n_done[name] = 0
        return False

    stop = Stop(asked=asked)
    api.codesign(SPEC, servers=6, degree=4, link_bandwidth="10 Gbit/s", topologies=(topology,), budget=20, stop=stop)
    asked()
    assert 0 < most["seconds"] <= 4 and 0 < most["route"] <= 4


def test_topologies_that_were_not_begun_are_named_and_one_always_is_searched() -> None:
    design = designed(after(0), ("topoopt", "fat-tree", "switch"))
    assert [name for name, _ in design.entries] == ["topoopt"]
    assert design.notes[-1].endswith("these are the best plans so far; not begun: fat-tree, switch")


def test_a_time_limit_is_shared_by_the_topologies_and_nothing_changes_without_one() -> None:
    short = designed(Stop(seconds=1e-6), ("topoopt", "fat-tree", "switch"))
    assert [name for name, _ in short.entries] == ["topoopt", "fat-tree", "switch"]
    assert "not begun" not in short.notes[-1] and "stopped before its end" in short.notes[-1]
    free, long = designed(), designed(Stop(seconds=3600.0))
    assert [(name, entry.found.seconds) for name, entry in free.entries] == [
        (name, entry.found.seconds) for name, entry in long.entries
    ]
    assert not any("stopped" in note for note in (*free.notes, *long.notes))


def test_a_limit_that_is_no_time_is_refused() -> None:
    with pytest.raises(InputError, match="must be numbers of at least 0"):
        Stop(seconds=-1.0)


def test_what_could_not_be_played_in_time_as_the_last_step_went_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock by which every step takes three seconds: of ten only three begin, and with a second topology's half one each."""
    clock, played = [100.0], list[float]()

    def slow(self: Step, *args: Any, **more: Any) -> Any:
        clock[0] += 3.0
        played.append(clock[0])
        return whole(self, *args, **more)

    whole = Step._played
    monkeypatch.setattr(Step, "_played", slow)
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    late = designed(Stop(seconds=10.0), ("topoopt",))
    assert len(played) == 3 and clock[0] == 109.0 and math.isfinite(late.entry.found.seconds)
    played.clear()
    both = designed(Stop(seconds=10.0), ("topoopt", "fat-tree"))
    assert [name for name, _ in both.entries] == ["topoopt", "fat-tree"] and len(played) in (2, 3)
    assert all(math.isfinite(entry.found.seconds) for _, entry in both.entries)


def test_a_step_that_is_not_asked_for_in_a_hurry_is_played_whatever_the_time(small: Callable[..., Step]) -> None:
    step = small()
    plan = data_parallel(step.space)
    fabric = next(finder.fabrics(step.traffic(plan), 4, 2, 1e9, 1e-6, [tuple(range(4))]))
    seconds = step.seconds(plan, fabric)
    assert step.seconds(plan, fabric, hurry=True) == seconds
    step.ends_at_seconds = time.perf_counter() - 1.0
    assert step.seconds(plan, fabric) == seconds and step.seconds(plan, fabric, hurry=True) == math.inf


def test_a_network_is_given_up_while_its_routes_are_chosen_but_the_first_never(
    small: Callable[..., Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shortest, "ROUTED_TOGETHER", 3)
    step = small(n=8)
    traffic, drawn = step.traffic(data_parallel(step.space)), finder.hamiltonian(8, 2)
    every = list(finder.fabrics(traffic, 8, 4, 1e9, 1e-6, drawn))
    assert len(every) == 3
    asked = itertools.count()
    some = list(finder.fabrics(traffic, 8, 4, 1e9, 1e-6, drawn, lambda: next(asked) >= 50))
    assert len(some) == 2 and next(asked) == 51  # 56 pairs, twice: 38 questions for the second network, 13 for the third
    for one, other in zip(some, every, strict=False):
        assert (one.pair_link == other.pair_link).all()
    assert len(list(finder.fabrics(traffic, 8, 4, 1e9, 1e-6, drawn, lambda: True))) == 1
