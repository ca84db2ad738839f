"""What layers of a mesh do and hold on each of its ranks, as the cost model prices them, for the check of answers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright import schedules
from meshwright.base import registry
from meshwright.core.problem import Problem
from meshwright.core.stage_cost import StageCost
from meshwright.core.strategy import OFFLOAD, RECOMPUTE, Strategy, repeats_dispatch
from meshwright.costs import analytic
from meshwright.planners.best.check.device_pools import CheckedPool
from meshwright.planners.best.check.space import (
    CheckedChain,
    CheckedMesh,
    Form,
    RecomputeSpace,
    exchanged,
    exchanges,
    ranks_of,
    sharded,
    strategies,
)
from meshwright.sim.pairs import SLOWED_RATIO

__all__ = ["MEMORY_ROUNDING", "LayerPrices", "PricedLayer", "Table"]

MOST_PRICED = 16
"""Ranks of one kind of device that are priced, those at like places once; others are taken to communicate in no time."""


MEMORY_ROUNDING = 1e-12
"""Share of a device's memory by which sums in another order may differ: what just fits is not refuted."""

_SILENT = "nothing sent"


class PricedLayer(NamedTuple):
    """One layer under one way to recompute: seconds and bytes of one micro-batch (once a step: reduction, update)."""

    forward: float
    backward: float
    """Without recomputation, both gradients."""
    weight: float
    """The part of `backward` that may wait."""
    again: float
    """What recomputation takes."""
    static_bytes: float
    kept_bytes: float
    working_bytes: float
    reserved_bytes: float
    reduce: float
    update: float
    output_bytes: float
    output_gradient: bool
    there: float = 0.0
    """The part of `forward` that is all-to-alls of experts."""
    back: float = 0.0
    """The part of `backward` that is."""

    @property
    def work(self) -> float:
        """Everything that a micro-batch takes."""
        return self.forward + self.backward + self.again


Table = dict[tuple[int, str], PricedLayer]
"""``(row, word) -> Layer``."""


