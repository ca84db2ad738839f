"""Measured profiles: layers' times and bytes on one machine and its links, as ``meshwright profile`` writes them.

The format, field by field (all numbers in base units)::

    {"format": "meshwright/profile/1", "model": "models:small", "sequence_length": 32, "device": "...", "n_cores": 2,
     "memory_bytes": ..., "optimizer_seconds_per_byte": ...,
     "layers": [{"name": "embed", "like": "embed", "n_parameters": ..., "weight_bytes": ..., "output_bytes": ...}, ...],
     "measures": [{"layer": "embed", "rows": 1, "tensor": 1, "forward_seconds": ..., "backward_input_seconds": ...,
                   "backward_weight_seconds": ..., "saved_bytes": ...}, ...],
     "links": {"n_ranks": 2, "hosts": [0, 0],
               "pairs": [{"source": 0, "target": 1, "latency_seconds": ..., "seconds_per_byte": ...}, ...],
               "collectives": [{"kind": "all_reduce", "n_ranks": 2, "latency_seconds": ..., "seconds_per_byte": ...}, ...]}}

``hosts`` gives the machine of every rank (it may be left out). ``output_bytes`` is of one sample; ``like`` names the layer that
was measured in place of one built alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from meshwright.base.errors import InputError
from meshwright.core.cluster import Cluster, Device, Links
from meshwright.core.graph import Edge, Graph, Op, Operator
from meshwright.core.problem import ModelSpec

if TYPE_CHECKING:
    from meshwright.core.source import Source

__all__ = ["FORMAT", "Collective", "Layer", "Measure", "Profile", "read", "recognises"]

FORMAT = "meshwright/profile/1"

Row = TypeVar("Row")

_LARGEST = 10**18
_SHORTEST = 1e-18
"""Seconds per byte: no link is as fast."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of the profiled model."""

    name: str
    like: str
    n_parameters: int
    weight_bytes: float
    output_bytes: float


@dataclass(frozen=True, slots=True)
class Measure:
    """Medians of one layer for so many rows on one device of a tensor axis; products' weight gradients apart."""

    layer: str
    rows: int
    tensor: int
    forward_seconds: float
    backward_input_seconds: float
    backward_weight_seconds: float
    saved_bytes: float


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective among so many ranks: seconds = latency + bytes of the whole tensor times seconds per byte."""

    kind: str
    n_ranks: int
    latency_seconds: float
    seconds_per_byte: float


@dataclass(frozen=True, slots=True)
class _Pair:
    """One direction between two ranks."""

    source: int
    target: int
    latency_seconds: float
    seconds_per_byte: float


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """What a profile holds.

    Parameters
    ----------
    layers : tuple of Layer
        In order.
    measures : mapping of (str, int) to tuple of Measure
        By measured layer and tensor degree, ascending in rows.
    collectives : tuple of Collective
        Measured collectives; empty where links were not profiled.
    optimizer_seconds_per_byte : float
        Update of one byte of weights.
    """

    layers: tuple[Layer, ...]
    measures: Mapping[tuple[str, int], tuple[Measure, ...]]
    collectives: tuple[Collective, ...]
    optimizer_seconds_per_byte: float


def recognises(source: Source) -> bool:
    """Return whether the source is a JSON object with our format's name."""
    return source.path is not None and isinstance(source.json, dict) and source.json.get("format") == FORMAT


