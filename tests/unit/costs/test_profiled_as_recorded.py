"""Loads, links and refusals of measured profiles written by hand, as recorded."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from meshwright import api
from meshwright.core.plan import Plan, Stage
from meshwright.core.strategy import Strategy
from meshwright.costs import profiled
from recorded import Recorded
from returned import refusal
from short_loads import short

OTHERS = [
    Strategy(),
    Strategy(data=8),
    Strategy(tensor=2),
    Strategy(data=2, tensor=4),
    Strategy(tensor=2, sequence_parallel=True),
    Strategy(context=2),
    Strategy(data=4, expert=2),
    Strategy(data=4, shard=3, shard_degree=2),
]


@pytest.fixture
def plain_network() -> None:
    """Leave the network as it is, unlike the other tests of this folder."""


def profile(**changed: Any) -> dict[str, Any]:
    def measure(layer: str, rows: int, tensor: int, unit: float) -> dict[str, Any]:
        return {
            "layer": layer,
            "rows": rows,
            "tensor": tensor,
            "forward_seconds": unit * rows / tensor + 0.1,
            "saved_bytes": 100.0 * rows / tensor,
            "backward_input_seconds": 1.5 * unit * rows / tensor,
            "backward_weight_seconds": unit * rows / tensor + 0.2,
        }

    layers = [
        {"name": name, "like": like, "n_parameters": 10 + i, "weight_bytes": 40.0, "output_bytes": 16.0 + 8 * i}
        for i, (name, like) in enumerate((("e", "e"), ("a", "a"), ("b", "a"), ("h", "e")))
    ]
    pairs = [
        {"source": i, "target": j, "latency_seconds": 0.5, "seconds_per_byte": 0.25 + 0.25 * (i // 2 != j // 2)}
        for i in range(4)
        for j in range(4)
        if i != j
    ]
    rings = [
        {"kind": kind, "n_ranks": n, "latency_seconds": 1.0 / n, "seconds_per_byte": 0.125 * n}
        for kind in ("all_reduce", "all_gather", "reduce_scatter")
        for n in (2, 4)
    ]
    return {
        "format": "meshwright/profile/1",
        "model": "m",
        "sequence_length": 8,
        "device": "CPU",
        "n_cores": 2,
        "memory_bytes": 1e9,
        "optimizer_seconds_per_byte": 1e-3,
        "layers": layers,
        "measures": [
            measure(name, rows, tensor, 1.0 + tensor)
            for name in "ea"
            for rows in (1, 4, 6)
            for tensor in ((1, 2) if name == "a" else (1,))
        ],
        "links": {"n_ranks": 4, "pairs": pairs, "collectives": rings},
    } | changed


def test_measured_profiles_give_the_recorded_loads(recorded: Recorded, tmp_path: pathlib.Path) -> None:
    path, found = tmp_path / "profile.json", {}
    path.write_text(json.dumps(profile()))
    problem = api.make_problem(str(path))
    cluster = problem.required_cluster
    strategies = [
        (Strategy(data=2), 2),
        (Strategy(data=4, shard=1), 1),
        (Strategy(data=4, shard=2), 4),
        (Strategy(data=4, shard=3), 5),
        (Strategy(tensor=2), 8),
        (Strategy(), 3),
        (Strategy(data=2, tensor=2), 2),
    ]
    for strategy, micro_batch in strategies:
        ops = (1, 2) if strategy.tensor > 1 else (0, 1, 2, 3)
        for word in ("none", "full"):
            stage = Stage(ops, tuple(range(strategy.n_devices)), strategy, (word,) * len(ops))
            plan = Plan((stage,), 2, micro_batch, "1f1b", 2 * micro_batch * strategy.data)
            key = f"{strategy} {micro_batch} {word}"
            try:
                found[key] = short(profiled.stage_costs(problem, plan))
            except Exception as error:
                found[key] = str(error).replace(str(tmp_path), "")
    reasons = [profiled.illegal(problem, strategy) for strategy in OTHERS]
    seconds = [
        short(profiled.layer_seconds(problem.model_spec.instance, op, rows, tensor))
        for op, tensor in ((0, 1), (2, 1), (2, 2))
        for rows in (1, 2, 4, 5, 6, 9, 0.5)
    ]
    wires = [cluster.groups, cluster.links.bytes_per_second, cluster.links.latency_seconds, cluster.device(0).memory_bytes]
    graph = (
        [(op.name, op.body[0].n_parameters) for op in problem.graph.ops],
        [(it.source, it.target, it.n_elements) for it in problem.graph.edges],
        problem.graph.sequence_length,
        problem.graph.tokens_name,
    )
    least = short(list(profiled.compute_seconds(problem, Strategy(), 2, cluster.device(0)).items()))
    recorded([found, reasons, seconds, wires, graph, least])
    refused = {}
    changes: dict[str, dict[str, Any]] = {
        "hosts": {"links": profile()["links"] | {"hosts": [0, 0, 1, 1]}},
        "no links": {"links": None},
        "like": {"layers": [profile()["layers"][0] | {"like": "z"}]},
        "tokens": {"sequence_length": 1},
        "format": {"format": "meshwright/profile/9"},
        "no layers": {"layers": []},
        "negative": {"memory_bytes": -1.0},
        "unknown": {"more": 1},
        "no optimizer": {"optimizer_seconds_per_byte": None},
    }
    for name, change in changes.items():
        path.write_text(json.dumps(profile(**change)))
        refused[name] = refusal(lambda: api.read(str(path), file_format="profile_json"), tmp_path)
        if refused[name] == "answered":
            model = api.read(str(path), file_format="profile_json")
            refused[name] = [
                model.graph.tokens_name,
                model.graph.sequence_length,
                None if model.cluster is None else model.cluster.groups.tolist(),
            ]
    recorded(refused, "read")
