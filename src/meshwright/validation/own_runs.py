"""Runs of one's own: any model and cluster that the command line can name, degrees in words; seconds of a step and memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from meshwright import frameworks, models
from meshwright.base import registry
from meshwright.base.errors import InputError
from meshwright.core.cluster import Cluster
from meshwright.core.framework import Framework
from meshwright.core.graph import Graph
from meshwright.core.problem import MixedPrecision
from meshwright.core.strategy import RECOMPUTE, Strategy, is_recompute
from meshwright.validation._points import CellError, Point, Skipped, count, ratio
from meshwright.validation._runs import Clusters, Run, clusters, point, predict

__all__ = ["COLUMNS", "OPTIONAL", "PATHS", "points"]

COLUMNS = ("model", "cluster", "global_batch", "micro_batch", "data", "tensor", "pipeline", "step_seconds")

MEMORY = (("reserved_gib", "reserved"), ("allocated_gib", "allocated"), ("nvidia_smi_gib", "peak"))
"""Columns of measured memory and what of a prediction they are compared with; the first that a row fills counts."""

OPTIONAL = (
    "sequence_length", "context", "expert", "virtual", "shard", "shard_degree", "sp", "recompute", "schedule", "precision",
    "gradient_bytes", *(name for name, _ in MEMORY), "job",
    "framework",
)  # fmt: skip
"""Columns that may be there: degrees of 1 otherwise, nothing sharded (over all where something is), sequence parallelism with
a tensor
degree, nothing recomputed, 1F1B, bf16, gradients as the precision has them, no memory measured; rows of one job
did the same work; the framework that trained, else the one that is assumed."""

PATHS = ("model", "cluster")
"""Columns that may name files: relative ones from where the CSV file lies."""

FAILED = ("inf", "oom", "failed")
"""What a run that failed for memory has for seconds."""

PRECISIONS = ("bf16", "fp16", "fp8", "mxfp8", "fp4", "tf32", "fp32")
"""Precisions of products that a row may name."""


def points(rows: Sequence[Mapping[str, str]]) -> list[Point | Skipped]:
    """Return measured and predicted seconds and memory of every row.

    Raises
    ------
    CellError
        When a cell is not what its column asks for.
    """
    place, graphs = clusters(), dict[tuple[str, int], Graph]()
    found = []
    for i, fields in enumerate(rows, 1):
        try:
            found.append(_point(i, fields, place, graphs))
        except CellError as error:
            raise error.in_row(i) from None
    return found


def _point(row: int, fields: Mapping[str, str], place: Clusters, graphs: dict[tuple[str, int], Graph]) -> Point | Skipped:
    failed = fields["step_seconds"].strip().lower() in FAILED
    measured = math.inf if failed else ratio(fields, "step_seconds")
    model = (fields["model"].strip(), count(fields, "sequence_length", 0))
    recompute = fields.get("recompute", "").strip() or "none"
    if not is_recompute(recompute):
        raise CellError(
            "recompute", f"recompute is '{recompute}'; it must be one of {', '.join(RECOMPUTE)}, or a framework's setting"
        )
    schedule = _word(fields, "schedule", ("", *registry.names("schedules")), "")
    training = MixedPrecision.of(_word(fields, "precision", PRECISIONS, "bf16"))
    training = replace(training, gradient_bytes=count(fields, "gradient_bytes", training.gradient_bytes))
    tensor = count(fields, "tensor")
    split = _word(fields, "sp", ("0", "1"), "1") == "1"
    strategy = Strategy(
        count(fields, "data"), tensor, count(fields, "context", 1), count(fields, "expert", 1), split and tensor > 1,
        _shard(fields), count(fields, "shard_degree", 0),
    )  # fmt: skip
    column, memory = next((entry for entry in MEMORY if fields.get(entry[0], "").strip()), ("", "peak"))
    held = ratio(fields, column) * 2.0**30 if column else 0.0
    virtual, pipeline = count(fields, "virtual", 1), count(fields, "pipeline")
    micro_batch, global_batch = count(fields, "micro_batch"), count(fields, "global_batch")
    try:
        if model not in graphs:
            graphs[model] = models.read(model[0], sequence_length=model[1]).graph
        run = Run(
            graphs[model], place(fields["cluster"].strip()), (strategy,), pipeline=pipeline, virtual=virtual,
            micro_batch=micro_batch, global_batch=global_batch, recompute=recompute, schedule=schedule, training=training,
            overlap=True, framework=_framework(fields, graphs[model], place(fields["cluster"].strip()), training.precision),
            framework_told=bool(fields.get("framework", "").strip()),
        )  # fmt: skip
        predicted = predict(run)
    except CellError:
        raise
    except InputError as error:
        return Skipped(row, str(error))
    group = fields.get("job", "").strip() or f"{model} {fields['cluster']} {global_batch} {training.precision}"
    return point(row, measured, predicted, held_bytes=held, memory=memory, group=group, ran=not failed)


def _framework(fields: Mapping[str, str], graph: Graph, cluster: Cluster, precision: str) -> Framework:
    """Return the framework that trained."""
    word = fields.get("framework", "").strip()
    try:
        return frameworks.for_problem(word, graph, cluster, precision) if word else Framework()
    except InputError as error:
        raise CellError("framework", str(error)) from None


def _shard(fields: Mapping[str, str]) -> int:
    """Return what the data axis shards."""
    shard = count(fields, "shard", 0)
    if shard > 3:
        raise CellError(
            "shard", f"shard is {shard}; it must be 0 (nothing), 1 (optimizer), 2 (and gradients) or 3 (and weights)"
        )
    return shard


def _word(fields: Mapping[str, str], name: str, known: Sequence[str], default: str) -> str:
    """Return a cell that is one of some words; `default` where it is empty."""
    word = fields.get(name, "").strip() or default
    if word not in known:
        raise CellError(name, f"{name} is '{word}'; it must be one of {', '.join(filter(None, known))}")
    return word
