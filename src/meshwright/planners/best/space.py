"""The joint space of `best`: every legal combination of degrees, micro-batch, sharding, schedule and layout on a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.core.cluster import Cluster
from meshwright.core.strategy import Strategy
from meshwright.network import placement
from meshwright.schedules import in_pairs

__all__ = [
    "ANY", "ANY_SPREAD", "VIRTUAL", "Config", "DevicePool", "MeshDegrees", "after_name", "divisors", "meshes", "pools", "schedules_of",
    "spreads_of",
]  # fmt: skip

ANY = -1
"""The sharding of a configuration that stands for all of them."""

ANY_SPREAD = (-1, -1)
"""`Config.fewer` of a configuration that stands for all its spreads of layers over virtual stages."""

_MOST_FEWER = (1, 2)  # layers that the first and the last virtual stage may have fewer than in an even spread

_WHOLE = ("gpipe", "1f1b", "early_backward_b", "zb_h1", "zb_h2")  # one stage per rank
_LOOPED = ("interleaved_1f1b", "looped_bfs", "combined_1f1b")
_IN_A_V = ("zb_v", "v_half", "v_min", "dualpipe_v", "combined_dualpipe_v")
VIRTUAL = (*_LOOPED, *_IN_A_V)
"""Schedules with several stages per rank."""

_SPLIT = ("zb_h1", "zb_h2", *_IN_A_V)
_FIXED = ("dualpipe_v", "combined_dualpipe_v")  # weight gradients are tasks of their own, but the order of tasks is given
_DEEP = ("early_backward_b", "zb_h2")

_MOST_SORTS = 4  # sorts of nodes of which each comes first in one order


@dataclass(frozen=True, slots=True, order=True)
class MeshDegrees:
    """Degrees that fix the work of a device: how one pipeline rank's devices share one micro-batch.

    `data` replicas of `context * tensor` devices form a rank; `pipeline` ranks form the job.
    """

    pipeline: int
    data: int
    context: int
    tensor: int
    expert: int
    micro_batch: int

    @property
    def rank_size(self) -> int:
        """Devices of one pipeline rank."""
        return self.data * self.context * self.tensor

    @property
    def whole_experts(self) -> bool:
        """Whether experts are spread over the tensor axis too, each whole on its device (`Strategy.folded`)."""
        return self.data * self.context % self.expert != 0

    @property
    def layer_shape(self) -> tuple[int, ...]:
        """All that decides what a device computes of a layer, and whether the model can be split so."""
        return self.tensor, self.context, self.expert, self.micro_batch, self.whole_experts


@dataclass(frozen=True, slots=True, order=True)
class Config:
    """A mesh with what is left to choose before layers are split: sharding, schedule, virtual stages, layout, context exchange.

    `layout` says which axis changes slowest over the devices: ``pipeline`` (a rank is a block of neighbours) or ``data`` (a
    replica of the whole pipeline is a block of neighbours); `exchange` how keys and values are exchanged over the context axis;
    `offload` what lies on the host. With a sharding of `ANY` the configuration stands for all its shardings, layouts, exchanges and
    offloads: then it has bounds only. `fewer` says by how many layers the first and the last virtual stage have fewer than in an even
    spread (`spreads_of`); `ANY_SPREAD` stands for all of these.
    """

    mesh: MeshDegrees
    shard: int
    shard_degree: int
    schedule: str
    chunks: int
    layout: str
    exchange: str = "ring"
    fewer: tuple[int, int] = (0, 0)
    offload: str = "none"

    @property
    def is_any(self) -> bool:
        """Whether it stands for all shardings and layouts."""
        return self.shard == ANY

    @property
    def split_backward(self) -> bool:
        """Whether weight gradients are tasks of their own, if not all; then the order of tasks mostly depends on how long they last."""
        return self.schedule in _SPLIT

    @property
    def paired(self) -> bool:
        """Whether forward tasks run beside backward tasks."""
        return in_pairs(self.schedule)

    @property
    def in_turn(self) -> bool:
        """Whether ranks with one stage each, after a number of forward passes, run a backward and a forward pass in turn."""
        return self.schedule in _WHOLE and self.schedule != "gpipe"

    def leads(self, n_microbatches: int) -> NDArray[np.float64]:
        """Return how many forward passes each rank runs before its first backward pass where that is so: shape (n_ranks,), float64.

        As many as there are ranks from it on, or, with a warm-up of twice the depth, one less than twice as many. Under GPipe there
        are more; that fewer hide in the wait for the first backward pass is true of it as well, since there none do.
        """
        behind = np.arange(self.mesh.pipeline - 1, -1, -1.0)
        leads: NDArray[np.float64] = np.minimum((2.0 if self.schedule in _DEEP else 1.0) * behind + 1.0, n_microbatches)
        return leads

    @property
    def fitted(self) -> bool:
        """Whether what ranks hold depends on how long tasks last: ZB-H1 and ZB-H2 are taken to hold all that they allow."""
        return self.split_backward and self.chunks > 1 and self.schedule not in _FIXED

    @property
    def mixed_backward(self) -> bool:
        """Whether some backward passes are whole and of others the weight gradients are tasks of their own."""
        return self.schedule in _FIXED

    @property
    def one_way(self) -> bool:
        """Whether the layers can be split in one way only."""
        return self.chunks > 1 or self.mesh.pipeline == 1

    @property
    def ends_together(self) -> bool:
        """Whether the first and the last stage lie on one rank, which then holds once what they share."""
        return self.mesh.pipeline == 1 or self.schedule in _IN_A_V

    @property
    def of_loads(self) -> tuple[object, ...]:
        """All but the order of tasks: where this is equal, so is what layers do and hold."""
        degrees = (self.mesh, self.shard, self.shard_degree, self.layout, self.exchange, self.offload)
        return (*degrees, self.ends_together, self.paired)

    @property
    def strategy(self) -> Strategy:
        """Degrees of every stage."""
        mesh = self.mesh
        return Strategy(
            data=mesh.data,
            tensor=mesh.tensor,
            context=mesh.context,
            expert=mesh.expert,
            sequence_parallel=mesh.tensor > 1,
            shard=self.shard,
            shard_degree=self.shard_degree,
            context_exchange=self.exchange,
            offload=self.offload,
        )


def after_name(config: Config) -> str:
    """Return the field of a digest that says what follows the last task of a rank."""
    return "split_after_seconds" if config.split_backward else "after_seconds"


@dataclass(frozen=True, slots=True, eq=False)
class DevicePool:
    """Devices that pipeline ranks are taken from: one array of ids per kind of device, in pipeline order."""

    name: str
    devices: tuple[NDArray[np.int64], ...]

    @property
    def n_devices(self) -> int:
        """Devices in the pool."""
        return sum(len(devices) for devices in self.devices)

    def n_ranks(self, rank_size: int) -> int:
        """How many ranks of equal devices the pool holds."""
        return sum(len(devices) // rank_size for devices in self.devices)

    @property
    def in_order(self) -> bool:
        """Whether it is all of one kind of device, in the order of their ids."""
        return len(self.devices) == 1 and bool((np.diff(self.devices[0], prepend=-1) == 1).all())

    def rank(self, config: Config, i: int) -> NDArray[np.int64]:
        """Return the devices of pipeline rank `i`, in mesh order."""
        mesh, size = config.mesh, config.mesh.rank_size
        if config.layout != "data":
            own = 0
            while i >= len(self.devices[own]) // size:
                i -= len(self.devices[own]) // size
                own += 1
            return self.devices[own][i * size : (i + 1) * size]
        width = mesh.context * mesh.tensor
        block = self.devices[0][: mesh.pipeline * mesh.rank_size].reshape(mesh.data, mesh.pipeline, width)
        return np.ascontiguousarray(block[:, i].ravel())

    def ranks(self, config: Config) -> list[NDArray[np.int64]]:
        """Return the devices of each pipeline rank, in mesh order: data x context x tensor, tensor fastest."""
        mesh = config.mesh
        size = mesh.rank_size
        if config.layout == "data":
            return [self.rank(config, i) for i in range(mesh.pipeline)]
        ranks = [devices[i * size : (i + 1) * size] for devices in self.devices for i in range(len(devices) // size)]
        return ranks[: mesh.pipeline]


def divisors(number: int) -> tuple[int, ...]:
    """Return the divisors of a positive number in ascending order."""
    small = [i for i in range(1, int(number**0.5) + 1) if number % i == 0]
    return tuple(sorted({*small, *(number // i for i in small)}))


def pools(cluster: Cluster) -> tuple[DevicePool, ...]:
    """Return the sets and orders of devices a job may use: all of one kind, node by node or in boxes of a torus; or, with several
    kinds, each alone and all in either order. The last devices may stay idle: of nodes with unlike links, those of each sort come
    first in one of the orders.

    Returns at least one.
    """
    by_kind = [np.flatnonzero(cluster.kind_of_device == kind) for kind in range(len(cluster.kinds))]
    by_kind = [devices for devices in by_kind if len(devices)]
    if len(by_kind) == 1:
        orders = [(name, order) for name, order in placement.orders(cluster) if name in ("node_by_node", "boxes")]
        return tuple(DevicePool(name, (order,)) for name, order in (*orders, *_sorts_first(cluster, orders[0][1])))
    names = [cluster.device(int(devices[0])).name for devices in by_kind]
    single = [DevicePool(name, (devices,)) for name, devices in zip(names, by_kind, strict=True)]
    return (
        DevicePool(" then ".join(names), tuple(by_kind)),
        DevicePool(" then ".join(names[::-1]), tuple(by_kind[::-1])),
        *single,
    )


def _sorts_first(cluster: Cluster, devices: NDArray[np.int64]) -> list[tuple[str, NDArray[np.int64]]]:
    """Return orders in which the nodes of one sort come first, told by how many devices they have and the links out of them.

    One for each sort but that of the first node; none where nodes are alike, devices forward, or sorts are more than a few.
    """
    if cluster.periods or cluster.forwards:
        return []
    node, out = cluster.node_of_device[devices], np.argsort(cluster.links.source, kind="stable")
    first = np.searchsorted(cluster.links.source[out], np.arange(cluster.n_devices + 1))
    sort_of: dict[int, tuple[tuple[float, ...], ...]] = {}
    for own in dict.fromkeys(node.tolist()):
        of_node = devices[node == own]
        rates = [np.sort(cluster.links.bytes_per_second[out[first[i] : first[i + 1]]]) for i in of_node.tolist()]
        sort_of[own] = tuple(sorted(tuple(of_device.tolist()) for of_device in rates))
    sorts = list(dict.fromkeys(sort_of.values()))
    if len(sorts) > _MOST_SORTS:
        return []
    place = np.array([sorts.index(sort_of[int(own)]) for own in node])
    return [(f"sort_{i}_first", devices[np.argsort(place != i, kind="stable")]) for i in range(1, len(sorts))]


def meshes(pool: DevicePool, *, n_layers: int, global_batch: int, degrees: dict[str, tuple[int, ...]]) -> Iterator[MeshDegrees]:
    """Yield every mesh that fits the pool and divides the batch.

    Parameters
    ----------
    pool : DevicePool
        Devices.
    n_layers : int
        Largest pipeline degree.
    global_batch : int
        Samples of a step; every replica gets the same whole number of micro-batches.
    degrees : dict of str to tuple of int
        Values allowed for ``tensor``, ``context``, ``expert``, ``pipeline``, ``data``, ``micro_batch``.

    Yields
    ------
    MeshDegrees
        In ascending order of its fields within each combination of tensor and context.
    """
    n = pool.n_devices
    for tensor in degrees["tensor"]:
        for context in degrees["context"]:
            if tensor * context > n:
                continue
            for data in divisors(global_batch):
                size = tensor * context * data
                most = pool.n_ranks(size)
                if most == 0 or (degrees["data"] and data not in degrees["data"]):
                    continue
                # with several kinds of device, leaving ranks idle is never asked for: the smaller pools are there for that
                choices = range(1, min(most, n_layers) + 1) if len(pool.devices) == 1 else (most,)
                for pipeline in choices:
                    if pipeline > n_layers or (degrees["pipeline"] and pipeline not in degrees["pipeline"]):
                        continue
                    yield from _with_batches(MeshDegrees(pipeline, data, context, tensor, 1, 1), global_batch, degrees)


def _with_batches(mesh: MeshDegrees, global_batch: int, degrees: dict[str, tuple[int, ...]]) -> Iterator[MeshDegrees]:
    """Yield the mesh with every micro-batch that divides, and expert degree: it divides the data and context ranks, or, as a multiple
    of the tensor degree, the devices of a pipeline rank.
    """
    for micro_batch in degrees["micro_batch"]:
        if (global_batch // mesh.data) % micro_batch:
            continue
        for expert in degrees["expert"]:
            over_tensor = mesh.rank_size % expert == 0 and expert % mesh.tensor == 0
            if over_tensor or (mesh.data * mesh.context) % expert == 0:
                yield MeshDegrees(mesh.pipeline, mesh.data, mesh.context, mesh.tensor, expert, micro_batch)


def schedules_of(mesh: MeshDegrees, n_microbatches: int, n_layers: int, allowed: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """Yield (schedule, chunks per rank) pairs that make sense for a mesh.

    Every virtual stage needs a layer. Interleaved ones need multiples of as many micro-batches as ranks, those in a V twice as many.
    Pairs of tasks need all-to-alls of experts to hide.
    """
    if mesh.pipeline == 1:
        if "1f1b" in allowed:
            yield "1f1b", 1
        return
    for schedule in allowed:
        if in_pairs(schedule) and mesh.expert == 1:
            continue
        if schedule in _WHOLE:
            yield schedule, 1
        elif schedule in _IN_A_V:
            if 2 * mesh.pipeline <= n_layers and n_microbatches >= 2 * mesh.pipeline:
                yield schedule, 2
        elif schedule == "looped_bfs" or n_microbatches % mesh.pipeline == 0:
            for chunks in range(2, (n_layers + 2) // mesh.pipeline + 1):
                if chunks <= 4 or (n_layers % (chunks * mesh.pipeline) == 0 or (n_layers + 2) % (chunks * mesh.pipeline) == 0):
                    yield schedule, chunks


def spreads_of(n_layers: int, n_ranks: int, n_chunks: int, pinned: tuple[bool, bool]) -> tuple[tuple[int, int], ...]:
    """Return how many layers fewer than in an even spread the first and the last stage may have, the even spread first.

    Embedding, head and loss are work as layers are: the last of several stages per rank may have up to two layers fewer, and then
    the first up to one. Where nothing is pinned to a stage, it keeps a layer.

    Parameters
    ----------
    n_layers, n_ranks, n_chunks : int
        Layers of the chain, pipeline ranks, stages of each.
    pinned : tuple of bool
        Whether something is pinned to the first and to the last stage.

    Returns ``((0, 0),)`` with one stage per rank, where any split is part of the space.
    """
    if n_chunks == 1:
        return ((0, 0),)
    quotient, rest = divmod(n_layers, n_ranks * n_chunks)
    ends = (quotient + (rest == n_ranks * n_chunks - 1), quotient)  # the rest is the middle's, then the first's
    first, last = (max(0, min(most, n - (not held))) for most, n, held in zip(_MOST_FEWER, ends, pinned, strict=True))
    return tuple((a, b) for b in range(last + 1) for a in range(min(first, b) + 1))
