"""Which pipeline ranks are alike: the same kind of device on places of the network that are wired alike, so that one price serves all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from meshwright.base.identity import ById
from meshwright.core.cluster import Cluster
from meshwright.core.launch import fills_hosts
from meshwright.core.problem import Problem
from meshwright.core.stage_cost import StageCost
from meshwright.core.strategy import repeats_dispatch
from meshwright.planners.best.layer_sums import Digest, RowLoads
from meshwright.planners.best.space import Config, DevicePool, MeshDegrees
from meshwright.sim.pairs import SLOWED_RATIO, exchange_seconds

__all__ = [
    "SILENT", "JoinedLoads", "PricedLayers", "RankClasses", "allowed_pool", "kinds_only", "least", "loads_key", "merged",
    "priced_layers", "rank_classes", "silent", "taken_in_order",
]  # fmt: skip

SILENT = "silent"
"""Ends the key of the class of ranks that are not priced."""

_KEPT = 2  # questions that differ in what layers cost whose prices are remembered: one, and the same with other links

MOST_PRICED = 16
"""Classes of ranks that are priced on each kind of device; all others are taken to communicate in no time, which proves less."""


@dataclass(frozen=True, slots=True, eq=False)
class RankClasses:
    """The pipeline ranks of a configuration by class.

    Parameters
    ----------
    devices : tuple of sequence of int
        Of each class, the devices of its first rank in mesh order.
    keys : tuple of tuple
        What tells classes apart, also those of other configurations.
    kinds : tuple of int
        The kind of device of each class: its place in the pool.
    of_rank : ndarray, shape (n_ranks,), int64
        The class of each rank.
    """

    devices: tuple[Sequence[int], ...]
    keys: tuple[tuple[object, ...], ...]
    kinds: tuple[int, ...]
    of_rank: NDArray[np.int64]


def rank_classes(
    pool: DevicePool,
    config: Config,
    kind_of_rank: Sequence[int],
    periods: tuple[int, ...],
    *,
    light: bool,
    in_order: bool = False,
) -> RankClasses:
    """Return the classes of a configuration's ranks.

    Parameters
    ----------
    pool : DevicePool
        The devices.
    config : Config
        The configuration.
    kind_of_rank : sequence of int
        The kind of device of each rank: its place in the pool.
    periods : tuple of int
        Lengths of blocks of device ids that are wired alike; see `meshwright.core.cluster.Cluster`.
    in_order : bool
        Whether it is known that the pool holds devices of one kind in the order of their ids.
    light : bool
        Whether only what happens inside as few replicas as hold a whole group is priced, as `costs.row_costs` does inside only.

    Notes
    -----
    Lemma: two ranks of a class cost the same. Blocks of a period may change places (nodes in their pod, pods in the cluster), and
    ids move by whole blocks without overtaking each other, so that whatever orders devices by id orders both alike. A rank of one
    device communicates with nobody. Where nothing is known to repeat, every rank is a class of its own.
    """
    mesh = config.mesh
    n_kept = mesh.rank_size
    if light and mesh.data * mesh.context % mesh.expert == 0:  # otherwise experts lie across the tensor axis too
        n_replicas = math.lcm(mesh.context, mesh.expert)
        n_kept = (n_replicas if mesh.data * mesh.context % n_replicas == 0 else mesh.data * mesh.context) * mesh.tensor
    places, of_place = _places(pool, config, kind_of_rank, periods, n_kept, in_order)
    keys: list[tuple[object, ...]] = []
    first: list[Sequence[int]] = []
    kinds: list[int] = []
    number = np.empty(len(places), dtype=np.int64)
    for i, (rank, key) in enumerate(places):
        kind = kind_of_rank[rank]
        if kinds.count(kind) >= MOST_PRICED:
            key = (kind, SILENT)
        if key not in keys:
            keys.append(key)
            first.append(_ids(pool.rank(config, rank)))
            kinds.append(kind)
        number[i] = keys.index(key)
    return RankClasses(tuple(first), tuple(keys), tuple(kinds), number[of_place])


def _places(
    pool: DevicePool, config: Config, kind_of_rank: Sequence[int], periods: tuple[int, ...], n_kept: int, in_order: bool
) -> tuple[list[tuple[int, tuple[object, ...]]], NDArray[np.int64]]:
    """Return the places of ranks that differ, in order: its first rank, and its key; and which place each rank has."""
    mesh = config.mesh
    width = mesh.context * mesh.tensor if config.layout == "data" else mesh.rank_size
    if in_order and n_kept == 1:
        return [(0, (kind_of_rank[0], 1))], np.zeros(mesh.pipeline, dtype=np.int64)
    if in_order and periods and n_kept <= width:
        blocks, of_block = _blocks(mesh.pipeline, width, n_kept, periods)
        return [(rank, (kind_of_rank[rank], n_kept, *block)) for rank, block in blocks], of_block
    number: dict[tuple[object, ...], int] = {}
    at: list[int] = []
    of_rank: list[int] = []
    for rank, (kind, devices) in enumerate(zip(kind_of_rank, pool.ranks(config), strict=True)):
        key: tuple[object, ...] = (kind, *_place(devices[:n_kept], periods))
        if key not in number:
            number[key] = len(number)
            at.append(rank)
        of_rank.append(number[key])
    return list(zip(at, number, strict=True)), np.array(of_rank)


@lru_cache(maxsize=8192)
def _blocks(
    n_ranks: int, width: int, n_kept: int, periods: tuple[int, ...]
) -> tuple[tuple[tuple[int, tuple[int, int]], ...], NDArray[np.int64]]:
    """Return the places of blocks of neighbours, `width` apart: the first rank of each, where in a node it begins, and how much of it
    is left in its pod if it leaves that; and which place each rank has.
    """
    starts = width * np.arange(n_ranks)
    left = periods[-1] - starts % periods[-1]
    left[left >= n_kept] = 0
    in_node = starts % periods[0]
    _, first, of_place = np.unique(in_node * (n_kept + 1) + left, return_index=True, return_inverse=True)
    order = np.argsort(first)
    found = tuple((rank, (int(in_node[rank]), int(left[rank]))) for rank in first[order].tolist())
    of_block = np.asarray(np.argsort(order)[of_place], dtype=np.int64)
    of_block.setflags(write=False)
    return found, of_block


def kinds_only(kind_of_rank: Sequence[int]) -> RankClasses:
    """Return one class for every kind of device, of ranks at any place."""
    used = sorted(set(kind_of_rank))
    of_rank = np.array([used.index(kind) for kind in kind_of_rank])
    return RankClasses(((),) * len(used), tuple((kind,) for kind in used), tuple(used), of_rank)


def merged(classes: RankClasses, times: Sequence[tuple[object, ...]]) -> RankClasses:
    """Return classes without those that are of one kind of device and communicate in the same times as an earlier one."""
    first: dict[tuple[object, ...], int] = {}
    new: list[int] = []
    kept: list[int] = []
    for i, key in enumerate(zip(classes.kinds, times, strict=True)):
        if key not in first:
            first[key] = len(kept)
            kept.append(i)
        new.append(first[key])
    return RankClasses(
        tuple(classes.devices[i] for i in kept), tuple(classes.keys[i] for i in kept),
        tuple(classes.kinds[i] for i in kept), np.array(new)[classes.of_rank],
    )  # fmt: skip


def _place(devices: NDArray[np.int64], periods: tuple[int, ...]) -> tuple[object, ...]:
    """Return where devices lie up to an exchange of blocks that are wired alike: equal for equal places."""
    if len(devices) == 1:
        return (1,)
    if not periods:
        return (devices.tobytes(),)
    node, pod = periods[0], periods[-1]
    start, n_devices = int(devices[0]), len(devices)
    if int(devices[-1]) - start == n_devices - 1 and bool((np.diff(devices) == 1).all()):
        in_first_pod = pod - start % pod
        return (n_devices, start % node, in_first_pod if in_first_pod < n_devices else 0)
    nodes, of_device = np.unique(devices // node, return_inverse=True)
    _, of_node = np.unique(nodes // (pod // node), return_inverse=True)
    in_pod = np.arange(len(nodes)) - np.searchsorted(of_node, of_node)
    moved = (of_node * (pod // node) + in_pod)[of_device] * node + devices % node
    return (moved.tobytes(),)


def _ids(devices: NDArray[np.int64]) -> range | tuple[int, ...]:
    """Return neighbouring ids as a `range`, which is recognised again at once, any others as a tuple."""
    first, last = int(devices[0]), int(devices[-1])
    if last - first == len(devices) - 1 and np.array_equal(devices, np.arange(first, last + 1)):
        return range(first, last + 1)
    return tuple(devices.tolist())


def silent(load: StageCost) -> StageCost:
    """Return the load of a layer as if communication took no time: never more than it takes anywhere."""
    return replace(load, forward_communication=(), backward_communication=(), reduce_seconds=0.0, gather_seconds=0.0)


def least(stage_costs: Sequence[StageCost]) -> StageCost:
    """Return a load of which every figure that bounds read is the smallest of several loads of one layer on one kind of device.

    Lemma: bounds rise with every figure, the gradients of weights are the same in all of them, and so is all that recomputes nothing
    but attention, whose exchange over a context axis decides what it computes: so a bound on this load is one on each. Compute and
    communication of a pass are those of the load where both take least together.
    """
    if len(stage_costs) == 1:
        return stage_costs[0]

    def smallest(name: str) -> float:
        return float(min(getattr(load, name) for load in stage_costs))

    forward = min(stage_costs, key=lambda load: load.forward_total_seconds)
    backward = min(stage_costs, key=lambda load: load.backward_total_seconds - load.recompute_seconds)
    return replace(
        stage_costs[0],
        forward_seconds=forward.forward_seconds,
        backward_input_seconds=backward.backward_input_seconds,
        recompute_seconds=smallest("recompute_seconds"),
        forward_communication=forward.forward_communication,
        backward_communication=backward.backward_communication,
        output_bytes=smallest("output_bytes"),
        reduce_seconds=smallest("reduce_seconds"),
        gather_seconds=smallest("gather_seconds"),
        optimizer_seconds=smallest("optimizer_seconds"),
        weight_bytes=smallest("static_bytes"),
        gradient_bytes=0.0,
        optimizer_bytes=0.0,
        activation_bytes=smallest("activation_bytes"),
        working_bytes=smallest("working_bytes"),
        reserved_bytes=smallest("reserved_bytes"),
    )


def _least_in_pairs(load: StageCost, way: tuple[bool, bool]) -> StageCost:
    """Return a load that is below what a layer takes in pairs of tasks (`sim.pairs`): sent and received beside compute.

    Lemma: a pair lasts as long as the longer of the backward task's all-to-alls and the forward task's compute, slowed by them; then
    as long as the longer of the forward task's all-to-alls and the backward task's compute, slowed by them. Of each of the two, `way`
    says which is counted (all-to-alls, or compute): a pair is no shorter than both counts together, whose parts are shared out so that
    none exceeds what its task takes alone, all-to-alls and compute one after the other. So sums over tasks are below what they last.
    """
    there, back = exchange_seconds(load)
    sent_first, sent_second = way
    if not sent_first and not sent_second:
        slowed = replace(load, forward_communication=_slowing(load.forward_communication))
        return replace(slowed, backward_communication=_slowing(load.backward_communication))
    if not sent_second:
        return replace(load, forward_seconds=0.0, forward_communication=(("expert", SLOWED_RATIO * there),))
    nothing = replace(load, backward_input_seconds=0.0, backward_weight_seconds=0.0, recompute_seconds=0.0)
    if not sent_first:
        return replace(nothing, backward_communication=(("expert", SLOWED_RATIO * back),))
    ahead = replace(nothing, forward_seconds=0.0, forward_communication=(("expert", there),))
    return replace(ahead, backward_communication=(("expert", back),))


def _slowing(causes: tuple[tuple[str, float], ...]) -> tuple[tuple[str, float], ...]:
    """Return causes of communication where all-to-alls of experts only slow compute."""
    return tuple((cause, SLOWED_RATIO * seconds if cause == "expert" else seconds) for cause, seconds in causes)


def loads_key(config: Config, *, light: bool) -> tuple[object, ...]:
    """Return what the loads of a configuration depend on.

    Where nothing is sharded and replicas keep silent, it does not matter how many there are beyond those of whole groups.
    """
    mesh = config.mesh
    stride = mesh.pipeline if config.layout == "data" and not light else 0
    alone = light and config.shard == 0 and mesh.data * mesh.context % math.lcm(mesh.context, mesh.expert) == 0
    degrees = (0 if alone else mesh.data, mesh.context, mesh.tensor, mesh.expert, mesh.micro_batch)
    told = () if (config.exchange, config.offload) == ("ring", "none") else (config.exchange, config.offload)
    return (*degrees, config.shard, config.shard_degree, stride, light, *told)


class JoinedLoads:
    """Remembers what was made of which loads, told apart by identity: they are kept, so that none is another."""

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], tuple[tuple[RowLoads, ...], RowLoads]] = {}

    def least(self, places: list[RowLoads]) -> RowLoads:
        """Return loads of which every figure is the least of those at several places."""
        if len(places) == 1:
            return places[0]
        key = ("least", tuple(id(own) for own in places))
        if key not in self._found:
            self._found[key] = tuple(places), {of: least([rows[of] for rows in places]) for of in places[0]}
        return self._found[key][1]

    def hidden(self, rows: RowLoads, often: Mapping[int, int]) -> RowLoads:
        """Return the least that layers take where tasks run in pairs, without what they may not recompute there (`_least_in_pairs`).

        `often`: how often each distinct layer of the chain occurs; of four ways to count, the one by which these take longest.
        """
        key = ("hidden", (id(rows),), tuple(sorted(often.items())))
        if key not in self._found:
            allowed = {of: load for of, load in rows.items() if not repeats_dispatch(of[1])}
            least = {row: next(load for of, load in allowed.items() if of[0] == row) for row in often}

            def whole_seconds(way: tuple[bool, bool]) -> float:
                own = {row: _least_in_pairs(load, way) for row, load in least.items()}
                return sum(n * (own[row].forward_total_seconds + own[row].backward_total_seconds) for row, n in often.items())

            ways = ((False, False), (False, True), (True, False), (True, True))
            way = max(ways, key=whole_seconds)
            self._found[key] = (rows,), {of: _least_in_pairs(load, way) for of, load in allowed.items()}
        return self._found[key][1]

    def with_state(self, rows: RowLoads, state: RowLoads) -> RowLoads:
        """Return loads that hold what others do all the time, without an optimizer's seconds."""
        key = ("state", (id(rows), id(state)))
        if key not in self._found:
            joined = {
                of: replace(
                    load, weight_bytes=state[of].static_bytes, gradient_bytes=0.0, optimizer_bytes=0.0, optimizer_seconds=0.0
                )
                for of, load in rows.items()
            }
            self._found[key] = (rows, state), joined
        return self._found[key][1]


def taken_in_order(pool: DevicePool, mesh: MeshDegrees, problem: Problem) -> bool:
    """Return whether the framework takes the ranks of a mesh: where they run over the devices in order, none is left over before the
    last kind of device, and they are equally many of every host where it starts those alone.
    """
    limits = problem.framework.limits
    if limits.any_order or any(len(own) % mesh.rank_size for own in pool.devices[:-1]):
        return limits.any_order
    return limits.uneven_hosts or bool(fills_hosts(problem.required_cluster)[mesh.rank_size * mesh.pipeline])


def allowed_pool(pool: DevicePool, problem: Problem) -> bool:
    """Return whether the framework takes devices in the order of a pool: some take them only in order from the first on."""
    order = np.concatenate(pool.devices)
    return problem.framework.limits.any_order or bool((order == np.arange(len(order))).all())


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
