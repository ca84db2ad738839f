"""What stands behind a name: figures and sources of built-in kinds, parameters and defaults of generated topologies."""

from __future__ import annotations

import dataclasses
import inspect
import re
from types import ModuleType
from typing import Any

from meshwright.base import files
from meshwright.clusters import built_in
from meshwright.clusters.wires import DATA

__all__ = ["generated", "kind"]

Figures = tuple[tuple[str, str, str], ...]


def kind(stem: str) -> tuple[str, str, Figures]:
    """Return title, example of a number of devices, and figures of a built-in kind and of its device."""
    data = built_in.figures(stem)
    device = files.read_toml(DATA / "devices" / f"{data['device']}.toml")
    figures = [("devices per node", str(data["devices_per_node"]), data["source"])]
    figures += _entries(data, "")
    figures += [(f"{device['name']} {name}", value, source) for name, value, source in _entries(device, "")]
    return data["title"], str(max(16, 2 * data["devices_per_node"])), tuple(figures)


def _entries(table: dict[str, Any], prefix: str) -> list[tuple[str, str, str]]:
    """Return every figure of a data file that has a value and a source, nested tables included."""
    found = []
    for key, entry in table.items():
        name = f"{prefix}{key.replace('_', ' ')}"
        if isinstance(entry, dict) and "value" in entry:
            found.append((name, str(entry["value"]), entry["source"]))
        elif isinstance(entry, dict):
            found += _entries(entry, f"{name} ")
        elif key == "nodes_per_pod":
            found.append((name, str(entry), table["pod_source"]))
    return found


def generated(module: ModuleType) -> tuple[str, str, Figures]:
    """Return title, example and parameters (name, default, meaning) of a generated topology."""
    meanings: dict[str, str] = {}
    for kind in reversed(module.Params.__mro__):  # what a topology says of a shared parameter itself comes last
        # cleaned of indentation, which Python 3.13 drops from `__doc__` and older ones keep
        entries = re.findall(r"^(\w+) : .*\n((?:    .+\n?)+)", inspect.cleandoc(kind.__doc__ or ""), re.M)
        meanings |= {name: " ".join(meaning.split()) for name, meaning in entries}
    figures = []
    for field in dataclasses.fields(module.Params):
        default = "required" if field.default is dataclasses.MISSING else _text(field.default, field.metadata.get("unit", ""))
        figures.append((str(field.metadata.get("word", field.name)), default, meanings.get(field.name, "")))
    title = " ".join(str(module.__doc__).partition("\n\n")[0].split()).removesuffix(".")
    return title, module.EXAMPLE, tuple(figures)


def _text(value: object, unit: str) -> str:
    """Return a default as the user would type it."""
    if unit == "bytes_per_second" and isinstance(value, float):
        return f"{value / 1e9:g} GB/s"
    if unit == "seconds" and isinstance(value, float):
        return f"{value * 1e6:g} us"
    return str(value).lower() if isinstance(value, bool) else str(value)
