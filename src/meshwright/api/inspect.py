"""What a file or a name holds, as JSON-ready values and as text: models, clusters and plans alike."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from meshwright import api
from meshwright.base.errors import InputError, MeshwrightError
from meshwright.base.units import format_bytes, format_count
from meshwright.core.cluster import Cluster
from meshwright.core.problem import ModelSpec
from meshwright.core.strategy import OFFLOAD
from meshwright.core.words import plural, size_of

__all__ = ["describe", "text"]


def describe(kind: str, file_format: str = "") -> dict[str, Any]:
    """Return what a file or a name holds.

    Parameters
    ----------
    kind : str
        A model, a cluster or a plan, as on the command line.
    file_format : str
        Format of a model's file where it should not be recognised.

    Returns
    -------
    dict
        JSON-ready values; ``kind`` is ``model``, ``cluster`` or ``plan``.

    Raises
    ------
    InputError
        When it is none of them; the message tells why it is no model and why it is no cluster.
    """
    from meshwright.core.source import Source

    source = Source(kind)
    content = source.json
    if isinstance(content, dict) and _is_plan(content):
        if source.repeated_key:
            raise InputError(f"{kind}: {source.repeated_key}")
        try:
            _plan_text(content)
        except (KeyError, TypeError, IndexError, ValueError) as error:
            raise InputError(f"{kind}: a field is missing or of the wrong kind: {error}") from None
        return {"kind": "plan", "plan": content}
    try:
        return _model(api.read(kind, file_format=file_format))
    except MeshwrightError as no_model:
        if file_format:
            raise
        try:
            from meshwright import clusters

            return _cluster(clusters.cluster(kind))
        except MeshwrightError as no_cluster:
            if Path(kind).suffix in (".yaml", ".yml") or ":" in kind:
                raise no_cluster from None
            if len(kind) > 255 or not kind or Path(kind).exists():
                raise no_model from None
            raise InputError(f"'{kind}' is no model ({no_model}) and no cluster ({no_cluster})") from None


def _is_plan(content: dict[str, Any]) -> bool:
    from meshwright.writers import plan_json

    return content.get("format") == plan_json.FORMAT


def _model(model_spec: ModelSpec) -> dict[str, Any]:
    graph = model_spec.graph
    rows: list[dict[str, Any]] = []
    for i, op in enumerate(graph.ops):
        row = op.like if op.like >= 0 else i
        if rows and rows[-1]["row"] == row:
            rows[-1] |= {"last": op.name, "n_layers": rows[-1]["n_layers"] + 1}
            continue
        rows.append(
            {"row": row, "first": op.name, "last": op.name, "n_layers": 1, "kind": op.kind, "n_parameters": op.n_parameters}
        )
    return {
        "kind": "model",
        "name": model_spec.name,
        "format": model_spec.format,
        "costs": model_spec.costs,
        "search": model_spec.search,
        "n_layers": len(graph.ops),
        "n_edges": len(graph.edges),
        "n_parameters": graph.n_parameters,
        "n_active_parameters": graph.n_active_parameters or graph.n_parameters,
        "n_trained_parameters": graph.n_trained_parameters,
        "n_shared_parameters": graph.n_shared_parameters,
        "sequence_length": graph.sequence_length,
        "layers": rows,
        "notes": list(model_spec.notes),
    }


def _cluster(cluster: Cluster) -> dict[str, Any]:
    links = cluster.links
    speeds = sorted(Counter(links.bytes_per_second.tolist()).items())
    return {
        "kind": "cluster",
        "name": cluster.name,
        "n_devices": cluster.n_devices,
        "n_switches": cluster.n_switches,
        "n_links": len(links),
        "source": cluster.source,
        "devices": [
            {
                "name": kind.name,
                "n_devices": int((cluster.kind_of_device == i).sum()),
                "flops_per_second": dict(kind.flops_per_second),
                "memory_bytes": kind.memory_bytes,
                "memory_bytes_per_second": kind.memory_bytes_per_second,
                "source": kind.source,
            }
            for i, kind in enumerate(cluster.kinds)
        ],
        "links": [{"bytes_per_second": speed, "n_links": count} for speed, count in speeds],
        "n_groups": [len(set(level.tolist())) for level in cluster.groups],
    }


def text(entry: dict[str, Any]) -> str:
    """Return what `describe` found as text."""
    if entry["kind"] == "plan":
        return _plan_text(entry["plan"])
    if entry["kind"] == "cluster":
        lines = [
            f"cluster {entry['name']}: {plural(entry['n_devices'], 'device')}, {plural(entry['n_switches'], 'switch')}, "
            f"{plural(entry['n_links'], 'directed link')}"
        ]
        for device in entry["devices"]:
            peaks = ", ".join(f"{name} {peak / 1e12:.4g} TFLOP/s" for name, peak in device["flops_per_second"].items())
            memory = f"{format_bytes(device['memory_bytes'])} at {device['memory_bytes_per_second'] / 1e9:.4g} GB/s"
            lines += [f"  {device['n_devices']} x {device['name']}: {peaks}; {memory}", f"    source: {device['source']}"]
        lines += [f"  {link['n_links']} links of {link['bytes_per_second'] / 1e9:.4g} GB/s" for link in entry["links"]]
        lines.append("  groups, innermost first: " + ", ".join(str(count) for count in entry["n_groups"]))
        return "\n".join(lines + ([f"  source: {entry['source']}"] if entry["source"] else []))
    lines = [f"model {entry['name']} ({entry['format']}): {_size(entry)}, {entry['n_edges']} edges"]
    if entry["n_parameters"]:
        lines[0] += f", {format_count(entry['n_parameters'])} parameters"
        if entry["n_active_parameters"] != entry["n_parameters"]:
            lines[0] += f" ({format_count(entry['n_active_parameters'])} active)"
        if entry["n_trained_parameters"] != entry["n_parameters"]:
            lines[0] += f", {format_count(entry['n_trained_parameters'])} of them trained"
    lines.append(
        f"  answered by --search {entry['search']} with --costs {entry['costs']}; {entry['sequence_length']} tokens a sample"
    )
    runs = _runs(entry["layers"])
    for row in runs[:40]:
        names = row["first"] if row["n_layers"] == 1 else f"{row['first']} .. {row['last']} ({row['n_layers']})"
        each = " each" if row["n_layers"] > 1 else ""
        weights = f", {format_count(row['n_parameters'])} parameters{each}" if row["n_parameters"] else ""
        lines.append(f"  {names}: {row['kind']}{weights}")
    if len(runs) > 40:
        lines.append(f"  ... and {len(runs) - 40} more")
    if entry["n_shared_parameters"]:
        lines.append(
            f"  {format_count(entry['n_shared_parameters'])} of these are shared between layers: the total counts them once"
        )
    return "\n".join([*lines, *(f"  note: {note}" for note in entry["notes"])])


def _runs(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return layers that look alike in a line as one row: windows that alternate with full attention."""
    runs: list[dict[str, Any]] = []
    for row in rows:
        if runs and all(runs[-1][key] == row[key] for key in ("kind", "n_parameters")):
            runs[-1] = {**runs[-1], "last": row["last"], "n_layers": runs[-1]["n_layers"] + row["n_layers"]}
        else:
            runs.append(row)
    return runs


