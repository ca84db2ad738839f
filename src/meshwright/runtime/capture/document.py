"""A captured module as JSON, format ``meshwright/graph/1``; `meshwright.models.readers.captured_json` reads it back."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from meshwright.core.graph import Operator
from meshwright.models.readers.captured_json import FORMAT
from meshwright.runtime.capture.layers import Captured, Figures

__all__ = ["as_json"]


def as_json(captured: Captured, source: str) -> dict[str, Any]:
    """Return a captured module as JSON-ready values."""
    graph = captured.graph
    place = {row: k for k, row in enumerate(dict.fromkeys(op.like for op in graph.ops))}
    return {
        "format": FORMAT,
        "name": graph.name,
        "source": source,
        "level": captured.level,
        "batch": captured.batch,
        "element_bytes": captured.element_bytes,
        "sequence_length": graph.sequence_length,
        "tokens_name": graph.tokens_name,
        "n_parameters": graph.n_parameters,
        "n_shared_parameters": graph.n_shared_parameters,
        "n_active_parameters": graph.n_active_parameters,
        "n_frozen_parameters": graph.n_frozen_parameters,
        "n_shared_frozen_parameters": graph.n_shared_frozen_parameters,
        "totals": asdict(captured.totals),
        "notes": list(captured.notes),
        "bodies": [[_operator(operator) for operator in graph.ops[row].body] for row in place],
        "ops": [
            {"name": op.name, "kind": op.kind, "body": place[op.like], **_given(figures)}
            for op, figures in zip(graph.ops, captured.figures, strict=True)
        ],
        "edges": [[edge.source, edge.target, edge.n_elements] for edge in graph.edges],
    }


def _operator(operator: Operator) -> dict[str, Any]:
    """Return an operator without the fields that have their default."""
    entry: dict[str, Any] = {"name": operator.name, "kind": operator.kind, "dims": dict(operator.dims)}
    for field in fields(Operator)[3:]:
        value = getattr(operator, field.name)
        if value != field.default:
            entry[field.name] = value
    return entry


def _given(figures: Figures) -> dict[str, Any]:
    return asdict(figures)
