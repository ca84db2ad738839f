"""What is said of a run: ratios to bound and best plan, what was refused, what is odd."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from meshwright.suite import ANSWERED, NOTHING, Attempt, BenchProblem, page, results

ONE, TWO = (BenchProblem(f"models/{name}", True, "gpt2", "step_seconds", ("best",)) for name in ("one", "two"))


def run(*attempts: Attempt, n_asked: int = 2) -> results.BenchRun:
    names = tuple(dict.fromkeys(one.planner for one in attempts))
    return results.BenchRun(1, "abc", 30.0, n_asked, (ONE, TWO), names, attempts)


FULL = run(
    Attempt(ONE.id, "best", ANSWERED, 2.0, 1.0, 3.0, 2.5, 5_000_000),
    Attempt(ONE.id, "mine", ANSWERED, 8.0, None, 1.0, 0.5, 7_000_000),
    Attempt(TWO.id, "best", ANSWERED, 6.0, 3.0, 1.0, 1.0, 1_000_000),
    Attempt(TWO.id, "mine", "refused", reason="<no> plan"),
)


def test_bound_and_best_plan_are_those_of_the_run() -> None:
    assert (FULL.bound_value(ONE.id), FULL.best_value(ONE.id)) == (1.0, 2.0)
    assert (FULL.bound_value("models/none"), FULL.best_value("models/none")) == (None, None)


def test_the_figures_of_a_planner_are_over_what_it_answered() -> None:
    best, mine = results.as_json(FULL)["planners"]
    assert (best["n_attempts"], best["n_answered"], mine["n_answered"], mine["n_refused"]) == (2, 2, 1, 1)
    assert best["to_bound_mean_ratio"] == pytest.approx(2.0) and mine["to_bound_mean_ratio"] == pytest.approx(8.0)
    assert (best["to_best_mean_ratio"], best["n_best"]) == (pytest.approx(1.0), 2)
    assert (mine["to_best_mean_ratio"], mine["n_best"], mine["cpu_seconds"]) == (pytest.approx(4.0), 0, 0.5)
    assert best["peak_bytes"] == 5_000_000 and best["cpu_seconds"] == 3.5


def test_the_mean_is_geometric() -> None:
    two = run(Attempt(ONE.id, "a", ANSWERED, 2.0, 1.0), Attempt(TWO.id, "a", ANSWERED, 8.0, 1.0))
    assert results.as_json(two)["planners"][0]["to_bound_mean_ratio"] == pytest.approx(math.sqrt(2.0 * 8.0))


def test_without_a_bound_there_is_no_ratio_to_it() -> None:
    alone = run(Attempt(ONE.id, "mine", ANSWERED, 8.0))
    entry = results.as_json(alone)
    assert entry["problems"][0]["bound"] is None and entry["problems"][0]["attempts"][0]["to_bound_ratio"] is None
    assert entry["planners"][0]["to_bound_mean_ratio"] is None and entry["problems"][0]["attempts"][0]["to_best_ratio"] == 1.0


def test_a_plan_below_a_bound_and_a_false_no_are_pointed_at() -> None:
    odd = run(
        Attempt(ONE.id, "best", ANSWERED, 2.0, 2.0), Attempt(ONE.id, "mine", ANSWERED, 1.5), Attempt(ONE.id, "other", NOTHING),
        Attempt(TWO.id, "other", NOTHING),
    )  # fmt: skip
    one, two = results.as_json(odd)["problems"]
    notes = [attempt["note"] for attempt in one["attempts"]]
    assert notes[0] is None and "below the bound" in notes[1] and "though a plan of this run does" in notes[2]
    assert two["attempts"][0]["note"] is None


def test_a_run_that_was_interrupted_says_so() -> None:
    assert results.as_json(FULL)["complete"] is True and results.as_json(run(n_asked=5))["complete"] is False
    assert "2 of 5 problems" in results.table(run(n_asked=5)) and "2 problems" in results.table(FULL)


def test_the_table_and_the_page_hold_every_attempt() -> None:
    table, made = results.table(FULL), page.page(FULL, {"release": "x & y"})
    for text in (ONE.id, "mine", "refused", "2.0000", "4.768 MiB"):
        assert text in table and text in made
    assert "<no> plan" in table and "&lt;no&gt; plan" in made and "<no>" not in made and "x &amp; y" in made
    assert "<script" not in made and "http" not in made


def test_a_family_is_counted_for_itself() -> None:
    other = BenchProblem("piper/one", True, "x", "seconds_per_microbatch", ("piper",))
    attempts = (*FULL.attempts, Attempt(other.id, "mine", ANSWERED, 3.0, None, 1.0, 4.0, 9_000_000))
    held = results.BenchRun(1, "abc", 30.0, 3, (ONE, TWO, other), ("best", "mine"), attempts)
    families = results.as_json(held)["families"]
    assert [(one["family"], one["planner"], one["n_attempts"]) for one in families] == [
        ("models", "best", 2), ("models", "mine", 2), ("piper", "mine", 1),
    ]  # fmt: skip
    assert (families[1]["cpu_seconds"], families[2]["cpu_seconds"], families[2]["peak_bytes"]) == (0.5, 4.0, 9_000_000)
    assert families[2]["to_bound_mean_ratio"] is None and families[2]["n_best"] == 1
    assert [row[0] for row in results.family_rows(held)] == ["models", "models", "piper"]


def test_the_picture_has_a_mark_for_every_attempt_with_a_bound_and_says_when_and_where() -> None:
    dated = replace(FULL, begun="2026-11-24 02:00", machine="a <chip>, 2 cores")
    made = page.page(dated, {})
    marks = re.findall(r'<g transform="translate\(([\d.]+) ([\d.]+)\)[^>]*>.*?<title>([^<]+)</title>', made)
    drawn = {title: (float(x), float(y)) for x, y, title in marks}
    assert len([title for title in drawn if "of the bound" in title]) == 3  # the refused plan has none
    slow, quick = (
        drawn[title] for title in drawn if title.startswith(f"{ONE.id}: best") or title.startswith(f"{TWO.id}: best")
    )
    assert slow[0] > quick[0] and slow[1] == quick[1]  # 2.5 and 1 CPU seconds, both at twice the bound
    (poor,) = (drawn[title] for title in drawn if title.startswith(f"{ONE.id}: mine"))
    assert poor[1] < slow[1]  # eight times the bound lies higher up
    assert "2026-11-24 02:00 UTC" in made and "a &lt;chip&gt;, 2 cores" in made
    assert results.as_json(dated)["begun"] == "2026-11-24 02:00" and results.as_json(FULL)["machine"] is None
    assert "<svg" not in page.page(run(Attempt(ONE.id, "mine", ANSWERED, 8.0)), {})  # no bound, no picture


@pytest.mark.parametrize("values", [(0.5, 0.5), (1.0, 1.0 + 1e-12), (0.031, 940.0), (1.0, 16.7), (7.0, 7.1)])
def test_an_axis_holds_all_values(values: tuple[float, float]) -> None:
    steps = page._decades(values)
    assert len(steps) >= 2 and steps[0] <= values[0] * (1 + 1e-9) and steps[-1] >= values[1] * (1 - 1e-9)
    assert steps[1] > values[0] * (1 - 1e-9) or steps[0] == values[0]
