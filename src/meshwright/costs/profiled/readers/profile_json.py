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

``hosts`` gives the machine of every rank (it may be left out). ``output_bytes`` is of one sample; ``like`` names the layer
that was measured in place of one built alike. ``shared`` (it may be left out) has the weights that several layers read
(a table that embedding and head share): ``{"layers": ["embed", "head"], "n_parameters": ..., "weight_bytes": ...}``, counted
in each of these layers too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from meshwright.base import fields
from meshwright.base.errors import InputError
from meshwright.core.cluster import Cluster, Device, Links
from meshwright.core.graph import Edge, Graph, Op, Operator
from meshwright.core.problem import ModelSpec

if TYPE_CHECKING:
    from meshwright.core.source import Source

__all__ = ["FORMAT", "Measure", "MeasuredCollective", "MeasuredLayer", "MeasuredShare", "Profile", "read", "recognises"]

FORMAT = "meshwright/profile/1"


@dataclass(frozen=True, slots=True)
class MeasuredLayer:
    """One layer of the profiled model."""

    name: str
    like: str
    n_parameters: int
    weight_bytes: float
    output_bytes: float


@dataclass(frozen=True, slots=True)
class MeasuredShare:
    """Weights that several layers read, counted in each of them."""

    layers: tuple[str, ...]
    n_parameters: int = field(metadata={"minimum": 0})
    weight_bytes: float = field(metadata={"minimum": 0})


@dataclass(frozen=True, slots=True)
class Measure:
    """Medians of one layer for so many rows on one device of a tensor axis; products' weight gradients apart."""

    layer: str
    rows: int = field(metadata={"minimum": 1})
    tensor: int = field(metadata={"minimum": 1})
    forward_seconds: float = field(metadata={"minimum": 0})
    backward_input_seconds: float = field(metadata={"minimum": 0})
    backward_weight_seconds: float = field(metadata={"minimum": 0})
    saved_bytes: float = field(metadata={"minimum": 0})


@dataclass(frozen=True, slots=True)
class MeasuredCollective:
    """A collective among so many ranks: seconds = latency + bytes of the whole tensor times seconds per byte."""

    kind: str
    n_ranks: int
    latency_seconds: float
    seconds_per_byte: float


@dataclass(frozen=True, slots=True)
class _Pair:
    """The link from one process to another."""

    source: int = field(metadata={"minimum": 0})
    target: int = field(metadata={"minimum": 0})
    latency_seconds: float
    seconds_per_byte: float = field(metadata={"above": 0})


@dataclass(frozen=True, slots=True)
class _Links:
    """What was measured between processes."""

    n_ranks: int = field(metadata={"minimum": 1})
    pairs: tuple[_Pair, ...]
    hosts: tuple[int, ...] = ()
    collectives: tuple[MeasuredCollective, ...] = ()


@dataclass(frozen=True, slots=True)
class _File:
    """The whole file."""

    format: str
    model: str
    sequence_length: int
    device: str
    memory_bytes: float = field(metadata={"minimum": 0})
    optimizer_seconds_per_byte: float
    layers: tuple[MeasuredLayer, ...]
    measures: tuple[Measure, ...]
    shared: tuple[MeasuredShare, ...] = ()
    n_cores: int = 1
    links: _Links | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """What a profile holds.

    `layers`: in order.
    `measures` (mapping of (str, int) to tuple of Measure): by measured layer and tensor degree, ascending in rows.
    `collectives`: measured collectives; empty where links were not profiled.
    `optimizer_seconds_per_byte`: update of one byte of weights.
    `shared` (mapping of int to tuple of (int, float)): by layer, the groups of shared weights that it reads, and their bytes.
    """

    layers: tuple[MeasuredLayer, ...]
    measures: Mapping[tuple[str, int], tuple[Measure, ...]]
    collectives: tuple[MeasuredCollective, ...]
    optimizer_seconds_per_byte: float
    shared: Mapping[int, tuple[tuple[int, float], ...]] = field(default_factory=dict)

    @property
    def weight_bytes(self) -> float:
        """Bytes of all weights, shared ones counted once."""
        groups = [group for shared in self.shared.values() for group in shared]
        return sum(layer.weight_bytes for layer in self.layers) - sum(n for _, n in groups) + sum(dict(groups).values())


