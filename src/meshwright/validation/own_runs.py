"""Runs of one's own: any model and cluster that the command line can name, degrees in words; seconds of a step and memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from meshwright import models
from meshwright.base.errors import InputError
from meshwright.core.graph import Graph
from meshwright.core.problem import MixedPrecision
from meshwright.core.strategy import RECOMPUTE, Strategy
from meshwright.validation._points import Point, Skipped, count, ratio
from meshwright.validation._runs import Clusters, Run, clusters, predict

__all__ = ["BUILT_IN", "COLUMNS", "OPTIONAL", "points"]

BUILT_IN = False
"""For runs of one's own."""

COLUMNS = ("model", "cluster", "global_batch", "micro_batch", "data", "tensor", "pipeline", "step_seconds")

OPTIONAL = (
    "sequence_length", "context", "expert", "virtual", "shard", "recompute", "schedule", "precision", "allocated_gib",
    "reserved_gib",
)  # fmt: skip
"""Columns that may be there: degrees of 1 otherwise, nothing sharded, nothing recomputed, 1F1B, bf16, no memory measured."""

FAILED = ("inf", "oom", "failed")
"""What a run that failed for memory has for seconds."""


def points(rows: Sequence[Mapping[str, str]]) -> list[Point | Skipped]:
    """Return measured and predicted seconds and memory of every row."""
    where, graphs = clusters(), dict[tuple[str, int], Graph]()
    return [_point(i, fields, where, graphs) for i, fields in enumerate(rows, 1)]


def _point(row: int, fields: Mapping[str, str], where: Clusters, graphs: dict[tuple[str, int], Graph]) -> Point | Skipped:
    try:
        failed = fields["step_seconds"].strip().lower() in FAILED
        measured = math.inf if failed else ratio(fields, "step_seconds")
        model = (fields["model"].strip(), count(fields, "sequence_length", 0))
        if model not in graphs:
            graphs[model] = models.read(model[0], sequence_length=model[1]).graph
        recompute = fields.get("recompute", "").strip() or "none"
        if recompute not in RECOMPUTE:
            raise InputError(f"recompute is '{recompute}'; it must be one of {', '.join(RECOMPUTE)}")
        tensor = count(fields, "tensor")
        strategy = Strategy(
            count(fields, "data"), tensor, count(fields, "context", 1), count(fields, "expert", 1), tensor > 1,
            count(fields, "shard", 0),
        )  # fmt: skip
        run = Run(
            graphs[model], where(fields["cluster"].strip()), (strategy,), pipeline=count(fields, "pipeline"),
            virtual=count(fields, "virtual", 1), micro_batch=count(fields, "micro_batch"),
            global_batch=count(fields, "global_batch"),
            recompute=recompute, schedule=fields.get("schedule", "").strip(),
            training=MixedPrecision(fields.get("precision", "").strip() or "bf16"), overlap=True,
        )  # fmt: skip
        predicted = predict(run)
        reserved = bool(fields.get("reserved_gib", "").strip())
        memory = "reserved_gib" if reserved else "allocated_gib"
        held = ratio(fields, memory) * 2.0**30 if fields.get(memory, "").strip() else 0.0
    except InputError as error:
        return Skipped(row, str(error))
    return predicted.point(
        row,
        measured,
        held,
        predicted.reserved_bytes if reserved else predicted.allocated_bytes,
        group=f"{model} {fields['cluster']} {fields['global_batch']}",
        ran=not failed,
    )
