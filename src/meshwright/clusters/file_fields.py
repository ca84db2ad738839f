"""The fields of a cluster file, with what each may be: kinds of device, nodes, switches, links, groups."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["FORMAT", "ClusterFile", "KindEntry", "LinkEntry", "NodeEntry", "SwitchEntry"]

FORMAT = "meshwright/cluster/1"


class _Strict(BaseModel):
    """A part of the file in which unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class KindEntry(_Strict):
    """A kind of device: a built-in one by name, or its figures."""

    builtin: str = ""
    flops: dict[str, str | float] = Field(default_factory=dict)
    memory: str | float = ""
    memory_bandwidth: str | float = ""
    launch: str | float = "5 us"
    reserved: str | float = 0.0
    multiprocessors: int = Field(default=0, ge=0, le=100_000)
    matmul_ratio: float = Field(default=0.8, gt=0, le=1)
    attention_ratio: float = Field(default=0.5, gt=0, le=1)
    memory_ratio: float = Field(default=0.85, gt=0, le=1)
    fp8_ratio: float = Field(default=0.0, ge=0, le=1)
    fp4_ratio: float = Field(default=0.0, ge=0, le=1)
    issue: str | float = 0.0
    source: str = ""


class SwitchEntry(_Strict):
    """The switch inside a node: every device of the node is joined to it."""

    bandwidth: str | float
    latency: str | float = 0.0


class NodeEntry(_Strict):
    """A node, or `count` alike (named ``name-0``, ``name-1``, ...), with the kinds of its devices in order."""

    name: str
    devices: list[str] = Field(min_length=1)
    count: int | None = Field(default=None, ge=1, le=1_000_000)
    switch: SwitchEntry | None = None


class LinkEntry(_Strict):
    """Links both ways between everything that `from` and `to` match: names or shell patterns."""

    from_: str = Field(alias="from")
    to: str
    bandwidth: str | float
    latency: str | float = 0.0
    one_way: bool = False


class ClusterFile(_Strict):
    """The whole file."""

    format: str = FORMAT
    name: str = ""
    source: str = ""
    forwards: bool = False
    reduces_in_switch: bool = False
    algorithms: list[str] = Field(default_factory=list)
    launch: str | float = 0.0
    reconfiguration: str | float = 0.0
    kinds: dict[str, KindEntry] = Field(default_factory=dict)
    nodes: list[NodeEntry] = Field(min_length=1)
    switches: list[str] = Field(default_factory=list)
    links: list[LinkEntry] = Field(default_factory=list)
    groups: list[list[list[str]]] = Field(default_factory=list)
