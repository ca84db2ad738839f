"""Comparisons that run in slices: rows are kept in a table, and a later call runs only what is missing."""

from __future__ import annotations

import pathlib
import sys
from functools import partial

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "benchmarks"))

import comparison
import mapping
import numpy as np
import partitioning

from meshwright.solvers.partition.hypergraph import contract


def test_a_later_call_runs_only_the_rows_that_are_missing(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "rows.csv")
    ran: list[tuple[str, int]] = []

    def row(case: str, seed: int) -> comparison.Row:
        ran.append((case, seed))
        figures = {"published": 3.0, "ours": 2.0, "bound": 1.0, "exact": seed == 0}
        return {"case": case, "seed": seed, **figures, "ours_cpu_seconds": 0.5, "published_cpu_seconds": 1e-3}

    def asked(n_seeds: int) -> list[tuple[str, int, partial[comparison.Row]]]:
        return [(case, seed, partial(row, case, seed)) for case in ("a 4", "b 4") for seed in range(n_seeds)]

    first = comparison.collect(asked(1), path, 60.0)
    none = comparison.collect(asked(2), path, -1.0)  # no time: nothing begins
    both = comparison.collect(asked(2), path, 60.0)
    assert ran == [("a 4", 0), ("b 4", 0), ("a 4", 1), ("b 4", 1)]
    assert len(first) == len(none) == 2 and len(both) == 4
    assert comparison.collect([], path, 0.0) == both
    assert "| a 4 | 2 | 1.500 | 1.500 | 1.500 | 1 | 2.000 | 0.50 | 0.00 |" in comparison.summary(both)
    assert comparison.svg("title", both).count("<circle") == 8


def test_the_published_mapping_has_no_less_time_than_ours_unless_it_ends_by_itself() -> None:
    figures = mapping.row("case", "parmesan-mesh:2x3", (3, 2), 1)
    assert figures["ours"] <= figures["published"] * (1 + 1e-9)  # type: ignore[operator]
    assert figures["bound"] <= figures["ours"] * (1 + 1e-9)  # type: ignore[operator]


@pytest.mark.parametrize("seed", [0, 5])
def test_operators_under_other_numbers_are_the_same_graph(seed: int) -> None:
    operators = partitioning.transformer(1)
    other = partitioning.renumbered(operators, seed)
    assert (seed == 0) == np.array_equal(operators.compute, other.compute)
    assert len(contract(operators)) == len(contract(other))
    value, _, n_runs = partitioning.published(operators, 4, 0, 0.0)
    assert n_runs == 3 and value >= operators.compute.sum() / 4
    row = partitioning.row("case", operators, 4, seed)
    assert row["ours"] == pytest.approx(partitioning.row("case", operators, 4, 0)["ours"])
