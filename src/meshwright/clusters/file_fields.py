"""The fields of a cluster file, with what each may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["FORMAT", "ClusterFile", "KindEntry", "LinkEntry", "NodeEntry", "SwitchEntry"]

FORMAT = "meshwright/cluster/1"


@dataclass(frozen=True, slots=True)
class KindEntry:
    """A kind of device: a built-in one by name, or its figures (of which the first three are needed); of both what each device
    has of its host, all or nothing.
    """

    builtin: str = ""
    flops: Mapping[str, str | float] | None = None
    memory: str | float | None = None
    memory_bandwidth: str | float | None = None
    launch: str | float = "5 us"
    reserved: str | float = 0.0
    multiprocessors: int = field(default=0, metadata={"minimum": 0, "maximum": 100_000})
    matmul_ratio: float = field(default=0.8, metadata={"above": 0, "maximum": 1})
    attention_ratio: float = field(default=0.5, metadata={"above": 0, "maximum": 1})
    memory_ratio: float = field(default=0.85, metadata={"above": 0, "maximum": 1})
    fp8_ratio: float = field(default=0.0, metadata={"minimum": 0, "maximum": 1})
    fp4_ratio: float = field(default=0.0, metadata={"minimum": 0, "maximum": 1})
    issue: str | float = 0.0
    attention_of: Mapping[str, float] | None = field(default=None, metadata={"above": 0, "maximum": 1})
    host_link: str | float | None = None
    host_memory: str | float | None = None
    host_memory_bandwidth: str | float | None = None
    host_source: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class SwitchEntry:
    """The switch inside a node: every device of the node is joined to it."""

    bandwidth: str | float
    latency: str | float = 0.0


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """A node, or `count` alike (named ``name-0``, ``name-1``, ...), with the kinds of its devices in order."""

    name: str
    devices: tuple[str, ...] = field(metadata={"at_least": 1})
    count: int | None = field(default=None, metadata={"minimum": 1, "maximum": 1_000_000})
    switch: SwitchEntry | None = None


@dataclass(frozen=True, slots=True)
class LinkEntry:
    """Links both ways between everything that `from` and `to` match: names or shell patterns."""

    from_: str = field(metadata={"name": "from"})
    to: str
    bandwidth: str | float
    latency: str | float = 0.0
    one_way: bool = False


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """The whole file."""

    nodes: tuple[NodeEntry, ...] = field(metadata={"at_least": 1})
    format: str = FORMAT
    name: str = ""
    source: str = ""
    forwards: bool = False
    reduces_in_switch: bool = False
    algorithms: tuple[str, ...] = ()
    devices_per_host: int = field(default=0, metadata={"minimum": 0, "maximum": 100_000})
    launch: str | float = 0.0
    reconfiguration: str | float = 0.0
    kinds: Mapping[str, KindEntry] = field(default_factory=dict)
    switches: tuple[str, ...] = ()
    links: tuple[LinkEntry, ...] = ()
    groups: tuple[tuple[tuple[str, ...], ...], ...] = ()
