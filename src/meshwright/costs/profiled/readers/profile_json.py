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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from meshwright.base.errors import InputError
from meshwright.core.cluster import Cluster, Device, Links
from meshwright.core.graph import Edge, Graph, Op, Operator
from meshwright.core.problem import ModelSpec

if TYPE_CHECKING:
    from meshwright.core.source import Source

__all__ = ["FORMAT", "Collective", "Layer", "Measure", "Profile", "read", "recognises"]

FORMAT = "meshwright/profile/1"


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
    unknown = sorted(set(entry) - known)
    if unknown:
        raise InputError(f"{where}: unknown field '{unknown[0]}'; there are {', '.join(sorted(known))}")
    try:
        profile = _profile(entry)
        name, length = str(entry["model"]), int(entry["sequence_length"])
        cluster = _cluster(entry, where) if entry.get("links") else None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{where}: a field is missing or of the wrong kind: {error}") from None
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


def _profile(entry: dict[str, Any]) -> Profile:
    """Return the measures."""
    groups: dict[tuple[str, int], list[Measure]] = {}
    for fields in entry["measures"]:
        measure = Measure(**fields)
        groups.setdefault((measure.layer, measure.tensor), []).append(measure)
    links = entry.get("links") or {}
    return Profile(
        tuple(Layer(**fields) for fields in entry["layers"]),
        {key: tuple(sorted(group, key=lambda measure: measure.rows)) for key, group in groups.items()},
        tuple(Collective(**fields) for fields in links.get("collectives", ())),
        float(entry["optimizer_seconds_per_byte"]),
    )


def _check(profile: Profile, where: str) -> None:
    """Refuse measures that cannot be."""
    for group in profile.measures.values():
        for measure in group:
            values = (
                measure.forward_seconds,
                measure.backward_input_seconds,
                measure.backward_weight_seconds,
                measure.saved_bytes,
            )
            if (
                not all(isinstance(value, (int, float)) and np.isfinite(value) and value >= 0 for value in values)
                or measure.rows < 1
            ):
                raise InputError(
                    f"{where}: layer '{measure.layer}', {measure.rows} rows: times and bytes must be finite and at least 0"
                )
    for layer in profile.layers:
        if (layer.like, 1) not in profile.measures:
            raise InputError(f"{where}: layer '{layer.name}' is like '{layer.like}', of which nothing was measured")


def _cluster(entry: dict[str, Any], where: str) -> Cluster:
    """Return the machine as a cluster: every process a device, joined to every other by its measured link."""
    n = int(entry["links"]["n_ranks"])
    pairs = entry["links"]["pairs"]
    device = Device(
        str(entry["device"]),
        (("fp32", 1e11), ("bf16", 1e11)),
        float(entry["memory_bytes"]) / n,
        1e10,
        source="measured profile",
    )
    links = Links(
        np.array([int(pair["source"]) for pair in pairs]),
        np.array([int(pair["target"]) for pair in pairs]),
        np.array([1.0 / float(pair["seconds_per_byte"]) for pair in pairs]),
        np.array([float(pair["latency_seconds"]) for pair in pairs]),
    )
    hosts = entry["links"].get(
        "hosts", ()
    )  # on one machine every process is a node of its own: nothing is shared but the cores
    groups = np.array(hosts if len(set(hosts)) > 1 else range(n)).reshape(1, n)
    return Cluster(f"{where}", (device,), np.zeros(n, np.int64), 0, links, groups, forwards=False, source="measured profile")