def _size(entry: dict[str, Any]) -> str:
    """Return how many layers a model has, as people count them."""
    return size_of([row["kind"] for row in entry["layers"] for _ in range(row["n_layers"])])


def _plan_text(plan: dict[str, Any]) -> str:
    lines = [f"plan of {plan['model']['name']} by search {plan['search']}, costs {plan['costs']}"]
    if not plan["feasible"]:
        nothing = "nothing fits" if plan.get("infeasible_proven") else "no plan that fits was found"
        return lines[0] + f": {nothing}, {format_bytes(plan['missing_bytes'])} are missing; nearest: {plan['nearest']}"
    if plan["step_seconds"]:
        lines.append(f"  step {plan['step_seconds']:.6g} s, {plan['samples_per_second']:.6g} samples/s")
    schedule = plan["schedule"]
    batches = plural(schedule["n_microbatches"], "micro-batch")
    lines.append(f"  schedule {schedule['name']}, {batches} of {schedule['micro_batch']}")
    for i, stage in enumerate(plan["stages"][:64]):
        lines.append(f"  stage {i}: {_stage_text(stage)}")
    if len(plan["stages"]) > 64:
        lines.append(f"  ... and {plural(len(plan['stages']) - 64, 'more stage')}")
    return "\n".join(lines)


def _stage_text(stage: dict[str, Any]) -> str:
    """Return all that is said of a stage: layers, devices, degrees, what is sharded and recomputed, its peak."""
    names = stage["ops"]
    span = "-" if not names else names[0] if len(names) == 1 else f"{names[0]} .. {names[-1]} ({len(names)})"
    parts = [f"{span} on {plural(len(stage['devices']), 'device')}"]
    parts += [f"{axis} {stage[axis]}" for axis in ("data", "context", "tensor", "expert")
              if axis in ("data", "tensor") or stage.get(axis, 1) > 1]  # fmt: skip
    shard, over = stage.get("shard", 0), stage.get("shard_degree", 0)
    if shard:
        words = {1: "optimizer sharded", 2: "optimizer and gradients sharded", 3: "fully sharded"}[shard]
        parts.append(words + (f" over {over}" if over else ""))
    recompute = [word for word in stage.get("recompute", ()) if word not in ("none", OFFLOAD)]
    parts += [f"{plural(recompute.count(word), 'layer')} recompute {word}" for word in dict.fromkeys(recompute)]
    if away := list(stage.get("recompute", ())).count(OFFLOAD):
        parts.append(f"activations of {plural(away, 'layer')} on the host")
    choices = stage.get("choices", ())
    parts += [f"{plural(choices.count(name), 'layer')} by choice '{name}'" for name in dict.fromkeys(choices)]
    if stage.get("peak_bytes") is not None:
        parts.append(f"peak {format_bytes(stage['peak_bytes'])}")
    return ", ".join(parts)
