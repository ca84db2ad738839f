"""Goes through the whole space of a question and shows, member by member, that none takes less than a bound, or that none fits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from meshwright import schedules
from meshwright.core.flops import forward_flops
from meshwright.core.graph import Graph
from meshwright.core.problem import Problem
from meshwright.core.strategy import OFFLOAD, Strategy
from meshwright.planners.best.check.device_pools import pools
from meshwright.planners.best.check.held_bytes import never_fits
from meshwright.planners.best.check.on_host import spaces_of
from meshwright.planners.best.check.plays import Plays
from meshwright.planners.best.check.prices import LayerPrices, Table
from meshwright.planners.best.check.space import (
    CheckedMesh,
    Form,
    chain_of,
    even_counts,
    exchanged,
    exchanges,
    forms,
    meshes,
    ranks_of,
    runnable,
    split_counts,
)
from meshwright.planners.best.check.virtual_stages import Moments, Spreads, VirtualStages
from meshwright.planners.best.check.whole_stages import WholeStages

__all__ = ["MOST_OPEN", "ROUNDING", "BoundProof", "Closed", "MeshShape"]

ROUNDING = 1e-9
"""Relative distance of seconds that counts as none."""

MOST_CUTS, MOST_OPEN = 2_000, 20
"""Splits of one configuration that are played at most, and configurations left open after which no more are looked at."""


class MeshShape(NamedTuple):
    """What the meshes of a set have in common, and what closes them."""

    pool: int
    tensor: int
    context: int
    expert: int
    micro_batch: int
    by: str


class Closed:
    """A set of meshes: how many there are, the least seconds proven for any, and how many configurations they fall into."""

    def __init__(self) -> None:
        self.n_meshes, self.seconds, self.n_configurations = 0, math.inf, 0

    def add(self, seconds: float, n_configurations: int = 0) -> None:
        """Count a mesh."""
        self.n_meshes += 1
        self.seconds = min(self.seconds, seconds)
        self.n_configurations += n_configurations


class Open(NamedTuple):
    """A configuration that was not shown to take as long as the bound says."""

    prices: LayerPrices
    mesh: CheckedMesh
    form: Form
    strategy: Strategy
    layout: str
    splits: tuple[tuple[int, ...], ...] = ()  # of virtual stages: the spreads that are left, or all


class BoundProof:
    """The proof of one bound.

    Parameters
    ----------
    problem : Problem
        The question.
    limits : mapping
        The options of the search.
    bound_seconds : float
        What no plan is said to stay below; inf where nothing is said to fit.
    """

    def __init__(self, problem: Problem, limits: Mapping[str, Any], bound_seconds: float) -> None:
        self.problem, self.limits, self.bound_seconds = problem, limits, bound_seconds
        self.sets: dict[MeshShape, Closed] = {}
        self.open: list[Open] = []
        self.n_played = 0
        self._moments: dict[tuple[Form, int, int], Moments] = {}
        self.chain = chain_of(self.problem.graph)
        self.n_layers = len(self.chain.layers)
        self._often = Counter((*self.chain.prefix, *self.chain.rows, *self.chain.suffix))  # like layers are worked out once
        self.limit = self.bound_seconds * (1.0 - ROUNDING)
        self.flops = _sample_flops(self.problem.graph) * self.problem.batch.global_batch

    def run(self) -> None:
        """Go through all meshes: each closed by its devices' peak, its compute, its communication, or all its configurations."""
        precision = self.problem.training.precision
        spaces = spaces_of(self.problem, self.limits)
        of_pools = (LayerPrices(self.problem, pool, self.chain, self.limits, spaces[0]) for pool in pools(self.problem))
        for number, prices in enumerate(own.recomputing(space) for own in of_pools for space in spaces):
            pool = prices.pool
            peak = max(device.peak(precision) for device in prices.devices)
            legal: dict[tuple[int, ...], bool] = {}
            for mesh in meshes(self.problem, pool, self.n_layers, self.limits):
                if OFFLOAD in prices.recompute.words and mesh.pipeline > 1:
                    continue
                key = (*mesh[:4], mesh.whole_experts)
                if key not in legal:
                    strategy = Strategy(mesh.data, mesh.tensor, mesh.context, mesh.expert, mesh.tensor > 1)
                    legal[key] = any(
                        not prices.model.illegal(self.problem, exchanged(strategy, kind), mesh.micro_batch)
                        for kind in exchanges(self.problem, mesh, self.limits)
                    )
                if not legal[key]:
                    self._set(number, mesh, "illegal").add(math.inf)
                    continue
                self._mesh(number, prices, mesh, self.flops / (peak * mesh.rank_size * mesh.pipeline))

    def so_far(self, sets: Any) -> str:
        """Return how far the proof has come, in words; `sets`: those of the certificate, which say how many meshes there are."""
        n_meshes, n_done = sum(own["n_meshes"] for own in sets), sum(own.n_meshes for own in self.sets.values())
        return f"{n_done} of {n_meshes} meshes looked at"

    def _set(self, pool: int, mesh: CheckedMesh, by: str) -> Closed:
        return self.sets.setdefault(MeshShape(pool, *mesh[:4], by), Closed())

    def _mesh(self, number: int, prices: LayerPrices, mesh: CheckedMesh, seconds: float) -> None:
        """Close a mesh: by all its work at the devices' peak, by its layers, or by its configurations.

        Lemma (peak): every sample's products are done by some device of the mesh, at its peak at most.
        """
        for by in ("peak", "compute", "communication") if math.isfinite(self.limit) else ():
            if by == "compute":  # whatever is recomputed
                if mesh not in prices.computing:
                    prices.computing[mesh] = self._work(prices, mesh, sends=False)
                seconds = max(seconds, prices.computing[mesh])
            elif by == "communication":
                seconds = max(seconds, self._work(prices, mesh, sends=True))
            if seconds >= self.limit:
                self._set(number, mesh, by).add(seconds)
                return
        n_variants = len(list(runnable(self.problem, mesh, self.limits, len(prices.pool.devices))))
        every = list(forms(mesh, self._n_microbatches(mesh), self.n_layers, self.limits))
        by = "configurations" if math.isfinite(self.bound_seconds) else "memory"
        self._set(number, mesh, by).add(self.bound_seconds, n_variants * sum(self._n_splits(mesh, form) for form in every))
        if every and len(self.open) < MOST_OPEN:
            self._configurations(prices, mesh, every)

    def _n_splits(self, mesh: CheckedMesh, form: Form) -> int:
        return len(split_counts(self.chain, form, mesh.pipeline, self.limits))

    def _n_microbatches(self, mesh: CheckedMesh) -> int:
        return self.problem.batch.global_batch // (mesh.data * mesh.micro_batch)

    def _work(self, prices: LayerPrices, mesh: CheckedMesh, *, sends: bool) -> float:
        """Return what a mesh takes at least: the work of its layers, in whole layers, shared among its ranks as well as can be.

        Lemma: let a second on a rank of kind k be worth 1 / S_k, S_k being all layers' seconds there. Wherever a layer lies, it costs
        its least worth or more, and ranks that work T seconds earn T times the sum of their worths; so T is no less than the quotient. And
        some rank has the layers divided by the ranks, rounded up.
        """
        _, kinds = ranks_of(prices.pool, mesh, "pipeline")
        used = sorted(set(kinds))
        if sends:
            seconds = []
            unsharded = prices.unsharded(mesh)
            for table in prices.paired((unsharded, [], []))[0] if prices.pairs_of(mesh) else unsharded:
                word = prices.words(table)[0]
                own = {row: table[row, word if row in self.chain.rows else "none"].work for row, _ in table}
                seconds.append(own)
        else:
            seconds = [prices.compute(mesh, kind) for kind in used]
        often = self._often.items()
        whole = [math.fsum(n * own[row] for row, n in often) for own in seconds]
        worth = math.fsum(n * min(own[row] / alone for own, alone in zip(seconds, whole, strict=True)) for row, n in often)
        earned = math.fsum(kinds.count(kind) / alone for kind, alone in zip(used, whole, strict=True))
        of_a_rank = -(-self.n_layers // mesh.pipeline) * min(own[row] for own in seconds for row in set(self.chain.rows))
        return self._n_microbatches(mesh) * max(worth / earned, of_a_rank)

    def _configurations(self, prices: LayerPrices, mesh: CheckedMesh, every: list[Form]) -> None:
        """Close all configurations of a mesh: its schedules by what all shardings take at least, or each with its own prices."""
        shared: dict[frozenset[int], tuple[list[Table], list[int], list[int]]] = {}
        for form in every:
            if form.is_paired and prices.repeats_dispatch:
                continue
            spare = prices.spare(mesh, form)
            if spare not in shared:
                shared[spare] = prices.any_sharding(mesh, spare)
            priced = prices.paired(shared[spare]) if form.is_paired else shared[spare]
            splits = () if form.n_chunks == 1 else tuple(split_counts(self.chain, form, mesh.pipeline, self.limits))
            if splits:
                splits = self._left(prices, mesh, form, priced, splits, self.limit)
            if not splits and (form.n_chunks > 1 or self._cut_refuted(prices, mesh, form, priced)):
                continue
            for strategy, layout in runnable(self.problem, mesh, self.limits, len(prices.pool.devices)):
                one = Open(prices, mesh, form, strategy, layout, splits)
                if not self.refuted(one, self.limit):
                    self.open.append(one)
                if len(self.open) >= MOST_OPEN:
                    return

    def _cut_refuted(
        self, prices: LayerPrices, mesh: CheckedMesh, form: Form, priced: tuple[list[Table], list[int], list[int]]
    ) -> bool:
        """Return whether every split over stages of one rank each is shown to take as long as the bound, or not to fit."""
        if math.isinf(self.limit) and never_fits(prices, mesh, form, priced):
            return True
        return WholeStages(prices, mesh, form, *priced).refuted(self.limit)

    def _left(
        self,
        prices: LayerPrices,
        mesh: CheckedMesh,
        form: Form,
        priced: tuple[list[Table], list[int], list[int]],
        splits: tuple[tuple[int, ...], ...],
        limit: float,
    ) -> tuple[tuple[int, ...], ...]:
        """Return those spreads over virtual stages that are not shown to take `limit` or longer, or not to fit."""
        spreads = Spreads(prices, mesh, form, priced, splits)
        if math.isfinite(limit):
            left = np.flatnonzero(~spreads.long_enough(limit)).tolist()
            held = self._held(mesh, form) if left else []
        else:
            held = self._held(mesh, form)
            left = np.flatnonzero(~spreads.never_fit([prices.memory_bytes(kind) for kind in priced[2]], held)).tolist()
        return tuple(splits[i] for i in left if not VirtualStages(prices, form, spreads, i, priced, held).refuted(limit))

    def _held(self, mesh: CheckedMesh, form: Form) -> Moments:
        """Return what every order of a schedule holds at least at its moments."""
        p, m = mesh.pipeline, self._n_microbatches(mesh)
        module = schedules.load(form.schedule)
        if form.n_chunks == 1:
            return [(np.array([[float(n)]]), np.zeros(1, dtype=np.int64)) for n in module.in_flight(p, 1, m)]
        key = (form, p, VirtualStages.n_told(form, p, m))
        if key not in self._moments:
            self._moments[key] = VirtualStages.least_moments(*key)
        return self._moments[key]

    def refuted(self, one: Open, limit: float) -> bool:
        """Return whether every plan of a configuration is shown to take `limit` or longer, or not to fit.

        By its layers inside micro-batches; with what happens between replicas; with transfers between ranks; and by playing every
        split that is left.
        """
        prices, mesh, form, strategy, layout, splits = one
        if form.n_chunks > 1 and not splits:
            splits = tuple(split_counts(self.chain, form, mesh.pipeline, self.limits))
        spare = prices.spare(mesh, form)
        bound: WholeStages | None = None
        for inside_only in (True, False):
            priced = prices.of_ranks(mesh, strategy, layout, inside_only=inside_only, spare=spare)
            priced = prices.paired(priced) if form.is_paired else priced
            if form.n_chunks > 1:
                splits = self._left(prices, mesh, form, priced, splits, limit)
                if not splits:
                    return True
            else:
                bound = WholeStages(prices, mesh, form, *priced)
                if bound.refuted(limit):
                    return True
        plays, held = Plays(prices, mesh, form, strategy, layout, priced), self._held(mesh, form)
        even = even_counts(self.n_layers, mesh.pipeline * form.n_chunks)
        if bound is None and splits:
            splits = self._unplayed(plays, splits, priced, held, limit)
        if bound is None or self.limits["uniform"]:
            splits = splits if bound is None else (tuple(even),)
            self.n_played += len(splits)
            return all(plays.refuted(counts, bound, held, limit) for counts in splits)
        if mesh.pipeline > 1:
            bound = WholeStages(prices, mesh, form, *priced, tuple(plays.hop_seconds(even)))
        for i, counts in enumerate(bound.cuts(limit)):
            self.n_played += 1
            if i == MOST_CUTS or not plays.refuted(counts, bound, held, limit):
                return False
        return True

    def _unplayed(
        self,
        plays: Plays,
        splits: tuple[tuple[int, ...], ...],
        priced: tuple[list[Table], list[int], list[int]],
        held: Moments,
        limit: float,
    ) -> tuple[tuple[int, ...], ...]:
        """Return those spreads over virtual stages that are not shown to take `limit` or longer in the order of their tasks, with their
        transfers, or by what each rank recomputes at least.
        """
        prices, mesh, form = plays.prices, plays.mesh, plays.form
        is_played = not form.is_paired and math.isfinite(limit)  # a task beside another takes less than alone
        spreads, left = Spreads(prices, mesh, form, priced, splits), list(range(len(splits)))
        if is_played:
            left = [i for i in left if plays.least_in_order(splits[i], spreads.stage_costs(i)) < limit]
        if left and len(prices.recompute.words) > 1:
            left = plays.left(left, splits, lambda i: VirtualStages(prices, form, spreads, i, priced, held), held, limit)
            if is_played:
                left = [i for i in left if not plays.outweighed(splits[i], held, spreads.stage_costs(i), limit)]
                left = [i for i in left if plays.least_fitted(splits[i], held, spreads.stage_costs(i)) < limit]
        return tuple(splits[i] for i in left)


def _sample_flops(graph: Graph) -> float:
    """Return the operations of a sample forward and backward at least.

    The gradient of inputs costs one more pass, that of weights another; attention, which has two operands, two or none.
    """
    total = 0.0
    for op in graph.ops:
        for operator in op.body:
            inputs, weights = operator.input_gradient, operator.n_trained_parameters > 0
            if operator.kind in ("attention", "causal_attention"):
                inputs = weights = operator.has_backward
            total += (1.0 + inputs + weights) * forward_flops(operator)
    return total
