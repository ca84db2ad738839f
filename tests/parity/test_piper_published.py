"""Piper's own inputs and its authors' program's answers: every objective, every infeasible row, every baseline, fixed plans."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import reference
from meshwright import api
from meshwright.base import options
from meshwright.core.problem import Stop
from meshwright.planners.piper import solve
from meshwright.planners.piper.costs.piper import evaluate
from meshwright.planners.piper.menu import Options
from meshwright.planners.piper.problem import PiperInstance
from meshwright.planners.piper.readers.piper_json import with_limits
from meshwright.planners.piper.search import piper_equal_split

OPTIONS = {
    "piper": Options(exact=False),
    "noDP": Options(exact=False, data_parallel=False),
    "noTP": Options(exact=False, tensor_parallel=False),
    "noAR": Options(exact=False, recompute="never"),
    "forcedAR": Options(exact=False, recompute="always"),
    "AR_all_or_none": Options(exact=False, all_or_none=True),
}
SPLITS = {
    "equi": {},
    "equi_noTP": {"tensor_parallel": "false"},
    "equi_nosep": {"separate": "false"},
    "equi_noTP_nosep": {"tensor_parallel": "false", "separate": "false"},
    "equi_layers_noTP": {"layers": "true", "tensor_parallel": "false"},
}


def _rows(name: str, column: str) -> Iterator[tuple[dict[str, str], float | None]]:
    """Yield rows that have an answer; None where nothing fits."""
    for row in reference.rows(f"piper/{name}"):
        if row[column] or row.get("infeasible") == "1":
            yield row, float(row[column]) if row[column] else None


def _spec(name: str) -> str:
    grown = {"bert48": "bert32a100.json#layers=48", "bert64": "bert32a100.json#layers=64"}
    file = name if name.endswith(".json") else grown.get(name, f"{name}.json")
    base, mark, change = file.partition("#")
    return str(reference.path(f"piper/{base}")) + mark + change


class _Instances:
    """Instances by file, read once."""

    def __init__(self) -> None:
        self.known: dict[str, PiperInstance] = {}

    def at(self, row: dict[str, str]) -> PiperInstance:
        name = row["input"]
        if name not in self.known:
            instance = api.read(_spec(name)).instance
            assert isinstance(instance, PiperInstance)
            self.known[name] = instance
        return with_limits(
            self.known[name],
            n_devices=int(row["maxDevices"]),
            n_microbatches=int(row["mbsInBatch"]),
            bandwidth=float(row["bandwidth"]),
            memory_bytes=float(row["memory"]),
        )


def _compare(instance: PiperInstance, row: dict[str, str], value: float | None) -> None:
    """Compare greedy with the reference, and exact with greedy."""
    solution = solve.solve(instance, OPTIONS[row["variant"]], nearly_ratio=0.0)
    if value is None:
        assert solution.stages == (), row
        return
    evaluation = evaluate(instance, solution.stages)
    assert evaluation.missing_bytes == 0.0, row
    assert evaluation.seconds == pytest.approx(value, rel=1e-9), row


def test_every_row_of_the_random_graphs_is_reproduced() -> None:
    instances = _Instances()
    count = 0
    for row, value in _rows("piper_random.csv", "objective"):
        _compare(instances.at(row), row, value)
        count += 1
    assert count > 300


@pytest.mark.parametrize("model", ["bert32a100", "bert48", "bert64", "bert96"])
def test_every_row_of_bert_is_reproduced(model: str) -> None:
    instances = _Instances()
    count = 0
    for row, value in _rows("piper.csv", "objective_time_per_sample"):
        if row["input"] == model and row["variant"] in OPTIONS:
            _compare(instances.at(row), row, value)
            count += 1
    assert count > 20


@pytest.mark.slow
def test_every_row_of_gnmt_is_reproduced() -> None:
    instances = _Instances()
    rows = [(row, value) for row, value in _rows("piper.csv", "objective_time_per_sample") if row["input"] == "gnmt"]
    for row, value in rows:
        if row["variant"] in OPTIONS:
            _compare(instances.at(row), row, value)
    assert rows


def test_the_exact_choice_is_never_worse_than_the_greedy_and_better_where_that_is_not_optimal() -> None:
    instances = _Instances()
    better = 0
    for row, value in _rows("piper_random.csv", "objective"):
        if row["variant"] not in ("piper", "noTP"):
            continue
        instance = instances.at(row)
        solution = solve.solve(instance, Options(tensor_parallel=row["variant"] == "piper"), nearly_ratio=0.0)
        assert bool(solution.stages) == (value is not None)
        if value is not None:
            seconds = evaluate(instance, solution.stages).seconds
            assert seconds <= value * (1 + 1e-12)
            better += seconds < value * (1 - 1e-9)
            if row["input"].endswith("rand_010.json") and row["variant"] == "noTP":
                assert seconds == pytest.approx(2.1432365044700337, rel=1e-12)
    assert better >= 1


def test_every_row_of_the_equal_splits_is_reproduced() -> None:
    model_specs = {name: api.read(_spec(name)) for name in ("bert32a100", "gnmt")}
    count = 0
    for row, value in _rows("piper.csv", "objective_time_per_sample"):
        if row["variant"] not in SPLITS:
            continue
        settings = {
            "max_devices": row["maxDevices"],
            "n_microbatches": row["mbsInBatch"],
            "bandwidth": row["bandwidth"],
            "memory": row["memory"],
        } | SPLITS[row["variant"]]
        if int(row["maxDevices"]) > 500 and count % 4:
            count += 1
            continue
        params = options.parse(piper_equal_split.Params, settings, "search piper_equal_split")
        answer = piper_equal_split.search(api.make_problem(model_specs[row["input"]]), params, seed=0, stop=Stop())
        assert (answer.objective is None) == (value is None), row
        if value is not None and answer.objective is not None:
            assert answer.objective.value == pytest.approx(value, rel=1e-9), row
        count += 1
    assert count > 100


def test_fixed_plans_have_the_published_values() -> None:
    model_spec = api.read(_spec("bert32a100"))
    for row in reference.rows("piper/piper_fixed_plans.csv"):
        settings = {
            "max_devices": row["maxDevices"],
            "n_microbatches": row["N"],
            "bandwidth": row["bandwidth"],
            "memory": row["memory"],
            "recompute": "always" if row["recompute"] == "all" else "never",
            "separate": "true" if row["separate"] == "1" else "false",
            "stages": row["stages"],
            "data": row["d"],
            "tensor": row["t"],
        }
        params = options.parse(piper_equal_split.Params, settings, "search piper_equal_split")
        answer = piper_equal_split.search(api.make_problem(model_spec), params, seed=0, stop=Stop())
        assert answer.objective is not None
        assert answer.objective.value == pytest.approx(float(row["objective"]), rel=1e-9)


def test_the_published_resnet_has_as_many_downsets_as_the_authors_program_finds() -> None:
    instance = api.read(_spec("resnet")).instance
    assert isinstance(instance, PiperInstance)
    solution = solve.solve(instance, Options(exact=False), nearly_ratio=0.0)
    assert (solution.n_downsets, solution.method) == (242, "exact")


def test_a_model_grown_to_96_layers_is_the_published_one() -> None:
    grown = api.read(_spec("bert32a100") + "#layers=96").instance
    published = api.read(_spec("bert96")).instance
    assert isinstance(grown, PiperInstance) and isinstance(published, PiperInstance)
    assert (len(grown.nodes), len(grown.edges)) == (len(published.nodes), len(published.edges))
    values = []
    for instance in (grown, published):
        limited = with_limits(instance, n_devices=64, n_microbatches=512, bandwidth=25e9, memory_bytes=80e9)
        values.append(evaluate(limited, solve.solve(limited, Options(), nearly_ratio=0.0).stages).seconds)
    assert values[0] == pytest.approx(values[1], rel=1e-12)