class LayerPrices:
    """Prices of layers on the devices of one pool; remembered while one answer is checked.

    What layers cost by each way to recompute does not depend on which ways are allowed, so spaces that differ in that (`recomputing`)
    share it.
    """

    def __init__(
        self, problem: Problem, pool: CheckedPool, chain: CheckedChain, limits: Mapping[str, Any], recompute: RecomputeSpace
    ) -> None:
        self.problem, self.pool, self.chain, self.limits, self.recompute = problem, pool, chain, limits, recompute
        self.cluster = problem.required_cluster
        self.model = registry.load("costs", problem.costs, "cost model")
        self.devices = [self.cluster.device(int(own[0])) for own in pool.devices]
        self._tables: dict[tuple[object, ...], Table] = {}
        self.sums: dict[tuple[int, bool], tuple[Table, Any]] = {}  # of whole_stages, by identity of the table, which is kept
        self._compute: dict[tuple[object, ...], dict[int, float]] = {}
        self.computing: dict[CheckedMesh, float] = {}  # of a proof: what meshes take without communication
        self._places: dict[tuple[CheckedMesh, str, int], list[tuple[NDArray[np.int64], int, tuple[object, ...]]]] = {}
        self._mesh: CheckedMesh | None = None
        self._priced: dict[tuple[Strategy, str, bool, frozenset[int]], tuple[list[Table], list[int], list[int]]] = {}
        self._joined: dict[int, tuple[Table, Table]] = {}
        self._beside: dict[int, tuple[Table, Table]] = {}
        self._unsharded: dict[CheckedMesh, list[Table]] = {}
        self.sent: dict[tuple[object, ...], NDArray[np.float64]] = {}  # of plays: what stages send each other

    def recomputing(self, recompute: RecomputeSpace) -> LayerPrices:
        """Return the same prices where layers may recompute something else, but for activations on the host: those of their own."""
        if OFFLOAD in recompute.words:
            return LayerPrices(analytic.with_offload(self.problem), self.pool, self.chain, self.limits, recompute)
        alike = LayerPrices(self.problem, self.pool, self.chain, self.limits, recompute)
        alike._tables, alike._compute, alike._unsharded = self._tables, self._compute, self._unsharded
        alike.computing, alike._places, alike.sent = self.computing, self._places, self.sent
        return alike

    def memory_bytes(self, kind: int) -> float:
        """Return what a plan may fill of a device."""
        return min(float(self.limits["memory_ratio"]), self.problem.memory_ratio) * self.devices[kind].memory_bytes

    def compute(self, mesh: CheckedMesh, kind: int) -> dict[int, float]:
        """Return the compute of every distinct layer at least, whatever the network and the exchange over the context axis."""
        key = (mesh.tensor, mesh.context, mesh.expert, mesh.micro_batch, mesh.whole_experts, kind)
        if key not in self._compute:
            base = Strategy(mesh.data, mesh.tensor, mesh.context, mesh.expert, mesh.tensor > 1)
            every = [
                self.model.compute_seconds(self.problem, exchanged(base, exchange), mesh.micro_batch, self.devices[kind])
                for exchange in exchanges(self.problem, mesh, self.limits)
            ]
            self._compute[key] = {row: min(own[row] for own in every) for row in every[0]}
        return self._compute[key]

    def of_ranks(
        self,
        mesh: CheckedMesh,
        strategy: Strategy,
        layout: str,
        *,
        inside_only: bool,
        spare: frozenset[int] = frozenset(),
    ) -> tuple[list[Table], list[int], list[int]]:
        """Return the different tables of a mesh's ranks, which one each rank has, and the kind of device of each rank.

        Lemma (like places): a cluster's periods say in which blocks of ids devices are wired alike, so that ranks which lie alike in
        such blocks have one price. Ranks beyond `MOST_PRICED` places of a kind are priced as if nothing was sent: no more than what
        they take.

        Parameters
        ----------
        mesh : CheckedMesh
            The mesh.
        strategy : Strategy
            With its sharding.
        layout : str
            As of `ranks_of`.
        inside_only : bool
            Whether what happens between replicas is left out: no more than what all takes.
        spare : frozenset of int
            Layers whose shared weights another layer on their rank holds; see `spare`.
        """
        key = (strategy, layout, inside_only, spare)
        tables, of_rank, kinds = self._remembered(mesh, *key)
        return [self._with_repeats(own) for own in tables], of_rank, kinds

    def _remembered(
        self, mesh: CheckedMesh, strategy: Strategy, layout: str, inside_only: bool, spare: frozenset[int]
    ) -> tuple[list[Table], list[int], list[int]]:
        """Return `of_ranks` with what all layers repeat apart from their backward pass."""
        key = (strategy, layout, inside_only, spare)
        if mesh != self._mesh:  # meshes come one after the other
            self._mesh, self._priced = mesh, {}
        if key not in self._priced:
            self._priced[key] = self._ranks(mesh, *key)
        return self._priced[key]

    def _with_repeats(self, table: Table) -> Table:
        """Return a table of what layers may recompute, in which what all repeat in any case is a part of their backward pass."""
        if id(table) not in self._joined:  # tables are kept, so that none is another
            words = {*self.recompute.words, "none"}  # what is pinned to the ends may recompute nothing whatever the others do
            joined = {of: own for of, own in table.items() if of[1] in words}
            if len(self.recompute.words) == 1:
                joined = {of: own._replace(backward=own.backward + own.again, again=0.0) for of, own in joined.items()}
            self._joined[id(table)] = table, joined
        return self._joined[id(table)][1]

    def _ranks(
        self, mesh: CheckedMesh, strategy: Strategy, layout: str, inside_only: bool, spare: frozenset[int]
    ) -> tuple[list[Table], list[int], list[int]]:
        """Return `of_ranks`."""
        n_kept = mesh.rank_size
        if inside_only and not mesh.whole_experts:  # one group of each axis inside is enough
            n_replicas = math.lcm(mesh.context, mesh.expert)
            if mesh.data * mesh.context % n_replicas == 0:
                n_kept = n_replicas * mesh.tensor
        number: dict[tuple[object, ...], int] = {}
        n_priced = [0] * len(self.devices)
        tables: list[Table] = []
        kind_of_table: list[int] = []
        of_rank = []
        for devices, kind, wired in self._wired(mesh, layout, n_kept):
            place: tuple[object, ...] = (kind, *wired)
            if place not in number and n_priced[kind] >= MOST_PRICED:
                place = (kind, _SILENT)
            if place not in number:
                n_priced[kind] += 1
                table = self._table(mesh, strategy, devices, inside_only, place, spare)
                alike = [i for i, own in enumerate(tables) if kind_of_table[i] == kind and own == table]
                if not alike:
                    tables.append(table)
                    kind_of_table.append(kind)
                number[place] = alike[0] if alike else len(tables) - 1
            of_rank.append(number[place])
        return tables, of_rank, [kind for _, kind, _ in self._wired(mesh, layout, n_kept)]

    def _wired(self, mesh: CheckedMesh, layout: str, n_kept: int) -> list[tuple[NDArray[np.int64], int, tuple[object, ...]]]:
        """Return the devices of every rank, their kind, and where the first `n_kept` of them lie."""
        key = (mesh, layout, n_kept)
        if key not in self._places:
            ranks, kinds = ranks_of(self.pool, mesh, layout)
            lie = [tuple(_place(devices[:n_kept], self.cluster.periods)) for devices in ranks]
            self._places[key] = list(zip(ranks, kinds, lie, strict=True))
        return self._places[key]

    def spare(self, mesh: CheckedMesh, form: Form) -> frozenset[int]:
        """Return the layers whose shared weights another layer on their rank holds: by where first and last stage lie."""
        rank = schedules.load(form.schedule).placement(mesh.pipeline, form.n_chunks)
        return analytic.spare_rows(self.problem.graph, ends_together=bool(rank[0] == rank[-1]))

    def _table(
        self,
        mesh: CheckedMesh,
        strategy: Strategy,
        devices: NDArray[np.int64],
        inside_only: bool,
        place: tuple[object, ...],
        spare: frozenset[int],
    ) -> Table:
        """Return the prices of a rank."""
        problem = analytic.in_pipeline(self.problem, mesh.pipeline)
        ways = problem.framework.reduces_once, problem.framework.gathers_each  # which a pipeline may change both
        key = (strategy, mesh.micro_batch, inside_only, place, spare, *ways)
        if key not in self._tables:
            ids: Sequence[int] = devices.tolist()
            if ids[-1] - ids[0] == len(ids) - 1 and ids == list(range(ids[0], ids[-1] + 1)):
                ids = range(ids[0], ids[-1] + 1)
            held = {"spare": spare} if spare else {}
            priced = self.model.row_costs(problem, strategy, ids, mesh.micro_batch, inside_only=inside_only, **held)
            self._tables[key] = {row: _layer(load, silent=place[-1] == _SILENT) for row, load in priced.items()}
        return self._tables[key]

    def unsharded(self, mesh: CheckedMesh) -> list[Table]:
        """Return, by kind of device, what layers take at least inside a micro-batch, whatever is sharded and wherever ranks lie.

        Lemma: sharding adds communication, copies and buffers to a micro-batch and takes nothing off, so nothing sharded (ZeRO-0) is
        below all; of the ranks of a kind, of layouts, and of exchanges over the context axis, every figure is the least (the gradients of
        weights take the same in all, so that a difference with them is a least one too). Nothing between replicas is counted.
        """
        if mesh not in self._unsharded:
            zero = dict(self.limits, shard=(0,), offload=("none",))  # what is on the host changes nothing inside a micro-batch
            found: dict[int, list[Table]] = {}
            for strategy, layout in strategies(self.problem, mesh, zero, len(self.pool.devices)):
                tables, of_rank, kinds = self._remembered(mesh, strategy, layout, True, frozenset())
                for own, kind in sorted(set(zip(of_rank, kinds, strict=True))):
                    found.setdefault(kind, []).append(tables[own])
            self._unsharded[mesh] = [least(found[kind]) for kind in sorted(found)]
        return [self._with_repeats(own) for own in self._unsharded[mesh]]

    def any_sharding(self, mesh: CheckedMesh, spare: frozenset[int]) -> tuple[list[Table], list[int], list[int]]:
        """Return tables below those of every sharding and layout of a mesh, as `of_ranks` does.

        Lemma: as `unsharded`; of what is held all the time the least of all levels and offloads allowed counts, sharded over all ranks
        that it may be (over fewer, more is held), without shared weights of the layers `spare`. What follows the last task is left out.
        """
        base = Strategy(mesh.data, mesh.tensor, mesh.context, mesh.expert, mesh.tensor > 1)
        _, kinds = ranks_of(self.pool, mesh, "pipeline")
        used = sorted(set(kinds))
        static: dict[tuple[int, tuple[int, str]], float] = {}
        every = {(own.shard, own.offload) for own, _ in strategies(self.problem, mesh, self.limits, 0) if not own.shard_degree}
        for level, offload in sorted(every):
            own = sharded(exchanged(base, "ring", offload), level)
            tables, of_rank, _ = self.of_ranks(mesh, own, "pipeline", inside_only=True, spare=spare)
            for kind in used:
                for key, layer in tables[of_rank[kinds.index(kind)]].items():
                    static[kind, key] = min(static.get((kind, key), math.inf), layer.static_bytes)
        found = [
            {key: layer._replace(static_bytes=static[kind, key], reduce=0.0, update=0.0) for key, layer in own.items()}
            for kind, own in zip(used, self.unsharded(mesh), strict=True)
        ]
        return found, [used.index(kind) for kind in kinds], kinds

    def paired(self, priced: tuple[list[Table], list[int], list[int]]) -> tuple[list[Table], list[int], list[int]]:
        """Return prices, as `of_ranks` returns them, below those of tasks that run in pairs.

        Lemma: a pair has two parts (`sim.pairs`). The first lasts no less than the backward task's all-to-alls of experts, and no less
        than the forward task's compute with a share of them; the second no less than the forward task's all-to-alls, nor the backward
        task's compute with a share of those. Counting one of each, both parts are shared out to the two tasks below what each takes
        alone. What repeats all-to-alls is no part of the space. Of the four ways to count, that of the most seconds is taken.
        """
        tables, of_rank, kinds = priced
        return [self._paired(table) for table in tables], of_rank, kinds

    def _paired(self, table: Table) -> Table:
        """Return a table of tasks that run in pairs."""
        if id(table) not in self._beside:  # tables are kept, so that none is another
            kept = {key: own for key, own in table.items() if not repeats_dispatch(key[1])}
            ways = [{key: _in_pairs(own, *way) for key, own in kept.items()} for way in ((0, 0), (0, 1), (1, 0), (1, 1))]
            first = dict(reversed(kept))
            longest = max(ways, key=lambda own: math.fsum(own[row, first[row]].work for row in self.chain.rows))
            self._beside[id(table)] = table, longest
        return self._beside[id(table)][1]

    def pairs_of(self, mesh: CheckedMesh) -> bool:
        """Return whether any plan of a mesh may run tasks in pairs."""
        allowed = any(Form(word, 2).is_paired for word in self.limits["schedules"])
        return allowed and mesh.expert > 1 and mesh.pipeline > 1 and not self.repeats_dispatch

    @property
    def repeats_dispatch(self) -> bool:
        """Whether all that layers may recompute contains all-to-alls of experts."""
        return all(repeats_dispatch(word) for word in self.recompute.words)

    def pinned_word(self, row: int) -> str:
        """Return what a pinned layer recomputes: what all layers do where that is one thing, embedding and head nothing."""
        ends = self.problem.graph.ops[row].kind in ("embedding", "head")
        return self.recompute.words[0] if len(self.recompute.words) == 1 and not ends else "none"

    def words(self, table: Table) -> tuple[str, ...]:
        """Return what layers may recompute, the least first; cheap activations only where that frees any of some layer."""
        if len(self.recompute.words) == 1:
            return self.recompute.words
        row = self.chain.main_row
        rows = {own for own in self.chain.rows if (own, "selective") in table}
        useful = any(table[own, "selective"].kept_bytes < table[own, "none"].kept_bytes for own in rows)
        allowed = [word for word in (*RECOMPUTE, OFFLOAD) if word in self.recompute.words and (row, word) in table]
        return tuple(word for word in allowed if word != "selective" or useful)


