"""Words for plans, layers and devices, and the few lines that an answer is shown as in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.base.units import format_bytes, format_count, format_seconds
from meshwright.core.cluster import Cluster
from meshwright.core.graph import Graph
from meshwright.core.plan import Plan, Stage
from meshwright.core.strategy import OFFLOAD

__all__ = [
    "NOTHING_RATIO", "as_html", "as_text", "axes_of", "describe", "devices_of", "layers_of", "no_others",
    "parameters_of", "plural", "ranges_of", "rows", "slower", "some_of", "tokens_of", "used_of", "verdict",
]  # fmt: skip

NOTHING_RATIO = 5e-5
"""Shares below it read 0.00 %."""

_ROUNDING = 1e-9  # gaps below it are those of sums

_COLUMNS = (
    "stage", "n_ops", "first_op", "last_op", "n_devices", "data", "context", "tensor", "expert", "shard", "n_recomputing",
    "peak_bytes", "free_bytes",
)  # fmt: skip


def describe(plan: Plan, *, brief: bool = False) -> str:
    """Return a plan's degrees and schedule in one line; `brief`: not what is sharded and recomputed."""
    degrees = plan.stages[0].strategy
    ranks = len(plan.ranks())
    parts = []
    if len({stage.strategy for stage in plan.stages}) == 1:
        for name in ("data", "context", "tensor", "expert"):
            if getattr(degrees, name) > 1:
                exchange = degrees.context_exchange if name == "context" and degrees.context_exchange != "ring" else ""
                parts.append(f"{name} {getattr(degrees, name)}" + (f" ({exchange})" if exchange else ""))
    else:
        parts.append("data x tensor " + "|".join(f"{stage.strategy.data}x{stage.strategy.tensor}" for stage in plan.stages))
    if ranks > 1:
        parts.append(f"pipeline {ranks}" + (f" x {len(plan.stages) // ranks} virtual" if len(plan.stages) > ranks else ""))
    most = max((stage.strategy for stage in plan.stages), key=lambda strategy: (strategy.shard, strategy.shard_degree))
    if most.shard and not brief:
        over = f" over {most.shard_degree}" if most.shard_degree else ""
        parts.append({1: "optimizer sharded", 2: "optimizer and gradients sharded", 3: "fully sharded"}[most.shard] + over)
    if degrees.offload != "none":
        parts.append(f"{degrees.offload} state on the host")
    words = [word for stage in plan.stages for word in stage.recompute]
    order = ("selective", *sorted(set(words) - {"none", "selective", "full"}), "full")
    named = {"selective": "selectively", "full": "all"}
    for word in order:
        if (count := words.count(word)) and not brief and word != OFFLOAD:
            parts.append(f"{plural(count, 'layer')} recompute{'s' * (count == 1)} {named.get(word, word)}")
    if plan.n_offloaded:
        parts.append(f"activations of {plural(plan.n_offloaded, 'layer')} on the host")
    schedule = f"{plan.schedule}, " if ranks > 1 else ""
    parts.append(f"{schedule}{plural(plan.n_microbatches, 'micro-batch')} of {plan.micro_batch}")
    return ", ".join(parts)


def devices_of(cluster: Cluster | None, stage: Stage) -> str:
    """Return the devices of a stage in ranges, with their kind where the cluster has several: ``0-3 H100-SXM-80GB``."""
    text = ranges_of(sorted(stage.devices))
    if cluster is None or len(cluster.kinds) == 1:
        return text
    return " ".join((text, *dict.fromkeys(cluster.device(device).name for device in stage.devices)))


