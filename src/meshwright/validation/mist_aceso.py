"""Plans that Aceso chose, run by the authors of Mist on A100, A10G and L4: stages of different sizes, each plan in a file of
its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshwright import frameworks
from meshwright.base.errors import InputError
from meshwright.core.problem import Framework, MixedPrecision
from meshwright.core.strategy import Strategy
from meshwright.validation._completed import NOTE, cluster_of, completed
from meshwright.validation._points import Point, Skipped, count, counts, ratio
from meshwright.validation._runs import Clusters, Run, clusters, gpt, point

__all__ = ["COLUMNS", "points"]

COLUMNS = (
    "cluster",
    "size",
    "run",
    "layers",
    "hidden",
    "heads",
    "stages",
    "gpus_per_stage",
    "measured_ms",
    "aceso_pred_ms",
    "plan_json",
)

VOCABULARY = 50304
"""GPT-2's 50,257 words padded, as the runs tuned by Mist tell beside these."""

SAID = NOTE.format("tensor degree = devices of the stage")


def points(rows: Sequence[Mapping[str, str]]) -> list[Point | Skipped]:
    """Return measured and predicted seconds of every row, its plan completed: the plan file is not part of the set."""
    place, trained_by = clusters(), frameworks.variant("megatron", "eager")
    return [_point(i, fields, place, trained_by) for i, fields in enumerate(rows, 1)]


def _point(row: int, fields: Mapping[str, str], place: Clusters, trained_by: Framework) -> Point | Skipped:
    try:
        measured = ratio(fields, "measured_ms") / 1e3
        sizes = counts(fields, "gpus_per_stage")
        hidden, layers = count(fields, "hidden"), count(fields, "layers")
        graph = gpt(
            f"gpt-{hidden}x{layers}", hidden=hidden, layers=layers, heads=count(fields, "heads"),
            sequence=count(fields, "seq"), vocabulary=VOCABULARY,
        )  # fmt: skip
        run = Run(
            graph, place(cluster_of(fields["cluster"], sum(sizes))), tuple(Strategy(tensor=size) for size in sizes),
            pipeline=len(sizes), micro_batch=count(fields, "mbs"), global_batch=count(fields, "gbs"),
            training=MixedPrecision("fp16", gradient_bytes=4), framework=trained_by,
        )  # fmt: skip
        predicted = completed(run)
    except InputError as error:
        return Skipped(row, str(error))
    group = f"{graph.name} {fields['cluster']} {sum(sizes)} {fields['gbs']}"
    return point(row, measured, predicted, group=group, note=SAID)
