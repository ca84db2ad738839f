"""A sweep as a table, as CSV and as a plot whose points stand where their figures say."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import pytest

from meshwright.report import sweep_table
from meshwright.report.text import render

ROWS: list[dict[str, Any]] = [
    {"global_batch": 64, "data_parallel_ratio": 2.0, "data_parallel_overlap_ratio": 2.5, "hybrid_ratio": 4.0,
     "step_seconds": 0.25, "n_microbatches": 8, "schedule": "1f1b", "plan": "4@0-3", "note": "",
     "samples_per_second": 256.0, "description": "pipeline 4"},
    {"global_batch": 256, "data_parallel_ratio": None, "data_parallel_overlap_ratio": 3.0, "hybrid_ratio": 8.0,
     "step_seconds": None, "n_microbatches": None, "schedule": None, "plan": "", "note": "nothing fits",
     "samples_per_second": None, "description": ""},
]  # fmt: skip


def test_rows_show_figures_a_dash_for_none_and_the_note_where_there_is_no_plan() -> None:
    rows = [line.split() for line in render(sweep_table.table("net", ROWS)).splitlines()]
    assert ["64", "2.000", "2.500", "4.000", "0.25", "s", "8", "4@0-3"] in rows
    assert ["256", "-", "3.000", "8.000", "-", "-", "nothing", "fits"] in rows


def test_csv_has_every_figure_and_nothing_for_none() -> None:
    assert sweep_table.csv(ROWS).splitlines() == [
        "global_batch,data_parallel_ratio,data_parallel_overlap_ratio,hybrid_ratio,step_seconds,n_microbatches,schedule,plan,note,"
        "samples_per_second,description",
        "64,2.0,2.5,4.0,0.25,8,1f1b,4@0-3,,256.0,pipeline 4", "256,,3.0,8.0,,,,,nothing fits,,",
    ]  # fmt: skip


def points(page: ElementTree.Element, colour: str) -> list[tuple[float, float]]:
    """Return the points of one line of the plot."""
    line = next(node for node in page.iter() if node.tag.endswith("polyline") and node.get("stroke") == colour)
    return [(float(x), float(y)) for x, y in re.findall(r"([\d.]+),([\d.]+)", line.get("points") or "")]


def test_points_lie_on_a_logarithmic_axis_of_sizes_and_an_even_one_of_ratios_from_nought() -> None:
    page = ElementTree.fromstring(sweep_table.svg("a < b", ROWS))
    (low, at_4), (high, at_8) = points(page, "#2060c0")
    assert (low, high) == (60.0, 740.0)  # the least and the largest size stand at the ends
    bottom, top = 370.0, 40.0
    assert at_8 == pytest.approx(bottom - (bottom - top) / 1.08, abs=0.06)  # the largest ratio is 1 / 1.08 of the height
    assert bottom - at_4 == pytest.approx((bottom - at_8) / 2, abs=0.06)
    assert len(points(page, "#888888")) == 1, "what is not known is not drawn"
    labels = {node.text: node for node in page.iter() if node.tag.endswith("text")}
    assert {"64", "128", "256"} <= set(labels) and {"32", "512"}.isdisjoint(labels)
    assert float(labels["128"].get("x") or 0) == pytest.approx((low + high) / 2, abs=0.06)
    levels = {float(text): float(node.get("y") or 0) - 4 for text, node in labels.items() if text in ("0", "1", "4", "8")}
    assert levels[0.0] == pytest.approx(bottom, abs=0.06) and levels[8.0] == pytest.approx(at_8, abs=0.06)
    assert {"data parallel", "data parallel, overlapped", "hybrid", "a < b: speed-up over one device"} <= set(labels)


def test_one_size_stands_in_the_middle_and_lines_are_few_whatever_the_ratios() -> None:
    for ratio, n_lines in ((1.5, 4), (8.0, 9), (30.0, 7)):
        rows = [{**ROWS[0], "data_parallel_ratio": None, "data_parallel_overlap_ratio": None, "hybrid_ratio": ratio}]
        page = ElementTree.fromstring(sweep_table.svg("one", rows))
        assert points(page, "#2060c0")[0][0] == 400.0
        assert len([node for node in page.iter() if node.tag.endswith("line") and node.get("stroke") == "#e0e0e0"]) == n_lines


def test_a_search_that_knows_no_speed_up_shows_samples_a_second_and_plans_in_words() -> None:
    unknown = dict.fromkeys(("data_parallel_ratio", "data_parallel_overlap_ratio", "hybrid_ratio"))
    rows = [ROWS[0] | unknown, ROWS[1] | unknown]
    shown = [line.split() for line in render(sweep_table.table("net", rows)).splitlines()]
    assert ["net:", "samples", "a", "second", "by", "global", "batch"] in shown
    assert ["64", "256", "0.25", "s", "8", "pipeline", "4"] in shown and ["256", "-", "-", "-", "nothing", "fits"] in shown
    page = ElementTree.fromstring(sweep_table.svg("net", rows))
    assert points(page, "#2060c0") == [(60.0, pytest.approx(370.0 - 330.0 / 1.08, abs=0.06))]
    assert "samples a second" in {node.text for node in page.iter()} and "hybrid" not in {node.text for node in page.iter()}
