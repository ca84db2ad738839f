"""Intervals around predictions: their ends by kind of device, and where they are shown."""

from __future__ import annotations

import pytest

from meshwright import api
from meshwright.clusters.wires import device, device_names
from meshwright.core import interval
from meshwright.core.formatting import step_interval
from meshwright.core.problem import Batch
from meshwright.report.text import explain
from meshwright.writers import plan_json, report_html


def test_the_ends_stand_below_and_above_each_other_for_every_kind() -> None:
    known = interval.factors()
    assert all(0.0 < low < high for low, high in known.values())
    names = {device(name).name for name in device_names()}
    assert set(known) - {"default"} <= names


def test_a_kind_without_measured_runs_gets_the_widest_interval() -> None:
    known = interval.factors()
    low, high = known["default"]
    assert low <= min(low for low, _ in known.values()) and high >= max(high for _, high in known.values())
    found = interval.around(10.0, ["no such device"])
    assert (found.low_seconds, found.high_seconds) == pytest.approx((10.0 * low, 10.0 * high))


def test_of_several_kinds_the_widest_counts() -> None:
    known = {"a": (0.9, 1.1), "b": (0.8, 1.05), "default": (0.5, 2.0)}
    assert interval.around(1.0, ["a", "b"], known) == interval.Interval(0.8, 1.1)
    assert interval.around(1.0, [], known) == interval.Interval(0.5, 2.0)


def test_an_answer_of_our_cost_model_shows_its_interval_and_one_of_a_published_model_none() -> None:
    result = api.plan("gpt3-125m", "dgx-a100:2", batch=Batch(global_batch=8, sequence_length=256))
    found = step_interval(result)
    assert found is not None and result.timeline is not None
    assert "80%: " in explain(result)
    written = plan_json.as_json(result)
    assert written["step_interval"]["coverage_ratio"] == 0.8
    assert written["step_interval"]["low_seconds"] == pytest.approx(found.low_seconds)
    assert "of measured steps" in report_html.page(result)
