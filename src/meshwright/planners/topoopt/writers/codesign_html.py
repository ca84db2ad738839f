"""The answer of ``codesign`` as one HTML page: picture of the network, every topology with times and costs, plan, cables."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from meshwright.base import files
from meshwright.base.units import format_bytes, format_seconds
from meshwright.planners.topoopt.design import Design
from meshwright.planners.topoopt.writers import codesign_json, topology_dot, wiring_csv

__all__ = ["page", "write"]

STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;margin:.5rem 0 1.5rem}td,th{padding:.2rem .7rem;border-bottom:1px solid #ddd;text-align:right}
td:first-child,th:first-child{text-align:left}svg{max-width:34rem;width:100%}.best{background:#eef3fb}.bar{background:#4878a8;height:.7rem}"""


def write(design: Design, path: str) -> None:
    """Write the page, whole or not at all."""
    files.write(path, page(design))


def page(design: Design) -> str:
    """Return the page; it needs no network and no script."""
    wires, found = design.wires, design.entry.found
    answer = codesign_json.as_json(design)
    title = f"{design.workload.name} on {wires.n_servers} servers"
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>',
        f"<h1>{escape(title)}</h1>",
        f"<p>{_what(design)}, {wires.degree} interfaces of {wires.bytes_per_second * 8e-9:g} "
        "Gbit/s "
        f"a server. A step takes <b>{format_seconds(found.seconds)}</b> on {escape(design.best)}"
        f"{escape(codesign_json.proof(design))}.</p>",
        "<h2>Topologies</h2>",
        _topologies(design, answer["topologies"]),
        f"<h2>The network: {escape(design.best)}</h2>",
        topology_dot.svg(found.fabric),
        "<h2>The plan</h2>",
        _plan(answer["plan"]["operators"]),
        _memory(design, answer["plan"]["peak_bytes"]),
        "<h2>Cables</h2>",
        _table(*_cables(design)),
        "".join(f"<p>Note: {escape(note)}</p>" for note in design.notes),
    ]
    return "\n".join(parts) + "\n</html>\n"


def _what(design: Design) -> str:
    """Return what is trained in a step."""
    return f"{design.workload.global_batch} samples a step" if design.workload.global_batch else "The step of a task graph"


def _memory(design: Design, peak_bytes: list[float] | None) -> str:
    """Return what the fullest server holds; nothing where that is not known."""
    if not peak_bytes:
        return ""
    whole = format_bytes(design.step.space.servers.memory_bytes)
    return f"<p>The fullest server holds {format_bytes(max(peak_bytes))} of {whole}.</p>"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]], marked: int = -1) -> str:
    """Return an HTML table; cells are markup."""
    lines = ["<table><tr>" + "".join(f"<th>{name}</th>" for name in head) + "</tr>"]
    for i, row in enumerate(rows):
        lines.append(f"<tr{' class=best' if i == marked else ''}>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>")
    return "\n".join([*lines, "</table>"])


def _topologies(design: Design, rows: dict[str, dict[str, float]]) -> str:
    """Return the table of topologies, with the step as a bar."""
    slowest = max(row["iteration_seconds"] for row in rows.values())
    cells = [
        [
            escape(name),
            format_seconds(row["iteration_seconds"]),
            f'<div class="bar" style="width:{8 * row["iteration_seconds"] / slowest:.2f}rem"></div>',
            *(format_seconds(row[key]) for key in ("compute_seconds", "cut_seconds", "collective_seconds")),
            codesign_json.gap_text(row),
            f"{row['mean_hops']:.2f}",
            f"{row['cost']:.0f}",
            f"{row['link_bytes_per_second'] * 8e-9:g}",
        ]
        for name, row in rows.items()
    ]
    head = ("topology", "step", "", "compute", "busiest interfaces", "all-reduce cut", "gap", "mean hops", "cost, $", "Gbit/s")
    return _table(head, cells, list(rows).index(design.best))


def _plan(operators: list[dict[str, object]]) -> str:
    """Return the table of operators; those that follow each other and are placed alike share a row."""
    rows: list[list[str]] = []
    last: tuple[object, ...] = ()
    for operator in operators:
        split = f"{operator['samples']} x {operator['columns']} x {operator['rows']}"
        servers = ", ".join(map(str, operator["servers"]))  # type: ignore[call-overload]
        place = (operator["key"], split, servers)
        if place == last:
            rows[-1][1] = str(int(rows[-1][1]) + 1)
        else:
            rows.append([escape(str(operator["key"])), "1", split, servers])
        last = place
    return _table(("operator", "times", "samples x columns x rows", "servers"), rows)


def _cables(design: Design) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of the cables."""
    lines = wiring_csv.as_csv(design.entry.found.fabric, design.wires.degree).splitlines()
    head, *rows = [line.split(",") for line in lines]
    return [name.replace("_", " ") for name in head], rows
