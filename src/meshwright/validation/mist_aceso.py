"""Mist's runs of plans that Aceso found: the set names a file with each plan, but does not hold it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshwright.validation._points import Point, Skipped

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


def points(rows: Sequence[Mapping[str, str]]) -> list[Point | Skipped]:
    """Return every row as not predicted, with the reason."""
    reason = "what layers, degrees and recomputation each stage has stands only in the plan file, which is not part of the set"
    return [Skipped(i, reason) for i in range(1, len(rows) + 1)]