def ranges_of(numbers: Sequence[int]) -> str:
    """Return ids as ranges: 0-7,16."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    text = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs[:4])
    return text + (f",... ({len(numbers)})" if len(runs) > 4 else "")


def axes_of(plan: Plan) -> tuple[str, ...]:
    """Return the axes that tables of stages show: data and tensor always, the others where a stage uses them."""
    used = [axis for axis in ("context", "expert") if any(getattr(stage.strategy, axis) > 1 for stage in plan.stages)]
    return ("data", *used, "tensor")


def layers_of(graph: Graph, stage: Stage) -> str:
    """Return the layers of a stage: the first, the last and how many."""
    names = [graph.ops[op].name for op in stage.ops]
    return names[0] if len(names) == 1 else f"{names[0]} .. {names[-1]} ({len(names)})" if names else "-"


def size_of(kinds: Sequence[str]) -> str:
    """Return how many layers a model has, as people count them: ``80 layers``, without embedding, head and norms between where
    it has others.

    `kinds`: of its layers.
    """
    inner = sum(kind not in ("embedding", "head", "norm") for kind in kinds)
    return plural(inner or len(kinds), "layer")


def slower(ratio: float) -> str:
    """Return by how much a step is slower or quicker than another.

    Parameters
    ----------
    ratio : float
        By which share of the other step it is longer; negative for shorter.

    Returns
    -------
    str
        ``25.00% slower``; the other way round ``25.00% quicker``: where one is slower by a share, the other is quicker by it,
        as in the gap of a bound. Less than 0.01 % where it would read 0.00.
    """
    if 0.0 < abs(ratio) < NOTHING_RATIO:
        return f"less than 0.01% {'slower' if ratio > 0.0 else 'quicker'}"
    return f"{ratio:.2%} slower" if ratio >= 0.0 else f"{1.0 / (1.0 + ratio) - 1.0:.2%} quicker"


def no_others(*, given: bool, listed: bool) -> str:
    """Return that no plan has other degrees; `given`: whether parts of the plan were; `listed`: whether runners-up are."""
    none = "no degrees searched but these give a plan" if listed else "no other degrees searched give a plan"
    return none + (" with what is given" if given else "")


def parameters_of(graph: Graph) -> str:
    """Return the weights of a model: ``46.7 B parameters (12.88 B active)``, and those trained where not all are."""
    beside = []
    if 0 < graph.n_active_parameters < graph.n_parameters:
        beside.append(f"{format_count(graph.n_active_parameters)} active")
    if not graph.fully_trained:
        beside.append(f"{format_count(graph.n_trained_parameters)} trained")
    return f"{format_count(graph.n_parameters)} parameters" + (f" ({', '.join(beside)})" if beside else "")


def tokens_of(graph: Graph) -> str:
    """Return the tokens of a sample: ``4096 tokens``, ``2 sequences of 4096 tokens``."""
    tokens = f"{graph.sequence_length} tokens"
    return f"{graph.n_sequences} sequences of {tokens}" if graph.n_sequences > 1 else tokens


def plural(count: int, word: str) -> str:
    """Return a number of things: ``1 layer``, ``3 layers``, ``2 micro-batches``."""
    if count == 1:
        return f"1 {word}"
    return f"{count} {word}{'es' if word.endswith(('s', 'sh', 'ch', 'x')) else 's'}"


def verdict(entry: Mapping[str, Any]) -> str:
    """Return an answer in one sentence.

    Parameters
    ----------
    entry : mapping
        The answer as in ``plan --json``.
    """
    where = f" on {entry['cluster']['name']}" if entry.get("cluster") else ""
    name = f"{entry['model']['name']}{where}"
    if not entry["feasible"]:
        missing = entry.get("missing_bytes")
        lacks = f"; the nearest plan lacks {format_bytes(missing)} on its fullest device" if missing else ""
        proven = "nothing fits" if entry.get("infeasible_proven") else "no plan that fits was found"
        return f"{name}: {proven}{lacks}."
    if entry["step_seconds"] is None:
        return f"{name}: a plan of {plural(len(entry['stages']), 'stage')} was found; its costs say nothing in seconds."
    parts = [f"{name}: {format_seconds(entry['step_seconds'])} a step"]
    if entry.get("tokens_per_second"):
        parts.append(f"{format_count(entry['tokens_per_second'])} tokens/s{_real_tokens(entry)}")
    if entry.get("model_flops_utilization_ratio") is not None:
        parts.append(f"{entry['model_flops_utilization_ratio']:.1%} model FLOPs utilization")
    n_used = len({device for stage in entry["stages"] for device in stage["devices"]})
    parts[-1] += used_of(n_used, (entry.get("cluster") or {}).get("n_devices") or n_used)
    full = max(map(_full_ratio, entry["stages"]), default=0.0)
    text = ", ".join(parts)
    text += f"; the fullest device is {full:.1%} full" if full else ""
    bound = entry.get("bound")
    if bound is None:
        return f"{text}; nothing is proven of quicker plans."
    gap = bound["gap_ratio"]
    given = " with the options given" if entry.get("settings") else ""
    if gap < _ROUNDING:
        return f"{text}; proven: no quicker plan exists among those searched{given}."
    return f"{text}; proven: no plan searched{given} is more than {max(gap, 1e-4):.2%} quicker."


def _real_tokens(entry: Mapping[str, Any]) -> str:
    """Return how many of the tokens per second are real in the mean of unlike lengths, in brackets; empty where all are."""
    varied = entry.get("lengths")
    if not varied:
        return ""
    real = format_count(varied["ways"][varied["batching"]]["real_tokens_per_second"])
    like = f" if samples were all alike ({real} real ones with {varied['batching']})"
    return "" if real == format_count(entry["tokens_per_second"]) else like


def _full_ratio(stage: Mapping[str, Any]) -> float:
    """Return which share of its device's memory a stage fills; 0 where that is not known."""
    free = stage.get("free_bytes")
    room = 0.0 if free is None else stage["peak_bytes"] + free
    return float(stage["peak_bytes"] / room) if room > 0.0 else 0.0


