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
from meshwright.validation._domains import spread
from meshwright.validation._points import CellError, Point, Skipped, count, ratio
from meshwright.validation._runs import Clusters, Run, clusters, point, predict

__all__ = ["COLUMNS", "OPTIONAL", "PATHS", "points"]

COLUMNS = ("model", "cluster", "global_batch", "micro_batch", "data", "tensor", "pipeline", "step_seconds")

MEMORY = (("reserved_gib", "reserved"), ("allocated_gib", "allocated"), ("nvidia_smi_gib", "peak"))
"""Columns of measured memory and what of a prediction they are compared with; the first that a row fills counts."""

OPTIONAL = (
    "sequence_length", "context", "expert", "virtual", "shard", "shard_degree", "sp", "recompute", "schedule", "precision",
    "gradient_bytes", "optimizer_bytes", "framework", "program", *(name for name, _ in MEMORY), "job",
)  # fmt: skip
"""Columns that may be there: degrees of 1 otherwise, nothing sharded (over all where something is), sequence parallelism with
a tensor
degree, nothing recomputed, 1F1B, bf16, gradients and optimizer state as the precision has them (4 and 12 bytes in bf16), no
memory measured; rows of one
job did the same work. What ran it is told in the column `framework` (or `program`) by what would stand after ``--for``."""

EXPERTS = "megatron_mixture"
"""How names of programs began that runs of mixtures under Megatron-Core had in release 0.1."""

SHARDED, ANY = "fsdp2", "meshwright"
"""What is assumed where no framework is told: a plain PyTorch script for gradients or weights that are sharded on one stage,
else
a framework that does everything well."""

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
    training = replace(
        training,
        gradient_bytes=count(fields, "gradient_bytes", training.gradient_bytes),
        optimizer_bytes=count(fields, "optimizer_bytes", training.optimizer_bytes),
    )
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
    word, note = fields.get("framework", "").strip(), ""
    if not word and _known(fields.get("program", "").strip()):
        word = fields["program"].strip()
    if not word:
        word = SHARDED if strategy.shard >= 2 and pipeline == 1 else ANY
        note = f"framework is not told: {word} assumed"
    try:
        if model not in graphs:
            graphs[model] = models.read(model[0], sequence_length=model[1]).graph
        cluster = place(fields["cluster"].strip())
        run = Run(
            graphs[model], cluster, (strategy,), pipeline=pipeline, virtual=virtual,
            micro_batch=micro_batch, global_batch=global_batch, recompute=recompute, schedule=schedule, training=training,
            overlap=True, used_of_domain=spread(cluster, strategy.n_devices * pipeline), framework=_framework(word,
            graphs[model], cluster, training.precision),
        )  # fmt: skip
        predicted = predict(run)
    except CellError:
        raise
    except InputError as error:
        return Skipped(row, str(error))
    group = fields.get("job", "").strip() or f"{model} {fields['cluster']} {global_batch} {training.precision}"
    return point(row, measured, predicted, held_bytes=held, memory=memory, group=group, ran=not failed, note=note)


def _known(program: str) -> bool:
    """Tell whether a program is one of the frameworks: the column may hold any word."""
    return program.partition(":")[0] in frameworks.names() or program.startswith(EXPERTS)


def _framework(word: str, graph: Graph, cluster: Cluster, precision: str) -> Framework:
    """Return the framework that a row names, in the variant that suits what it trained where."""
    name = "megatron" if word.startswith(EXPERTS) else word
    try:
        return frameworks.for_problem(name, graph, cluster, precision)
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
