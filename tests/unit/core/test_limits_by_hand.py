"""What is outside a framework's limits, one limit at a time; files of frameworks and plans with one thing changed at a time."""

from __future__ import annotations

import json
import re
import tomllib
import warnings
from dataclasses import replace
from typing import Any

from edited import answer, answers
from meshwright.core import framework_file, plan_fields
from meshwright.core.framework import Framework, FrameworkLimits
from meshwright.core.graph import Graph, Op, Operator
from meshwright.core.plan import Plan, Stage
from meshwright.core.plan_forms import layout_of, recomputed_in_block
from meshwright.core.plan_forms.exceeded import exceeded
from meshwright.core.strategy import Strategy
from recorded import Recorded

LIMITS: dict[str, Any] = {
    "degrees": ("pipeline",),
    "schedules": ("gpipe",),
    "shards": (0, 3),
    "hybrid_shards": (3,),
    "sequence_parallel": False,
    "virtual_stages": False,
    "uneven_stages": False,
    "unlike_stages": False,
    "free_ends": False,
    "layouts": ("data",),
    "any_order": False,
    "gradient_rings": False,
    "recompute": ("none", "core_attn+mlp"),
    "recompute_scope": "plan",
    "precisions": ("bf16",),
    "frozen_weights": False,
    "quantised_base": False,
    "optimizers": ("adamw",),
}
GRAPH = Graph(
    "small",
    tuple(
        Op(name, name if name in ("embedding", "head") else "attention_mlp")
        for name in ("embedding", "a", "b", "c", "d", "head")
    ),
    (),
    8,
)


def staged(*stages: tuple[tuple[int, ...], tuple[int, ...], Strategy, tuple[str, ...]], schedule: str = "1f1b") -> Plan:
    return Plan(tuple(Stage(*one) for one in stages), 4, 1, schedule, 8)


def plans() -> dict[str, Plan]:
    two, words = Strategy(2), ("none",) * 3
    even = staged(((0, 1, 2), (0, 1), two, words), ((3, 4, 5), (2, 3), two, words))
    first, last = even.stages
    one = staged((tuple(range(6)), (0, 1), two, ("none",) * 6))

    def of(strategy: Strategy) -> Plan:
        return replace(one, stages=(replace(one.stages[0], strategy=strategy, devices=tuple(range(strategy.n_devices))),))

    def words_of(*said: tuple[str, ...]) -> Plan:
        return replace(even, stages=tuple(replace(stage, recompute=own) for stage, own in zip(even.stages, said, strict=True)))

    return {
        "one": one,
        "even": even,
        "tensor": of(Strategy(2, 2)),
        "context": of(Strategy(1, 1, 2)),
        "expert": of(Strategy(2, 1, 1, 2)),
        "split norms": of(Strategy(1, 2, 1, 1, True)),
        "idle split": of(Strategy(2, 1, 1, 1, True)),
        "zero1": of(Strategy(2, shard=1)),
        "zero1 alone": of(Strategy(1, 2, shard=1)),
        "zero1 of context": of(Strategy(1, 1, 2, 1, False, 1)),
        "hybrid": of(Strategy(4, shard=3, shard_degree=2)),
        "hybrid 0": of(Strategy(4, shard=0, shard_degree=2)),
        "all of them": of(Strategy(4, shard=0, shard_degree=4)),
        "gpipe": replace(even, schedule="gpipe"),
        "virtual": replace(even, stages=(first, replace(last, devices=(0, 1)))),
        "uneven": replace(
            even,
            stages=(
                replace(first, ops=(0, 1), recompute=("none",) * 2),
                replace(last, ops=(2, 3, 4, 5), recompute=("none",) * 4),
            ),
        ),
        "unlike": replace(even, stages=(first, replace(last, strategy=Strategy(1, 2)))),
        "ends": replace(even, stages=(replace(first, ops=(5, 1, 2)), replace(last, ops=(3, 4, 0)))),
        "data outermost": replace(even, stages=(replace(first, devices=(0, 2)), replace(last, devices=(1, 3)))),
        "neither": replace(even, stages=(replace(first, devices=(0, 3)), replace(last, devices=(1, 2)))),
        "sizes": replace(even, stages=(replace(first, devices=(0,)), last)),
        "alone": of(Strategy(1)),
        "data outermost of tensor": staged(
            ((0, 1, 2), (0, 1, 4, 5), Strategy(2, 2), words), ((3, 4, 5), (2, 3, 6, 7), Strategy(2, 2), words)
        ),
        "ring": replace(even, stages=(replace(first, ring=(0, 1)), last)),
        "full": words_of(("none", "full", "full"), ("full", "full", "none")),
        "first": words_of(("none", "full", "none"), ("full", "none", "none")),
        "last": words_of(("none", "none", "full"), ("none", "full", "none")),
        "odd": words_of(("none", "full", "full"), ("full", "none", "none")),
        "mlp": words_of(("none", "mlp", "mlp"), ("mlp", "mlp", "none")),
        "both": words_of(("none", "core_attn+mlp", "moe"), ("mlp", "full", "none")),
        "no words": words_of((), ()),
    }