def _in_pairs(own: PricedLayer, first: int, second: int) -> PricedLayer:
    """Return a layer where of the first and of the second part of a pair all-to-alls count (1) or compute does (0)."""
    if (first, second) == (0, 0):
        return own._replace(
            forward=own.forward - (1.0 - SLOWED_RATIO) * own.there, backward=own.backward - (1.0 - SLOWED_RATIO) * own.back
        )
    forward = {(0, 1): own.forward, (1, 0): SLOWED_RATIO * own.there, (1, 1): own.there}[first, second]
    if second == 0:
        return own._replace(forward=forward)
    return own._replace(forward=forward, backward=own.back * (1.0 if first else SLOWED_RATIO), weight=0.0, again=0.0)


def least(tables: Sequence[Table]) -> Table:
    """Return a table whose every figure is the least of several."""
    if len(tables) == 1:
        return tables[0]
    return {key: PricedLayer(*(min(own) for own in zip(*(table[key] for table in tables), strict=True))) for key in tables[0]}


def _layer(load: StageCost, *, silent: bool) -> PricedLayer:
    """Return the figures of a layer; `silent`: as if nothing was sent."""
    forward = load.forward_seconds if silent else load.forward_total_seconds
    inside = load.backward_input_seconds + load.backward_weight_seconds
    sent = 0.0 if silent else load.backward_total_seconds - inside - load.recompute_seconds
    return PricedLayer(
        forward=forward,
        backward=inside + sent,
        weight=load.backward_weight_seconds,
        again=load.recompute_seconds,
        static_bytes=load.static_bytes,
        kept_bytes=load.activation_bytes,
        working_bytes=load.working_bytes,
        reserved_bytes=load.reserved_bytes,
        reduce=0.0 if silent else load.reduce_seconds,
        update=load.optimizer_seconds + (0.0 if silent else load.gather_seconds),
        output_bytes=load.output_bytes,
        output_gradient=load.output_gradient,
        there=0.0 if silent else dict(load.forward_communication).get("expert", 0.0),
        back=0.0 if silent else dict(load.backward_communication).get("expert", 0.0),
    )


