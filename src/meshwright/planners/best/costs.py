"""What one configuration of the joint space costs at least: memory left, and the bound on its step."""

from __future__ import annotations

from collections import Counter
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from meshwright.base import registry
from meshwright.core.plan import Plan
from meshwright.core.problem import Problem
from meshwright.core.stage_cost import StageCost
from meshwright.core.strategy import OFFLOAD, RECOMPUTE, repeats_dispatch
from meshwright.costs import analytic
from meshwright.planners.best import layer_sums
from meshwright.planners.best.equal_ranks import EqualRanks, equal_ranks, scheduled
from meshwright.planners.best.layer_sums import Digest, LayerChain, LeastWork, MainLayers, RowLoads
from meshwright.planners.best.limits import fullest_shardings, variants
from meshwright.planners.best.memory import Peaks, RowFigures, least_peaks
from meshwright.planners.best.question import Exchanges
from meshwright.planners.best.ranks import (
    SILENT,
    RankClasses,
    kinds_only,
    loads_key,
    merged,
    priced_layers,
    rank_classes,
    silent,
)  # fmt: skip
from meshwright.planners.best.space import Config, DevicePool, MeshDegrees, after_name
from meshwright.sim import transfers
from meshwright.solvers.pipeline import layer_split

if TYPE_CHECKING:
    from meshwright._kernels.best.virtual_stages import StackedLayers

__all__ = ["Costs", "after_name"]