def test_each_limit_refuses_what_is_outside_of_it(recorded: Recorded) -> None:
    found: dict[str, dict[str, Any]] = {}
    for name, value in LIMITS.items():
        limits = replace(FrameworkLimits(), **{name: value})
        found[name] = {key: said for key, plan in plans().items() if (said := exceeded(limits, plan, GRAPH))}
    block = replace(FrameworkLimits(), recompute_scope="plan", block_recompute=True)
    found["block"] = {key: said for key, plan in plans().items() if (said := exceeded(block, plan, GRAPH))}
    outside = [key for key, plan in plans().items() if exceeded(FrameworkLimits(), plan, GRAPH)]
    assert outside == ["hybrid 0", "mlp", "both"]
    recorded(found)
    recorded(
        {
            key: [layout_of(plan), recomputed_in_block([list(stage.recompute[1:]) for stage in plan.stages])]
            for key, plan in plans().items()
        },
        "layouts",
    )
    part = Operator("p", "matmul", (("sequence", 8), ("in", 2), ("out", 2)), "out", 4)
    frozen, packed = replace(part, n_frozen_parameters=4), replace(part, n_frozen_parameters=4, frozen_weight_bytes=0.5)
    one = plans()["one"]
    for key, body in (("trained", part), ("frozen", frozen), ("packed", packed)):
        graph = replace(GRAPH, ops=(*GRAPH.ops[:-1], replace(GRAPH.ops[-1], body=(body, part))))
        said = [
            exceeded(replace(FrameworkLimits(), **{name: LIMITS[name]}), one, graph, precision, optimizer)
            for name in ("precisions", "frozen_weights", "quantised_base", "optimizers")
            for precision, optimizer in (("", ""), ("bf16", "adamw"), ("fp16", "sgd"))
        ]
        recorded(said, key)


def test_figures_out_of_range_are_refused(recorded: Recorded) -> None:
    values = (-1.0, 0.0, 0.5, 1.0, 1.5, float("inf"), float("nan"), "x")
    names = (
        "issue_seconds",
        "tensor_overlap_ratio",
        "ring_imbalance_ratio",
        "compute_ratio",
        "memory_passes_ratio",
        "loss_bytes",
    )
    found = {}
    for name in names:
        said = [answer(lambda _, w={name: value}: Framework(name="f", variant="v", **w) and "fine", "") for value in values]  # type: ignore[misc]
        found[name] = [one.removeprefix("refused: framework f:v: ")[:44] for one in said]
    recorded(found)


FILE = """title = "Ours"
version = "1.2"
[how]
issue_seconds = { value = "5 us", source = "measured" }
overlaps_scatter = false
attention = "flash2"
tensor_overlap_ratio = 0.5
logit_bytes = 2
[limits]
degrees = ["tensor", "pipeline"]
shards = [0, 1]
recompute = ["none", "full"]
recompute_scope = "plan"
optimizers = ["adamw"]
any_order = { value = false, source = "its documentation" }
[variants.mixed]
title = "mixtures"
when = { experts = true, release_before = "2.0" }
how = { expert_issue_seconds = "3 us" }
limits = { schedules = ["1f1b"] }
"""


def test_files_of_frameworks_are_read_as_before(recorded: Recorded) -> None:
    def read(text: str) -> str:
        try:
            entry = tomllib.loads(text)
        except tomllib.TOMLDecodeError:
            return "no TOML"
        plain, variants = framework_file.of_content(entry, "own", "here", Framework())
        usual, limits = Framework(), FrameworkLimits()
        names = [name for name in Framework.__dataclass_fields__ if name != "limits"]
        own = {name: getattr(plain, name) for name in names if getattr(plain, name) != getattr(usual, name)}
        held = {name: getattr(plain.limits, name) for name in LIMITS if getattr(plain.limits, name) != getattr(limits, name)}
        more = [
            (
                one.title,
                one.when,
                one.framework.word,
                one.framework.expert_issue_seconds,
                one.framework.limits.schedules,
                one.framework.version,
            )
            for one in variants
        ]
        return f"{own} {held} {more} {framework_file.described(entry)}"

    recorded(answers(read, FILE))


