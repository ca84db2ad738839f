"""Loads of small models under many strategies, precisions, frameworks and recomputations, and what is illegal, as recorded.

Devices, network, framework and precision are of the test: no figure of a data sheet, and none that was fitted, is in them.
"""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from meshwright.core.framework import Framework, FrameworkLimits
from meshwright.core.graph import Operator
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import MixedPrecision, Problem
from meshwright.core.strategy import ALTERNATE, MODULES, RECOMPUTE, Strategy
from meshwright.costs import analytic
from meshwright.costs.analytic import products, recomputation, roofline, update
from recorded import Recorded
from returned import refusal
from short_loads import short
from small_clusters import boxes, device
from small_models import question

PLAIN = MixedPrecision(fragmentation_ratio=0.0)


@pytest.fixture
def plain_network() -> None:
    """Leave the network as it is, unlike the other tests of this folder."""


STRATEGIES = {
    "data": Strategy(data=8),
    "tensor": Strategy(data=2, tensor=4),
    "sequence": Strategy(data=4, tensor=2, sequence_parallel=True),
    "context": Strategy(data=2, tensor=2, context=2, sequence_parallel=True),
    "zero_1": Strategy(data=8, shard=1),
    "zero_2": Strategy(data=8, shard=2),
    "zero_3": Strategy(data=4, tensor=2, shard=3),
    "hybrid": Strategy(data=8, shard=3, shard_degree=4),
    "hybrid_1": Strategy(data=8, shard=1, shard_degree=2),
    "alone": Strategy(),
    "ring": Strategy(context=8),
}
EXPERTS = {
    "experts": Strategy(data=8, expert=4),
    "experts_tensor": Strategy(data=4, tensor=2, expert=2, sequence_parallel=True),
    "experts_zero": Strategy(data=8, expert=2, shard=3),
    "experts_context": Strategy(data=4, context=2, expert=4, shard=1),
    "folded": Strategy(data=2, tensor=4, expert=4, sequence_parallel=True, shard=1),
}


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
def test_loads_of_all_strategies_and_recomputations_are_as_recorded(
    kind: str, recorded: Recorded, tmp_path: pathlib.Path
) -> None:
    cluster = boxes([4, 4], launch_seconds=3e-6)
    problem = question(kind, cluster, tmp_path, training=PLAIN)
    strategies = STRATEGIES if kind == "dense" else EXPERTS | {"tensor": STRATEGIES["tensor"], "zero_3": STRATEGIES["zero_3"]}
    recorded({name: loads(problem, strategy) for name, strategy in strategies.items()}, "none")
    some = {name: strategy for name, strategy in strategies.items() if name in ("sequence", "zero_3", "experts", "folded")}
    recorded(
        {f"{name} {word}": loads(problem, strategy, word) for name, strategy in some.items() for word in RECOMPUTE[1:]},
        "recomputed",
    )


FRAMEWORKS: dict[str, dict[str, Any]] = {
    "issues": {"issue_seconds": 3e-5, "expert_issue_seconds": 1e-4, "blocks_launches": True},
    "passes": {"memory_passes_ratio": 1.5, "compute_ratio": 0.9},
    "overlaps": {"tensor_overlap_ratio": 0.5, "overlaps_ring": False, "overlaps_scatter": False},
    "shards": {"shard_bytes_per_second": 2e11, "gradient_copy_bytes": 4.0},
    "casts": {"keeps_casts": True, "logit_bytes": 2.0, "loss_bytes": 6.0, "split_loss_bytes": 3.0},
    "experts": {"dispatches_once": True, "splits_transfers": True},
    "memory": {"expandable_segments": True, "buffer_bytes": 3e8, "ring_imbalance_ratio": 0.25},
    "modules": {
        "limits": FrameworkLimits(recompute=("none", "core_attn+mlp", "layernorm", "moe_act+layernorm", "full", ALTERNATE))
    },
}


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_figures_of_a_framework_change_the_recorded_loads(name: str, recorded: Recorded, tmp_path: pathlib.Path) -> None:
    cluster, found = boxes([4, 4], kinds=[device(issue_seconds=2e-5)]), {}
    framework = Framework(name="own", **FRAMEWORKS[name])
    for kind, chosen in (("dense", ("context", "zero_3")), ("experts", ("experts_tensor",))):
        problem = replace(question(kind, cluster, tmp_path, training=PLAIN), framework=framework)
        for strategy in chosen:
            for word in framework.limits.recompute[1:] if name == "modules" else ("none",):
                if strategy == "zero_3" and name not in ("shards", "casts"):
                    continue
                found[f"{strategy} {word}"] = loads(problem, (STRATEGIES | EXPERTS)[strategy], word)
    recorded(found)