class Costs:
    """Loads of layers by configuration, remembered while one problem is searched.

    Parameters
    ----------
    problem : Problem
        The question.
    pool : DevicePool
        The devices.
    chain : LayerChain
        The model.
    recompute : tuple of str
        What layers may recompute.
    memory_ratio : float
        Share of a device's memory that may be filled.
    shards : tuple of int
        Sharding levels allowed.
    blocks : bool
        Whether the first layers of every stage recompute the last of `recompute`, equally many of each, and the others the first.
    exchanges : Exchanges or None
        Which context exchanges meshes have; None for the usual ones.
    in_pairs : bool
        Whether schedules are allowed that hide all-to-alls of experts.
    """

    def __init__(
        self,
        problem: Problem,
        pool: DevicePool,
        chain: LayerChain,
        recompute: tuple[str, ...] = RECOMPUTE,
        memory_ratio: float = 1.0,
        shards: tuple[int, ...] = (0, 1, 2, 3),
        blocks: bool = False,
        exchanges: Exchanges | None = None,
        in_pairs: bool = False,
    ) -> None:
        self.problem, self.pool, self.chain, self.in_pairs = problem, pool, chain, in_pairs
        self.exchanges = exchanges or Exchanges(problem)
        self.recompute, self.memory_ratio, self.shards, self.blocks = recompute, memory_ratio, shards, blocks
        self._in_order, self._often = pool.in_order, Counter(chain.rows)
        self._kind_bytes = np.array([problem.required_cluster.device(int(own[0])).memory_bytes for own in pool.devices])
        self._priced = priced_layers(problem, pool)
        self._of_mesh: dict[tuple[MeshDegrees, bool], list[RowLoads]] = {}
        self._spare = [analytic.spare_rows(problem.graph, ends_together=together) for together in (False, True)]
        self.figures: dict[int, RowFigures] = {}
        self._work: dict[tuple[object, ...], LeastWork] = {}
        self._stacked: dict[tuple[int, ...], StackedLayers] = {}
        self._main: dict[tuple[int, ...], MainLayers] = {}
        self._equal: dict[tuple[object, ...], EqualRanks] = {}
        self.virtual_stages: dict[tuple[object, ...], tuple[Any, ...]] = {}  # what `planners.best.virtual` remembers

    @property
    def one_setting(self) -> bool:
        """Whether a split of the layers leaves one plan: all layers recompute alike, or as few as fit first in every stage."""
        return self.blocks or len(self.recompute) == 1

    @property
    def offloads(self) -> bool:
        """Whether activations of layers may be on the host: then there is no pipeline, and one layer at least keeps its own."""
        return OFFLOAD in self.recompute

    @property
    def repeats_dispatch(self) -> bool:
        """Whether all that layers may recompute contains all-to-alls of experts: then no tasks run in pairs."""
        return all(repeats_dispatch(word) for word in self.recompute)

    def recomputing(self, words: tuple[str, ...], *, blocks: bool = False) -> Costs:
        """Return the same costs where layers may recompute something else; loads are shared, but for those with `OFFLOAD`."""
        problem = analytic.with_offload(self.problem) if OFFLOAD in words else self.problem
        own = (words, self.memory_ratio, self.shards, blocks, self.exchanges, self.in_pairs)
        alike = Costs(problem, self.pool, self.chain, *own)
        if problem is self.problem:
            alike._priced, alike._of_mesh = self._priced, self._of_mesh
        return alike

    @property
    def model(self) -> ModuleType:
        """The cost model asked for."""
        return registry.load("costs", self.problem.costs, "cost model")

    def classes(self, config: Config, *, light: bool = False) -> RankClasses:
        """Return which ranks of a configuration are alike; of one that stands for all shardings, its kinds of device."""
        mesh = config.mesh
        key: tuple[object, ...] = (mesh.pipeline, mesh.rank_size)
        if not config.is_any:
            between = () if light else (config.shard > 0, config.shard_degree)
            key = (config.layout, mesh.pipeline, mesh.data, mesh.context, mesh.tensor, mesh.expert, between, config.exchange)
        if key not in self._priced.classes:
            kinds = self.kind_of_rank(config)
            if config.is_any:
                self._priced.classes[key] = kinds_only(kinds)
            else:
                found = rank_classes(
                    self.pool, config, kinds, self.problem.required_cluster.periods, light=light, in_order=self._in_order
                )
                self._priced.classes[key] = found if len(found.keys) == 1 else merged(found, self._times(config, found, light))
        return self._priced.classes[key]

    def _times(self, config: Config, classes: RankClasses, light: bool) -> list[tuple[object, ...]]:
        """Return what decides the loads of each class of ranks beside its kind of device; remembered by place."""
        mesh, found = config.mesh, []
        between = () if light else (mesh.data, config.shard > 0, config.shard_degree)
        for devices, place in zip(classes.devices, classes.keys, strict=True):
            key = (mesh.context, config.exchange, mesh.tensor, mesh.expert, between, place)
            if key not in self._priced.places:
                self._priced.places[key] = (
                    (SILENT,) if place[-1] == SILENT
                    else self.model.axis_times(self.problem, config.strategy, devices, inside_only=light)
                )  # fmt: skip
            found.append(self._priced.places[key])
        return found

    def rows(self, config: Config, *, light: bool = False) -> list[RowLoads]:
        """Return the loads of every distinct layer, ``(row, recompute) -> StageCost``, one mapping per class of ranks (`classes`).

        `light`: whether to leave out what happens between replicas: a lower bound, quick on large clusters.
        """
        classes = self.classes(config, light=light)
        if config.is_any:
            return self._least_rows(config, classes)
        spare, found, problem = self._spare[config.ends_together], [], analytic.in_pipeline(self.problem, config.mesh.pipeline)
        # what `in_pipeline` changes: one framework may change both ways, without a pipeline and in one
        key = loads_key(config, light=light), spare, problem.framework.reduces_once, problem.framework.gathers_each
        told = {"inside_only": light, **({"spare": spare} if spare else {})}
        for devices, place in zip(classes.devices, classes.keys, strict=True):
            if (key, place) not in self._priced.rows:
                own = self.model.row_costs(problem, config.strategy, devices, config.mesh.micro_batch, **told)
                if place[-1] == SILENT:
                    own = {of: silent(load) for of, load in own.items()}
                self._priced.rows[key, place] = own
            found.append(self._priced.rows[key, place])
        return found

    def _least_rows(self, config: Config, classes: RankClasses) -> list[RowLoads]:
        """Return for every kind of device the least that layers do and hold under any sharding, layout and place.

        Lemma: inside a micro-batch, sharding only adds communication, copies and buffers, so that none of it (ZeRO-0) is below all, and
        offload changes nothing; the higher the level, the more ranks share, and with optimizer state on the host, the less weights,
        gradients and optimizer state are held, as much for any micro-batch. What the optimizer takes does not fall from level to level and is left out. No one sharding is below all others:
        ZeRO-3 holds the least state, but needs buffers of a layer's size. Which layers share a rank is a matter of the schedule.
        Where ZeRO-2 reduces once a step its gradients stand whole beside shards, so that the least of all levels counts.
        """
        key = config.mesh, self._spare[0] != self._spare[1] and config.ends_together
        if key not in self._of_mesh:
            state: dict[int, RowLoads] = {}
            for one in fullest_shardings(config, self.problem.framework, self.shards, self.exchanges.offloads):
                for kind, own in zip(self.classes(one, light=True).kinds, self.rows(one, light=True), strict=True):
                    state[kind] = self._priced.joined.least([state[kind], own] if kind in state else [own])
            unsharded = self.without_sharding(config, classes)
            self._of_mesh[key] = [
                self._priced.joined.with_state(own, state[kind]) for kind, own in zip(classes.kinds, unsharded, strict=True)
            ]
        return self._of_mesh[key]

    def without_sharding(self, config: Config, classes: RankClasses) -> list[RowLoads]:
        """Return for every kind of device the least of every figure over layouts, context exchanges and places where nothing is sharded."""
        of_kind: dict[int, list[RowLoads]] = {kind: [] for kind in classes.kinds}
        for variant in variants(config, self.problem, self.pool, (0,), self.exchanges.of(config.mesh)):
            own = self.classes(variant, light=True)
            for kind, rows in zip(own.kinds, self.rows(variant, light=True), strict=True):
                if not any(rows is known for known in of_kind[kind]):
                    of_kind[kind].append(rows)
        return [self._priced.joined.least(places) for places in of_kind.values()]

    def bound_rows(self, config: Config, *, light: bool = False) -> list[RowLoads]:
        """Return `rows` as bounds read them: the least that layers take where tasks run in pairs."""
        found = self.rows(config, light=light)
        return [self._priced.joined.hidden(own, self._often) for own in found] if config.paired else found

    def least_work(self, config: Config, *, with_communication: bool) -> LeastWork:
        """Return what the whole model takes at least on every kind of device of a mesh, whatever is sharded and wherever ranks lie.

        Parameters
        ----------
        config : Config
            Any of the mesh that stands for all shardings.
        with_communication : bool
            Whether communication inside layers counts too, which takes longer to find.
        """
        mesh, classes = config.mesh, self.classes(config)
        rows = self.without_sharding(config, classes) if with_communication else []
        if self.in_pairs and mesh.expert > 1 and mesh.pipeline > 1 and not self.repeats_dispatch:
            rows = [self._priced.joined.hidden(own, self._often) for own in rows]
        key: tuple[object, ...] = (classes.kinds, *(id(own) for own in rows))  # which are kept, so that none is another
        if not with_communication:
            key = (classes.kinds, mesh.layer_shape, "compute")
        if key not in self._work:
            if with_communication:
                words = [self.words(own)[0] for own in rows]
                seconds = [
                    {row: layer_sums.work_of(own[row, word if row in self.chain.rows else "none"]) for row, _ in own}
                    for own, word in zip(rows, words, strict=True)
                ]
            else:
                devices = [self.problem.required_cluster.device(int(self.pool.devices[kind][0])) for kind in classes.kinds]
                seconds = [self.exchanges.compute_seconds(mesh, own) for own in devices]
            self._work[key] = layer_sums.least_work(self.chain, seconds)
        return self._work[key]

    def digests(self, config: Config, *, light: bool) -> list[Digest]:
        """Return `rows` as arrays."""
        of_class, known = self.bound_rows(config, light=light), self._priced.digests
        for rows in of_class:
            if (id(rows), self.recompute) not in known:  # rows are kept, so that none is another
                known[id(rows), self.recompute] = layer_sums.digest(self.chain, self.settled(rows), self.words(rows))
        return [known[id(rows), self.recompute] for rows in of_class]

    def stacked(self, config: Config, *, light: bool) -> StackedLayers:
        """Return `digests` as the kernels of virtual stages read them."""
        digests = self.digests(config, light=light)
        key = tuple(id(own) for own in digests)  # which are kept, so that none is another
        if key not in self._stacked:
            self._stacked[key] = layer_sums.stacked(digests)
        return self._stacked[key]

    def stage_costs(self, config: Config, plan: Plan) -> tuple[StageCost, ...]:
        """Return what the stages of a configuration's plan do: as the cost model says, from the loads of classes of ranks."""
        classes = self.classes(config)
        if any(place[-1] == SILENT for place in classes.keys):
            priced: tuple[StageCost, ...] = self.model.stage_costs(self.problem, plan, ledger=False)
            return priced
        of_class, row_of, found = self.rows(config), analytic.rows(self.problem), []
        framework = self.problem.framework.in_pipeline(config.mesh.pipeline)
        for stage, rank in zip(plan.stages, plan.rank_of_stage(), strict=True):
            counts: dict[tuple[int, str], int] = {}
            for op, word in zip(stage.ops, stage.recompute or ("none",) * len(stage.ops), strict=True):
                counts[row_of[op], word] = counts.pop((row_of[op], word), 0) + 1  # the last layer's stays last
            layers = of_class[classes.of_rank[rank]]
            loads = [(layers[key], count) for key, count in counts.items()]
            found.append(analytic.combine(loads, framework, stage.strategy.shard))
        return tuple(found)

    def peaks(self, config: Config, n_microbatches: int) -> Peaks:
        """Return the moments at which every order of a configuration's schedule holds at least so much."""
        mesh, deepest = config.mesh, 3 * config.mesh.pipeline
        if config.schedule in ("gpipe", "looped_bfs"):
            deepest = n_microbatches
        return least_peaks(config.schedule, mesh.pipeline, config.chunks, min(n_microbatches, deepest))

    def kind_of_rank(self, config: Config) -> list[int]:
        """Return, for every pipeline rank, the place of its kind of device in the pool."""
        if config.layout == "data" or len(self.pool.devices) == 1:
            return [0] * config.mesh.pipeline
        counts = [len(devices) // config.mesh.rank_size for devices in self.pool.devices]
        return [kind for kind, count in enumerate(counts) for _ in range(count)][: config.mesh.pipeline]

    def memory_bytes(self, config: Config) -> NDArray[np.float64]:
        """Return the memory that a device of every pipeline rank may fill; shape (n_ranks,), float64."""
        kinds, ratio = self._kind_bytes, min(self.memory_ratio, self.problem.memory_ratio)
        if config.layout == "data" or len(kinds) == 1:
            return np.full(config.mesh.pipeline, ratio * kinds[0])
        return ratio * kinds[self.kind_of_rank(config)]

    def words(self, rows: RowLoads) -> tuple[str, ...]:
        """Return what layers may recompute, `selective` only where it changes anything for some of them."""
        if len(self.recompute) == 1:
            return self.recompute
        row = self.chain.main_row  # least recomputation first, in whichever order it was asked for
        own = [i for i in set(self.chain.rows) if (i, "selective") in rows]
        useful = any(rows[i, "selective"].activation_bytes < rows[i, "none"].activation_bytes for i in own)
        known = [word for word in (*RECOMPUTE, OFFLOAD) if word in self.recompute and (row, word) in rows]
        return tuple(word for word in known if word != "selective" or useful)

    def word_of(self, row: int, word: str) -> str:
        """Return what a layer recomputes where those that may choose recompute `word`: embedding and head recompute nothing, other
        layers pinned to the ends only where one setting serves all layers.
        """
        if row not in (*self.chain.prefix, *self.chain.suffix):
            return word
        ends = self.problem.graph.ops[row].kind in ("embedding", "head")
        return "none" if ends or len(self.recompute) > 1 else word

    def settled(self, rows: RowLoads) -> RowLoads:
        """Return loads in which pinned layers have the loads of what they recompute under the word ``none``."""
        if len(self.recompute) > 1:
            return rows
        pinned = {row: self.word_of(row, self.recompute[0]) for row in (*self.chain.prefix, *self.chain.suffix)}
        return {**rows, **{(row, "none"): rows[row, word] for row, word in pinned.items() if (row, word) in rows}}

    def transfer_seconds(self, config: Config, plan: Plan, stage_costs: tuple[StageCost, ...]) -> NDArray[np.float64]:
        """Return the least that a transfer between neighbouring ranks takes in any split of a configuration's layers.

        Parameters
        ----------
        config : Config
            The configuration.
        plan : Plan
            Any of its plans.
        stage_costs : tuple of StageCost
            What its stages do.

        Returns
        -------
        ndarray, shape (n_ranks - 1,), float64
            Seconds of one micro-batch, alone on the links, in the quicker direction; 0 where nothing may come back.
        """
        sends = transfers.transfers(self.problem, plan, stage_costs)
        ends = {*self.chain.rows, *self.chain.prefix[-1:]}
        least = min(load.output_bytes for rows in self.rows(config) for (row, _), load in rows.items() if row in ends)

        def scaled(*own: NDArray[np.float64]) -> NDArray[np.float64]:
            seconds, latency, sent = own
            share = np.minimum(np.divide(least, sent, out=np.zeros_like(sent), where=sent > 0.0), 1.0)
            return np.where(sent > 0.0, latency + (seconds - latency) * share, 0.0)

        there = scaled(sends.seconds[0, :-1], sends.latency_seconds[0, :-1], sends.bytes[0, :-1])
        back = scaled(sends.seconds[1, 1:], sends.latency_seconds[1, 1:], sends.bytes[1, 1:])
        hops = np.minimum(there, back)
        frozen = {row for rows in self.rows(config) for (row, _), load in rows.items() if not load.output_gradient}
        hops[: None if frozen & set(self.chain.rows) else len(frozen)] = 0.0  # behind these, nothing comes back in some split
        return hops

    def pipeline_ranks(
        self, config: Config, n_microbatches: int, *, light: bool = False, building: bool = False
    ) -> tuple[layer_split.PipelineRanks, float, float]:
        """Return a configuration as ranks of equal layers, how many layers those are, and seconds pinned after the step.

        Where layers are of several kinds, each is counted as the number of main layers it needs at least in every resource. To
        build a plan, every rank is taken to hold a main layer.

        Lemma: a rank holds the static bytes of its layers, their activations as often as `peaks` says, and working and reserved
        bytes of its most demanding layer: at least what is pinned to it needs, or else what the least of all layers does.
        """
        key = (*config.of_loads, light, building)
        if key not in self._equal:
            digests, of_rank = self.digests(config, light=light), self.classes(config, light=light).of_rank
            self._equal[key] = equal_ranks(self._main_layers(digests), digests, of_rank, building=building)
        in_flight = self.peaks(config, n_microbatches).held[:, 0, 0]
        return scheduled(self._equal[key], config, n_microbatches, in_flight, self.memory_bytes(config), equal=self.chain.equal)

    def _main_layers(self, digests: list[Digest]) -> MainLayers:
        """Return the figures of the main layer on each class of ranks."""
        key = tuple(id(own) for own in digests)  # which are kept, so that none is another
        if key not in self._main:
            self._main[key] = layer_sums.main_layers(self.chain, digests)
        return self._main[key]
