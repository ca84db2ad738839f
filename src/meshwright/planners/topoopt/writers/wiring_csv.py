"""What to plug where: every cable of a co-designed network with its ports, those of the patch panel too, as CSV."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass

from meshwright.base import files
from meshwright.planners.topoopt.design import Design
from meshwright.planners.topoopt.fabric import Fabric

__all__ = ["Cable", "as_csv", "cables", "write"]

HEADER = ("cable", "from", "from_port", "from_panel_port", "to", "to_port", "to_panel_port", "gbit_per_second")


@dataclass(frozen=True, slots=True)
class Cable:
    """One cable, both directions.

    Parameters
    ----------
    ends : tuple of (int, int)
        Nodes at its ends; from the number of servers on they are switches.
    ports : tuple of (int, int)
        Which port of each, from 1.
    panel : tuple of (int, int)
        Which ports of the patch panel to join, where port p of server s comes out at ``s * ports of a server + p``; 0 for a
        switch.
    bytes_per_second : float
        One direction.
    """

    ends: tuple[int, int]
    ports: tuple[int, int]
    panel: tuple[int, int]
    bytes_per_second: float


def cables(fabric: Fabric, degree: int) -> list[Cable]:
    """Return the cables of a network in the order of their ends.

    `degree`: ports of a server.
    """
    n, used = fabric.n_servers, [0] * fabric.n_nodes
    degree = max(degree, max(int(fabric.count[fabric.source == i].sum()) for i in range(n)))
    found = []
    for a, b in fabric.wires():
        width = min(float(fabric.count[fabric.link_of[a, b]]), 1.0)
        ports = []
        for node in (a, b):
            used[node] += 1
            ports.append(used[node])
        panel = [node * degree + port if node < n else 0 for node, port in zip((a, b), ports, strict=True)]
        found.append(Cable((a, b), (ports[0], ports[1]), (panel[0], panel[1]), width * fabric.bytes_per_second))
    return found


def as_csv(fabric: Fabric, degree: int) -> str:
    """Return the cables as CSV with a header; servers and switches are numbered from 0, ports from 1."""
    lines = io.StringIO()
    rows = csv.writer(lines, lineterminator="\n")
    rows.writerow(HEADER)
    for i, cable in enumerate(cables(fabric, degree), start=1):
        row: list[object] = [i]
        for node, port, panel in zip(cable.ends, cable.ports, cable.panel, strict=True):
            name = f"server {node}" if node < fabric.n_servers else f"switch {node - fabric.n_servers}"
            row += [name, port, panel or ""]
        rows.writerow([*row, f"{cable.bytes_per_second * 8e-9:g}"])
    return lines.getvalue()


def write(design: Design, path: str) -> None:
    """Write the cables of the best topology."""
    files.write(path, as_csv(design.entry.found.fabric, design.wires.degree))
