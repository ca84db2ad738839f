"""vTrain: GPT models on A100-80GB, Megatron-DeepSpeed, 1F1B, full recomputation, fp16; from 1 to 512 devices.

References
----------
.. [1] Bang et al., "vTrain: A Simulation Framework for Evaluating Cost-Effective and Compute-Optimal Large Language Model
   Training", MICRO 2024; measured runs shipped with its code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshwright import frameworks
from meshwright.base.errors import InputError
from meshwright.core.problem import Framework, MixedPrecision
from meshwright.core.strategy import Strategy
from meshwright.validation._points import Point, Skipped, count, ratio
from meshwright.validation._runs import Clusters, Run, clusters, gpt, point, predict

__all__ = ["COLUMNS", "points"]

COLUMNS = ("params_b", "gpus", "gbs", "mbs", "hidden", "heads", "layers", "seq", "tp", "dp", "pp", "iter_ms")

VOCABULARY = 51200
"""GPT-2's 50,257 words padded by Megatron."""


def points(rows: Sequence[Mapping[str, str]]) -> list[Point | Skipped]:
    """Return measured and predicted seconds of every row."""
    place, trained_by = clusters(), frameworks.variant("megatron_deepspeed", "")
    return [_point(i, fields, place, trained_by) for i, fields in enumerate(rows, 1)]


def _point(row: int, fields: Mapping[str, str], place: Clusters, trained_by: Framework) -> Point | Skipped:
    try:
        measured = ratio(fields, "iter_ms") / 1e3
        hidden, layers, sequence = count(fields, "hidden"), count(fields, "layers"), count(fields, "seq")
        gpus, batch = count(fields, "gpus"), count(fields, "gbs")
        graph = gpt(
            f"gpt-{hidden}x{layers}",
            hidden=hidden,
            layers=layers,
            heads=count(fields, "heads"),
            sequence=sequence,
            vocabulary=VOCABULARY,
        )
        strategy, pipeline = Strategy(data=count(fields, "dp"), tensor=count(fields, "tp")), count(fields, "pp")
        if strategy.n_devices * pipeline != gpus:
            raise InputError(f"tp x dp x pp is {strategy.n_devices * pipeline}, gpus is {gpus}; they must agree")
        run = Run(
            graph, place(f"hgx-a100-hdr4:{max(8, gpus)}"), (strategy,), pipeline=pipeline, micro_batch=count(fields, "mbs"),
            global_batch=batch, recompute="full", training=MixedPrecision("fp16", gradient_bytes=2), framework=trained_by,
        )  # fmt: skip
        predicted = predict(run)
    except InputError as error:
        return Skipped(row, str(error))
    return point(row, measured, predicted, group=f"{graph.name} {sequence} {gpus} {batch}")
