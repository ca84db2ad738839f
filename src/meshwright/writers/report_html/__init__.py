"""The report: one HTML page, offline, with the timeline, memory, the plan on the cluster, and the alternatives."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.base import files
from meshwright.base.errors import ExportError
from meshwright.base.units import format_bytes, format_count, format_seconds
from meshwright.core import words
from meshwright.core.cluster import Cluster
from meshwright.core.formatting import (
    axes_of,
    describe,
    devices_of,
    fullest,
    layers_of,
    peak_margin,
    seen_from,
    shown_risk,
    step_interval,
    utilization,
    utilization_causal,
)  # fmt: skip
from meshwright.core.interval import COVERAGE_RATIO
from meshwright.core.plan import Plan
from meshwright.core.result import Objective, Result
from meshwright.core.timeline import PHASES, Timeline
from meshwright.writers.report_html import topology_picture

__all__ = ["FROZEN", "RINGS", "page", "write"]

FROZEN = RINGS = True
"""The page shows what was simulated."""

_MOST_SPANS = 60_000
_MOST_KINDS_OF_LINK = 5


def page(result: Result, changes: Sequence[Sequence[str]] = ()) -> str:
    """Return the report as one HTML page that needs no network.

    `changes`: what would help: change, step then, gain, plan then.
    Raises `ExportError` when there is no plan, or no timeline to draw.
    """
    if not result.feasible or result.timeline is None:
        raise ExportError("a report needs a plan that was simulated; this answer has none")
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    # a tag or an opening comment inside a name would change where the script element ends
    data = json.dumps(_data(result) | {"what_if": [list(row) for row in changes]}, separators=(",", ":")).replace(
        "<", "\\u003c"
    )
    return template.replace("__DATA__", data)


def write(result: Result, path: str, changes: Sequence[Sequence[str]] = ()) -> None:
    """Write the report to a file, whole or not at all; see `page`.

    Raises `ExportError` when there is no plan to draw.
    Raises `InputError` when the file cannot be written.
    """
    files.write(path, page(result, changes))


def _data(result: Result) -> dict[str, Any]:
    plan, timeline, problem = result.plan, result.timeline, result.problem
    assert timeline is not None
    answer = result.answer
    return {
        "title": f"{problem.model_spec.name} on {problem.cluster.name if problem.cluster is not None else 'its devices'}",
        "question": _question(result),
        "cards": _cards(result),
        "plan": describe(plan),
        "axes": list(axes_of(plan)),
        "stages": _stages(result, plan),
        "step": timeline.step_seconds,
        "seen_from": seen_from(result),
        "causes": [[name, seconds] for name, seconds in timeline.causes if seconds > 0],
        "timeline": _timeline(result),
        "memory": _memory(result),
        "cluster": _cluster(result, plan),
        "alternatives": [
            [
                describe(other.plan),
                f"{other.objective.value:.5g}",
                _slower(other.objective.value, answer.objective),
                other.why,
            ]
            for other in answer.alternatives
        ],
        "objective": "" if answer.objective is None else f"{answer.objective.value:.5g}",
        "tokens_per_second": _tokens_per_second(result),
        "fails": "effective_step_seconds" in answer.extra,
        "n_devices": plan.n_devices,
        "launch": _launch(result),
        "notes": [*_given(result), *answer.notes],
    }


def _given(result: Result) -> list[str]:
    """Say what of the plan was given, and how much slower that is than the best."""
    fixed = result.answer.extra.get("fixed")
    if not isinstance(fixed, dict):
        return []
    told = ", ".join(f"{key} {value}" for key, value in fixed.get("values", {}).items())
    free = fixed.get("free_optimum")
    slower = free.get("slower_ratio") if isinstance(free, dict) else None
    if not isinstance(free, dict) or not isinstance(slower, float):
        return [f"given of this plan: {told}"]
    best = format_seconds(float(free["step_seconds"]))
    return [f"given of this plan: {told}; it takes {slower:+.2%} beside the best with nothing given, {best}: {free['plan']}"]


def _tokens_per_second(result: Result) -> float | None:
    """Return the rate of training, failures counted where they were asked for; None where samples have no tokens."""
    length, timeline = result.problem.graph.n_tokens, result.timeline
    assert timeline is not None
    effective = result.answer.extra.get("effective_step_seconds")
    step = effective if isinstance(effective, float) else timeline.step_seconds
    return result.plan.global_batch * length / step if length > 1 and step > 0.0 else None


def _launch(result: Result) -> str:
    """Return the commands that run the plan: with the framework asked for, or with our own runtime."""
    name = result.problem.framework.word if result.problem.framework_asked else ""
    if not name or name == "meshwright":
        return "meshwright run PLAN --model package.module:callable --torchrun MACHINES"
    return f"meshwright export PLAN --to {name} --out train --launch slurm\n# or --launch torchrun, k8s"


def _slower(value: float, best: Objective | None) -> str:
    """Return how much larger an objective is than the answer's, in the same unit."""
    return f"{value / best.value - 1:+.2%}" if best is not None and best.value else "-"


