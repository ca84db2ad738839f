"""Plan and network topology found together, as a function: what ``meshwright codesign`` does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from meshwright.base.errors import InputError
from meshwright.core.problem import ModelSpec, Stop

if TYPE_CHECKING:
    from meshwright.planners.topoopt.design import Design

__all__ = ["codesign"]


def codesign(  # noqa: PLR0913  as many as the command line has
    model: str | ModelSpec,
    *,
    servers: int,
    degree: int = 0,
    link_bandwidth: str | float,
    link_latency: str | float = "1 us",
    measures: str = "",
    measure: str = "",
    say: Callable[[str, float], None] = lambda text, done: None,
    strategy: str = "",
    topologies: tuple[str, ...] = ("topoopt",),
    budget: int = 1000,
    settings: Mapping[str, str] | None = None,
    seed: int = 0,
    file_format: str = "",
    stop: Stop | None = None,
) -> Design:
    """Return plan and network topology found together.

    Parameters
    ----------
    model : str or ModelSpec
        As on the command line, or already read.
    servers, degree : int
        Servers, and interfaces of each.
    link_bandwidth, link_latency : str or float
        Of one interface, one direction: ``"100 Gbit/s"``, ``"1 us"``; numbers are in bytes per second and seconds.
    measures : str
        File of measured operators; empty to estimate.
    measure : str
        ``cpu`` or ``cuda`` to measure operators on this machine first, with PyTorch; empty not to.
    say : callable
        Told what is measured now, and which share of that is done.
    strategy : str
        File of a plan in FlexNet's format, for which only networks are searched; empty to search plans too.
    topologies : tuple of str
        Which to search on; see `meshwright.planners.topoopt.networks.NAMES`.
    budget : int
        Plans to simulate on each.
    settings : mapping of str to str or None
        Options, as after ``--set``.
    seed : int
        Seed of everything random.
    file_format : str
        Format of the model's file where it should not be recognised.
    stop : Stop or None
        When to end before the budget is used up, with the best so far; None for never.

    Returns
    -------
    Design
        The answer on every topology, the fastest, and the bound.

    Raises
    ------
    InputError
        When anything in the question is wrong.
    """
    from meshwright.base import units
    from meshwright.planners.topoopt import design as room
    from meshwright.planners.topoopt.alternate import NetworkParts
    from meshwright.planners.topoopt.params import Sources, keep_to_network

    params = room.parse(settings or {})
    if params.node_degree and degree and params.node_degree != degree:
        raise InputError(f"--degree {degree} and --set node_degree={params.node_degree}: are the same option; give one")
    if not (degree or params.node_degree):
        raise InputError("say how many interfaces a server has: --degree 4")
    if not 1 <= budget <= 10**7:
        raise InputError(f"--budget {budget}: must be between 1 and {10**7}")
    if not 0 <= seed < 2**63:
        raise InputError(f"--seed {seed}: must be at least 0")
    if measures and measure:
        raise InputError(f"--measure {measure}: times are those of --measures {measures}; give one of them")
    if not topologies:
        raise InputError("--topology: name at least one, for example topoopt,fat-tree")
    wires = NetworkParts(
        servers,
        degree or params.node_degree,
        units.parse(link_bandwidth, "bytes_per_second", place="--link-bandwidth", exclusive=True),
        units.parse(link_latency, "seconds", place="--link-latency"),
    )
    from meshwright.api import reading, targets

    model_spec = reading.model(model, file_format=file_format) if isinstance(model, str) else model
    targets.whole_only(model_spec.graph, room, "codesign")
    if model_spec.format == "taskgraph_fbuf":
        keep_to_network(settings or {}, f"the task graph {model_spec.spec}")
    found = room.design(
        model_spec, wires, params, Sources(measures, measure, say, strategy), names=topologies, budget=budget, seed=seed,
        stop=stop or Stop(),
    )  # fmt: skip
    question = {
        "model": model if isinstance(model, str) else model.spec, "format": file_format, "measures": measures,
        "measure": measure, "strategy": strategy, "topologies": list(topologies), "budget": budget,
        "settings": dict(settings or {}),
    }  # fmt: skip
    return replace(found, question=MappingProxyType(question))