def _place(devices: NDArray[np.int64], periods: tuple[int, ...]) -> tuple[object, ...]:
    """Return where devices lie, alike for ranks that lie alike in the blocks that are wired alike (nodes, pods).

    Neighbours are told by where they begin in a node, and where they leave their pod if they do. Of others, nodes and pods are counted
    anew from 0 in the order of their ids, which keeps every order among them.
    """
    if len(devices) == 1:
        return (1,)
    if not periods:
        return (devices.tobytes(),)
    node, pod, first, n = periods[0], periods[-1], int(devices[0]), len(devices)
    if int(devices[-1]) - first == n - 1 and bool((devices[1:] > devices[:-1]).all()):
        left = pod - first % pod
        return (n, first % node, left if left < n else 0)
    of_node = devices // node
    nodes = np.unique(of_node)
    own_pods = nodes // (pod // node)
    names: dict[int, int] = {}
    pods: dict[int, list[int]] = {}
    for block, own in zip(nodes.tolist(), own_pods.tolist(), strict=True):
        inside = pods.setdefault(own, [])
        names[block] = (len(pods) - 1) * (pod // node) + len(inside)
        inside.append(block)
    renamed = np.array([names[block] for block in of_node.tolist()]) * node + devices % node
    return (renamed.tobytes(),)
