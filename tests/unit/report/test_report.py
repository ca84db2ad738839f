"""The answer as text: every number comes from the answer, nothing is left out in silence."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from meshwright import api
from meshwright.api.sensitivity import Change
from meshwright.base.units import format_bytes, format_seconds
from meshwright.core import formatting
from meshwright.core.graph import Edge, Graph, Op
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import ModelSpec, Problem
from meshwright.core.result import Answer, Result
from meshwright.core.stage_cost import StageCost
from meshwright.report import text as report
from meshwright.report.progress import Progress


def test_every_stage_has_a_row(planned: Result) -> None:
    text = report.explain(planned)
    for name in ("embed", "head"):
        assert name in text
    assert planned.timeline is not None
    assert f"step {format_seconds(planned.timeline.step_seconds)}" in text


def test_shares_of_the_step_add_up(planned: Result) -> None:
    assert planned.timeline is not None
    assert sum(seconds for _, seconds in planned.timeline.causes) == pytest.approx(planned.timeline.step_seconds, rel=1e-6)


def test_memory_by_cause_adds_up_to_the_peak_of_each_rank(planned: Result) -> None:
    assert planned.timeline is not None
    for parts, peak_bytes in zip(planned.timeline.memory_causes, planned.timeline.peak_bytes, strict=True):
        assert sum(value for _, value in parts) == pytest.approx(peak_bytes, rel=1e-9)


def test_nothing_fits_is_said_with_what_is_missing_and_the_nearest(planned: Result) -> None:
    text = report.explain(
        replace(planned, answer=Answer(None, missing_bytes=3 * 2**30, nearest="fits on flat:8", infeasible_proven=True))
    )
    assert "Nothing fits. That is proven of the plans within the options given." in text
    assert "3 GiB" in text and "Nearest: fits on flat:8" in text


def test_nothing_fits_is_said_only_where_it_is_proven_and_of_which_plans(planned: Result) -> None:
    unproven = replace(planned, answer=Answer(None, missing_bytes=1.0))  # what a search does not claim is not claimed for it
    assert "Nothing fits" not in report.explain(unproven)
    assert "No plan that fits was found; that there is none is not proven." in report.explain(unproven)
    proven = replace(planned, answer=Answer(None, missing_bytes=1.0, infeasible_proven=True))
    assert "Nothing fits. The nearest plan" in report.explain(replace(proven, settings={}))
    of_another = report.explain(replace(proven, settings={}, search="pase"))
    assert "Nothing fits. That is proven of the plans of search pase. The nearest plan" in of_another


def test_a_comparison_says_nothing_fits_only_where_it_is_proven(planned: Result) -> None:
    nothing = [replace(planned, answer=Answer(None, infeasible_proven=proven), timeline=None) for proven in (True, False)]
    rows = report.compared([("first", nothing[0], ""), ("second", nothing[1], "")]).splitlines()
    assert "nothing fits" in next(row for row in rows if "first" in row)
    assert "no plan that fits was found" in next(row for row in rows if "second" in row)


def test_notes_are_printed(planned: Result) -> None:
    assert "note: read me" in report.explain(replace(planned, answer=replace(planned.answer, notes=("read me",))))


def test_square_brackets_in_a_name_are_printed_as_they_are(planned: Result) -> None:
    model_spec = replace(planned.problem.model_spec, name="[bold]model[/bold]")
    assert "[bold]model[/bold]" in report.explain(replace(planned, problem=replace(planned.problem, model_spec=model_spec)))


def test_a_change_is_told_with_its_gain(planned: Result) -> None:
    assert planned.timeline is not None
    row = report.change_row(Change("twice the memory", planned, 1.25))
    assert row[:3] == ["twice the memory", format_seconds(planned.timeline.step_seconds), "+25.0%"]


def test_the_comparison_puts_the_fastest_first_and_the_refused_last(planned: Result) -> None:
    assert planned.timeline is not None
    slow = replace(planned, timeline=replace(planned.timeline, step_seconds=2 * planned.timeline.step_seconds))
    text = report.compared([("refused", None, "works on profiles"), ("slow", slow, ""), ("fast", planned, "")])
    assert text.index("fast") < text.index("slow") < text.index("refused") < text.index("works on profiles")
    assert format_bytes(max(planned.timeline.peak_bytes)) in text


def test_progress_speaks_before_five_seconds_of_silence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    def wait(self: threading.Event, seconds: float | None = None) -> bool:
        waited.append(seconds or 0.0)
        return len(waited) > 3

    monkeypatch.setattr(threading.Event, "wait", wait)
    thread = threading.Thread  # its own start waits for an event too
    monkeypatch.setattr(threading, "Thread", lambda target, daemon: _Called(target))
    with report.progress("thinking"):
        pass
    monkeypatch.setattr(threading, "Thread", thread)
    assert max(waited) < 5.0 and capsys.readouterr().err.count("thinking: ") == 3


class _Called:
    """A thread that does all its work when it is started."""

    ident = 1

    def __init__(self, target: Callable[[], None]) -> None:
        self.start = target

    def join(self) -> None:
        """Wait for nothing."""


def test_progress_is_silent_for_quick_work_and_ends_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    with report.progress("thinking"):
        time.sleep(0.01)
    assert capsys.readouterr().err == ""


def test_causes_say_from_which_rank_they_are_seen_where_another_is_busier() -> None:
    graph = Graph("two", (Op("light", "mlp"), Op("heavy", "mlp")), (Edge(0, 1, 1),))
    problem = Problem(ModelSpec("two", "two", "two", graph), None)
    plan = Plan((Stage((0,), (0,)), Stage((1,), (1,))), 4, 1, "1f1b", 4)
    result = Result(problem, "by hand", 0, Answer(plan))
    light, heavy = StageCost(1.0, 1.0, 1.0), StageCost(3.0, 3.0, 3.0)
    uneven = replace(result, timeline=api.simulate(problem, plan, (light, heavy)))
    assert formatting.seen_from(uneven) == "seen from rank 0, which ends last; rank 1 is the busiest"
    even = replace(result, timeline=api.simulate(problem, plan, (heavy, heavy)))
    assert formatting.seen_from(even) == ""


def test_progress_says_how_far_the_work_has_come_and_how_long_the_rest_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("meshwright.report.progress.time.monotonic", lambda: now)
    told = Progress()
    now = 6.0
    assert told.line("thinking") == "thinking: 6 s ..."
    told.count(2, 5, "thoughts")
    more = "thinking: {} s, 2 of 5 thoughts, about {} s more if the others take as long ..."
    for now, left in ((6.0, 9), (8.0, 7), (9.0, 6), (12.0, 8)):  # the third takes longer than the mean of three from 9 s on
        assert told.line("thinking") == more.format(int(now), left)
    told.count(2, 5, "thoughts", 0.75)  # of which these were the longest
    for now, left in ((12.0, 4), (15.0, 1), (18.0, 0)):
        assert told.line("thinking") == more.format(int(now), left)
    told.count(0, 5, "thoughts")
    assert told.line("thinking") == "thinking: 18 s, 0 of 5 thoughts ..."
    told.count(5, 5, "thoughts")
    assert told.line("thinking") == "thinking: 18 s, 5 of 5 thoughts ..."
    told.tell(lambda: "halfway")
    assert told.line("thinking") == "thinking: 18 s, halfway ..."
    told.tell(lambda: next(iter(())))  # what changes while it is looked at
    assert told.line("thinking") == "thinking: 18 s ..."