def test_variants_apply_as_their_circumstances_say() -> None:
    one = framework_file.Variant(Framework(), when=(("experts", True), ("release_before", "2.0")))
    assert not one.applies({}) and not one.applies({"experts": True}) and one.applies({"experts": True, "release": "1.9"})
    assert not one.applies({"experts": True, "release": "2.0"}) and not one.applies({"experts": False, "release": "1.9"})
    later = framework_file.Variant(Framework(), when=(("release_from", "2.0"),))
    assert later.applies({}) and later.applies({"release": "2.0"}) and not later.applies({"release": "1.9"})
    assert not framework_file.Variant(Framework()).applies({"experts": True})


PLAN = """{"format": "meshwright/plan/1", "search": "best", "costs": "analytic", "seed": 0,
"planning_seconds": 1.5, "memory_risk": 0.5,
"model": {"name": "m", "spec": "m", "format": "huggingface", "freeze": ["embed"], "lora": ""},
"schedule": {"name": "1f1b", "n_microbatches": 4, "micro_batch": 1, "global_batch": 8},
"batch": {"sequence_length": 128, "asked_global_batch": 8},
"training": {"precision": "bf16", "gradient_bytes": 4, "optimizer_bytes": 12, "optimizer": "adamw", "state_bytes": 4},
"objective": {"name": "step_seconds", "value": 1.0},
"stages": [{"ops": ["a", "b"], "devices": [0, 1], "data": 2, "tensor": 1, "sequence_parallel": false,
"shard": 1, "shard_degree": 0,
"recompute": ["none", "full"], "ring": [0, 1]}],
"mine": 4}
"""


def test_fields_of_plans_are_looked_at_as_before(recorded: Recorded) -> None:
    def read(text: str) -> str:
        try:
            entry = json.loads(text)
        except ValueError:
            return "no JSON"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            plan_fields.check(entry, "here")
        return "; ".join(str(one.message) for one in caught) or "fine"

    recorded(answers(read, PLAN))
    names = dict.fromkeys(re.findall(r'"(\w{4,})":', PLAN))
    turned = {name: PLAN.replace(f'"{name}":', f'"{name[:-2]}{name[-1]}{name[-2]}":') for name in names}
    recorded({name: answer(read, text) for name, text in turned.items()}, "misspelt")
    bounds = {
        "schedule.n_microbatches": (0, 1, 10**9, 10**9 + 1),
        "schedule.micro_batch": (0, 1),
        "schedule.global_batch": (0, 1),
        "batch.sequence_length": (0, 1),
        "batch.asked_global_batch": (-1, 0),
        "batch.asked_micro_batch": (-1, 0),
        "training.activation_bytes": (0, 1),
        "training.weight_bytes": (0, 1),
        "training.gradient_bytes": (0, 1),
        "training.optimizer_bytes": (-1, 0),
        "training.loss_bytes": (-1, 0),
        "training.fragmentation_ratio": (-0.5, 0),
        "seed": (-5, 0.5),
        "planning_seconds": (-0.5, 0),
        "memory_risk": (-0.5, 0),
        "costs": (3, "x"),
    }
    found: dict[str, list[str]] = {}
    for name, values in bounds.items():
        for value in values:
            part, _, key = name.rpartition(".")
            text = json.dumps({part: {key: value}} if part else {key: value})
            found.setdefault(name, []).append(answer(read, text).removeprefix("refused: here: ")[:48])
    stages: dict[str, tuple[object, ...]] = {
        "data": (0, 1, "a"),
        "tensor": (0, 1),
        "context": (0, 1),
        "expert": (0, 1),
        "shard": (-1, 0, 3, 4),
        "shard_degree": (-1, 0),
        "sequence_parallel": (1, True),
        "ops": ([1], ["a"], "a"),
        "devices": ([-1], [0], ["a"]),
        "ring": ([-1], [0]),
        "recompute": (["some"], ["mlp+moe"], [3]),
        "stage": (1,),
    }
    for name, own in stages.items():
        found[f"stage {name}"] = [
            answer(read, json.dumps({"stages": [{name: value}]})).removeprefix("refused: here: ")[:48] for value in own
        ]
    recorded(found, "bounds")
