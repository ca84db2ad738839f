"""The bench asks every planner every problem, and an interrupt leaves out the problem that it cut short."""

from __future__ import annotations

import pytest

from meshwright.suite import ANSWERED, Attempt, BenchProblem, bench

ASKED = tuple(BenchProblem(f"models/{name}", True, "gpt2", "step_seconds", ("best",)) for name in ("one", "two", "three"))


@pytest.mark.parametrize(("stops_at", "n_done"), [("", 3), ("models/one", 0), ("models/three", 2)])
def test_attempts_of_every_problem_are_kept_up_to_an_interrupt(
    stops_at: str, n_done: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attempts(one: BenchProblem, planners: tuple[str, ...], *_: object) -> list[Attempt]:
        if one.id == stops_at:
            raise KeyboardInterrupt
        return [Attempt(one.id, name, ANSWERED, 2.0) for name in planners]

    monkeypatch.setattr(bench, "planners_of", lambda one, searches, others: (*searches, *others))
    monkeypatch.setattr(bench, "_attempts", attempts)
    monkeypatch.setattr(bench.questions, "digest", lambda: "abc")
    run, interrupted = bench.bench(ASKED, ("best",), ("mine",), 30.0, print)  # type: ignore[arg-type]
    assert interrupted == bool(stops_at) and (run.n_asked, run.questions) == (3, ASKED[:n_done])
    assert [(one.question_id, one.planner) for one in run.attempts] == [
        (one.id, name) for one in ASKED[:n_done] for name in ("best", "mine")
    ]
    assert run.planners == (("best", "mine") if n_done else ()) and run.limit_seconds == 30.0
