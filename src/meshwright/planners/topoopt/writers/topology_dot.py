"""The network of a co-design in the DOT language, or as a picture where the path ends in ``.svg``."""

from __future__ import annotations

import math

from meshwright.base import files
from meshwright.planners.topoopt.design import Design
from meshwright.planners.topoopt.fabric import Fabric

__all__ = ["dot", "svg", "write"]

RADIUS, MARGIN = 260, 40


def write(design: Design, path: str) -> None:
    """Write the best topology.

    A `path` that ends in ``.svg`` asks for a picture.
    """
    fabric = design.entry.found.fabric
    files.write(path, (svg if path.endswith(".svg") else dot)(fabric))


def _name(fabric: Fabric, node: int) -> str:
    return f"server {node}" if node < fabric.n_servers else f"switch {node - fabric.n_servers}"


def dot(fabric: Fabric) -> str:
    """Return the network in DOT, every wire once."""
    lines = [f'graph "{fabric.name}" {{', "  layout=circo;", "  node [shape=circle];"]
    for node in range(fabric.n_nodes):
        shape = "" if node < fabric.n_servers else ", shape=box"
        lines.append(f'  n{node} [label="{_name(fabric, node)}"{shape}];')
    lines += [f"  n{a} -- n{b};" for a, b in fabric.wires()]
    return "\n".join([*lines, "}"]) + "\n"


def svg(fabric: Fabric) -> str:
    """Return a picture: servers on a circle, switches on a smaller one."""
    n, n_switches = fabric.n_servers, fabric.n_nodes - fabric.n_servers
    middle = RADIUS + MARGIN
    places = []
    for node in range(fabric.n_nodes):
        count, index, radius = (n, node, RADIUS) if node < n else (n_switches, node - n, RADIUS / 2 if n_switches > 1 else 0)
        angle = 2 * math.pi * index / count - math.pi / 2
        places.append((middle + radius * math.cos(angle), middle + radius * math.sin(angle)))
    size = 2 * middle
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size} {size}" font-family="sans-serif" font-size="11">']
    lines.append(f"<title>{fabric.name}: {n} servers</title>")
    for a, b in fabric.wires():
        (x, y), (u, v) = places[a], places[b]
        lines.append(f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{u:.1f}" y2="{v:.1f}" stroke="#4878a8" stroke-opacity="0.5"/>')
    for node, (x, y) in enumerate(places):
        fill = "#ffffff" if node < n else "#e8e0c8"
        lines.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="11" fill="{fill}" stroke="#333"/>')
        lines.append(f'<text x="{x:.1f}" y="{y + 4:.1f}" text-anchor="middle">{node if node < n else f"s{node - n}"}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"
