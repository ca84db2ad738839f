"""The partitioner against published optima (Tarnawski et al., NeurIPS 2020) and against the best partitions known."""

from __future__ import annotations

from typing import Any

import pytest

import reference
from meshwright import api

LONGEST = ("layer/gnmt_training", "layer/gnmt_training-8")
"""Rows that take as long as all others together."""


def graph(name: str) -> str:
    return str(reference.path(f"partitioning/{name}.json"))


def rows(file: str, *columns: str) -> list[Any]:
    """Return the rows of a file, named by some columns."""
    found = []
    for row in reference.rows(f"partitioning/{file}.csv"):
        name = "-".join(row[column] for column in columns)
        found.append(pytest.param(row, id=name, marks=[pytest.mark.slow] * (name in LONGEST)))
    return found


@pytest.mark.parametrize("row", rows("partitioning_ideal_dp", "graph"))
def test_accelerators_host_and_memory_as_in_the_file_give_the_published_optimum(row: dict[str, str]) -> None:
    result = api.plan(graph(row["graph"]), search="partition", settings={"n_cpus": "1"})
    answer = result.answer
    assert answer.objective is not None and answer.bound is not None
    assert answer.objective.value == pytest.approx(float(row["optimum"]), rel=1e-12)
    assert answer.bound.method == "exact"


@pytest.mark.parametrize("row", rows("partitioning_stages", "graph", "n_stages"))
def test_stages_are_at_least_as_good_as_the_best_known(row: dict[str, str]) -> None:
    settings = {"n_stages": row["n_stages"], "memory_limit": "none"}
    answer = api.plan(graph(row["graph"]), search="partition", settings=settings).answer
    assert answer.objective is not None and answer.bound is not None
    assert answer.objective.value <= float(row["best_known"]) * (1 + 5e-5)  # the reference has five digits
    assert answer.bound.method == "exact"
