"""The partitioner against published optima (Tarnawski et al., NeurIPS 2020) and against the best partitions known."""

from __future__ import annotations

import pytest

import reference
from meshwright import api


def graph(name: str) -> str:
    return str(reference.path(f"partitioning/{name}.json"))


@pytest.mark.parametrize("row", reference.rows("partitioning/partitioning_ideal_dp.csv"), ids=lambda row: row["graph"])
def test_accelerators_host_and_memory_as_in_the_file_give_the_published_optimum(row: dict[str, str]) -> None:
    result = api.plan(graph(row["graph"]), search="partition", settings={"n_cpus": "1"})
    answer = result.answer
    assert answer.objective is not None and answer.bound is not None
    assert answer.objective.value == pytest.approx(float(row["optimum"]), rel=1e-12)
    assert answer.bound.method == "exact"


@pytest.mark.parametrize(
    "row", reference.rows("partitioning/partitioning_stages.csv"), ids=lambda row: f"{row['graph']}-{row['n_stages']}"
)
def test_stages_are_at_least_as_good_as_the_best_known(row: dict[str, str]) -> None:
    settings = {"n_stages": row["n_stages"], "memory_limit": "none"}
    answer = api.plan(graph(row["graph"]), search="partition", settings=settings).answer
    assert answer.objective is not None and answer.bound is not None
    assert answer.objective.value <= float(row["best_known"]) * (1 + 5e-5)  # the reference has five digits
    assert answer.bound.method == "exact"