def read(source: Source) -> ModelSpec:
    """Read a profile.

    Layers become a chain, the measures a `Profile`, the links, where they were profiled, the cluster; costs ``profiled``.
    """
    entry, where = source.json, str(source.path)
    if not isinstance(entry, dict) or entry.get("format") != FORMAT:
        raise InputError(f'{where}: is not a profile: its "format" must be "{FORMAT}"')
    known = {"format", "model", "sequence_length", "device", "n_cores", "memory_bytes", "optimizer_seconds_per_byte", "layers",
             "measures", "links"}  # fmt: skip
    _refuse_unknown(entry, known, where)
    name, length = _text(entry, "model", where), _whole(entry, "sequence_length", where)
    profile = _profile(entry, where)
    cluster = _cluster(entry, where) if entry.get("links") else None
    _check(profile, where)
    ops = tuple(
        Op(layer.name, "measured", (Operator("weights", "other", (), n_parameters=layer.n_parameters),))
        for layer in profile.layers
    )
    edges = tuple(Edge(i, i + 1, int(layer.output_bytes // 4)) for i, layer in enumerate(profile.layers[:-1]))
    graph = Graph(name, ops, edges, sequence_length=max(1, length), tokens_name="tokens" if length > 1 else "")
    return ModelSpec(
        name, "profile_json", source.spec, graph, instance=profile, cluster=cluster, costs="profiled", search="measured"
    )


def _profile(entry: Mapping[str, Any], where: str) -> Profile:
    """Return the measures."""
    groups: dict[tuple[str, int], list[Measure]] = {}
    for measure in _rows(Measure, entry, "measures", where):
        groups.setdefault((measure.layer, measure.tensor), []).append(measure)
    links = entry.get("links") or {}
    _refuse_unknown(links, {"n_ranks", "hosts", "pairs", "collectives"}, f"{where}: links")
    return Profile(
        _rows(Layer, entry, "layers", where),
        {key: tuple(sorted(group, key=lambda measure: measure.rows)) for key, group in groups.items()},
        _rows(Collective, links, "collectives", f"{where}: links") if "collectives" in links else (),
        _real(entry, "optimizer_seconds_per_byte", where),
    )


def _rows(kind: type[Row], entry: Mapping[str, Any], key: str, where: str) -> tuple[Row, ...]:
    """Return a list of rows, each with the fields of a dataclass and of their types."""
    if not isinstance(entry.get(key), list):
        raise InputError(f"{where}: '{key}' must be a list")
    readers = {"str": _text, "int": _whole, "float": _real}
    made = []
    for i, row in enumerate(entry[key]):
        at = f"{where}: {key}[{i}]"
        columns = {field.name: readers[str(field.type)] for field in fields(kind)}  # type: ignore[arg-type]
        _refuse_unknown(row, set(columns), at)
        made.append(kind(**{name: read_as(row, name, at) for name, read_as in columns.items()}))
    return tuple(made)


def _refuse_unknown(entry: Any, known: set[str], where: str) -> None:
    if not isinstance(entry, dict):
        raise InputError(f"{where}: is {entry!r}; must be an object")
    unknown = sorted(set(entry) - known)
    if unknown:
        raise InputError(f"{where}: unknown field '{unknown[0]}'; there are {', '.join(sorted(known))}")


def _text(entry: Mapping[str, Any], key: str, where: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str):
        raise InputError(f"{where}: {key} is {value!r}; must be text")
    return value


def _whole(entry: Mapping[str, Any], key: str, where: str) -> int:
    value = entry.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _LARGEST or int(value) != value:
        raise InputError(f"{where}: {key} is {value!r}; must be a whole number between 0 and {_LARGEST}")
    return int(value)


def _real(entry: Mapping[str, Any], key: str, where: str) -> float:
    value = entry.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _LARGEST:
        raise InputError(f"{where}: {key} is {value!r}; must be a number between 0 and {_LARGEST}")
    return float(value)


def _check(profile: Profile, where: str) -> None:
    """Refuse measures that cannot be."""
    for group in profile.measures.values():
        if group[0].rows < 1:
            raise InputError(f"{where}: layer '{group[0].layer}': {group[0].rows} rows; must be at least 1")
    if not profile.layers:
        raise InputError(f"{where}: 'layers' is empty; there is nothing to train")
    for layer in profile.layers:
        if (layer.like, 1) not in profile.measures:
            raise InputError(f"{where}: layer '{layer.name}' is like '{layer.like}', of which nothing was measured")


def _cluster(entry: Mapping[str, Any], where: str) -> Cluster:
    """Return the machine as a cluster: every process a device, joined to every other by its measured link."""
    measured, at = entry["links"], f"{where}: links"
    n, pairs = _whole(measured, "n_ranks", at), _rows(_Pair, measured, "pairs", at)
    hosts = measured.get("hosts", [])
    if not isinstance(hosts, list) or len(hosts) not in (0, n) or any(type(host) is not int for host in hosts):
        raise InputError(f"{at}: hosts is {hosts!r}; must be the machine of each of the {n} ranks, as whole numbers")
    for i, pair in enumerate(pairs):
        if max(pair.source, pair.target) >= n or pair.source == pair.target or pair.seconds_per_byte < _SHORTEST:
            raise InputError(
                f"{at}: pairs[{i}]: must join two of the ranks 0 to {n - 1} in at least {_SHORTEST} seconds per byte"
            )
    if n < 1:
        raise InputError(f"{at}: n_ranks is {n}; must be at least 1")
    memory_bytes = _real(entry, "memory_bytes", where) / n
    device = Device(
        _text(entry, "device", where), (("fp32", 1e11), ("bf16", 1e11)), memory_bytes, 1e10, source="measured profile"
    )
    links = Links(
        np.array([pair.source for pair in pairs], np.int64),
        np.array([pair.target for pair in pairs], np.int64),
        np.array([1.0 / pair.seconds_per_byte for pair in pairs]),
        np.array([pair.latency_seconds for pair in pairs]),
    )
    # on one machine every process is a node of its own: nothing is shared but the cores
    groups = np.array(hosts if len(set(hosts)) > 1 else range(n)).reshape(1, n)
    return Cluster(f"{where}", (device,), np.zeros(n, np.int64), 0, links, groups, forwards=False, source="measured profile")
