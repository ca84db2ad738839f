"""What is said beside the answer: the fastest plan, what is proven of the others, degrees asked for; operators as a table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meshwright.core.result import Alternative, Answer, Objective, Result
from meshwright.report import comparisons
from meshwright.report.operators import operators
from meshwright.report.text import render


def with_extra(planned: Result, **extra: Any) -> Result:
    """Return an answer of 2 s with what a search says besides."""
    return replace(planned, answer=Answer(planned.plan, objective=Objective("step_seconds", 2.0), extra=extra))


def test_the_fastest_plan_is_told_where_it_is_not_the_answer(planned: Result) -> None:
    assert comparisons.fastest(with_extra(planned)) == []
    entry = {"plan": "data 4", "step_seconds": 1.9, "quicker_ratio": 0.05, "gap_ratio": 0.0125}
    first, second = comparisons.fastest(with_extra(planned, fastest=entry, within_ratio=0.1))
    assert first == "the fastest plan found: data 4; step 1.9 s, 5.26% quicker, gap 1.25%"
    assert second == "the answer is the simplest plan found within 10 % of it (--within 0 answers with the fastest)"
    assert comparisons.fastest(with_extra(planned, fastest=entry)) == [first]


def test_what_is_proven_of_degrees_not_shown_is_told_with_how_much_slower_they_are(planned: Result) -> None:
    assert comparisons.others(with_extra(planned)) == []

    def said(listed: tuple[Alternative, ...] = (), **entry: Any) -> str:
        whole = {"others_at_least_seconds": 2.5, "n_left_out": 0, "proven": True, **entry}
        made = with_extra(planned, runners_up=whole)
        return comparisons.others(replace(made, answer=replace(made.answer, alternatives=listed)))[0]

    assert said() == "proven: all degrees searched and not shown take at least 2.5 s (+25.00%)"
    unproven = "not proven to be the next best: all degrees searched and not shown take at least 2.5 s"
    assert said(proven=False) == said()  # where none is listed, none is the next best
    assert said(others_at_least_seconds=None) == "no other degrees searched give a plan"
    listed = (Alternative(planned.plan, Objective("step_seconds", 2.25), ""),)
    assert said(listed, proven=False).startswith(unproven)
    assert said(listed, others_at_least_seconds=None) == "no degrees searched but these give a plan"
    assert "apart from 1 set of degrees that is quicker" in said(n_left_out=1)
    assert "apart from 3 sets of degrees that are quicker" in said(n_left_out=3)


ASKED: dict[str, Any] = {
    "fixed": {"tensor": 2, "shard": 0}, "feasible": True, "plan": "tensor 2", "step_seconds": 3.0, "slower_ratio": 0.5,
    "gap_ratio": 0.01,
    "causes": [
        {"cause": "compute", "answer_seconds": 1.0, "seconds": 1.5, "difference_seconds": 0.5},
        {"cause": "bubble", "answer_seconds": 1.0, "seconds": 0.75, "difference_seconds": -0.25},
        {"cause": "reduce", "answer_seconds": 1.0, "seconds": 1.001, "difference_seconds": 0.001},
    ],
}  # fmt: skip


def test_degrees_asked_for_are_compared_cause_by_cause(planned: Result) -> None:
    assert comparisons.why_not(with_extra(planned)) == []
    text = render(*comparisons.why_not(with_extra(planned, why_not=ASKED)))
    words = " ".join(text.split())
    assert "why not tensor=2, shard=0: tensor 2; step 3 s, 50.00% slower than the answer (gap 1.00% with these fixed)" in words
    rows = [line.split() for line in text.splitlines()]
    assert ["compute", "1", "s", "1.5", "s", "+500", "ms"] in rows
    assert ["bubble", "1", "s", "750", "ms", "-250", "ms"] in rows
    assert "reduce" not in text, "a difference of less than a two-thousandth of the step is left out"
    quicker = render(*comparisons.why_not(with_extra(planned, why_not={**ASKED, "slower_ratio": -0.125, "gap_ratio": None})))
    quicker = " ".join(quicker.split())
    assert "14.29% quicker than the answer" in quicker and "gap" not in quicker


def test_degrees_that_give_no_plan_say_why_and_what_is_proven(planned: Result) -> None:
    def said(**entry: Any) -> object:
        return comparisons.why_not(with_extra(planned, why_not={"fixed": {"tensor": 3}, "feasible": False, **entry}))[0]

    assert said(reason="3 does not divide") == "why not tensor=3: 3 does not divide"
    proven = {"missing_bytes": 2.0**31, "infeasible_proven": True}
    assert said(**proven) == "why not tensor=3: nothing fits, the nearest plan needs 2 GiB more on its fullest device"
    assert str(said(**proven, nearest="data 8")).endswith("; nearest: data 8")
    unproven = str(said(missing_bytes=1.0))
    assert "no plan that fits was found, which is no proof that there is none" in unproven and "nothing fits" not in unproven


def test_operators_that_repeat_stand_once_with_their_number() -> None:
    rows = [
        {"operator": f"layers.{i}.mlp", "split": "rows 4", "compute_seconds": 0.002, "flops": 12345.6} for i in range(12)
    ] + [{"operator": "layers.1.mlp", "split": "columns 4", "compute_seconds": 0.002, "flops": 0.0}]
    lines = [line.split() for line in render(operators(rows)).splitlines()]
    assert ["operator", "times", "split", "compute", "flops"] in lines
    assert ["layers.*.mlp", "12", "rows", "4", "2", "ms", "1.235e+04"] in lines
    assert ["layers.*.mlp", "1", "columns", "4", "2", "ms", "-"] in lines
    different = [{"operator": f"op{chr(97 + i)}", "split": "", "cost": float(i)} for i in range(5)]
    short = render(operators(different, 3))
    assert "opc" in short and "opd" not in short and "and 2 more" in short
    assert "more" not in render(operators(different, 5))
    assert render(operators([]))
