"""The model's graph in the DOT language, each layer with the split or the stage the plan gives it."""

from __future__ import annotations

from meshwright.base import files
from meshwright.core import drawing
from meshwright.core.result import Result

__all__ = ["FROZEN", "write"]

FROZEN = True
"""The picture counts no gradients."""


def write(result: Result, path: str) -> None:
    """Write the graph of a plan: DOT, or a picture where the path ends in ``.svg``."""
    rows = result.answer.extra.get("operators")
    if isinstance(rows, list) and len(rows) == len(result.problem.graph.ops):
        captions = [str(row["split"]) for row in rows]
    else:
        stage_of = {op: i for i, stage in enumerate(result.plan.stages) for op in stage.ops}
        captions = [f"stage {stage_of.get(i, '?')}" for i in range(len(result.problem.graph.ops))]
    draw = drawing.svg if path.endswith(".svg") else drawing.dot
    files.write(path, draw(result.problem.graph, captions))
