"""A plan file says all that its step depends on: played again, it takes the same time, whatever the question came from."""

from __future__ import annotations

import json
import pathlib
import shutil
from typing import Any

import pytest

from meshwright import clusters
from meshwright.clusters import stored

DATA = pathlib.Path(__file__).resolve().parents[2] / "data"


def profile(folder: pathlib.Path) -> str:
    """Write four unequal layers in PipeDream's text format."""
    lines = [
        f"n{i} -- L{i} -- forward_compute_time={f}, backward_compute_time={2 * f}, activation_size={a}, parameter_size={p}"
        for i, (f, a, p) in enumerate([(10.0, 1e6, 1e6), (20.0, 4e6, 9e7), (15.0, 2e6, 1e6), (5.0, 1e6, 4e8)])
    ]
    path = folder / "four.txt"
    path.write_text("\n".join(lines + [f"\tn{i} -- n{i + 1}" for i in range(3)]) + "\n")
    return str(path)


def piper(folder: pathlib.Path) -> str:
    """Write a Piper chain of three layers."""

    def choice(v: int, n: int) -> dict[str, Any]:
        return {
            "id": "vanilla", "timePerSample": (1.0 + v) / n, "parameterSize": 5.0, "memoryUsageA": 2.0 / n,
            "memoryUsageB": 4.0 / n,
            "syncTimeFw": {str(v - 1): 0.1} if v else {}, "syncTimeBw": {str(v + 1): 0.1} if v < 2 else {},
        }  # fmt: skip

    nodes = [{"id": v, "name": "layer", "TMPCs": {str(n): [choice(v, n)] for n in (1, 2)}} for v in range(3)]
    edges = [{"sourceId": v, "destId": v + 1, "communicationCost": 3.0} for v in range(2)]
    content = {
        "maxMemoryPerDevice": 1000.0,
        "maxDevices": 4,
        "mbsInBatch": 8,
        "bandwidth": 10.0,
        "nodes": nodes,
        "edges": edges,
    }
    path = folder / "chain.json"
    path.write_text(json.dumps(content))
    return str(path)


def placement(folder: pathlib.Path) -> str:
    """Write a graph of four operators for the partitioner."""
    nodes = [
        {
            "id": i, "name": "abcd"[i], "supportedOnFpga": 1, "cpuLatency": 20.0, "fpgaLatency": 2.0 + i % 2,
            "isBackwardNode": 0,
            "size": 10.0,
        }
        for i in range(4)
    ]  # fmt: skip
    edges = [{"sourceId": u, "destId": v, "cost": 1.0} for u, v in ((0, 1), (0, 2), (1, 3), (2, 3))]
    path = folder / "graph.json"
    path.write_text(json.dumps({"maxSizePerFPGA": 40.0, "maxFPGAs": 2, "maxCPUs": 1, "nodes": nodes, "edges": edges}))
    return str(path)


DAPPLE = ["--search", "dapple", "--set", "profile_batch=2", "--set", "global_batch=16"]
QUESTIONS = {
    "machines": (profile, [*DAPPLE, "--set", "machines=2,4"]),
    "published": (profile, [*DAPPLE, "--set", "machines=2,4", "--set", "mode=published"]),
    "optimizer": (profile, [*DAPPLE, "--set", "machines=2,4", "--set", "optimizer_memory_scaling=7"]),
    "activations": (profile, [*DAPPLE, "--set", "machines=2,3", "--set", "peak_activation_per_sample=5 MB"]),
    "cluster": (profile, [*DAPPLE, "--cluster", "dgx-a100:4"]),
    "yaml": (profile, [*DAPPLE, "--cluster", str(DATA / "two_kinds.yaml")]),
    "pipedream": (profile, ["--search", "pipedream", *DAPPLE[2:], "--set", "machines=2,4"]),
    "piper": (piper, []),
    "piper-limits": (piper, ["--set", "max_devices=3", "--set", "bandwidth=2", "--set", "n_microbatches=6"]),
    "partition": (placement, []),
    "partition-stages": (placement, ["--set", "n_stages=3", "--set", "memory_limit=none"]),
}


@pytest.mark.parametrize("case", QUESTIONS)
def test_a_plan_file_of_another_systems_input_plays_to_the_same_step(
    meshwright: Any, tmp_path: pathlib.Path, case: str
) -> None:
    write, words = QUESTIONS[case]
    planned = meshwright("plan", write(tmp_path), *words, "--out", "plan.json", "--json")
    assert planned.code == 0, planned.err
    assert planned.json["step_seconds"] > 0
    played = meshwright("simulate", "plan.json", "--json")
    assert played.code == 0, played.err
    assert played.json["step_seconds"] == planned.json["step_seconds"]
    peaks = [stage["peak_bytes"] for stage in planned.json["stages"]]
    assert [stage["peak_bytes"] for stage in played.json["stages"]] == peaks


