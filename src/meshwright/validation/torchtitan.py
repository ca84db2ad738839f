"""torchtitan: tokens per second and peak memory of Llama 3.1 on H100 and H200, FSDP2 with tensor, context and pipeline
parallelism.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from meshwright import frameworks
from meshwright.base.errors import InputError
from meshwright.core.problem import Framework, MixedPrecision
from meshwright.core.stage_cost import StageCost
from meshwright.core.strategy import ALTERNATE, Strategy
from meshwright.validation._points import Point, Skipped, count, ratio
from meshwright.validation._runs import Clusters, Run, built_in, clusters, point, predict

__all__ = ["COLUMNS", "points"]

COLUMNS = ("model", "gpu", "gpus", "dp_shard", "tp", "cp", "pp", "schedule", "seq", "local_bs", "global_bs", "ac", "float8", "tps_per_gpu",  # noqa: E501
           "mem_gib")  # fmt: skip

VIRTUAL = 2
"""Stages per pipeline rank of the interleaved runs, which the set does not tell: torchtitan's default."""

FAST_FLOAT8 = ("1", "tensorwise")
"""Recipes whose products run at the rate of fp8; with a scale per row, that release's kernels were no faster than bf16."""


def points(rows: Sequence[Mapping[str, str]]) -> list[Point | Skipped]:
    """Return measured and predicted seconds and memory of every row; the set's memory is what the caching allocator reserved."""  # noqa: E501
    place, programs = clusters(), (frameworks.variant("torchtitan", ""), frameworks.variant("torchtitan", "async_tensor"))
    return [_point(i, fields, place, programs) for i, fields in enumerate(rows, 1)]


def _point(row: int, fields: Mapping[str, str], place: Clusters, programs: tuple[Framework, Framework]) -> Point | Skipped:
    try:
        gpus, batch, sequence = count(fields, "gpus"), count(fields, "global_bs"), count(fields, "seq")
        measured = batch * sequence / (ratio(fields, "tps_per_gpu") * gpus)
        held = ratio(fields, "mem_gib") * 2.0**30 if fields["mem_gib"].strip() else 0.0
        graph = built_in(fields["model"].replace("llama3", "llama-3"), sequence)
        tensor, context, pipeline = count(fields, "tp", 1), count(fields, "cp", 1), count(fields, "pp", 1)
        ranks = tensor * context * pipeline
        if gpus % ranks:
            raise InputError(f"{gpus} devices do not divide by tensor times context times pipeline degree, {ranks}")
        data = gpus // ranks
        degree = count(fields, "dp_shard", data)
        sharded = 3 if pipeline == 1 else 1  # with a pipeline, weights stay gathered between micro-batches
        if data * context == 1:
            sharded = 0
        strategy = Strategy(
            data, tensor, context, 1, tensor > 1, shard=sharded, shard_degree=degree if sharded and degree < data else 0
        )
        virtual = VIRTUAL if "interleaved" in fields["schedule"].lower() else 1
        recompute = {"full": "full", "none": "none", "": "none"}.get(fields["ac"], ALTERNATE)
        training = MixedPrecision.of("fp8" if fields["float8"] in FAST_FLOAT8 else "bf16")
        run = Run(
            graph, place(_cluster(fields["gpu"], gpus)), (strategy,),
            pipeline=pipeline, virtual=virtual, micro_batch=max(1, batch // data // (pipeline * virtual if pipeline > 1 else
            1)), global_batch=batch, recompute=recompute, training=training, overlap=True,
            framework=programs[fields.get("async_tp", "0") == "1"],
        )  # fmt: skip
        predicted = predict(run, _piped if pipeline > 1 else None)
    except InputError as error:
        return Skipped(row, str(error))
    return point(row, measured, predicted, held_bytes=held, memory="reserved")


def _piped(load: StageCost) -> StageCost:
    """Return the load of a stage of PyTorch's pipeline, which keeps what it has sent, and has buffers for what it will receive, of
    every micro-batch in flight.
    """  # noqa: E501
    return replace(load, activation_bytes=load.activation_bytes + 2.0 * load.output_bytes)


def _cluster(gpu: str, gpus: int) -> str:
    """Return the cluster of a row."""
    if gpu.startswith("H100-96GB"):
        return f"hgx-h100-96:{max(8, gpus)}"
    if gpu.startswith("H100"):
        return f"dgx-h100:{max(8, gpus)}"
    if gpu.startswith("H200"):
        return f"dgx-h200:{max(8, gpus)}"
    raise InputError(f"no cluster is known for '{gpu}'")