def _question(result: Result) -> str:
    graph = result.problem.graph
    text = f"{words.size_of([op.kind for op in graph.ops])}, {format_count(graph.n_parameters)} parameters"
    if graph.sequence_length > 1:
        text += f", {words.tokens_of(graph)} a sample"
    return (
        f"{text}; {result.plan.global_batch} samples a step; search {result.search}, costs {result.problem.costs}, seed "
        f"{result.seed}"
    )


def _cards(result: Result) -> list[list[str]]:
    timeline, answer, plan = result.timeline, result.answer, result.plan
    assert timeline is not None
    rate = plan.global_batch / timeline.step_seconds
    cards = [["step", format_seconds(timeline.step_seconds), f"{rate:.4g} samples/s"]]
    expected = step_interval(result)
    if expected is not None:
        ends = f"{format_seconds(expected.low_seconds)} to {format_seconds(expected.high_seconds)}"
        rests = f"{COVERAGE_RATIO:.0%} of measured steps; {expected.n_runs} runs of {expected.n_sets} sets"
        cards.append(["expected", ends, rests])
    margin, peak = peak_margin(result), fullest(result)
    if margin is not None and peak is not None:
        risk = shown_risk(result)
        limit = margin.most_ratio(risk) * peak[0]
        most = f"{margin.claim(risk)} {format_bytes(limit)} of {format_bytes(peak[1])}; {margin.words}"
        cards.append(["peak memory", format_bytes(peak[0]), most + (": may not fit" if limit > peak[1] else "")])
    if result.problem.graph.sequence_length > 1:
        tokens = rate * result.problem.graph.n_tokens
        cards.append(["tokens", f"{format_count(tokens)}/s", f"{format_count(tokens / plan.n_devices)}/s per device"])
    share = utilization(result)
    if share is not None:
        causal = utilization_causal(result)
        masked = f"; {causal:.1%} without the masked half of attention" if causal is not None and causal < share else ""
        cards.append(["model FLOPs utilization", f"{share:.1%}", f"{words.plural(plan.n_devices, 'device')}{masked}"])
    if answer.bound is not None and answer.objective is not None:
        gap = answer.bound.gap_ratio(answer.objective)
        cards.append(["proven gap", f"{gap:.2%}", f"no plan of the space is below {format_seconds(answer.bound.value)}"])
    effective = answer.extra.get("effective_step_seconds")
    if isinstance(effective, float):
        cards.append(["effective step", format_seconds(effective), "with failures, checkpoints and restarts (--mtbf)"])
    cards.append(["planning", format_seconds(result.planning_seconds), f"{max(answer.n_iterations, 0)} plans simulated"])
    return cards


def _stages(result: Result, plan: Plan) -> list[list[str]]:
    axes = axes_of(plan)
    rows = []
    for i, stage in enumerate(plan.stages):
        load = result.stage_costs[i]
        recomputed = sum(word != "none" for word in stage.recompute)
        rows.append(
            [
                str(i),
                layers_of(result.problem.graph, stage),
                devices_of(result.problem.cluster, stage),
                *(str(getattr(stage.strategy, axis)) for axis in axes),
                f"{recomputed} of {len(stage.ops)}",
                format_seconds(load.forward_total_seconds),
                format_seconds(load.backward_total_seconds),
            ]
        )
    return rows


