"""A graph as text that draws it: DOT for Graphviz, and SVG that needs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from meshwright.core.graph import Graph

__all__ = ["dot", "svg"]


def dot(graph: Graph, captions: Sequence[str] = ()) -> str:
    """Return a graph in the DOT language.

    Parameters
    ----------
    graph : Graph
        Layers and tensors.
    captions : sequence of str
        A second line for each layer; empty for none.

    Returns
    -------
    str
        One statement per layer and tensor; edges carry the elements of the tensor.
    """
    lines = [f"digraph {_quoted(graph.name)} {{", "  node [shape=box];"]
    for i, op in enumerate(graph.ops):
        caption = f"\\n{captions[i]}" if captions else ""
        lines.append(f"  n{i} [label={_quoted(op.name + caption)}];")
    lines += [f'  n{edge.source} -> n{edge.target} [label="{edge.n_elements}"];' for edge in graph.edges]
    return "\n".join([*lines, "}", ""])


def _quoted(text: str) -> str:
    """Return a DOT string; a line break stays one."""
    return '"' + text.replace('"', '\\"').replace("\n", "\\n") + '"'


def svg(graph: Graph, captions: Sequence[str] = ()) -> str:
    """Return a picture of a graph: layers in rows by their depth, tensors as lines.

    Parameters
    ----------
    graph : Graph
        Layers and tensors.
    captions : sequence of str
        A second line for each layer; empty for none.

    Returns
    -------
    str
        An SVG document.
    """
    depth = [0] * len(graph.ops)
    order = graph.topological_order()
    inputs: list[list[int]] = [[] for _ in graph.ops]
    for edge in graph.edges:
        inputs[edge.target].append(edge.source)
    for i in order:
        depth[i] = max((depth[j] + 1 for j in inputs[i]), default=0)
    rows: list[list[int]] = [[] for _ in range(max(depth, default=-1) + 1)]
    for i in order:
        rows[depth[i]].append(i)
    wide, high = 190, 60
    width = wide * max((len(row) for row in rows), default=1)
    place = {
        i: (width / 2 + wide * (at - (len(row) - 1) / 2), high * (level + 0.5))
        for level, row in enumerate(rows)
        for at, i in enumerate(row)
    }
    size = f'width="{width}" height="{high * len(rows)}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11" text-anchor="middle">']
    parts.append(f"<title>{escape(graph.name)}</title>")
    for edge in graph.edges:
        (x1, y1), (x2, y2) = place[edge.source], place[edge.target]
        parts.append(f'<line x1="{x1:g}" y1="{y1 + 18:g}" x2="{x2:g}" y2="{y2 - 18:g}" stroke="#999"/>')
    for i, op in enumerate(graph.ops):
        x, y = place[i]
        parts.append(f'<rect x="{x - 85:g}" y="{y - 18:g}" width="170" height="36" rx="4" fill="#eef3fb" stroke="#446"/>')
        parts.append(f'<text x="{x:g}" y="{y - 3:g}">{escape(op.name)}</text>')
        if captions:
            parts.append(f'<text x="{x:g}" y="{y + 11:g}" fill="#446">{escape(captions[i])}</text>')
    return "\n".join([*parts, "</svg>", ""])
