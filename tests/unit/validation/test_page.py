"""The page and the worst rows of ``validate``: every row in them, offline, names harmless,
causes those of what was measured.
"""

from __future__ import annotations

import json
import math
import pathlib
import re

import pytest

from meshwright import validation
from meshwright.base.errors import InputError
from meshwright.core import interval
from meshwright.core.interval.run_kind import Kind
from meshwright.validation import Point, Report, Skipped, _worst

GIB = 2.0**30
CAUSES = (("weights", 30 * GIB), ("activations", 10 * GIB), ("working", 0.0), ("allocator", 2 * GIB), ("context", 1 * GIB))


def _report(name: str = "runs.csv") -> Report:
    points = (
        Point(1, 1.0, 1.1, causes=(("compute", 0.9), ("bubble", 0.2), ("tensor", 0.0))),
        Point(3, 2.0, 1.0, 50 * GIB, 43 * GIB, memory_causes=CAUSES),
        Point(4, math.inf, 1.0, fits=True, ran=False),
        Point(5, 1.0, 1.0, 40 * GIB, 40 * GIB, memory_causes=CAUSES, fits=False),
    )
    return Report(name, "vtrain", points, (Skipped(2, "no plan"),), frozenset(), tuple(f"tp {i}" for i in range(1, 6)))


def _data(page: str) -> dict[str, object]:
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])["sets"][0]  # type: ignore[no-any-return]


def test_the_page_holds_every_row_the_furthest_off_first() -> None:
    data = _data(validation.page([_report()]))
    assert [row[0] for row in data["time"]] == [3, 1, 5]  # type: ignore[attr-defined]
    assert data["memory"] == [  # type: ignore[comparison-overlap]
        [3, pytest.approx(50 * GIB), pytest.approx(43 * GIB), "tp 3"],
        [5, pytest.approx(40 * GIB), pytest.approx(40 * GIB), "tp 5"],
    ]
    assert data["errors"]["memory"]["false_fits"] == 1  # type: ignore[index]
    assert data["errors"]["memory"]["false_refusals"] == 1  # type: ignore[index]
    assert data["skipped"] == [{"row": 2, "reason": "no plan"}]  # type: ignore[comparison-overlap]


def test_the_page_needs_no_network_and_a_name_cannot_break_it() -> None:
    page = validation.page([_report("</script><script>alert(1)</script>.csv")])
    assert not re.search(r"(src|href)\s*=|https?://|@import|url\(", page)
    assert page.count("<script") == 2 and "__DATA__" not in page
    assert _data(page)["name"] == "script>.csv"  # of its path, the last part


def test_causes_are_those_of_what_the_set_measures() -> None:
    whole, allocated = _worst.misses(_report(), "memory")
    assert dict(whole.causes) == {cause: value for cause, value in CAUSES if value}
    assert dict(allocated.causes) == {"weights": 30 * GIB, "activations": 10 * GIB}
    assert [cause for cause, _ in whole.causes][:2] == ["weights", "activations"]  # the largest first
    assert whole.error_ratio == pytest.approx(43 / 50 - 1)


def test_worst_rows_are_told_with_their_causes() -> None:
    text = _worst.explain([_report()], 1)
    assert text.splitlines() == [
        "vtrain: worst rows by time", "  row 3: 1 s for 2 s (-50.0%)", "    tp 3",
        "vtrain: worst rows by memory",
        "  row 3: 43 GiB for 50 GiB (-14.0%): weights 70%, activations 23%, allocator 5%, context 2%", "    tp 3",
    ]  # fmt: skip


def test_intervals_are_those_of_what_plan_would_predict() -> None:
    kind = Kind(("A100-SXM-80GB",), mixture=False, shard=1, n_tokens=2048, layer_seconds=1.0)
    point = Point(1, 2.0, 1.0, 50 * GIB, 43 * GIB, memory_causes=CAUSES, planned_seconds=1.5, kind=kind)
    report = Report("runs.csv", "vtrain", (point,), (), frozenset({1}), ("tp 1",))
    ends = interval.around(1.5, kind)
    (row,) = _data(validation.page([report]))["time"]  # type: ignore[misc, attr-defined]
    assert row == [1, 2.0, 1.0, "tp 1", pytest.approx(ends.low_seconds, rel=1e-5), pytest.approx(ends.high_seconds, rel=1e-5)]
    time, *_, memory, _ = _worst.explain([report], 1).splitlines()[1:]
    assert f"(as planned, 80 %: {ends.low_seconds:.3g} s to {ends.high_seconds:.3g} s) for 2 s" in time and "80 %" not in memory


def test_wrong_verdicts_of_both_kinds_are_told() -> None:
    text = validation.explain([_report()])
    assert "failed for memory: 1 runs; 1 of them fit by the prediction" in text
    assert "ran: 3 runs; 1 of them do not fit by the prediction" in text


def test_a_page_that_cannot_be_written_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        validation.write_page([_report()], str(tmp_path / "none" / "page.html"))