def test_the_settings_are_in_the_file_as_given(meshwright: Any, tmp_path: pathlib.Path) -> None:
    planned = meshwright("plan", profile(tmp_path), *DAPPLE, "--set", "machines=2,4", "--json")
    assert planned.json["settings"] == {"profile_batch": "2", "global_batch": "16", "machines": "2,4"}
    assert planned.json["cluster"] == {"name": "machines:2,4", "n_devices": 4, "origin": "question"}


def test_another_cluster_replaces_the_machines(meshwright: Any, tmp_path: pathlib.Path) -> None:
    planned = meshwright("plan", profile(tmp_path), *DAPPLE, "--set", "machines=2,4", "--out", "plan.json", "--json")
    played = meshwright("simulate", "plan.json", "--cluster", "dgx-a100:4", "--json")
    assert played.code == 0, played.err
    assert played.json["cluster"] == "dgx-a100:4"
    assert played.json["step_seconds"] != planned.json["step_seconds"]


def test_a_plan_on_a_cluster_file_outlives_the_file(meshwright: Any, tmp_path: pathlib.Path, tiny: str) -> None:
    path = tmp_path / "mine.yaml"
    shutil.copy(DATA / "two_kinds.yaml", path)
    words = [tiny, "--cluster", str(path), "--search", "megatron_grid", "--global-batch", "16"]
    planned = meshwright("plan", *words, "--out", "plan.json", "--json")
    assert planned.code == 0, planned.err
    path.unlink()
    played = meshwright("simulate", "plan.json", "--json")
    assert played.code == 0, played.err
    assert played.json["step_seconds"] == planned.json["step_seconds"]


def test_a_broken_cluster_inside_a_plan_file_is_refused(meshwright: Any, tmp_path: pathlib.Path) -> None:
    meshwright("plan", profile(tmp_path), *DAPPLE, "--cluster", str(DATA / "two_kinds.yaml"), "--out", "plan.json")
    entry = json.loads((tmp_path / "plan.json").read_text())
    entry["cluster"]["content"]["links"][0]["to"] = "nowhere"
    (tmp_path / "plan.json").write_text(json.dumps(entry))
    played = meshwright("simulate", "plan.json")
    assert played.code == 2
    assert "plan.json: cluster.content: links[0]: to" in played.err and "nowhere" in played.err


def test_a_cluster_is_named_only_where_its_name_builds_it(tmp_path: pathlib.Path) -> None:
    assert stored.is_named(clusters.cluster("dgx-h100:16"))
    path = tmp_path / "liar.yaml"
    path.write_text((DATA / "two_kinds.yaml").read_text().replace("name: two-kinds", "name: dgx-h100:4"))
    liar = clusters.cluster(str(path))
    assert liar.name == "dgx-h100:4" and not stored.is_named(liar)
    again = stored.from_content(json.loads(json.dumps(stored.content(liar))), "here")
    assert again.kinds == liar.kinds
    assert again.links.bytes_per_second.tolist() == liar.links.bytes_per_second.tolist()
    assert again.groups.tolist() == liar.groups.tolist()


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("schedule", "micro_batch"), "x", "schedule.micro_batch is 'x'; it must be a whole number"),
        (("batch", "sequence_length"), None, "batch.sequence_length is null"),
        (("training", "weight_bytes"), [], "training.weight_bytes is []"),
        (("training", "fragmentation_ratio"), float("nan"), "training.fragmentation_ratio is nan"),
        (("model", "spec"), 3, "model.spec is 3; it must be a text"),
        (("stages", 0, "shard"), 4, "shard is 4; it must be between 0 and 3"),
        (("stages", 0, "data"), True, "stage 0: data is true"),
        (("stages", 0, "expert"), 2, "has no experts to spread"),
        (("stages", 0, "recompute"), ["none"], "recompute has 1 words for"),
        (("stages", 0, "devices", 0), {}, "devices is {}"),
        (("training",), 7, "training is 7; it must be an object"),
    ],
)
def test_an_edited_plan_file_with_a_wrong_field_is_refused_by_its_name(
    meshwright: Any, tiny: str, tmp_path: pathlib.Path, path: tuple[Any, ...], value: Any, said: str
) -> None:
    meshwright("plan", tiny, "--cluster", "flat:2", "--global-batch", "4", "--search", "data_parallel", "--out", "plan.json")
    entry = json.loads((tmp_path / "plan.json").read_text())
    place = entry
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    (tmp_path / "plan.json").write_text(json.dumps(entry))
    done = meshwright("simulate", "plan.json")
    assert (done.code, done.out) == (2, "")
    assert said in done.err