def _timeline(result: Result) -> dict[str, Any]:
    timeline = result.timeline
    assert timeline is not None
    keep = timeline.rank >= 0
    every = max(
        1, -(-int(keep.sum()) // _MOST_SPANS)
    )  # beyond this a page becomes heavy: some ranks stand for their neighbours
    keep &= timeline.rank % every == 0
    return {
        "phases": list(PHASES),
        "every": every,
        "rank": timeline.rank[keep].tolist(),
        "stage": timeline.stage[keep].tolist(),
        "microbatch": timeline.microbatch[keep].tolist(),
        "phase": timeline.phase[keep].tolist(),
        "start": [float(f"{seconds:.7g}") for seconds in timeline.start_seconds[keep]],
        "end": [float(f"{seconds:.7g}") for seconds in timeline.end_seconds[keep]],
    }


def _memory(result: Result) -> list[dict[str, Any]]:
    from meshwright.sim import fits

    timeline, cluster = result.timeline, result.problem.cluster
    assert timeline is not None
    entries = []
    for rank, devices in enumerate(result.plan.ranks()):
        entries.append(
            {
                "peak": timeline.peak_bytes[rank],
                "limit": fits.tightest(cluster, devices).memory_bytes if cluster is not None else 0,
                "parts": [[name, value] for name, value in timeline.memory_causes[rank]],
                "times": [float(f"{seconds:.7g}") for seconds in timeline.memory_seconds[rank]],
                "held": [float(f"{value:.7g}") for value in timeline.memory_bytes[rank]],
            }
        )
    return entries


def _cluster(result: Result, plan: Plan) -> dict[str, Any]:
    """Return the topology as a picture, and which rank each device works for, in ranges of ids."""
    cluster, timeline = result.problem.cluster, result.timeline
    assert timeline is not None
    if cluster is None:
        return {"text": "", "picture": None, "ranks": [], "kinds": [], "busiest": []}
    ranks = []
    for devices in plan.ranks():
        strategy = next(stage.strategy for stage in plan.stages if stage.devices == devices)
        ranks.append(
            {
                "devices": _runs(devices),
                "data": strategy.data,
                "context": strategy.context,
                "tensor": strategy.tensor,
            }
        )
    drawn = topology_picture.picture(cluster, timeline.link_bytes, timeline.step_seconds)
    n_nodes = len(set(cluster.node_of_device.tolist()))
    text = (
        f"{cluster.name}: {cluster.n_devices} devices in {n_nodes} nodes, {cluster.n_switches} switches, "
        f"{len(cluster.links)} links one way. "
    )
    text += "The number and the colour of a device are its pipeline rank"
    text += "".join(f"; {note}" for note in drawn.pop("notes")) + "."
    text += (
        " A link's colour and width are the share of what it could carry in the step that it does carry."
        if timeline.link_bytes.any()
        else " What links carry is not known."
    )
    kinds = [] if len(cluster.kinds) == 1 else [cluster.kinds[kind].name for kind in cluster.kind_of_device.tolist()]
    return {"text": text, "picture": drawn, "ranks": ranks, "kinds": kinds, "busiest": _busiest(cluster, timeline)}


def _busiest(cluster: Cluster, timeline: Timeline) -> list[list[str]]:
    """Return the links that carry the largest share of what they could, those alike in one row: which, how many, rate,
    bytes, share.
    """
    if not timeline.link_bytes.any() or timeline.step_seconds <= 0.0:
        return []
    links, n = cluster.links, cluster.n_devices
    share = timeline.link_bytes / links.bytes_per_second / timeline.step_seconds
    alike: dict[tuple[object, ...], list[int]] = {}
    for link in np.argsort(-share, kind="stable").tolist():
        if share[link] <= 0.0:
            break
        ends = (int(links.source[link]), int(links.target[link]))
        key = (f"{share[link]:.2g}", *(end < n for end in ends), float(links.bytes_per_second[link]))
        if key not in alike and len(alike) == _MOST_KINDS_OF_LINK:
            if key[0] != next(reversed(alike))[0]:
                break
            continue
        alike.setdefault(key, []).append(link)
    rows = []
    for found in alike.values():
        names = [
            f"device {end}" if end < n else f"switch {end - n}"
            for end in (int(links.source[found[0]]), int(links.target[found[0]]))
        ]
        more = f" and {len(found) - 1} alike" if len(found) > 1 else ""
        rows.append(
            [
                f"{names[0]} to {names[1]}{more}",
                f"{links.bytes_per_second[found[0]] / 1e9:.4g} GB/s",
                format_bytes(float(timeline.link_bytes[found].max())),
                f"{share[found[0]]:.2%}",
            ]
        )
    return rows


def _runs(devices: Sequence[int]) -> list[list[int]]:
    """Return ids as runs of (first, how many, step), so that thousands of devices are a few numbers."""
    runs: list[list[int]] = []
    for device in devices:
        if runs and (runs[-1][1] == 1 or device == runs[-1][0] + runs[-1][1] * runs[-1][2]):
            if runs[-1][1] == 1:
                runs[-1][2] = device - runs[-1][0]
            runs[-1][1] += 1
        else:
            runs.append([device, 1, 1])
    return runs
