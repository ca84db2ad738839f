"""Narayanan et al. (SC 2021), Table 1: throughput of GPT models from 1.7 to 1,008 billion weights.

References
----------
.. [1] Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021, section
5.1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from meshwright import frameworks
from meshwright.base.errors import InputError
from meshwright.core.problem import Framework, MixedPrecision
from meshwright.core.strategy import Strategy
from meshwright.validation._points import Point, Skipped, count, ratio
from meshwright.validation._runs import Clusters, Run, clusters, gpt, point, predict

__all__ = ["COLUMNS", "points"]

COLUMNS = (
    "params_b",
    "hidden",
    "layers",
    "heads_INFERRED",
    "tp_INFERRED",
    "pp_INFERRED",
    "dp_INFERRED",
    "gpus",
    "gbs",
    "tflops_per_gpu",
)

MICRO_BATCH = 4
"""Not told by the table: assumed without a pipeline; with one, where a small micro-batch fills it, it is the smallest whose
samples times heads of a device the fused softmax takes (`Framework.n_softmax_heads`): 1, or 2 for 10 heads."""


def step_seconds(*, batch: int, sequence: int, layers: int, hidden: int, vocabulary: int, flops_per_second: float) -> float:
    """Return the seconds of a step from a throughput, by equation 3 of [1]: full recomputation counted.

    Parameters
    ----------
    batch, sequence, layers, hidden, vocabulary : int
        Samples of a step and sizes.
    flops_per_second : float
        Of all devices together.
    """
    flops = 96.0 * batch * sequence * layers * hidden**2
    return flops * (1.0 + sequence / (6.0 * hidden) + vocabulary / (16.0 * layers * hidden)) / flops_per_second


def points(rows: Sequence[Mapping[str, str]]) -> list[Point | Skipped]:
    """Return measured and predicted seconds of every row."""
    place, trained_by = clusters(), frameworks.variant("megatron", "sc21")
    return [_point(i, fields, place, trained_by) for i, fields in enumerate(rows, 1)]


def _point(row: int, fields: Mapping[str, str], place: Clusters, trained_by: Framework) -> Point | Skipped:
    try:
        hidden, layers, batch = count(fields, "hidden"), count(fields, "layers"), count(fields, "gbs")
        sequence, vocabulary = count(fields, "seq", 2048), count(fields, "vocab", 51200)
        heads, gpus, pipeline = count(fields, "heads_INFERRED"), count(fields, "gpus"), count(fields, "pp_INFERRED")
        measured = step_seconds(
            batch=batch, sequence=sequence, layers=layers, hidden=hidden, vocabulary=vocabulary,
            flops_per_second=ratio(fields, "tflops_per_gpu") * 1e12 * gpus,
        )  # fmt: skip
        graph = gpt(
            f"gpt-{fields['params_b']}b", hidden=hidden, layers=layers, heads=heads, sequence=sequence,
            vocabulary=vocabulary,
        )  # fmt: skip
        data, tensor = count(fields, "dp_INFERRED"), count(fields, "tp_INFERRED")
        block = int(trained_by.n_softmax_heads) or 1
        micro_batch = MICRO_BATCH if pipeline == 1 else block // math.gcd(block, heads // tensor)
        run = Run(
            graph, place(f"dgx-a100:{gpus}"), (Strategy(data=data, tensor=tensor),), pipeline=pipeline,
            virtual=_virtual(layers, pipeline, batch // data // micro_batch), micro_batch=micro_batch, global_batch=batch,
            recompute="full", training=MixedPrecision("fp16"), framework=trained_by,
        )  # fmt: skip
        predicted = predict(run)
    except InputError as error:
        return Skipped(row, str(error))
    return point(row, measured, predicted)


def _virtual(layers: int, pipeline: int, n_microbatches: int) -> int:
    """Return virtual stages per rank, which the table does not tell: the smallest number above one that divides the layers."""
    if pipeline == 1 or n_microbatches % pipeline:
        return 1
    return next((n for n in (2, 3) if layers % (pipeline * n) == 0), 1)
