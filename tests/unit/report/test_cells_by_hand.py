"""Cells of reports at their edges: answers without objective or bound, ends of a model on a rank, as many sizes as fit."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright import clusters
from meshwright.core.graph import Edge, Graph, Op
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import ModelSpec, Problem
from meshwright.core.result import Answer, Bound, Objective, Result
from meshwright.core.strategy import Strategy
from meshwright.report import sizes, stages, text


def answered(kinds: tuple[str, ...] = ("embedding", "mlp", "mlp", "mlp", "head")) -> Result:
    graph = Graph("m", tuple(Op(f"{kind}.{i}", kind) for i, kind in enumerate(kinds)),
                  tuple(Edge(i, i + 1, 8) for i in range(len(kinds) - 1)), sequence_length=4)  # fmt: skip
    problem = Problem(ModelSpec("m", "m", "m", graph), clusters.cluster("flat:4"))
    two = Strategy(data=2)
    cut = (Stage((0, 1), (0, 1), two, ("none", "full")), Stage((2, 3, 4), (2, 3), two, ("full", "full", "none")))
    return Result(problem, "best", 0, Answer(Plan(cut, 4, 1, "1f1b", 8), Objective("step_seconds", 50.0), Bound(40.0, "lemma")))


def test_a_rank_is_told_with_the_ends_of_the_model_that_it_holds() -> None:
    found = answered()
    first, last = (stages._row(found, found.plan, rank, ("data", "tensor")) for rank in (0, 1))
    assert "1 layer + embedding.0" in str(first) and "2 layers + head.4" in str(last)
    assert "1 of 2" in str(first) and "2 of 3" in str(last)
    assert [stages._span(values) for values in ((), (2.0**30,), (2.0**30, 3 * 2.0**30), (2.0**20, 3 * 2.0**30))] == [
        "-", "1 GiB", "1 .. 3 GiB", "1 MiB .. 3 GiB",
    ]  # fmt: skip


def test_searches_stand_side_by_side_the_quickest_first_and_those_without_a_plan_last() -> None:
    own = answered()

    def timed(seconds: float) -> Any:
        return SimpleNamespace(step_seconds=seconds, peak_bytes=(2.0**30, 2.0**31))

    slow, quick = replace(own, timeline=timed(3.0)), replace(own, timeline=timed(2.0))
    bare = replace(quick, answer=replace(own.answer, bound=None), timeline=timed(4.0))
    alone = replace(quick, answer=replace(own.answer, objective=None), timeline=timed(5.0))
    none = replace(own, answer=Answer(None, infeasible_proven=True))
    lines = text.compared([
        ("slow", slow, ""), ("refused", None, "because"), ("bare", bare, ""), ("none", none, ""), ("quick", quick, ""),
        ("alone", alone, ""), ("open", replace(own, answer=Answer(None)), ""),
    ]).splitlines()  # fmt: skip
    rows = [line.split() for line in lines if line.split() and line.split()[0] in (
        "slow", "refused", "bare", "none", "quick", "alone", "open")]  # fmt: skip
    assert [row[0] for row in rows] == ["quick", "slow", "bare", "alone", "none", "open", "refused"]
    cells = {row[0]: " ".join(row[1:]) for row in rows}
    assert cells["quick"].startswith("2 s 50 25.00% 2 GiB 0 ns data 2") and "- 2 GiB" in cells["bare"]
    assert cells["alone"].startswith("5 s - - 2 GiB") and cells["none"].endswith("nothing fits")
    assert cells["open"].endswith("no plan that fits was found") and cells["refused"].endswith("- because")
    last = next(line for line in lines if line.split()[:1] == ["quick"])
    header = next(line for line in lines if line.split()[:1] == ["search"])
    assert last.index("data 2") == header.rindex("plan")  # plans begin below each other


@pytest.mark.parametrize(("n", "said"), [(24, ""), (25, "and 1 more: --json has all"), (30, "and 6 more: --json has all")])
def test_so_many_sizes_are_shown_and_the_others_counted(n: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[int] = []
    monkeypatch.setattr(sizes, "_table", lambda title, rows: shown.append(len(rows)) or title)
    monkeypatch.setattr(sizes, "_where", lambda rows: "where")
    monkeypatch.setattr(sizes, "_question", lambda answer: "question")
    monkeypatch.setattr(sizes, "_left_out", lambda answer: [])
    monkeypatch.setattr(sizes.text, "render", lambda *parts, columns: "\n".join(map(str, parts)))
    point = SimpleNamespace(cluster="c:8", days=2.0, money=None)
    found: Any = SimpleNamespace(front=(point,) * n, nearest=None, notes=("n",))
    lines = sizes.explain(found).splitlines()
    assert shown == [24] and (said in lines if said else not any("more:" in line for line in lines))
    assert lines[0] == "question" and lines[1] == "Quickest: c:8 in 2 days." and lines[-1] == "note: n"
    nothing: Any = SimpleNamespace(front=(), nearest=None, complete=True)
    assert sizes.verdict(nothing) == "No size has a plan."
    priced = SimpleNamespace(cluster="d:8", days=3.0, money=5.0, outlay=SimpleNamespace(seconds=1.0))
    near: Any = SimpleNamespace(complete=True, front=(), nearest=priced)
    assert sizes.verdict(near).startswith("Nothing is within the limits. Nearest of those planned: d:8 in 3 days and ")
    both: Any = SimpleNamespace(front=(point, priced), nearest=None)
    assert ". Cheapest with a known price: d:8 in 3 days for" in sizes.verdict(both)  # what c costs is not known
    alone: Any = SimpleNamespace(front=(priced,), nearest=None)
    assert sizes.verdict(alone).endswith("It is the cheapest too.")
