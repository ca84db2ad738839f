"""Options of ``codesign``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields

from meshwright.base import options as _params
from meshwright.base.errors import InputError, UnknownNameError
from meshwright.planners.topoopt.step import TRAFFIC

__all__ = ["Params", "Sources", "keep_to_network", "parse"]

OF_NETWORK = ("node_degree", "search", "reconfiguration", "components", "equal_cost", "traffic")
"""Options that say something of a plan that is given: the others are about finding one."""


@dataclass(frozen=True, slots=True)
class Params:
    """Options of ``codesign``, as after ``--set``.

    Parameters
    ----------
    node_degree : int
        Interfaces of a server, the same as ``--degree``.
    gpus_per_server : int
        Devices of a server.
    inter_gpu_bytes_per_second : float
        Of one device into the network inside its server (``inter_gpu_bandwidth=``).
    server : str
        A cluster of one server, ``dgx-a100:8`` or a file (YAML, ``nvidia-smi topo -m``, NCCL's XML): its devices, and the
        network between them, on which all-reduces take turns. Takes the place of the two before and the next.
    gpu : str
        Kind of device: its memory is the limit, its speed the estimate of operators that were not measured.
    search : str
        ``improved`` is ours, ``published`` the released program's (topoopt only).
    propagation : bool
        Whether the published search copies splits to neighbours.
    placement : str
        How parts lie on servers: ``contiguous``, ``strided`` or ``either``.
    alpha_ratio : float
        The published search accepts a plan slower by x milliseconds with probability ``exp(-alpha x)`` (``alpha=``).
    shard_weights : str
        Whether weights may be split, tables by columns and rows too: ``yes``, ``no``, or ``auto``: where times are estimated.
    reconfiguration_seconds : float
        Of the optical switch: how long its circuits are dark when they change (``reconfiguration=``).
    components : str
        A TOML file with prices; empty for round figures of ours.
    global_batch : int
        Samples of one step; 0 for the workload's own (for a language model: one for each device).
    equal_cost : bool
        Whether every other topology is also given the link speed at which it costs as much as the first.
    control_edges : bool
        Whether a plan may hold back the backward pass of operators that read only data until the others of their server are
        done.
    traffic : str
        How the time of traffic is found: ``queues`` at links, which serve segments in the order in which they arrive;
        ``segments`` as published, where a segment takes its place on all links of its route at once (what
        ``search=published`` takes where this is left out); ``fair`` by max-min fair shares of links; ``closed`` by a closed
        form without overlap. All are reported.
    """

    node_degree: int = field(default=0, metadata={"minimum": 0})
    gpus_per_server: int = field(default=4, metadata={"minimum": 1})
    inter_gpu_bytes_per_second: float = field(
        default=25e9, metadata={"unit": "bytes_per_second", "minimum": 1.0, "word": "inter_gpu_bandwidth"}
    )
    server: str = ""
    gpu: str = "a100-sxm-40gb"
    search: str = field(default="improved", metadata={"choices": ("improved", "published")})
    propagation: bool = True
    placement: str = field(default="either", metadata={"choices": ("contiguous", "strided", "either")})
    alpha_ratio: float = field(default=1.0, metadata={"minimum": 1e-6, "word": "alpha"})
    shard_weights: str = field(default="auto", metadata={"choices": ("yes", "no", "auto")})
    reconfiguration_seconds: float = field(default=10e-3, metadata={"unit": "seconds", "word": "reconfiguration"})
    components: str = ""
    global_batch: int = field(default=0, metadata={"minimum": 0})
    equal_cost: bool = False
    control_edges: bool = True
    traffic: str = field(default="queues", metadata={"choices": TRAFFIC})


@dataclass(frozen=True, slots=True)
class Sources:
    """Where times and the plan come from, if times are not estimated and the plan is not searched.

    Parameters
    ----------
    measures : str
        File of measured operators; empty for none.
    measure : str
        ``cpu`` or ``cuda`` to measure operators on this machine first; empty not to.
    say : callable
        Told what is measured now, and which share of that is done.
    strategy : str
        File of a plan in FlexNet's format; empty to search.
    """

    measures: str = ""
    measure: str = ""
    say: Callable[[str, float], None] = lambda text, done: None
    strategy: str = ""


def parse(settings: Mapping[str, str]) -> Params:
    """Return options from text, each under the word the user types.

    Raises `UnknownNameError` when there is no such option.
    Raises `InputError` when a value does not parse or is not allowed.
    """
    words = {entry.metadata.get("word", entry.name): entry.name for entry in fields(Params)}
    for key in settings:
        if key not in words:
            raise UnknownNameError("option of codesign", key, words)
    if settings.get("server") and (
        both := [key for key in ("gpus_per_server", "inter_gpu_bandwidth", "gpu") if key in settings]
    ):
        raise InputError(f"--set {both[0]}={settings[both[0]]}: is given by --set server={settings['server']}; leave one out")
    if settings.get("search") == "published":
        settings = {"traffic": "segments", **settings}
    return _params.parse(Params, {words[key]: value for key, value in settings.items()}, "codesign")


def keep_to_network(settings: Mapping[str, str], what: str) -> None:
    """Refuse options that a given plan leaves nothing to choose for.

    Parameters
    ----------
    settings : mapping of str to str
        As after ``--set``.
    what : str
        What holds the plan, for the message.

    Raises
    ------
    InputError
        When there is one.
    """
    for key, value in settings.items():
        if key not in OF_NETWORK:
            raise InputError(
                f"--set {key}={value}: {what} holds the whole plan and its times; options with it: {', '.join(OF_NETWORK)}"
            )