PRECISIONS: dict[str, dict[str, Any]] = {
    "fp32": {"precision": "fp32", "activation_bytes": 4, "weight_bytes": 4, "loss_bytes": 4, "optimizer_bytes": 8},
    "fp8": {"precision": "fp8"},
    "fp16": {"precision": "fp16", "gradient_bytes": 2, "fragmentation_ratio": 0.25},
    "sgd": {"optimizer": "sgd"},
    "muon": {"optimizer": "muon"},
    "adafactor": {"optimizer": "adafactor"},
}


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
        "two": ((tuple(range(2)), (0, 1)), (tuple(range(2, n)), (2, 3))),
        "mixed": ((tuple(range(n)), (0, 1, 2, 3)),),
        "virtual": (((0,), (0, 1)), ((1, 2), (2, 3)), (tuple(range(3, n)), (0, 1))),
    }
    found = {}
    for name, stages in plans.items():
        made = tuple(
            Stage(
                ops,
                devices,
                Strategy(data=len(devices) // 2, tensor=2),
                tuple(("none", "full", "selective")[op % 3] for op in ops),
            )
            for ops, devices in stages
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
        Strategy(),
        Strategy(data=0),
        Strategy(tensor=0),
        Strategy(context=0),
        Strategy(expert=0),
        Strategy(expert=2),
        Strategy(data=3, expert=2),
        Strategy(tensor=3),
        Strategy(tensor=16),
        Strategy(tensor=8),
        Strategy(context=3),
        Strategy(context=256),
        Strategy(context=512),
        Strategy(data=4, shard=1, shard_degree=3),
        Strategy(data=4, shard_degree=2),
        Strategy(data=4, shard=2, shard_degree=2),
        Strategy(sequence_parallel=True),
        Strategy(tensor=2, sequence_parallel=True),
        Strategy(tensor=8, context=128, sequence_parallel=True),
        Strategy(data=4, tensor=2, expert=2),
        Strategy(data=8, expert=8),
        Strategy(data=4, expert=4),
        Strategy(data=2, tensor=4, expert=2, sequence_parallel=True),
    ]
    found = [
        [analytic.illegal(problem, strategy, micro_batch) for strategy in strategies]
        for problem in (dense, experts)
        for micro_batch in (1, 0)
    ]
    stage = Stage(tuple(range(len(dense.graph.ops))), (0, 1), Strategy(data=2))
    plan = Plan((stage,), 2, 1, "1f1b", 4)
    calls: dict[str, Callable[[], object]] = {
        "as it is": lambda: analytic.stage_costs(dense, plan),
        "no cluster": lambda: analytic.row_costs(replace(dense, cluster=None), Strategy(), range(1), 1),
        "devices": lambda: analytic.row_costs(dense, Strategy(data=2), range(3), 1),
        "word": lambda: analytic.stage_costs(
            dense, replace(plan, stages=(replace(stage, recompute=("mlp",) * len(stage.ops)),))
        ),
        "degree": lambda: analytic.stage_costs(
            dense, replace(plan, stages=(replace(stage, strategy=Strategy(data=1, expert=2)),))
        ),
    }
    recorded(
        [
            found,
            {name: refusal(call) for name, call in calls.items()},
            [len(analytic.stage_costs(replace(dense, cluster=None), plan))],
        ]
    )


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
    recorded(
        [
            found,
            shares,
            seconds,
            words,
            [short(roofline.operand_bytes(MixedPrecision(precision=it))) for it in ("bf16", "fp8", "fp32")],
        ]
    )


def test_recomputed_parts_are_as_recorded(recorded: Recorded, tmp_path: pathlib.Path) -> None:
    found = {}
    for kind in ("dense", "experts"):
        body = question(kind, boxes([4]), tmp_path).graph.ops[1].body
        for word in (ALTERNATE, *MODULES, "core_attn+mlp", "layernorm+moe_act"):
            found[f"{kind} {word}"] = [
                " ".join(str(value) for value in (*part[:3], len(part.collectives)))
                for part in recomputation.repeated_parts(body, word)
            ]
    recorded(found)
    assert update.unknown_shape(question("dense", boxes([4]), tmp_path).graph, MixedPrecision()) == ""