def recognises(source: Source) -> bool:
    """Return whether the source is a JSON object with our format's name."""
    return source.path is not None and isinstance(source.json, dict) and source.json.get("format") == FORMAT


def read(source: Source) -> ModelSpec:
    """Read a profile.

    Returns
    -------
    ModelSpec
        Layers as a chain; the measures as `Profile`; the cluster where links were profiled; costs ``profiled``.

    Raises
    ------
    InputError
        When a field is missing, unknown or wrong.
    """
    place = str(source.path)
    file = fields.record(_File, fields.of_format(source.json, place, FORMAT, "a profile"), place)
    _check_shared(file, place)
    profile = _profile(file)
    for layer in profile.layers:
        if (layer.like, 1) not in profile.measures:
            raise InputError(f"{place}: layer '{layer.name}' is like '{layer.like}', of which nothing was measured")
    name, length = file.model, file.sequence_length
    cluster = None if file.links is None else _cluster(file, file.links, place)
    ops = tuple(
        Op(layer.name, "measured", (Operator("weights", "other", (), n_parameters=layer.n_parameters),))
        for layer in profile.layers
    )
    edges = tuple(Edge(i, i + 1, int(layer.output_bytes // 4)) for i, layer in enumerate(profile.layers[:-1]))
    shared = sum((len(own.layers) - 1) * own.n_parameters for own in file.shared)
    graph = Graph(name, ops, edges, max(1, length), shared, tokens_name="tokens" if length > 1 else "")
    return ModelSpec(
        name, "profile_json", source.spec, graph, instance=profile, cluster=cluster, costs="profiled", search="measured"
    )


def _check_shared(file: _File, place: str) -> None:
    """Refuse shared weights of layers that are not there, are one layer, or have fewer."""
    layers = {layer.name: layer for layer in file.layers}
    for i, own in enumerate(file.shared):
        unknown = [name for name in own.layers if name not in layers]
        if unknown:
            raise InputError(f"{place}: shared[{i}]: there is no layer '{unknown[0]}'")
        if len(set(own.layers)) != len(own.layers) or len(own.layers) < 2:
            raise InputError(f"{place}: shared[{i}]: layers is {list(own.layers)}; it must name two layers or more, each once")
    for name, layer in layers.items():
        mine = [own for own in file.shared if name in own.layers]
        if sum(own.n_parameters for own in mine) > layer.n_parameters or sum(
            own.weight_bytes for own in mine
        ) > layer.weight_bytes * (1.0 + 1e-9):
            raise InputError(f"{place}: layer '{name}' has fewer weights than 'shared' says that it shares")


def _profile(file: _File) -> Profile:
    """Return the measures by layer and tensor degree."""
    groups: dict[tuple[str, int], list[Measure]] = {}
    for measure in file.measures:
        groups.setdefault((measure.layer, measure.tensor), []).append(measure)
    return Profile(
        file.layers,
        {key: tuple(sorted(group, key=lambda measure: measure.rows)) for key, group in groups.items()},
        () if file.links is None else file.links.collectives,
        file.optimizer_seconds_per_byte,
        {
            i: tuple((group, own.weight_bytes) for group, own in enumerate(file.shared) if layer.name in own.layers)
            for i, layer in enumerate(file.layers)
            if any(layer.name in own.layers for own in file.shared)
        },
    )


def _cluster(file: _File, measured: _Links, place: str) -> Cluster:
    """Return the machine as a cluster: every process a device, joined to every other by its measured link."""
    n, pairs = measured.n_ranks, measured.pairs
    device = Device(
        file.device,
        (("fp32", 1e11), ("bf16", 1e11)),
        file.memory_bytes / n,
        1e10,
        source="measured profile",
    )
    import numpy as np

    links = Links(
        np.array([pair.source for pair in pairs]),
        np.array([pair.target for pair in pairs]),
        np.array([1.0 / pair.seconds_per_byte for pair in pairs]),
        np.array([pair.latency_seconds for pair in pairs]),
    )
    # on one machine every process is a node of its own: nothing is shared but the cores
    groups = np.array(measured.hosts if len(set(measured.hosts)) > 1 else range(n)).reshape(1, n)
    return Cluster(f"{place}", (device,), np.zeros(n, np.int64), 0, links, groups, forwards=False, source="measured profile")
