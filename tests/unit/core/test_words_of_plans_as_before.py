"""Plans, answers and limits in words as they were when this was written; every figure is the test's own."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from meshwright import clusters
from meshwright.base.errors import ExportError
from meshwright.core import words
from meshwright.core.framework import FrameworkLimits
from meshwright.core.graph import Edge, Graph, Op
from meshwright.core.launch import Hosts, hosts_of
from meshwright.core.plan import Plan, Stage
from meshwright.core.plan_forms import inner_words, layout_of, recomputed_in_block
from meshwright.core.plan_forms.exceeded import exceeded
from meshwright.core.strategy import Strategy
from recorded import Recorded

OPS = (Op("embed", "embedding"), *(Op(f"layers.{i}", "layer") for i in range(4)), Op("head", "head"))
GRAPH = Graph("six", OPS, tuple(Edge(i, i + 1, 7) for i in range(5)))


def plans() -> dict[str, Plan]:
    """Return plans that differ in what there is to say of them."""
    one = Stage(tuple(range(6)), (0,))
    eight = Stage(tuple(range(6)), tuple(range(8)), Strategy(2, 2, 2, 2, True, 3, 2), ("none",) * 6)
    first = Stage((0, 1, 2), (0, 1), Strategy(2, shard=1), ("none", "selective", "full"))
    second = Stage((3, 4, 5), (2, 3), Strategy(2, shard=1), ("full", "selective", "none"))
    unlike = replace(second, strategy=Strategy(1, 2, sequence_parallel=True, shard=0), ring=())
    four = [Stage((i,), (i % 2,), recompute=("full",)) for i in (0, 1, 2)] + [Stage((3, 4, 5), (1,))]
    ring = Stage(tuple(range(6)), (3, 1, 0, 2), Strategy(4, shard=2), ("core_attn+mlp",) * 6, (0, 2, 1, 3))
    by_data = [Stage((0, 1, 2), (0, 1, 4, 5), Strategy(2, 2)), Stage((3, 4, 5), (2, 3, 6, 7), Strategy(2, 2))]
    return {
        "one": Plan((one,)), "eight": Plan((eight,), 3, 2), "two": Plan((first, second), 4, 1, "1f1b"),
        "unlike": Plan((first, unlike), 1, 5, "gpipe"), "virtual": Plan(tuple(four), 8, 1, "interleaved"),
        "ring": Plan((ring,), 2), "data outside": Plan(tuple(by_data), 2, 1, "1f1b"),
        "uneven": Plan((replace(first, ops=(0,), recompute=("full",)), replace(second, ops=(1, 2, 3, 4, 5), recompute=())), 2),
        "swapped": Plan((replace(first, devices=(2, 3)), replace(second, devices=(0, 1))), 6, 1, "zb_h1"),
    }  # fmt: skip


def limits() -> dict[str, FrameworkLimits]:
    """Return limits that lack one thing each."""
    return {
        "degrees": FrameworkLimits(degrees=()), "schedules": FrameworkLimits(schedules=("1f1b",)),
        "shards": FrameworkLimits(shards=(0,)), "some shards": FrameworkLimits(shards=(0, 1, 3)),
        "hybrid": FrameworkLimits(hybrid_shards=(1,)), "sequence": FrameworkLimits(sequence_parallel=False),
        "virtual": FrameworkLimits(virtual_stages=False), "uneven": FrameworkLimits(uneven_stages=False),
        "unlike": FrameworkLimits(unlike_stages=False), "ends": FrameworkLimits(free_ends=False),
        "layouts": FrameworkLimits(layouts=("pipeline",), any_order=False),
        "data layout": FrameworkLimits(layouts=("data",), any_order=False),
        "rings": FrameworkLimits(gradient_rings=False), "recompute": FrameworkLimits(recompute=("none", "full")),
        "modules": FrameworkLimits(recompute=("none", "selective", "core_attn", "mlp")),
        "plan scope": FrameworkLimits(recompute_scope="plan"),
        "block": FrameworkLimits(recompute_scope="plan", block_recompute=True),
    }  # fmt: skip


def test_plans_are_described_as_before(recorded: Recorded) -> None:
    cluster = clusters.cluster("flat:8")
    found: dict[str, Any] = {}
    for name, plan in plans().items():
        stages = [[words.layers_of(GRAPH, stage), words.devices_of(cluster, stage)] for stage in plan.stages]
        found[name] = [words.describe(plan), words.describe(plan, brief=True), words.axes_of(plan), layout_of(plan), stages]
    recorded(found)
    ranges = [(), (1,), (1, 2, 3), (1, 3, 4, 6), (0, 2, 4, 6), (0, 2, 4, 6, 8), (5, 4, 3)]
    recorded([words.ranges_of(numbers) for numbers in ranges], "ranges")
    recorded([words.plural(n, word) for n in (0, 1, 2) for word in ("layer", "micro-batch", "loss", "dish", "box")], "plural")


def test_limits_are_exceeded_as_before(recorded: Recorded) -> None:
    recorded(
        {
            f"{lack}, {name}": told
            for (lack, bounds), (name, plan) in itertools.product(limits().items(), plans().items())
            if (told := exceeded(bounds, plan, GRAPH))
        }
    )
    recorded({name: inner_words(plan, GRAPH) for name, plan in plans().items()}, "inner")
    stages = [["full", "none"], ["full", "full"], ["none", "full"], ["full"], ["none"], [], ["selective"]]
    recorded([recomputed_in_block([a, b]) for a in stages for b in stages], "block")


def entry(**changes: Any) -> dict[str, Any]:
    """Return an answer as ``plan --json`` has it."""
    stage = {"ops": [0, 1], "devices": [0, 1], "recompute": ["none", "full"], "peak_bytes": 6e9, "free_bytes": 2e9, "data": 2}
    other = {**stage, "ops": [2], "recompute": [], "peak_bytes": 7e9, "free_bytes": 9e9, "tensor": 3}
    plain = {
        "search": "best", "feasible": True, "model": {"name": "tiny"}, "cluster": {"name": "flat:4"}, "step_seconds": 2.0,
        "stages": [stage, other], "notes": [], "bound": None,
    }  # fmt: skip
    return {**plain, **changes}


def test_answers_are_told_as_before(recorded: Recorded) -> None:
    interval = {"low_seconds": 1.5, "high_seconds": 2.5, "coverage_ratio": 0.8}
    first, second = entry()["stages"]
    causes = {"compute": 1.0, "bubble": 0.5, "tensor": 0.3, "data": 0.15, "send": 0.05}
    told = [
        entry(), entry(cluster=None), entry(feasible=False), entry(feasible=False, missing_bytes=3e9, infeasible_proven=True),
        entry(step_seconds=None), entry(step_seconds=None, stages=[first]), entry(model_flops_utilization_ratio=0.0),
        entry(tokens_per_second=12345.0, model_flops_utilization_ratio=0.4321), entry(bound={"gap_ratio": 0.0}),
        entry(bound={"gap_ratio": 4.9e-5}), entry(bound={"gap_ratio": 5e-5}, settings={"a": 1}),
        entry(bound={"gap_ratio": 0.0}, settings={"a": 1}), entry(bound={"gap_ratio": 0.25}),
        entry(stages=[{**first, "free_bytes": None}]), entry(stages=[{**first, "free_bytes": -6e9}]),
        entry(stages=[{**first, "free_bytes": 0.0}, {**second, "peak_bytes": None, "free_bytes": None}]),
        entry(step_seconds_interval=interval, causes=causes), entry(nearest="more devices", alternatives=[1], notes=["a"]),
        entry(alternatives=[1, 2], notes=["a", "b"]),
    ]  # fmt: skip
    plan = plans()["two"]
    recorded([words.verdict(of) for of in told])
    recorded([words.as_text(of, plan if i % 2 else None) for i, of in enumerate(told)], "text")
    recorded(words.as_html(entry(model={"name": "<a>"}, nearest="x & y"), plan), "html")
    recorded(words.rows(entry(stages=[*entry()["stages"], {**entry()["stages"][0], "ops": [], "devices": []}])), "rows")


def test_hosts_are_those_of_the_devices(recorded: Recorded) -> None:
    def over(*devices: int) -> Plan:
        return Plan((Stage((0,), devices, Strategy(len(devices))),))

    found: dict[str, Any] = {}
    for spec, devices in (
        ("dgx-h100:16", (0, 1)), ("dgx-h100:16", (8, 9, 10)), ("dgx-h100:24", (*range(4, 8), *range(12, 16))),
        ("dgx-h100:16", (3, 0)), ("dgx-h100:16", (0, 2)), ("dgx-h100:16", (6, 7, 8)), ("gb200-nvl72:144", tuple(range(72, 84))),
        ("gb200-nvl72:144", (2, 3, 74, 75)), ("flat:4", (1, 2, 3)), ("gb200-nvl72:144", (*range(4, 12), *range(72, 76))),
    ):  # fmt: skip
        try:
            hosts = hosts_of(over(*devices), clusters.cluster(spec))
        except ExportError as error:
            found[f"{spec} {devices}"] = str(error)
        else:
            found[f"{spec} {devices}"] = [hosts, hosts.per_host, hosts.per_domain]
    recorded(found)
    assert hosts_of(over(5, 3), None) == Hosts(((3, 5),), (0,), ("",), (0,))
