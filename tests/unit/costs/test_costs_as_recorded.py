"""Loads of small models under many strategies, precisions, frameworks and recomputations, and what is illegal, as recorded.

Devices, network, framework and precision are of the test: no figure of a data sheet, and none that was fitted, is in them.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import pathlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from meshwright import api
from meshwright.core.framework import Framework, FrameworkLimits
from meshwright.core.graph import Operator
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import MixedPrecision, Problem
from meshwright.core.stage_cost import StageCost
from meshwright.core.strategy import ALTERNATE, MODULES, RECOMPUTE, Strategy
from meshwright.costs import analytic, profiled
from meshwright.costs.analytic import products, recomputation, roofline, update
from recorded import Recorded
from returned import refusal
from small_clusters import boxes, device
from small_models import question

PLAIN = MixedPrecision(fragmentation_ratio=0.0)


@pytest.fixture
def plain_network() -> None:
    """Leave the network as it is, unlike the other tests of this folder."""


def short(value: object) -> object:
    """Return a value with numbers to eight digits: a load as one line of its numbers, and a line for each collective."""
    if isinstance(value, float):
        return float(f"{value:.8g}")
    if isinstance(value, StageCost):
        numbers = " ".join(f"{getattr(value, field.name):.8g}" for field in dataclasses.fields(value) if isinstance(getattr(value, field.name), (int, float)))
        causes = [[f"{cause} {seconds:.8g}" for cause, seconds in way] for way in (value.forward_communication, value.backward_communication)]
        used = [f"{it.part} {it.kind} {it.size}/{it.stride} {it.n_bytes:.7g} {it.n_times:.7g} {it.seconds:.7g}" for it in value.collectives]
        return [numbers, *causes, ";".join(used)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return " ".join(str(short(getattr(value, field.name))) for field in dataclasses.fields(value))
    if isinstance(value, (tuple, list)):
        return [short(of) for of in value]
    return value


STRATEGIES = {
    "data": Strategy(data=8), "tensor": Strategy(data=2, tensor=4), "sequence": Strategy(data=4, tensor=2, sequence_parallel=True),
    "context": Strategy(data=2, tensor=2, context=2, sequence_parallel=True), "zero_1": Strategy(data=8, shard=1), "zero_2": Strategy(data=8, shard=2),
    "zero_3": Strategy(data=4, tensor=2, shard=3), "hybrid": Strategy(data=8, shard=3, shard_degree=4), "hybrid_1": Strategy(data=8, shard=1, shard_degree=2),
    "alone": Strategy(), "ring": Strategy(context=8),
}  # fmt: skip
EXPERTS = {
    "experts": Strategy(data=8, expert=4), "experts_tensor": Strategy(data=4, tensor=2, expert=2, sequence_parallel=True), "experts_zero": Strategy(data=8, expert=2, shard=3),
    "experts_context": Strategy(data=4, context=2, expert=4, shard=1), "folded": Strategy(data=2, tensor=4, expert=4, sequence_parallel=True, shard=1),
}  # fmt: skip


def loads(problem: Problem, strategy: Strategy, recompute: str = "none", n_microbatches: int = 2) -> object:
    """Return the loads of one stage of all layers, or what is said of it."""
    n_ops, width = len(problem.graph.ops), strategy.data
    stage = Stage(tuple(range(n_ops)), tuple(range(strategy.n_devices)), strategy, (recompute,) * n_ops)
    plan = Plan((stage,), n_microbatches, 2, "1f1b", 2 * n_microbatches * width)
    try:
        return short(analytic.stage_costs(problem, plan)[0])
    except Exception as error:
        return str(error)


@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_loads_of_all_strategies_and_recomputations_are_as_recorded(kind: str, recorded: Recorded, tmp_path: pathlib.Path) -> None:
    cluster = boxes([4, 4], launch_seconds=3e-6)
    problem = question(kind, cluster, tmp_path, training=PLAIN)
    strategies = STRATEGIES if kind == "dense" else EXPERTS | {"tensor": STRATEGIES["tensor"], "zero_3": STRATEGIES["zero_3"]}
    recorded({name: loads(problem, strategy) for name, strategy in strategies.items()}, "none")
    some = {name: strategy for name, strategy in strategies.items() if name in ("sequence", "zero_3", "experts", "folded")}
    recorded({f"{name} {word}": loads(problem, strategy, word) for name, strategy in some.items() for word in RECOMPUTE[1:]}, "recomputed")


FRAMEWORKS: dict[str, dict[str, Any]] = {
    "issues": {"issue_seconds": 3e-5, "expert_issue_seconds": 1e-4, "blocks_launches": True}, "passes": {"memory_passes_ratio": 1.5, "compute_ratio": 0.9},
    "overlaps": {"tensor_overlap_ratio": 0.5, "overlaps_ring": False, "overlaps_scatter": False}, "shards": {"shard_bytes_per_second": 2e11, "gradient_copy_bytes": 4.0},
    "casts": {"keeps_casts": True, "logit_bytes": 2.0, "loss_bytes": 6.0, "split_loss_bytes": 3.0}, "experts": {"dispatches_once": True, "splits_transfers": True},
    "memory": {"expandable_segments": True, "buffer_bytes": 3e8, "ring_imbalance_ratio": 0.25},
    "modules": {"limits": FrameworkLimits(recompute=("none", "core_attn+mlp", "layernorm", "moe_act+layernorm", "full", ALTERNATE))},
}  # fmt: skip


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_figures_of_a_framework_change_the_recorded_loads(name: str, recorded: Recorded, tmp_path: pathlib.Path) -> None:
    cluster, found = boxes([4, 4], kinds=[device(issue_seconds=2e-5)]), {}
    framework = Framework(name="own", **FRAMEWORKS[name])
    for kind, chosen in (("dense", ("context", "zero_3")), ("experts", ("experts_tensor",))):
        problem = replace(question(kind, cluster, tmp_path, training=PLAIN), framework=framework)
        for strategy in chosen:
            for word in framework.limits.recompute[1:] if name == "modules" else ("none", "selective"):
                found[f"{strategy} {word}"] = loads(problem, (STRATEGIES | EXPERTS)[strategy], word)
    recorded(found)


PRECISIONS: dict[str, dict[str, Any]] = {
    "fp32": {"precision": "fp32", "activation_bytes": 4, "weight_bytes": 4, "loss_bytes": 4, "optimizer_bytes": 8}, "fp8": {"precision": "fp8"},
    "fp16": {"precision": "fp16", "gradient_bytes": 2, "fragmentation_ratio": 0.25}, "sgd": {"optimizer": "sgd"}, "muon": {"optimizer": "muon"}, "adafactor": {"optimizer": "adafactor"},
}  # fmt: skip


def test_precisions_and_optimizers_change_the_recorded_loads(recorded: Recorded, tmp_path: pathlib.Path) -> None:
    cluster, found = boxes([4, 4]), {}
    for name, fields in PRECISIONS.items():
        try:
            training = MixedPrecision(**fields)
        except Exception as error:
            found[name] = str(error)
            continue
        for kind, chosen in (("dense", ("sequence", "zero_1")), ("experts", ("experts_zero",))):
            problem = question(kind, cluster, tmp_path, training=training)
            found[f"{name} {kind}"] = [loads(problem, (STRATEGIES | EXPERTS)[strategy]) for strategy in chosen]
    recorded(found)


def test_stages_of_unlike_devices_and_layers_are_as_recorded(recorded: Recorded, tmp_path: pathlib.Path) -> None:
    slow = device("slow", matmul_ratio=0.25, memory_bytes_per_second=5e11, launch_seconds=1e-5)
    problem = question("dense", boxes([2, 2, 2], kinds=[device(), slow]), tmp_path, training=PLAIN)
    n = len(problem.graph.ops)
    plans = {
        "two": ((tuple(range(2)), (0, 1)), (tuple(range(2, n)), (2, 3))), "mixed": ((tuple(range(n)), (0, 1, 2, 3)),), "virtual": (((0,), (0, 1)), ((1, 2), (2, 3)), (tuple(range(3, n)), (0, 1))),
    }  # fmt: skip
    found = {}
    for name, stages in plans.items():
        made = tuple(
            Stage(ops, devices, Strategy(data=len(devices) // 2, tensor=2), tuple(("none", "full", "selective")[op % 3] for op in ops)) for ops, devices in stages
        )
        plan = Plan(made, 2, 1, "1f1b", 2 * max(stage.strategy.data for stage in made))
        found[name] = short(analytic.stage_costs(problem, plan))
        found[f"{name}, no ledger"] = [len(load.collectives) for load in analytic.stage_costs(problem, plan, ledger=False)]
    rows = analytic.rows(problem), analytic.distinct_rows(problem.graph)
    least = [short(list(analytic.compute_seconds(problem, strategy, 2, slow).items())) for strategy in STRATEGIES.values()]
    recorded([found, rows, least])


def test_what_is_illegal_is_said_as_recorded(recorded: Recorded, tmp_path: pathlib.Path) -> None:
    dense, experts = (question(kind, boxes([4, 4]), tmp_path) for kind in ("dense", "experts"))
    strategies = [
        Strategy(), Strategy(data=0), Strategy(tensor=0), Strategy(context=0), Strategy(expert=0), Strategy(expert=2), Strategy(data=3, expert=2), Strategy(tensor=3),
        Strategy(tensor=16), Strategy(tensor=8), Strategy(context=3), Strategy(context=256), Strategy(context=512), Strategy(data=4, shard=1, shard_degree=3), Strategy(data=4, shard_degree=2),
        Strategy(data=4, shard=2, shard_degree=2), Strategy(sequence_parallel=True), Strategy(tensor=2, sequence_parallel=True), Strategy(tensor=8, context=128, sequence_parallel=True),
        Strategy(data=4, tensor=2, expert=2), Strategy(data=8, expert=8), Strategy(data=4, expert=4), Strategy(data=2, tensor=4, expert=2, sequence_parallel=True),
    ]  # fmt: skip
    found = [[analytic.illegal(problem, strategy, micro_batch) for strategy in strategies] for problem in (dense, experts) for micro_batch in (1, 0)]
    stage = Stage(tuple(range(len(dense.graph.ops))), (0, 1), Strategy(data=2))
    plan = Plan((stage,), 2, 1, "1f1b", 4)
    calls: dict[str, Callable[[], object]] = {
        "as it is": lambda: analytic.stage_costs(dense, plan), "no cluster": lambda: analytic.row_costs(replace(dense, cluster=None), Strategy(), range(1), 1),
        "devices": lambda: analytic.row_costs(dense, Strategy(data=2), range(3), 1), "word": lambda: analytic.stage_costs(dense, replace(plan, stages=(replace(stage, recompute=("mlp",) * len(stage.ops)),))),
        "degree": lambda: analytic.stage_costs(dense, replace(plan, stages=(replace(stage, strategy=Strategy(data=1, expert=2)),))),
    }  # fmt: skip
    recorded([found, {name: refusal(call) for name, call in calls.items()}, [len(analytic.stage_costs(replace(dense, cluster=None), plan))]])


def test_products_and_operators_take_the_recorded_seconds(recorded: Recorded, tmp_path: pathlib.Path) -> None:
    tiled = device("tiled", n_multiprocessors=13, fp8_ratio=0.5)
    found = []
    for sizes in ((1, 64, 64, 64), (3, 100, 130, 70), (2, 128, 256, 4096), (1, 7, 9, 8)):
        for one, precision in itertools.product((device(), tiled), ("bf16", "fp8", "fp32")):
            product = products.Product(*sizes, 1e6)
            found.append(short(products.product_seconds(product, one, precision)))
    shares = [short(products.aligned_share(n)) for n in (1, 2, 3, 4, 6, 8, 12, 16, 24, 64, 65, 128)]
    shapes = [roofline.Shape(*given) for given in ((1, 1), (2, 4), (3, 2, 2))]
    problem = question("experts", boxes([4]), tmp_path)
    body = {operator.kind: operator for op in problem.graph.ops for operator in op.body}
    body["softmax"] = Operator("softmax", "softmax", (("sequence", 64), ("hidden", 4096)), "hidden", selective=True)
    seconds = {}
    for (kind, operator), shape, precision in itertools.product(body.items(), shapes, ("bf16", "fp8")):
        training = MixedPrecision(precision=precision)
        key = f"{kind} {precision} {shapes.index(shape)}"
        try:
            seconds[key] = short(roofline.operator_seconds(operator, shape, tiled, training))
            if kind == "attention":
                seconds[f"{key} unfused"] = short(roofline.unfused_attention_seconds(operator, shape, tiled, training))
        except Exception as error:
            seconds[key] = f"{type(error).__name__} {error}"
    words = [roofline.wide_precision(MixedPrecision(precision=precision)) for precision in ("bf16", "fp16", "fp32", "fp8")]
    recorded([found, shares, seconds, words, [short(roofline.operand_bytes(MixedPrecision(precision=it))) for it in ("bf16", "fp8", "fp32")]])


def test_recomputed_parts_are_as_recorded(recorded: Recorded, tmp_path: pathlib.Path) -> None:
    found = {}
    for kind in ("dense", "experts"):
        body = question(kind, boxes([4]), tmp_path).graph.ops[1].body
        for word in (ALTERNATE, *MODULES, "core_attn+mlp", "layernorm+moe_act"):
            found[f"{kind} {word}"] = [" ".join(str(value) for value in (*part[:3], len(part.collectives))) for part in recomputation.repeated_parts(body, word)]
    recorded(found)
    assert update.unknown_shape(question("dense", boxes([4]), tmp_path).graph, MixedPrecision()) == ""


def profile(**changed: Any) -> dict[str, Any]:
    def measure(layer: str, rows: int, tensor: int, unit: float) -> dict[str, Any]:
        return {"layer": layer, "rows": rows, "tensor": tensor, "forward_seconds": unit * rows / tensor + 0.1, "saved_bytes": 100.0 * rows / tensor,
                "backward_input_seconds": 1.5 * unit * rows / tensor, "backward_weight_seconds": unit * rows / tensor + 0.2}  # fmt: skip

    layers = [{"name": name, "like": like, "n_parameters": 10 + i, "weight_bytes": 40.0, "output_bytes": 16.0 + 8 * i} for i, (name, like) in enumerate((("e", "e"), ("a", "a"), ("b", "a"), ("h", "e")))]
    pairs = [{"source": i, "target": j, "latency_seconds": 0.5, "seconds_per_byte": 0.25 + 0.25 * (i // 2 != j // 2)} for i in range(4) for j in range(4) if i != j]
    rings = [{"kind": kind, "n_ranks": n, "latency_seconds": 1.0 / n, "seconds_per_byte": 0.125 * n} for kind in ("all_reduce", "all_gather", "reduce_scatter") for n in (2, 4)]
    return {"format": "meshwright/profile/1", "model": "m", "sequence_length": 8, "device": "CPU", "n_cores": 2, "memory_bytes": 1e9, "optimizer_seconds_per_byte": 1e-3, "layers": layers,
            "measures": [measure(name, rows, tensor, 1.0 + tensor) for name in "ea" for rows in (1, 4, 6) for tensor in ((1, 2) if name == "a" else (1,))],
            "links": {"n_ranks": 4, "pairs": pairs, "collectives": rings}} | changed  # fmt: skip


def test_measured_profiles_give_the_recorded_loads(recorded: Recorded, tmp_path: pathlib.Path) -> None:
    path, found = tmp_path / "profile.json", {}
    path.write_text(json.dumps(profile()))
    problem = api.make_problem(str(path))
    cluster = problem.required_cluster
    strategies = [(Strategy(data=2), 2), (Strategy(data=4, shard=1), 1), (Strategy(data=4, shard=2), 4), (Strategy(data=4, shard=3), 5), (Strategy(tensor=2), 8), (Strategy(), 3), (Strategy(data=2, tensor=2), 2)]
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
    reasons = [profiled.illegal(problem, strategy) for strategy in (*STRATEGIES.values(), *EXPERTS.values(), Strategy(tensor=2))]
    seconds = [short(profiled.layer_seconds(problem.model_spec.instance, op, rows, tensor)) for op, tensor in ((0, 1), (2, 1), (2, 2)) for rows in (1, 2, 4, 5, 6, 9, 0.5)]
    wires = [cluster.groups, cluster.links.bytes_per_second, cluster.links.latency_seconds, cluster.device(0).memory_bytes]
    graph = [(op.name, op.body[0].n_parameters) for op in problem.graph.ops], [(it.source, it.target, it.n_elements) for it in problem.graph.edges], problem.graph.sequence_length, problem.graph.tokens_name
    least = short(list(profiled.compute_seconds(problem, Strategy(), 2, cluster.device(0)).items()))
    recorded([found, reasons, seconds, wires, graph, least])
    refused = {}
    changes: dict[str, dict[str, Any]] = {
        "hosts": {"links": profile()["links"] | {"hosts": [0, 0, 1, 1]}}, "no links": {"links": None}, "like": {"layers": [profile()["layers"][0] | {"like": "z"}]}, "tokens": {"sequence_length": 1},
        "format": {"format": "meshwright/profile/9"}, "no layers": {"layers": []}, "negative": {"memory_bytes": -1.0}, "unknown": {"more": 1}, "no optimizer": {"optimizer_seconds_per_byte": None},
    }  # fmt: skip
    for name, change in changes.items():
        path.write_text(json.dumps(profile(**change)))
        refused[name] = refusal(lambda: api.read(str(path), file_format="profile_json"), tmp_path)
        if refused[name] == "answered":
            model = api.read(str(path), file_format="profile_json")
            refused[name] = [model.graph.tokens_name, model.graph.sequence_length, None if model.cluster is None else model.cluster.groups.tolist()]
    recorded(refused, "read")
