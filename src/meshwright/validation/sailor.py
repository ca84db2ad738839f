"""Sailor: OPT-350M and GPT-Neo-2.7B on GH200 nodes, 1F1B with uneven stages; seconds and largest memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshwright.errors import InputError
from meshwright.graph import Graph
from meshwright.problem import Program, Training
from meshwright.strategy import Strategy
from meshwright.validation._points import Point, Skipped, count, ratio
from meshwright.validation._programs import program
from meshwright.validation._runs import Clusters, Run, clusters, gpt, predict

__all__ = ["COLUMNS", "points"]

COLUMNS = (
    "file",
    "gpu_types",
    "nodes",
    "pp",
    "layers_per_stage",
    "dp",
    "tp",
    "mbs",
    "gbs",
    "real_iter_s",
    "grad_reduce_s",
    "max_mem_bytes",
)

TRAINING = Training("tf32", activation_bytes=4, weight_bytes=4, gradient_bytes=4, optimizer_bytes=8)
"""The set does not tell the precision; its memory column is that of four-byte activations without drop-out, hence this reading."""


def points(rows: Sequence[Mapping[str, str]]) -> list[Point | Skipped]:
    """Return measured and predicted seconds and memory of every row; the set's memory is what nvidia-smi showed, context included."""
    where, trained_by = clusters(), program("megatron_deepspeed_fp32")
    return [_point(i, fields, where, trained_by) for i, fields in enumerate(rows, 1)]


def _point(row: int, fields: Mapping[str, str], where: Clusters, trained_by: Program) -> Point | Skipped:
    try:
        if fields["gpu_types"] != "GH-96":
            raise InputError(f"the set does not tell which of {fields['gpu_types'].replace('+', ', ')} runs which stage")
        measured, held = ratio(fields, "real_iter_s"), ratio(fields, "max_mem_bytes")
        tensor, pipeline, batch = count(fields, "tp"), count(fields, "pp"), count(fields, "gbs")
        degrees = {int(text) for text in fields["dp"].split("|")}
        if len(degrees) != 1:
            raise InputError("stages of different data degrees are not modelled")
        data = degrees.pop()
        graph = _graph(fields["file"])
        stages = [int(text) for text in fields["layers_per_stage"].split("|")]
        for end in (0, -1):
            stages[end] -= 1  # the set counts the embedding and the head as layers
        gpus = data * tensor * pipeline
        run = Run(
            graph, where(f"alps-gh200:{max(4, gpus)}"), (Strategy(data, tensor),), pipeline=pipeline, layers_per_stage=tuple(stages),
            micro_batch=count(fields, "mbs"), global_batch=batch, training=TRAINING, program=trained_by,
        )  # fmt: skip
        predicted = predict(run)
    except InputError as error:
        return Skipped(row, str(error))
    return Point(
        row,
        measured,
        predicted.seconds,
        held,
        predicted.peak_bytes,
        group=f"{graph.name} {gpus} {batch}",
        fits=predicted.fits,
        device=predicted.device,
        causes=predicted.causes,
        memory_causes=predicted.memory_causes,
    )


def _graph(file: str) -> Graph:
    """Return the model of a row, attention not fused, without drop-out."""
    if "OPT-350" in file:
        return gpt(
            "opt-350m", hidden=1024, layers=24, heads=16, sequence=2048, vocabulary=50272, resid_pdrop=0.0, attn_pdrop=0.0
        )
    if "GPT-NEO" in file:
        return gpt(
            "gpt-neo-2.7b", hidden=2560, layers=32, heads=20, sequence=2048, vocabulary=50257, resid_pdrop=0.0, attn_pdrop=0.0
        )
    raise InputError(f"the model of '{file}' is not known")
