"""The sections of the answer, cell by cell, on a plan with virtual stages and figures that all differ."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright import clusters, sim
from meshwright.core.graph import Edge, Graph, Op
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import ModelSpec, Problem
from meshwright.core.result import Alternative, Answer, Bound, Objective, Result
from meshwright.core.stage_cost import StageCost
from meshwright.core.strategy import Strategy
from meshwright.report import text

GIB = 2.0**30


@pytest.fixture(scope="module")
def result() -> Result:
    """Two ranks of two virtual stages, each stage larger than the one before; played."""
    graph = Graph("m", tuple(Op(f"layers.{i}", "mlp") for i in range(5)), tuple(Edge(i, i + 1, 8) for i in range(4)),
                  sequence_length=4)  # fmt: skip
    problem = Problem(ModelSpec("m", "m", "m", graph), clusters.cluster("flat:4"))
    two = Strategy(data=2)
    stages = (Stage((0,), (0, 1), two), Stage((1,), (2, 3), two, ("full",)), Stage((2,), (0, 1), two),
              Stage((3, 4), (2, 3), two, ("none", "full")))  # fmt: skip
    plan = Plan(stages, 4, 1, "interleaved_1f1b", 8)
    loads = tuple(StageCost(1.0 * k, 2.0 * k, weight_bytes=k * GIB, activation_bytes=k * GIB / 4) for k in (1, 2, 3, 4))
    other = Plan((Stage((0, 1, 2, 3, 4), (0, 1, 2, 3), Strategy(data=4)),), 2, 1, "1f1b", 8)
    found = Answer(plan, Objective("step_seconds", 50.0), Bound(40.0, "lemma"), (
        Alternative(other, Objective("step_seconds", 60.0), "memory"), Alternative(other, Objective("step_seconds", 49.0), ""),
    ))  # fmt: skip
    return Result(problem, "best", 0, found, loads, sim.simulate(problem, plan, loads), 1.5)


def rows(result: Result) -> list[list[str]]:
    return [line.split() for line in text.explain(result).splitlines()]


def test_every_stage_has_its_own_layers_devices_and_times_and_the_peak_of_its_rank(result: Result) -> None:
    assert result.timeline is not None
    first, second = (f"{peak / GIB:.4g}" for peak in result.timeline.peak_bytes)
    assert first != second
    found = rows(result)
    assert ["0", "layers.0", "0-1", "2", "1", "-", "1", "s", "2", "s", first, "GiB"] in found
    assert ["1", "layers.1", "2-3", "2", "1", "1", "of", "1", "2", "s", "4", "s", second, "GiB"] in found
    assert ["2", "layers.2", "0-1", "2", "1", "-", "3", "s", "6", "s", first, "GiB"] in found
    last = ["3", "layers.3", "..", "layers.4", "(2)", "2-3", "2", "1", "1", "of", "2", "4", "s", "8", "s", second, "GiB"]
    assert last in found


def test_the_answer_states_rates_objective_bound_and_gap(result: Result) -> None:
    assert result.timeline is not None
    said = text.explain(result)
    rate = 8 / result.timeline.step_seconds
    assert f"{rate:.4g} samples/s, {4 * rate:.4g} tokens/s" in said
    assert "objective step_seconds = 50; proven bound 40 (lemma), gap 25.00%" in said
    assert "m: 5 layers, 4 tokens a sample" in said and "flat:4: 4 devices" in said
    assert "search best, costs analytic, 1.5 s of planning\n" in said
    cold = text.explain(replace(result, compiling_seconds=1.2))
    assert "search best, costs analytic, 1.5 s of planning (1.2 s of it compiling)\n" in cold
    short = replace(result.problem.model_spec, graph=replace(result.problem.graph, sequence_length=1))
    without = text.explain(replace(result, problem=replace(result.problem, model_spec=short)))
    assert "tokens/s" not in without and "tokens a sample" not in without


def test_causes_stand_in_order_with_their_shares_and_add_up(result: Result) -> None:
    assert result.timeline is not None
    said = text.explain(result).partition("where the time of a step goes")[2].partition("memory of the fullest")[0]
    shares = [float(word.rstrip("%")) for line in said.splitlines() for word in line.split() if word.endswith("%")]
    assert shares == sorted(shares, reverse=True) and sum(shares) == pytest.approx(100.0, abs=0.5)
    bars = [line.count("█") for line in said.splitlines() if "%" in line]
    assert all(abs(bar - 0.4 * share) <= 0.6 for bar, share in zip(bars, shares, strict=True))


def test_memory_is_told_by_rank_with_what_is_left(result: Result) -> None:
    assert result.timeline is not None and result.problem.cluster is not None
    limit = result.problem.cluster.device(0).memory_bytes
    found = rows(result)
    for rank, peak in enumerate(result.timeline.peak_bytes):
        (row,) = [line for line in found if line[:1] == [str(rank)] and f"{(limit - peak) / GIB:.4g}" in line]
        assert row[-6:] == [f"{peak / GIB:.4g}", "GiB", f"{limit / GIB:.4g}", "GiB", f"{(limit - peak) / GIB:.4g}", "GiB"]
    weights = [line for line in found if line[:2] in (["0", "4"], ["1", "6"])]
    assert len(weights) == 2, "the weights of both virtual stages of a rank: 1 + 3 and 2 + 4 GiB"


def test_runners_up_say_how_much_slower_they_are_and_why(result: Result) -> None:
    found = rows(result)
    assert any(line[-3:] == ["60", "+20.00%", "memory"] for line in found)
    assert any(line[-3:] == ["49", "-2.00%", "-"] for line in found)


def _long(n_stages: int, *, alike: bool) -> Result:
    """A pipeline of many stages, every second of which recomputes where they are not to be alike."""
    graph = Graph("long", tuple(Op(f"layers.{i}", "mlp") for i in range(n_stages)))
    problem = Problem(ModelSpec("long", "m", "m", graph), None)
    words = ("none", "none" if alike else "full")
    stages = tuple(Stage((i,), (i,), recompute=(words[i % 2],)) for i in range(n_stages))
    return Result(problem, "best", 0, Answer(Plan(stages, n_stages, 1, "1f1b", n_stages)))


def _stage_rows(said: str) -> list[str]:
    return [line for line in said.splitlines() if line.split()[1:3] == ["1", "layer"] or "layers." in line]


def test_long_plans_are_shown_whole_when_asked_and_cut_with_a_word_otherwise() -> None:
    plan = _long(40, alike=False)
    assert len(_stage_rows(text.explain(plan))) == 40
    short = text.explain(plan, verbose=False)
    shown = _stage_rows(short)
    assert 4 <= len(shown) <= 20 and f"{40 - len(shown)} rows more (-v)" in short and shown[-1].split()[0] == "39"


def test_stages_that_are_alike_share_a_row() -> None:
    short = text.explain(_long(40, alike=True), verbose=False)
    assert len(_stage_rows(short)) == 1 and "0-39" in short and "-v shows all" in short


def test_virtual_stages_are_one_row_for_each_rank_with_the_sum_of_their_times(result: Result) -> None:
    said = text.explain(result, verbose=False)
    assert result.timeline is not None
    first, second = (f"{peak / GIB:.4g}" for peak in result.timeline.peak_bytes)
    found = [line.split() for line in said.splitlines()]
    assert ["0", "2", "layers", "0-1", "-", "4", "s", "8", "s", first, "GiB"] in found
    assert ["1", "3", "layers", "2-3", "2", "of", "3", "6", "s", "12", "s", second, "GiB"] in found
    assert "layers (in 2 virtual stages)" in said


def test_the_verdict_is_the_first_line_and_the_fullest_device_a_sentence(result: Result) -> None:
    said = text.explain(result, verbose=False)
    assert result.timeline is not None
    first = " ".join(said.split("\n\n")[0].split())
    assert first.startswith("m on flat:4: 50 s a step, ") or " a step, " in first
    assert "no plan searched is more than 25.00% quicker." in first
    peak = max(result.timeline.peak_bytes)
    assert f"memory: {peak / GIB:.4g} GiB of" in said and " on rank " in said


def test_long_notes_are_cut_with_a_word(result: Result) -> None:
    noted = replace(
        result,
        answer=replace(result.answer, notes=("few words", "a beginning that says what this is about: " + "many words " * 40)),
    )
    short, whole = text.explain(noted, verbose=False), text.explain(noted)
    assert "note: few words" in short and "note: a beginning that says what this is about: many words" in short
    assert max(map(len, short.splitlines())) <= 100 and short.count("many words") < 10
    assert " ".join(whole.split()).count("many words") == 40


def test_names_are_printed_as_they_are() -> None:
    """A name between colons is no picture, a name in brackets no colour."""
    assert text.render("dgx-h100:100: costs", "a:smile:b", "[red]c[/red]").splitlines() == [
        "dgx-h100:100: costs",
        "a:smile:b",
        "[red]c[/red]",
    ]
