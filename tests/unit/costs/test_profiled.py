"""Costs from a measured profile: times as measured, between measures on a line, nothing guessed in silence."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from meshwright import api, sim
from meshwright.base.errors import InputError
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Problem
from meshwright.core.strategy import Strategy
from meshwright.costs import profiled


def content() -> dict[str, Any]:
    """Return a profile of three layers, round numbers throughout."""

    def measure(layer: str, rows: int, tensor: int, unit_seconds: float) -> dict[str, Any]:
        return {"layer": layer, "rows": rows, "tensor": tensor, "forward_seconds": unit_seconds * rows / tensor,
                "backward_input_seconds": 1.5 * unit_seconds * rows / tensor,
                "backward_weight_seconds": unit_seconds * rows / tensor,
                "saved_bytes": 100.0 * rows / tensor}  # fmt: skip

    return {
        "format": "meshwright/profile/1", "model": "m", "sequence_length": 8, "device": "CPU", "n_cores": 2,
        "memory_bytes": 1e9,
        "optimizer_seconds_per_byte": 1e-6,
        "layers": [{"name": name, "like": like, "n_parameters": 10, "weight_bytes": 40.0, "output_bytes": 16.0}
                   for name, like in (("embed", "embed"), ("layers.0", "layers.0"), ("layers.1", "layers.0"))],
        "measures": [measure("embed", 1, 1, 1.0), measure("embed", 4, 1, 1.0), measure("layers.0", 1, 1, 2.0),
                     measure("layers.0", 4, 1, 2.0), measure("layers.0", 4, 2, 2.0)],
        "links": {"n_ranks": 4,
                  "pairs": [{"source": i, "target": j, "latency_seconds": 0.5, "seconds_per_byte": 0.25}
                            for i in range(4) for j in range(4) if i != j],
                  "collectives": [{"kind": kind, "n_ranks": 2, "latency_seconds": 1.0, "seconds_per_byte": 0.125}
                                  for kind in ("all_reduce", "all_gather", "reduce_scatter")]},
    }  # fmt: skip


def problem(folder: pathlib.Path, **changed: Any) -> Problem:
    """Return the problem of a profile file."""
    path = folder / "profile.json"
    path.write_text(json.dumps(content() | changed))
    return api.make_problem(str(path))


def plan(*stages: Stage, **options: Any) -> Plan:
    return Plan(tuple(stages), **{"n_microbatches": 2, "micro_batch": 2, "global_batch": 4, **options})


def test_a_stage_takes_the_sum_of_its_layers_between_measures_on_a_line(tmp_path: pathlib.Path) -> None:
    first, second = profiled.stage_costs(problem(tmp_path), plan(Stage((0, 1), (0,)), Stage((2,), (1,), recompute=("full",))))
    assert first.forward_seconds == pytest.approx(2 * 1 + 2 * 2)
    assert first.backward_input_seconds == pytest.approx(1.5 * 6)
    assert first.activation_bytes == pytest.approx(400.0)
    assert first.output_bytes == 32.0
    assert second.recompute_seconds == pytest.approx(4.0)
    assert second.activation_bytes == 32.0  # its input alone
    assert second.optimizer_seconds == pytest.approx(40e-6)


def test_replicas_share_the_rows_and_add_up_gradients_as_measured(tmp_path: pathlib.Path) -> None:
    (load,) = profiled.stage_costs(problem(tmp_path), plan(Stage((0, 1, 2), (0, 1), Strategy(data=2))))
    assert load.forward_seconds == pytest.approx(1 + 2 + 2)
    assert load.reduce_seconds == pytest.approx(1.0 + 120 * 0.125)
    (load,) = profiled.stage_costs(problem(tmp_path), plan(Stage((0, 1, 2), (0, 1), Strategy(data=2, shard=1))))
    assert load.reduce_seconds == load.gather_seconds == pytest.approx(16.0)
    assert load.optimizer_bytes == pytest.approx(120.0)


def test_a_measured_tensor_degree_is_used_where_the_layer_can_be_split(tmp_path: pathlib.Path) -> None:
    one = plan(Stage((0, 1, 2), (0, 1), Strategy(tensor=2)), n_microbatches=1)
    (load,) = profiled.stage_costs(problem(tmp_path), one)
    assert load.forward_seconds == pytest.approx(4 + 4 + 4)  # the table is computed whole by both
    assert dict(load.forward_communication)["tensor"] == pytest.approx(2 * (1.0 + 2 * 16 * 4 * 0.125))
    assert load.weight_bytes == pytest.approx(80.0)


def test_a_profile_is_simulated_on_its_own_links(tmp_path: pathlib.Path) -> None:
    posed = problem(tmp_path)
    stage_costs, timeline = api.evaluate(
        posed, plan(Stage((0, 1), (0,)), Stage((2,), (1,)), n_microbatches=1, micro_batch=1, global_batch=1)
    )
    assert timeline is not None and posed.cluster is not None
    send = 0.5 + 16 * 0.25
    assert timeline.step_seconds == pytest.approx(3 + send + 2 + 5 + send + 7.5 + stage_costs[0].optimizer_seconds)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"layerz": []}, "no field in .* called 'layerz'; did you mean 'layers'"),
        (
            {"layers": [{"name": "a", "like": "b", "n_parameters": 1, "weight_bytes": 1.0, "output_bytes": 1.0}]},
            "nothing was measured",
        ),
        ({"measures": 3}, "measures is 3; it must be a list"),
    ],
)
def test_a_wrong_profile_is_told(changed: dict[str, Any], told: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match=told):
        problem(tmp_path, **changed)


@pytest.mark.parametrize(
    ("search", "settings"), [("partition", {"n_stages": "2"}), ("parmesan", {}), ("stage_mapping", {"unequal": "false"})]
)
def test_partition_and_mapping_take_measured_times_and_links(
    search: str, settings: dict[str, str], tmp_path: pathlib.Path
) -> None:
    found = problem(tmp_path, layers=[layer | {"output_bytes": 4.0} for layer in content()["layers"]])
    result = api.plan(found, search=search, settings=settings)
    assert result.plan is not None and result.problem.costs == "profiled"
    stage_costs = profiled.stage_costs(result.problem, result.plan)
    assert result.timeline.step_seconds == pytest.approx(sim.simulate(result.problem, result.plan, stage_costs).step_seconds)
    if search == "partition":  # 3.5 s for the first layer, 7 s for each other; a tensor of 4 bytes there and back
        assert [stage.ops for stage in result.plan.stages] == [(0, 1), (2,)]
        assert result.answer.objective is not None and result.answer.objective.value == pytest.approx(3.5 + 7.0 + 2 * 4 * 0.25)


def test_what_was_not_measured_is_not_legal(tmp_path: pathlib.Path) -> None:
    found = problem(tmp_path)
    assert profiled.illegal(found, Strategy(tensor=2, data=4), 8) == ""
    assert "4 was not measured" in profiled.illegal(found, Strategy(tensor=4))
    assert "context" in profiled.illegal(found, Strategy(context=2))
    device = found.cluster.device(0) if found.cluster else None
    assert device is not None
    # a layer that the tensor axis does not split is computed whole
    assert profiled.compute_seconds(found, Strategy(tensor=2), 4, device) == pytest.approx({0: 14.0, 1: 14.0, 2: 14.0})


SHARED = [{"layers": ["embed", "layers.1"], "n_parameters": 8, "weight_bytes": 32.0}]


def test_a_table_that_two_layers_share_is_held_reduced_and_updated_once(tmp_path: pathlib.Path) -> None:
    posed = problem(tmp_path, shared=SHARED)
    assert posed.graph.n_parameters == 3 * 10 - 8
    (load,) = profiled.stage_costs(posed, plan(Stage((0, 1, 2), (0, 1), Strategy(data=2))))
    held = 3 * 40.0 - 32.0
    assert (load.weight_bytes, load.gradient_bytes, load.optimizer_bytes) == (held, held, 2 * held)
    assert load.optimizer_seconds == pytest.approx(held * 1e-6)
    assert load.reduce_seconds == pytest.approx(1.0 + held * 0.125)
    (load,) = profiled.stage_costs(posed, plan(Stage((0, 1, 2), (0, 1), Strategy(data=2, shard=3))))
    assert dict(load.forward_communication)["gather"] == pytest.approx(1.0 + 120 * 0.125)  # gathered for each of its uses
    assert load.weight_bytes == held / 2
    apart = profiled.stage_costs(posed, plan(Stage((0, 1), (0,)), Stage((2,), (1,))))
    assert [stage.weight_bytes for stage in apart] == [80.0, 40.0]
    ends = (Stage((0,), (0,)), Stage((1,), (1,)), Stage((2,), (0,)))
    assert [stage.weight_bytes for stage in profiled.stage_costs(posed, plan(*ends))] == [40.0, 40.0, 8.0]


def test_no_plan_of_a_shared_table_undercuts_the_bound(tmp_path: pathlib.Path) -> None:
    """The update outweighs all else: counted for both layers it was above the plan's step."""
    posed = problem(tmp_path, shared=SHARED, optimizer_seconds_per_byte=10.0)
    result = api.plan(str(tmp_path / "profile.json"), global_batch=4, settings={"pipeline": "1", "data": "1", "tensor": "1"})
    assert result.problem.graph.n_parameters == posed.graph.n_parameters
    assert result.bound is not None and result.objective is not None
    assert result.bound.value <= result.objective.value * (1 + 1e-9)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"layers": ["embed", "head"]}, "there is no layer 'head'"),
        ({"layers": ["embed", "embed"]}, "two layers or more, each once"),
        ({"n_parameters": 11}, "layer 'embed' has fewer weights"),
        ({"weight_bytes": 41.0}, "layer 'embed' has fewer weights"),
        ({"n_parameters": -1}, "n_parameters is -1"),
    ],
)
def test_wrong_shares_are_told(changed: dict[str, Any], told: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match=told):
        problem(tmp_path, shared=[SHARED[0] | changed])
