"""Korthikanti et al.: seconds of a step with full recomputation, and with sequence parallelism and selective recomputation.

References
----------
.. [1] Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", arXiv 2205.05198, Table 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshwright import frameworks
from meshwright.base.errors import InputError
from meshwright.core.problem import Framework, MixedPrecision
from meshwright.core.strategy import Strategy
from meshwright.validation._points import Point, Skipped, count, ratio
from meshwright.validation._runs import Clusters, Run, clusters, gpt, point, predict

__all__ = ["COLUMNS", "VOCABULARY", "points"]

COLUMNS = (
    "model",
    "hidden",
    "ffn",
    "heads",
    "layers",
    "tp",
    "pp",
    "dp",
    "gbs",
    "mbs",
    "interleave",
    "seq",
    "mode",
    "iter_s_measured",
)

VOCABULARY = 51200
"""GPT-2's words padded by Megatron [1, section 6]."""


def points(rows: Sequence[Mapping[str, str]]) -> list[Point | Skipped]:
    """Return measured and predicted seconds of every row."""
    place, trained_by = clusters(), frameworks.variant("megatron", "sc21")
    return [_point(i, fields, place, trained_by) for i, fields in enumerate(rows, 1)]


def _point(row: int, fields: Mapping[str, str], place: Clusters, trained_by: Framework) -> Point | Skipped:
    try:
        measured = ratio(fields, "iter_s_measured")
        tensor, pipeline, data = count(fields, "tp"), count(fields, "pp"), count(fields, "dp")
        split = fields["mode"].startswith("SP")
        graph = gpt(
            fields["model"], hidden=count(fields, "hidden"), layers=count(fields, "layers"), heads=count(fields, "heads"),
            sequence=count(fields, "seq"), vocabulary=VOCABULARY, n_inner=count(fields, "ffn"),
        )  # fmt: skip
        run = Run(
            graph, place(f"dgx-a100:{tensor * pipeline * data}"),
            (Strategy(data=data, tensor=tensor, sequence_parallel=split and tensor > 1),), pipeline=pipeline,
            virtual=count(fields, "interleave", 1), micro_batch=count(fields, "mbs"), global_batch=count(fields, "gbs"),
            recompute="selective" if "selective" in fields["mode"] else "full", training=MixedPrecision("fp16"),
            framework=trained_by,
        )  # fmt: skip
        predicted = predict(run)
    except InputError as error:
        return Skipped(row, str(error))
    return point(row, measured, predicted)