def used_of(n_used: int, n_devices: int) -> str:
    """Return, after a figure, of how many devices it is where some of the cluster are idle; empty where all work."""
    return f" of the {plural(n_used, 'device')} used ({n_devices - n_used} of {n_devices} idle)" if n_used < n_devices else ""


def some_of(n_used: int, n_devices: int) -> str:
    """Return, after a plan, how many devices it uses where some of the cluster are idle; empty where all work."""
    return f", {n_used} of {n_devices} devices" if n_used < n_devices else ""


def as_text(entry: Mapping[str, Any], plan: Plan | None) -> str:
    """Return an answer in about ten lines.

    Parameters
    ----------
    entry : mapping
        As in ``plan --json``.
    plan : Plan or None
        Its plan.
    """
    lines = [f"<Result of search {entry['search']}>", verdict(entry)]
    lines += [f"{name}: {value}" for name, value in _facts(entry, plan)]
    return "\n".join(lines)


def as_html(entry: Mapping[str, Any], plan: Plan | None) -> str:
    """Return an answer as a small table of HTML; `entry` and `plan` as of `as_text`."""
    from html import escape

    facts = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th><td style='text-align:left'>{escape(value)}</td></tr>"
        for name, value in _facts(entry, plan)
    )
    return f"<div><p>{escape(verdict(entry))}</p><table>{facts}</table></div>"


def rows(entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return one row for each stage, in pipeline order: what a table of the plan holds, bytes as numbers."""
    found = []
    for i, stage in enumerate(entry["stages"]):
        ops = stage["ops"]
        own = {
            "stage": i, "n_ops": len(ops), "first_op": ops[0] if ops else None, "last_op": ops[-1] if ops else None,
            "n_devices": len(stage["devices"]), "n_recomputing": sum(word != "none" for word in stage["recompute"]),
        }  # fmt: skip
        found.append({key: own[key] if key in own else stage.get(key) for key in _COLUMNS})
    return found


def _facts(entry: Mapping[str, Any], plan: Plan | None) -> list[tuple[str, str]]:
    """Return what is worth a line: the plan, the step, memory, runners-up, notes."""
    facts = []
    if plan is not None:
        stages = plural(len(plan.stages), "stage")
        facts.append(("plan", f"{describe(plan)} ({stages} on {plural(plan.n_devices, 'device')})"))
    interval = entry.get("step_seconds_interval")
    if interval:
        low, high = (format_seconds(interval[f"{end}_seconds"]) for end in ("low", "high"))
        facts.append(("interval", f"{low} to {high} a step ({interval['coverage_ratio']:.0%} of measured runs)"))
    causes = sorted((entry.get("causes") or {}).items(), key=lambda item: -item[1])[:4]
    if causes and entry["step_seconds"]:
        facts.append(("time", ", ".join(f"{name} {seconds / entry['step_seconds']:.0%}" for name, seconds in causes)))
    peaks = [
        (_full_ratio(stage), stage["peak_bytes"], i)
        for i, stage in enumerate(entry["stages"]) if stage.get("peak_bytes") is not None
    ]  # fmt: skip
    if peaks:
        _, peak, at = max(peaks)
        free = entry["stages"][at].get("free_bytes")
        left = f", {format_bytes(free)} free" if free else ""
        facts.append(("memory", f"{format_bytes(peak)} on the fullest device (stage {at}){left}"))
    if entry.get("nearest"):
        facts.append(("nearest", entry["nearest"]))
    if entry.get("alternatives"):
        facts.append(("runners-up", plural(len(entry["alternatives"]), "plan")))
    if entry["notes"]:
        facts.append(("notes", f"{plural(len(entry['notes']), 'sentence')} in result.answer.notes; result.show() prints all"))
    return facts
