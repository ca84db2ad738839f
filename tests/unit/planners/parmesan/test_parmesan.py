"""The published flow, the joint search and the ensemble on a small graph and cluster."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright import api, clusters
from meshwright.api import export
from meshwright.base.errors import InputError, UnknownNameError
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch
from meshwright.core.result import Answer
from meshwright.core.strategy import Strategy
from meshwright.writers import plan_json


def chain(tmp_path: Path, n: int = 12) -> str:
    """Write a chain of equal operators with tensors of 1 MB that cost little."""
    node = {"supportedOnFpga": 1, "cpuLatency": 10.0, "fpgaLatency": 1.0, "isBackwardNode": 0, "size": 1e6}
    edges = [{"sourceId": i, "destId": i + 1, "cost": 0.01, "size": 1e6} for i in range(n - 1)]
    content = {
        "maxSizePerFPGA": 1e9,
        "maxFPGAs": 4,
        "maxCPUs": 0,
        "nodes": [node | {"id": i} for i in range(n)],
        "edges": edges,
    }
    path = tmp_path / "chain.json"
    path.write_text(json.dumps(content))
    return str(path)


def test_a_pipeline_has_as_many_stages_as_were_asked_for(tmp_path: Path) -> None:
    """Tensors that cost more than the operators: the best cut into six stages leaves most of them empty."""
    path = Path(chain(tmp_path))
    entry = json.loads(path.read_text())
    entry["edges"] = [edge | {"cost": 50.0, "size": 1e9} for edge in entry["edges"]]
    path.write_text(json.dumps(entry))
    result = api.plan(str(path), "parmesan-uniform:6", search="stage_mapping", settings={"n_stages": "6", "rounds": "1"})
    assert len(result.plan.stages) == 6
    assert sorted(op for stage in result.plan.stages for op in stage.ops) == list(range(12))


@pytest.mark.parametrize(
    "settings",
    [
        {"n_stages": "4"},
        {"n_stages": "4", "new_flow": "false", "k": "6"},
        {"n_stages": "2", "search_k": "true", "search_comm_coef": "true"},
        {"n_stages": "4", "concurrent_copy_comp": "false", "incl_allr": "true", "incl_p2p": "true"},
        {"n_stages": "4", "parallel_degree": "4", "parallel_same_t": "2", "comm_coef": "100"},
        {},
    ],
)
def test_every_option_of_the_published_flow_leads_to_a_plan_on_all_devices(tmp_path: Path, settings: dict[str, str]) -> None:
    result = api.plan(chain(tmp_path), "parmesan-two-level:8", search="parmesan", settings=settings)
    assert result.feasible and result.plan.n_devices == 8
    assert sorted(op for stage in result.plan.stages for op in stage.ops) == list(range(12))
    assert result.timeline is not None and result.answer.objective is not None
    if settings.get("concurrent_copy_comp") != "false":
        step_seconds = result.answer.objective.value * result.plan.global_batch
        assert result.timeline.step_seconds == pytest.approx(step_seconds, rel=1e-9)


def test_copies_that_block_compute_are_never_quicker(tmp_path: Path) -> None:
    values = []
    for word in ("true", "false"):
        settings = {"n_stages": "4", "concurrent_copy_comp": word}
        answer = api.plan(chain(tmp_path), "parmesan-two-level:8", search="parmesan", settings=settings).answer
        assert answer.objective is not None
        values.append(answer.objective.value)
    assert values[0] <= values[1]


def test_a_mapping_search_that_gives_up_is_reported(tmp_path: Path) -> None:
    settings = {"n_stages": "4", "nodes": "1", "incl_p2p": "true", "incl_allr": "false"}
    answer = api.plan(chain(tmp_path), "parmesan-uniform:16", search="parmesan", settings=settings).answer
    assert any("stopped at their limit" in note for note in answer.notes)
    assert answer.extra["unfinished"]


def test_partition_and_mapping_together_are_no_worse_than_the_published_flow(tmp_path: Path) -> None:
    for cluster in ("parmesan-dgx1:16", "parmesan-uniform:12"):
        theirs, ours = (
            api.plan(chain(tmp_path), cluster, search=name, settings={"n_stages": "4"}).answer.objective
            for name in ("parmesan", "stage_mapping")
        )
        assert theirs is not None and ours is not None
        assert ours.value <= theirs.value * (1 + 1e-9)


@pytest.mark.parametrize("search", ["parmesan", "stage_mapping"])
def test_a_global_batch_is_kept_exactly_and_idle_devices_are_told(tmp_path: Path, search: str) -> None:
    for samples, n_stages, n_replicas in ((64, 3, 4), (6, 2, 6), (1, 4, 1)):
        answer = api.plan(
            chain(tmp_path), "parmesan-uniform:16", search=search, settings={"n_stages": str(n_stages)}, batch=Batch(samples)
        ).answer
        assert answer.plan is not None and answer.plan.global_batch == samples
        assert answer.plan.n_devices == n_stages * n_replicas
        assert any(f"{16 - n_stages * n_replicas} of 16 devices are not used" in note for note in answer.notes)
    with pytest.raises(InputError, match="--micro-batch 4: does not divide the global batch"):
        api.plan(chain(tmp_path), "parmesan-uniform:4", search=search, batch=Batch(6, 4))
    with pytest.raises(InputError, match="n_microbatches=2: the global batch of 8 decides it"):
        api.plan(chain(tmp_path), "parmesan-uniform:4", search=search, settings={"n_microbatches": "2"}, batch=Batch(8))


def test_stages_with_unequal_replicas_keep_the_global_batch(tmp_path: Path) -> None:
    answer = api.plan(chain(tmp_path, 5), "parmesan-uniform:5", search="stage_mapping", batch=Batch(6)).answer
    assert answer.plan is not None and answer.plan.global_batch == 6
    assert all(other.plan.global_batch == 6 for other in answer.alternatives)


def test_the_ensemble_keeps_the_best_simulated(tmp_path: Path) -> None:
    result = api.plan(
        chain(tmp_path), "parmesan-two-level:4", search="ensemble", settings={"searches": "parmesan,stage-mapping,partition"}
    )
    reached = result.answer.extra["searches"]
    assert isinstance(reached, dict) and set(reached) == {"parmesan", "stage_mapping", "partition"}
    assert result.answer.objective is not None
    assert result.answer.objective.value == min(value for value in reached.values() if value is not None)


@pytest.mark.parametrize("search", ["parmesan", "stage_mapping", "ensemble"])
def test_stages_hold_no_more_than_the_devices_and_what_is_missing_is_told(tmp_path: Path, search: str) -> None:
    # twelve operators of 1 MB; where each device holds 4, three stages are the fewest, where it holds half an operator, none
    # will do
    cluster = clusters.cluster("parmesan-two-level:4")

    def on(memory_bytes: float) -> Answer:
        kind = replace(cluster.kinds[0], memory_bytes=memory_bytes, reserved_bytes=0.0)
        return api.plan(chain(tmp_path), replace(cluster, kinds=(kind,)), search=search).answer

    plenty, tight, tiny = on(1e9), on(4e6), on(0.5e6)
    assert plenty.plan is not None and tight.plan is not None and tiny.plan is None
    assert max(len(stage.ops) for stage in tight.plan.stages) <= 4 < max(len(stage.ops) for stage in plenty.plan.stages)
    # four stages of three operators are the most even: 3 MB in each
    assert tiny.missing_bytes == pytest.approx(2.5e6) and tiny.nearest


def test_what_does_not_fit_together_is_told(tmp_path: Path) -> None:
    path = chain(tmp_path)
    for search, cluster, settings, words in (
        ("parmesan", "parmesan-two-level:8", {"parallel_degree": "3", "parallel_same_t": "2"}, "multiple of parallel_same_t"),
        ("parmesan", "parmesan-two-level:8", {"n_stages": "9"}, "only 8 devices"),
        ("parmesan", None, {}, "--cluster"),
        ("stage_mapping", "parmesan-two-level:16", {"n_stages": "13"}, "only 12 operators"),
        ("ensemble", "parmesan-two-level:8", {"searches": "ensemble"}, "not ensemble itself"),
    ):
        with pytest.raises(InputError, match=words):
            api.plan(path, cluster, search=search, settings=settings)
    with pytest.raises(UnknownNameError):
        api.plan(path, "parmesan-two-level:8", search="ensemble", settings={"searches": "parmesam"})


def test_the_simulator_runs_gradient_rings_in_the_order_that_the_plan_names(tmp_path: Path) -> None:
    # a square: 0 1 3 2 runs round it, 0 1 2 3 crosses both diagonals, which have half the bandwidth
    square = replace(clusters.cluster("parmesan-mesh:2x2"), algorithms=("ring",))
    profile = tmp_path / "one.txt"
    times = "forward_compute_time=1.0, backward_compute_time=2.0, activation_size=1.0, parameter_size=100000000.0"
    profile.write_text(f"node1 -- Layer -- {times}\n")
    problem = replace(api.make_problem(str(profile), square), costs="partition")
    seconds = []
    for devices, ring in (((0, 1, 3, 2), ()), ((0, 1, 2, 3), (0, 1, 3, 2)), ((0, 1, 2, 3), ()), ((0, 1, 3, 2), (0, 1, 3, 2))):
        plan = Plan((Stage((0,), devices, Strategy(data=4), ("none",), ring),), 1, 1, "gpipe", 4)
        seconds.append(api.evaluate(problem, plan)[0][0].reduce_seconds)
    assert seconds[0] == seconds[1] < seconds[2] == seconds[3]


def test_a_plan_file_keeps_the_rings_and_other_programs_are_told_that_they_are_lost(tmp_path: Path) -> None:
    result = api.plan(chain(tmp_path), "parmesan-uniform:8,seed=3", search="stage_mapping", settings={"n_stages": "1"})
    assert sorted(result.plan.stages[0].ring) == list(range(8))
    entry = plan_json.as_json(result)
    names = {op.name: i for i, op in enumerate(result.problem.graph.ops)}
    assert plan_json.plan_from_json(entry, names, "plan.json") == result.plan
    entry["stages"][0]["ring"] = [0, 0, 1, 2, 3, 4, 5, 6]
    with pytest.raises(InputError, match="each of its 8 replicas once"):
        plan_json.plan_from_json(entry, names, "plan.json")
    assert any("rings" in note for note in export.export(result, "dot", str(tmp_path / "plan.dot")))
