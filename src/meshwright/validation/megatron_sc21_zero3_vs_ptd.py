"""Narayanan et al. (SC 2021), Table 2: ZeRO-3 against pipeline, tensor and data parallelism at 175 and 530 billion weights.

References
----------
.. [1] Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021, section
5.2.
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

COLUMNS = ("scheme", "params_b", "mp_size", "gbs", "gpus", "mbs", "tflops_per_gpu", "days_300B_tokens")

SEQUENCE, VOCABULARY, TENSOR = 2048, 51200, 8


def points(rows: Sequence[Mapping[str, str]]) -> list[Point | Skipped]:
    """Return measured and predicted seconds of every row."""
    place, programs = clusters(), (frameworks.variant("megatron", "sc21"), frameworks.variant("deepspeed", "sc21"))
    return [_point(i, fields, place, programs) for i, fields in enumerate(rows, 1)]


def _point(row: int, fields: Mapping[str, str], place: Clusters, programs: tuple[Framework, Framework]) -> Point | Skipped:
    sizes = {"174.6": (12288, 96, 96), "529.6": (20480, 105, 128)}
    try:
        if fields["params_b"] not in sizes:
            raise InputError(f"no model of {fields['params_b']} billion weights is in the paper's table")
        hidden, layers, heads = sizes[fields["params_b"]]
        gpus, ranks, batch = count(fields, "gpus"), count(fields, "mp_size"), count(fields, "gbs")
        flops = (
            96.0 * batch * SEQUENCE * layers * hidden**2 * (1 + SEQUENCE / (6 * hidden) + VOCABULARY / (16 * layers * hidden))
        )
        measured = flops / (ratio(fields, "tflops_per_gpu") * 1e12 * gpus)
        graph = gpt(
            f"gpt-{fields['params_b']}b", hidden=hidden, layers=layers, heads=heads, sequence=SEQUENCE, vocabulary=VOCABULARY
        )
        if fields["scheme"] == "ZeRO-3":
            strategy, pipeline = Strategy(data=gpus, shard=3), 1
        else:
            if gpus % ranks or ranks % TENSOR:
                raise InputError(
                    f"{ranks} devices of a replica do not divide {gpus}, or are no multiple of the tensor degree {TENSOR}"
                )
            strategy, pipeline = Strategy(data=gpus // ranks, tensor=TENSOR), ranks // TENSOR
        run = Run(
            graph, place(f"dgx-a100:{gpus}"), (strategy,), pipeline=pipeline, micro_batch=count(fields, "mbs"), global_batch=batch,  # noqa: E501
            recompute="full", training=MixedPrecision("fp16", gradient_bytes=2 if strategy.shard else 4),
            framework=programs[strategy.shard > 0],
        )  # fmt: skip
        predicted = predict(run)
    except InputError as error:
        return Skipped(row, str(error))
    return point(row, measured, predicted, group=f"{graph.name} {gpus} {batch}")
