"""MLPerf Training: GPT-3 175B and Llama 3.1 pre-training on H100, B200 and their successors, in fp8."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from meshwright import frameworks
from meshwright.base.errors import InputError
from meshwright.core.graph import Graph
from meshwright.core.problem import Framework, MixedPrecision
from meshwright.core.strategy import Strategy
from meshwright.validation._completed import least_recomputed
from meshwright.validation._domains import rack, racks
from meshwright.validation._points import Point, Skipped, count, ratio
from meshwright.validation._runs import Clusters, Run, built_in, clusters, point

__all__ = ["COLUMNS", "points"]

DERIVED = "step_s_derived_gpt3(block*gbs/24576)"

COLUMNS = (
    "round",
    "org",
    "system",
    "bench",
    "platform",
    "gbs",
    "seq",
    "nodes",
    "tp",
    "pp",
    "vpp",
    "cp",
    "mbs",
    "median_step_s",
    DERIVED,
)

VIRTUAL = 6
"""Virtual stages of GPT-3 runs whose rows tell none: what later rounds of the same submitter tell for the same pipeline
degree.
"""

FP4_ROUND = 5.1
"""From this round on, large submissions on GB200 and GB300 use fp4."""

PLAN = ("tp", "pp", "vpp", "cp", "mbs")
"""Columns that are taken over where a plan is completed."""

SAID = "plan completed: that of the nearest run of this file on the same kind of device with as many micro-batches for its size"
"""What a completed row says about itself."""


def points(rows: Sequence[Mapping[str, str]]) -> list[Point | Skipped]:
    """Return measured and predicted seconds of every row; plans that are not told are completed from other rows where one
    agrees.
    """
    place, trained_by = clusters(), frameworks.variant("megatron", "")
    found = []
    for i, fields in enumerate(rows, 1):
        told = bool(fields["tp"].strip())
        point = _point(i, fields if told else _completed(fields, rows), place, trained_by)
        found.append(
            point if told or isinstance(point, Skipped) else replace(point, note="; ".join(filter(None, (SAID, point.note))))
        )
    return found


def _completed(fields: Mapping[str, str], rows: Sequence[Mapping[str, str]]) -> Mapping[str, str]:
    """Return a row with the plan of another: of the same benchmark and kind of device, its degrees, micro-batch and the row's
    own accumulation steps making the row's global batch; of several the nearest in round, then in devices. The row itself
    where none is.
    """
    try:
        name, gpus = _cluster(fields)
        batch, steps = count(fields, "gbs"), count(fields, "grad_accum")
    except InputError:
        return fields
    agreeing = []
    for i, other in enumerate(rows):
        try:
            kind, devices = _cluster(other)
            ranks = count(other, "tp") * count(other, "pp", 1) * count(other, "cp", 1)
            agrees = gpus % ranks == 0 and gpus // ranks * count(other, "mbs", 1) * steps == batch
            if agrees and other["bench"] == fields["bench"] and kind.partition(":")[0] == name.partition(":")[0]:
                agreeing.append((abs(ratio(other, "round") - ratio(fields, "round")), abs(devices - gpus), i))
        except (InputError, ZeroDivisionError):  # another row that does not tell its plan either
            continue
    return {**fields, **{column: rows[min(agreeing)[2]].get(column, "") for column in PLAN}} if agreeing else fields


def _point(row: int, fields: Mapping[str, str], place: Clusters, trained_by: Framework) -> Point | Skipped:
    try:
        name, gpus = _cluster(fields)
        if not fields["tp"].strip():
            raise InputError(
                "the set does not tell the plan of this run, and no other run of the file has one that agrees with it"
            )
        measured = ratio(fields, "median_step_s" if fields["median_step_s"].strip() else DERIVED)
        precision = _precision(fields, name)
        cluster = place(name)
        tensor, pipeline, context = count(fields, "tp"), count(fields, "pp", 1), count(fields, "cp", 1)
        ranks = tensor * pipeline * context
        if gpus % ranks:
            raise InputError(f"{gpus} devices do not divide by tensor times pipeline times context degree, {ranks}")
        graph = _graph(fields["bench"], count(fields, "seq"))
        strategy = Strategy(gpus // ranks, tensor, context, 1, tensor > 1, shard=1 if gpus > tensor * pipeline else 0)
        run = Run(
            graph, cluster, (strategy,), pipeline=pipeline, virtual=_virtual(fields, pipeline),
            micro_batch=count(fields, "mbs", 1), global_batch=count(fields, "gbs"), training=MixedPrecision(precision),
            overlap=True, used_of_domain=rack(cluster), framework=trained_by,
        )  # fmt: skip
        predicted, note = least_recomputed(run)
    except InputError as error:
        return Skipped(row, str(error))
    # rounds differ in programs, not in plans alone
    group = f"{fields['bench']} {name} {fields['gbs']} by {fields['round']}"
    return point(row, measured, predicted, group=group, note=note)


def _precision(fields: Mapping[str, str], cluster: str) -> str:
    """Return the precision of products: as the configuration is called, or by the round."""
    config = fields.get("config", "").lower()
    for precision in ("fp4", "fp8"):
        if precision in config:
            return precision
    return "fp4" if ratio(fields, "round") >= FP4_ROUND and "nvl72" in cluster else "fp8"


def _virtual(fields: Mapping[str, str], pipeline: int) -> int:
    """Return the virtual stages per pipeline rank."""
    default = VIRTUAL if fields["bench"] == "gpt3" and pipeline == 8 else 1
    return max(1, count(fields, "vpp", default)) if pipeline > 1 else 1


def _cluster(fields: Mapping[str, str]) -> tuple[str, int]:
    """Return the cluster and its number of devices."""
    text = f"{fields['platform']} {fields['system']} {fields.get('config', '')}".upper()
    leading = re.match(r"(\d+)\s*X", text)
    n_nodes = count(fields, "nodes", int(leading[1]) if leading else 0)
    for word, kind, per_node in (
        ("GB300", "gb300-nvl72", 4),
        ("GB200", "gb200-nvl72", 4),
        ("B200", "dgx-b200", 8),
        ("H200", "dgx-h200", 8),
        ("H100", "dgx-h100", 8),
    ):
        if word in text:
            if not n_nodes:
                raise InputError("the set does not tell the number of nodes")
            gpus = n_nodes * per_node
            return f"{kind}:{racks(gpus) if 'nvl72' in kind else gpus}", gpus
    raise InputError(f"it ran on '{fields['platform']}', of which no figures are known, and the set does not tell its plan")


def _graph(bench: str, sequence: int) -> Graph:
    """Return the model of a benchmark."""
    if bench == "gpt3":
        return built_in("gpt3-175b", sequence, resid_pdrop=0.0, attn_pdrop=0.0, _attn_implementation="flash_attention_2")
    if "405b" in bench:
        return built_in("llama-3.1-405b", sequence)
    if "8b" in bench:
        return built_in("llama-3.1-8b", sequence)
    raise InputError(f"the benchmark '{bench}' is not modelled")
