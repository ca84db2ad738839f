"""Small problems that touch every kernel once, so that all of them are compiled and kept: what ``meshwright compile`` runs."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["tasks"]


def tasks() -> list[tuple[str, Callable[[], object]]]:
    """Return names and functions; each runs a small problem through one part of the package.

    Returns
    -------
    list of (str, callable)
        In the order in which they should run.
    """
    return [
        ("routes and fair shares", _network),
        ("joint search and simulator", _joint),
        ("simulator: shared links, zero-bubble schedules", _played),
        ("shardings of operators", _shardings),
    ]


def _network() -> object:
    import numpy as np

    from meshwright import network, topologies
    from meshwright.network import fair_share, routes

    for spec in ("dgx-h100:16", "torus:2x2"):
        cluster = topologies.cluster(spec)
        ids = np.arange(cluster.n_devices)
        network.axis(cluster, ids[None]).seconds("all_reduce", 1.0)
        route_first, links, shares = routes.shares(cluster, ids, ids[::-1])
        rate = cluster.links.bytes_per_second
        fair_share.rates(route_first, links, rate, shares)
        fair_share.finish_seconds(route_first, links, rate, np.ones(len(ids)), None, shares)
    return None


def _joint() -> object:
    from meshwright import api
    from meshwright.problem import Batch

    return api.plan("gpt2", "dgx-h100:8", batch=Batch(global_batch=16), settings={"evaluations": "4"})


def _played() -> object:
    from meshwright import sim, topologies
    from meshwright.graph import Graph, Op
    from meshwright.plan import Plan, Stage
    from meshwright.problem import Problem, Reading
    from meshwright.table import StageLoad

    graph = Graph("warm", tuple(Op(f"layers.{i}", "mlp") for i in range(3)))
    problem = Problem(Reading("warm", "warm", "warm", graph), topologies.cluster("two-level:4,per_node=2"))
    # From node to node and back: both directions leave each node through one link.
    stages = tuple(Stage((i,), (device,)) for i, device in enumerate((0, 2, 1)))
    return sim.simulate(problem, Plan(stages, 3, 1, "zb_h1", 3), (StageLoad(0.1, 0.1, 0.1, output_bytes=25e9),) * 3)


def _shardings() -> object:
    from meshwright import api

    return api.plan("pase:alexnet")
