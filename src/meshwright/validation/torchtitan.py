"""torchtitan: tokens per second and peak memory of Llama 3.1 on H100 and H200, FSDP2 with tensor, context and pipeline parallelism."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshwright.errors import InputError
from meshwright.problem import Program, Training
from meshwright.strategy import Strategy
from meshwright.validation._points import Point, Skipped, count, ratio
from meshwright.validation._programs import program
from meshwright.validation._runs import Clusters, Run, built_in, clusters, predict

__all__ = ["COLUMNS", "points"]

COLUMNS = ("model", "gpu", "gpus", "dp_shard", "tp", "cp", "pp", "schedule", "seq", "local_bs", "global_bs", "ac", "float8", "tps_per_gpu",
           "mem_gib")  # fmt: skip

VIRTUAL = 2
"""Stages per pipeline rank of the interleaved runs, which the set does not tell: torchtitan's default."""


FAST_FLOAT8 = ("1", "tensorwise")
"""Recipes whose products run at the rate of fp8; with a scale per row, that release's kernels were no faster than bf16."""


def points(rows: Sequence[Mapping[str, str]]) -> list[Point | Skipped]:
    """Return measured and predicted seconds and memory of every row."""
    where, programs = clusters(), (program("torchtitan"), program("torchtitan_async"))
    return [_point(i, fields, where, programs) for i, fields in enumerate(rows, 1)]


def _point(row: int, fields: Mapping[str, str], where: Clusters, programs: tuple[Program, Program]) -> Point | Skipped:
    try:
        gpus, batch, sequence = count(fields, "gpus"), count(fields, "global_bs"), count(fields, "seq")
        measured = batch * sequence / (ratio(fields, "tps_per_gpu") * gpus)
        held = ratio(fields, "mem_gib") * 2.0**30 if fields["mem_gib"].strip() else 0.0
        graph = built_in(fields["model"].replace("llama3", "llama-3"), sequence)
        tensor, context, pipeline = count(fields, "tp", 1), count(fields, "cp", 1), count(fields, "pp", 1)
        data = gpus // (tensor * context * pipeline)
        degree = count(fields, "dp_shard", data)
        sharded = 3 if pipeline == 1 else 1  # with a pipeline, weights stay gathered between micro-batches
        if data * context == 1:
            sharded = 0
        strategy = Strategy(
            data, tensor, context, 1, tensor > 1, shard=sharded, shard_degree=degree if sharded and degree < data else 0
        )
        interleaved = "interleaved" in fields["schedule"].lower()
        virtual = VIRTUAL if interleaved else 1
        n_stages = pipeline * virtual  # and as many micro-batches: torchtitan's default, which the set does not tell otherwise
        predicted = predict(
            Run(
                graph, where(_cluster(fields["gpu"], gpus)), (strategy,), pipeline=pipeline, virtual=virtual,
                micro_batch=max(1, batch // data // n_stages) if pipeline > 1 else batch // data, global_batch=batch,
                recompute={"full": "full", "none": "none", "": "none"}.get(fields["ac"], "selective"),
                training=Training("fp8" if fields["float8"] in FAST_FLOAT8 else "bf16", loss_bytes=8), overlap=True,
                program=programs[fields.get("async_tp", "0") == "1"],
            )
        )  # fmt: skip
    except InputError as error:
        return Skipped(row, str(error))
    return Point(row, measured, predicted.seconds, held, predicted.peak_bytes, fits=predicted.fits, device=predicted.device)


def _cluster(gpu: str, gpus: int) -> str:
    """Return the cluster of a row."""
    if gpu.startswith("H100-96GB"):
        return f"hgx-h100-96:{max(8, gpus)}"
    if gpu.startswith("H100"):
        return f"dgx-h100:{max(8, gpus)}"
    if gpu.startswith("H200"):
        return f"dgx-h200:{max(8, gpus)}"
    raise InputError(f"no cluster is known for '{gpu}'")
