"""Measured operator times of FlexFlow: a JSON file with forward, backward and memory of each operator and split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshwright.base import fields, files
from meshwright.base.errors import InputError
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
    content = fields.entry(files.read_json(path), path, _TOP, _TOP)
    rows = fields.items(content["measurements"], f"{path}: measurements", at_least=1)
    made = tuple(_row(row, f"{path}: measurements[{i}]") for i, row in enumerate(rows))
    batch, n_gpus = (fields.whole(content[key], f"{path}: {key}", minimum=1) for key in ("batch_size", "ngpus"))
    return Measurements(batch, n_gpus, made)


def _row(entry: Any, place: str) -> Measurement:
    """Check one measurement."""
    fields.entry(entry, place, _ROW, _ROW)
    name = fields.text(entry["name"], f"{place}: name", at_least=1)
    try:
        n_dims, *split = [int(part) for part in str(entry["pc_str"]).split("-")]
    except ValueError:
        n_dims, split = 0, []
    if not split or len(split) != n_dims or min(split) < 1:
        raise InputError(
            f"{place}: pc_str is {fields.show(entry['pc_str'])}; it must be the number of axes, then the parts "
            "of each axis: 2-1-16"
        )
    forward, backward = (fields.number(entry[key], f"{place}: {key}", minimum=0, meaning="milliseconds") for key in _ROW[2:4])
    return Measurement(name, tuple(split), (forward, backward), fields.whole(entry["mem_req"], f"{place}: mem_req", minimum=0))
