"""PaSE's own answers on its five graphs: costs, baselines, optima."""

from __future__ import annotations

import pytest

import reference
from meshwright import api
from meshwright.planners.pase.layer_costs import configurations, layer_cost
from meshwright.planners.pase.readers.pase_graph import build

ROWS = reference.rows("pase/pase.csv")
EXACT = [row for row in ROWS if row["algo"] == "0"]
NAIVE = [row for row in ROWS if row["algo"] == "1" and row["status"] == "ok"]


def _name(row: dict[str, str]) -> str:
    return f"{row['graph']}-{row['p']}"


def _settings(row: dict[str, str]) -> dict[str, str]:
    return {"n_processors": row["p"], "batch": row["batch"]}


@pytest.mark.parametrize("row", EXACT, ids=_name)
def test_the_optimum_is_the_published_programs_to_the_last_digit_and_proven(row: dict[str, str]) -> None:
    result = api.plan(f"pase:{row['graph']}", search="pase", costs="pase", settings=_settings(row))
    answer = result.answer
    assert answer.objective is not None and answer.bound is not None
    assert answer.objective.value == float(row["independent_optimum"])
    assert abs(answer.bound.gap_ratio(answer.objective)) < 1e-13
    if row["status"] == "ok":
        assert answer.objective.value == float(row["best_cost"])
    assert answer.extra["n_configurations"] == int(row["total_configs"])
    assert answer.extra["baselines"]["data_parallel"] == float(row["data_parallel_cost"])
    if row["owt_cost"]:
        assert answer.extra["baselines"]["one_weird_trick"] == float(row["owt_cost"])


@pytest.mark.parametrize("row", NAIVE, ids=_name)
def test_the_naive_algorithm_costs_as_many_combinations_and_ends_at_the_same_optimum(row: dict[str, str]) -> None:
    answer = api.plan(f"pase:{row['graph']}", search="pase_naive", settings=_settings(row)).answer
    assert answer.objective is not None
    assert answer.objective.value == float(row["best_cost"])
    assert answer.extra["joint_combinations_costed"] == int(row["joint_combinations_costed"])
    assert answer.extra["max_table"] == int(row["max_table"])


@pytest.mark.parametrize(
    ("graph", "kind", "total"),
    [
        ("alexnet", "Pooling", 20327265280),
        ("resnet101", "Pooling", 28107577344),
        ("inception3", "Pooling", 405629394944),
        ("resnet101", "ReduceMean", 199229440000),
        ("inception3", "ReduceMean", 199229440000),
        ("rnnlm", "LSTM", 54466761981952),
        ("transformer", "Softmax", 26075316879360),
    ],
)
def test_costs_that_no_optimum_exercises_add_up_over_all_configurations(graph: str, kind: str, total: int) -> None:
    """Four processors, batch 128, 5000 FLOP per word; from an implementation made independently of this one."""
    operators = [operator for operator in build(graph).operators if operator.kind == kind]
    assert sum(layer_cost(operator, configurations(operator, 4), 5000.0).sum() for operator in operators) == total


@pytest.mark.parametrize(
    ("graph", "n_operators", "n_edges"),
    [("alexnet", 14, 13), ("resnet101", 245, 277), ("inception3", 219, 253), ("rnnlm", 4, 3), ("transformer", 204, 256)],
)
def test_the_graphs_have_the_published_size(graph: str, n_operators: int, n_edges: int) -> None:
    network = build(graph)
    assert (len(network.operators), len(network.edges())) == (n_operators, n_edges)


@pytest.mark.parametrize(("n_processors", "optimum"), [(256, 383635681408.0), (1024, 183934663296.0)])
def test_the_transformer_is_solved_where_the_published_program_cannot(n_processors: int, optimum: float) -> None:
    """Optima of an independent prototype; the published program runs out of memory at 32 processors."""
    answer = api.plan("pase:transformer", settings={"n_processors": str(n_processors)}).answer
    assert answer.objective is not None and answer.bound is not None
    assert answer.objective.value == optimum
    assert abs(answer.bound.gap_ratio(answer.objective)) < 1e-12
