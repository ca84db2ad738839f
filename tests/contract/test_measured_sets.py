"""Every kind of measured set keeps the promises of its room, on the built-in sets of its kind."""

from __future__ import annotations

import csv
import dataclasses
import math

import pytest

from meshwright import validation
from meshwright.base import registry
from meshwright.validation import Point, Skipped

NAMES = registry.names("validation")
KINDS = {name: validation.describe_set(name).kind for name in validation.set_names()}
ROWS = 2
"""Enough of every set to run its module; all of them are predicted elsewhere."""


def _rows(name: str) -> list[dict[str, str]]:
    with validation.set_file(name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("kind", NAMES)
def test_a_kind_has_columns_that_no_other_kind_has_together(kind: str) -> None:
    plugin = registry.load("validation", kind, "measured set")
    assert plugin.COLUMNS and len(set(plugin.COLUMNS)) == len(plugin.COLUMNS)
    assert not set(plugin.COLUMNS) & set(getattr(plugin, "OPTIONAL", ()))
    for other, module in registry.each("validation", "measured set"):
        assert other == kind or set(module.COLUMNS) != set(plugin.COLUMNS)


@pytest.mark.parametrize("kind", NAMES)
def test_a_kind_has_a_built_in_set_or_says_that_it_is_for_the_runs_of_others(kind: str) -> None:
    assert kind in KINDS.values() or getattr(registry.load("validation", kind, "measured set"), "BUILT_IN", True) is False


@pytest.mark.parametrize("name", KINDS)
def test_every_row_gets_one_entry_in_its_order_with_a_prediction_or_a_reason(name: str) -> None:
    rows = _rows(name)
    rows = [rows[i] for i in sorted({round(i * (len(rows) - 1) / (ROWS - 1)) for i in range(ROWS)})]
    entries = registry.load("validation", KINDS[name], "measured set").points(rows)
    assert [entry.row for entry in entries] == list(range(1, len(rows) + 1))
    for entry in entries:
        if isinstance(entry, Skipped):
            assert entry.reason and "\n" not in entry.reason
            continue
        assert isinstance(entry, Point)
        assert entry.room_ratio > 0.0  # infinite where there is nothing to fit
        entry = dataclasses.replace(entry, room_ratio=0.0)
        numbers = [value for value in dataclasses.astuple(entry) if isinstance(value, float)]
        assert numbers and all(not math.isinf(value) for value in numbers)
