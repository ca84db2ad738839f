"""What the layers of a model cost on the devices of a pool, remembered over searches: larger batches and more memory change none of it."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from meshwright.base.identity import ById
from meshwright.core.cluster import Cluster
from meshwright.core.problem import Problem
from meshwright.planners.best.layer_sums import Digest, RowLoads
from meshwright.planners.best.ranks import JoinedLoads, RankClasses
from meshwright.planners.best.space import DevicePool

__all__ = ["PricedLayers", "priced_layers"]

_KEPT = 2  # questions that differ in what layers cost: one, and the same with other links


class PricedLayers:
    """Loads of layers by strategy and place, which ranks are alike, and what was made of loads.

    Attributes
    ----------
    classes, places : dict
        Classes of ranks by what tells configurations apart; times of collectives by place.
    rows : dict
        ``(row, recompute) -> StageCost`` of every layer, by strategy and place.
    joined : JoinedLoads
        What was made of several of them.
    digests : dict
        Loads as arrays, by identity, since all are kept, and what layers may recompute.
    """

    def __init__(self) -> None:
        self.classes: dict[tuple[object, ...], RankClasses] = {}
        self.places: dict[tuple[object, ...], tuple[object, ...]] = {}
        self.rows: dict[tuple[object, ...], RowLoads] = {}
        self.joined = JoinedLoads()
        self.digests: dict[tuple[int, tuple[str, ...]], Digest] = {}


def priced_layers(problem: Problem, pool: DevicePool) -> PricedLayers:
    """Return what is known of a question's layers: what an earlier search of one that asks for the same costs has found out.

    Parameters
    ----------
    problem : Problem
        The question. What `meshwright.costs.analytic` reads of it is the graph, the training, the framework and the cluster, of
        whose devices not how much memory they have: questions alike in these have the same costs. Nothing is known of other models.
    pool : DevicePool
        The devices that ranks are taken from.
    """
    if problem.costs != "analytic":
        return PricedLayers()
    devices = tuple(own.tobytes() for own in pool.devices)
    return _priced(ById(problem.graph), _wired(problem.required_cluster), devices, problem.training, problem.framework)


def _wired(cluster: Cluster) -> tuple[object, ...]:
    """Return all of a cluster but its name, its source and how much memory devices have; arrays by identity, since they never change."""
    kinds = tuple(replace(kind, memory_bytes=1.0) for kind in cluster.kinds)
    arrays = (ById(cluster.links), ById(cluster.kind_of_device), ById(cluster.groups))
    ways = (cluster.forwards, cluster.reconfiguration_seconds, cluster.launch_seconds, cluster.reduces_in_switch)
    return (kinds, arrays, ways, cluster.n_switches, cluster.algorithms, cluster.periods, cluster.devices_per_host)


@lru_cache(maxsize=_KEPT)
def _priced(*alike: object) -> PricedLayers:
    """Return layers of which nothing is known yet."""
    return PricedLayers()
