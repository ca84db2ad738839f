"""Measured operator times of FlexFlow: a JSON file with forward, backward and memory of each operator and split."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from meshwright.base.errors import InputError, UnknownNameError
from meshwright.core.graph import Graph, Op
from meshwright.core.problem import ModelSpec
from meshwright.core.source import Source

__all__ = ["Measurement", "Measurements", "load", "read", "recognises"]

_TOP = ("batch_size", "ngpus", "measurements")
_ROW = ("name", "pc_str", "fw_time", "bw_time", "mem_req")


@dataclass(frozen=True, slots=True)
class Measurement:
    """One operator with one split.

    Parameters
    ----------
    key : str
        ``Dense_1024_1024``.
    split : tuple of int
        Parts of each axis, innermost first; samples last.
    milliseconds : tuple of (float, float)
        Forward and backward of one part, as in the file.
    memory_bytes : int
        Allocated by one part: inputs, outputs, weights and their gradients.
    """

    key: str
    split: tuple[int, ...]
    milliseconds: tuple[float, float]
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Measurements:
    """A file of measurements.

    Parameters
    ----------
    batch_size : int
        Samples of one step over all servers.
    n_devices : int
        Devices (or servers, where several devices were folded into one) it was made for.
    rows : tuple of Measurement
        In the order of the file; of two with the same key and split the first counts.
    """

    batch_size: int
    n_devices: int
    rows: tuple[Measurement, ...]

    def table(self) -> dict[tuple[str, tuple[int, ...]], Measurement]:
        """Return the measurements by key and split."""
        found: dict[tuple[str, tuple[int, ...]], Measurement] = {}
        for row in self.rows:
            found.setdefault((row.key, row.split), row)
        return found


def recognises(source: Source) -> bool:
    """Return whether the content is a mapping with a list of measurements."""
    try:
        content = source.json
    except InputError:
        return False
    return isinstance(content, dict) and "measurements" in content and "batch_size" in content


def read(source: Source) -> ModelSpec:
    """Return the measured operators, without edges: the file does not say who feeds whom."""
    measurements = load(str(source.path or source.spec))
    keys = dict.fromkeys(row.key for row in measurements.rows)
    graph = Graph(source.spec, tuple(Op(key, key.partition("_")[0].lower()) for key in keys), tokens_name="")
    note = "operator times without edges; give the file to 'meshwright codesign MODEL --measures FILE'"
    return ModelSpec(
        name=source.spec, format="flexflow_measures", spec=source.spec, graph=graph, instance=measurements, notes=(note,)
    )


def load(path: str) -> Measurements:
    """Return the measurements of a file.

    Raises `InputError` when it does not exist, is no JSON, or a field is missing, unknown or of the wrong kind.
    """
    source = Source(path)
    if source.content is None:
        raise InputError(f"{path}: no such file")
    content = source.json
    if content is None:
        raise InputError(f"{path}: is not valid JSON (cut off?)")
    if source.repeated_key:
        raise InputError(f"{path}: {source.repeated_key}")
    if not isinstance(content, dict):
        raise InputError(f"{path}: must be a mapping with {', '.join(_TOP)}")
    _fields(content, _TOP, path)
    rows = content["measurements"]
    if not isinstance(rows, list) or not rows:
        raise InputError(f"{path}: measurements: must be a list with at least one entry")
    made = tuple(_row(row, f"{path}: measurement {i}") for i, row in enumerate(rows))
    return Measurements(
        _whole(content["batch_size"], f"{path}: batch_size", 1), _whole(content["ngpus"], f"{path}: ngpus", 1), made
    )


def _fields(entry: dict[str, Any], names: tuple[str, ...], where: str) -> None:
    """Check that a mapping has these fields and no others."""
    for name in names:
        if name not in entry:
            raise InputError(f"{where}: has no field '{name}'; needed are {', '.join(names)}")
    for name in entry:
        if name not in names:
            raise UnknownNameError(f"field of {where}", name, names)


def _row(entry: Any, where: str) -> Measurement:
    """Check one measurement."""
    if not isinstance(entry, dict):
        raise InputError(f"{where}: must be a mapping, is {type(entry).__name__}")
    _fields(entry, _ROW, where)
    if not isinstance(entry["name"], str) or not entry["name"]:
        raise InputError(f"{where}: name: must be a word, is {entry['name']!r}")
    try:
        n_dims, *split = [int(part) for part in str(entry["pc_str"]).split("-")]
    except ValueError:
        n_dims, split = 0, []
    if not split or len(split) != n_dims or min(split) < 1:
        raise InputError(
            f"{where}: pc_str is {entry['pc_str']!r}; must be the number of axes, then the parts of each axis: 2-1-16"
        )
    times = []
    for name in ("fw_time", "bw_time"):
        value = entry[name]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
            raise InputError(f"{where}: {name} is {value!r}; must be milliseconds of at least 0")
        times.append(float(value))
    return Measurement(entry["name"], tuple(split), (times[0], times[1]), _whole(entry["mem_req"], f"{where}: mem_req", 0))


def _whole(value: Any, where: str, minimum: int) -> int:
    """Return a whole number of at least `minimum` (InputError otherwise)."""
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise InputError(f"{where}: is {value!r}; must be a whole number of at least {minimum}")
    return value
