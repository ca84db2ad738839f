"""Loads of the layers under every configuration of the joint space, each found once, and the memory that holds them."""

from __future__ import annotations

import math
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from meshwright import schedules
from meshwright.base import registry
from meshwright.core.plan import Plan
from meshwright.core.problem import Problem
from meshwright.core.stage_cost import StageCost
from meshwright.core.strategy import RECOMPUTE
from meshwright.planners.best.layer_sums import Chain, Digest, RowLoads, digest
from meshwright.planners.best.space import Config, Pool
from meshwright.sim import transfers
from meshwright.solvers.pipeline import layer_split

__all__ = ["Costs", "after_name", "spread"]


class Costs:
    """Loads of layers by configuration, remembered while one problem is searched.

    Parameters
    ----------
    problem : Problem
        The question.
    pool : Pool
        The devices.
    chain : Chain
        The model.
    recompute : tuple of str
        What layers may recompute.
    memory_ratio : float
        Share of a device's memory that may be filled.
    """

    def __init__(
        self,
        problem: Problem,
        pool: Pool,
        chain: Chain,
        recompute: tuple[str, ...] = RECOMPUTE,
        memory_ratio: float = 1.0,
    ) -> None:
        self.problem, self.pool, self.chain = problem, pool, chain
        self.recompute, self.memory_ratio = recompute, memory_ratio
        self._rows: dict[tuple[object, ...], list[RowLoads]] = {}
        self._digests: dict[tuple[object, ...], list[Digest]] = {}
        self._in_flight: dict[tuple[str, int, int, int], NDArray[np.float64]] = {}
        self._stages: dict[tuple[str, int, int], tuple[NDArray[np.int64], NDArray[np.int64]]] = {}

    def recomputing(self, word: str) -> Costs:
        """Return the same costs where all layers recompute alike; loads of layers are shared, which do not depend on it."""
        alike = Costs(self.problem, self.pool, self.chain, (word,), self.memory_ratio)
        alike._rows = self._rows
        return alike

    @property
    def model(self) -> ModuleType:
        """The cost model asked for."""
        return registry.load("costs", self.problem.costs, "cost model")

    def rows(self, config: Config, *, light: bool = False) -> list[RowLoads]:
        """Return the loads of every distinct layer, one mapping per kind of device in the pool, in pipeline order.

        Parameters
        ----------
        config : Config
            The configuration.
        light : bool
            Whether to leave out what happens between replicas: a lower bound, quick on large clusters.

        Returns
        -------
        list of dict
            ``(row, recompute) -> StageCost`` of that one layer.
        """
        key = _key(config, light)
        if key not in self._rows:
            self._rows[key] = [
                self.model.row_loads(self.problem, config.strategy, _ids(devices), config.mesh.micro_batch, inside_only=light)
                for devices in self._samples(config)
            ]
        return self._rows[key]

    def digests(self, config: Config, *, light: bool) -> list[Digest]:
        """Return `rows` as arrays."""
        key = _key(config, light)
        if key not in self._digests:
            kinds = self.rows(config, light=light)
            self._digests[key] = [digest(self.chain, rows, self.words(kinds[0])) for rows in kinds]
        return self._digests[key]

    def in_flight(self, config: Config, n_microbatches: int) -> NDArray[np.float64]:
        """Return the micro-batches each rank holds at most, counted in whole ranks; shape (n_ranks,), float64."""
        key = (
            config.schedule,
            config.mesh.pipeline,
            config.chunks,
            min(n_microbatches, 4 * config.mesh.pipeline * config.chunks),
        )
        if key not in self._in_flight:
            schedule = schedules.load(config.schedule)
            self._in_flight[key] = schedule.in_flight(config.mesh.pipeline, config.chunks, n_microbatches) / config.chunks
        return self._in_flight[key]

    def _samples(self, config: Config) -> list[NDArray[np.int64]]:
        """Return the devices of one rank of every kind of device."""
        if config.layout == "data":
            return [self.pool.rank(config, 0)]
        size = config.mesh.rank_size
        return [devices[:size] for devices in self.pool.devices if len(devices) >= size]

    def kind_of_rank(self, config: Config) -> list[int]:
        """Return, for every pipeline rank, the index of its kind of device into what `rows` returns."""
        if config.layout == "data" or len(self.pool.devices) == 1:
            return [0] * config.mesh.pipeline
        size = config.mesh.rank_size
        counts = [len(devices) // size for devices in self.pool.devices if len(devices) >= size]
        return [kind for kind, count in enumerate(counts) for _ in range(count)][: config.mesh.pipeline]

    def memory_bytes(self, config: Config) -> list[float]:
        """Return the memory of a device of every pipeline rank."""
        cluster = self.problem.required_cluster
        size = config.mesh.rank_size
        per_kind = [
            cluster.device(int(devices[0])).memory_bytes
            for devices in self.pool.devices
            if config.layout == "data" or len(devices) >= size
        ]
        return [self.memory_ratio * per_kind[kind] for kind in self.kind_of_rank(config)]

    def words(self, rows: RowLoads) -> tuple[str, ...]:
        """Return what layers may recompute, `selective` only where it changes anything."""
        row = self.chain.main_row
        useful = (row, "selective") in rows and rows[row, "selective"].activation_bytes < rows[row, "none"].activation_bytes
        return tuple(word for word in self.recompute if (word != "selective" or useful) and (row, word) in rows)

    def transfer_seconds(self, config: Config, plan: Plan, loads: tuple[StageCost, ...]) -> NDArray[np.float64]:
        """Return the least that a transfer between neighbouring ranks takes in any split of a configuration's layers.

        Parameters
        ----------
        config : Config
            The configuration.
        plan : Plan
            Any of its plans.
        loads : tuple of StageCost
            What its stages do.

        Returns
        -------
        ndarray, shape (n_ranks - 1,), float64
            Seconds of one micro-batch, alone on the links, in the quicker direction.
        """
        sends = transfers.transfers(self.problem, plan, loads)
        ends = {*self.chain.rows, *self.chain.prefix[-1:]}
        least = min(load.output_bytes for rows in self.rows(config) for (row, _), load in rows.items() if row in ends)

        def scaled(
            seconds: NDArray[np.float64], latency: NDArray[np.float64], sent: NDArray[np.float64]
        ) -> NDArray[np.float64]:
            share = np.minimum(np.divide(least, sent, out=np.zeros_like(sent), where=sent > 0.0), 1.0)
            return np.where(sent > 0.0, latency + (seconds - latency) * share, 0.0)

        there = scaled(sends.seconds[0, :-1], sends.latency_seconds[0, :-1], sends.bytes[0, :-1])
        back = scaled(sends.seconds[1, 1:], sends.latency_seconds[1, 1:], sends.bytes[1, 1:])
        return np.minimum(there, back)

    def pipeline_ranks(
        self, config: Config, n_microbatches: int, *, light: bool = False
    ) -> tuple[layer_split.PipelineRanks, float, float]:
        """Return a configuration as ranks of equal layers, how many layers those are, and seconds pinned after the step.

        Where layers are of several kinds, each is counted as the number of main layers it needs at least in every resource.
        """
        digests = self.digests(config, light=light)
        p = config.mesh.pipeline
        main = self.chain.rows.index(self.chain.main_row)
        of_rank = np.array(self.kind_of_rank(config))
        in_flight = self.in_flight(config, n_microbatches)
        back = "input_seconds" if config.split_backward else "backward_seconds"
        static = np.array([own.static_bytes[main] for own in digests])[of_rank]
        kept = np.array([own.activation_bytes[main] for own in digests])[of_rank]
        fixed_work, fixed_forward = np.zeros(p), np.zeros(p)
        budget = np.array(self.memory_bytes(config)) - np.array([own.reserved_bytes for own in digests])[of_rank]
        prefix, suffix = digests[of_rank[0]].prefix, digests[of_rank[-1]].suffix
        for rank, pinned in ((0, prefix), (p - 1, suffix)):
            fixed_work[rank] += pinned.forward_seconds + pinned.backward_seconds
            fixed_forward[rank] += pinned.forward_seconds
            budget[rank] -= pinned.static_bytes + in_flight[rank] * pinned.activation_bytes
        split_backward, after = config.split_backward, after_name(config)
        ranks = layer_split.PipelineRanks(
            work_seconds=np.array([own.work_seconds[main] for own in digests])[of_rank],
            layer_bytes=static[:, None] + in_flight[:, None] * kept,
            forward_seconds=np.array([own.forward_seconds[main] for own in digests])[of_rank],
            backward_seconds=np.array([getattr(own, back)[main] for own in digests])[of_rank],
            fixed_work_seconds=fixed_work,
            fixed_forward_seconds=fixed_forward,
            budget_bytes=budget,
            lead=np.minimum(np.arange(p, 0, -1.0), n_microbatches),
            # layers of several kinds are not compared by it
            after_seconds=self.chain.equal * np.array([getattr(own, after)[main] for own in digests])[of_rank],
        )
        # every rank's work ends on the first one only where backward passes are whole
        pinned_after = 0.0 if split_backward and p > 1 else getattr(prefix, after) + (getattr(suffix, after) if p == 1 else 0.0)
        return ranks, self._comparable(digests, main), pinned_after

    def _comparable(self, digests: list[Digest], main: int) -> float:
        """Return the number of main layers that the chain's layers need at least, in every resource and on every device."""
        if self.chain.equal:
            return float(len(self.chain.layers))
        ratio = np.full(len(self.chain.layers), math.inf)
        skipped = {
            "running_sums",
            "pinned_sums",
            "saved_bytes",
            "extra_seconds",
            "reduce_seconds",
            "update_seconds",
            "after_seconds",
            "split_after_seconds",
        }
        for own in digests:
            for name in Digest.__dataclass_fields__:
                values = getattr(own, name)
                if isinstance(values, np.ndarray) and len(values) == len(ratio) and name not in skipped:
                    flat = values.reshape(len(ratio), -1)
                    with_value = flat[main] > 0
                    if with_value.any():
                        ratio = np.minimum(ratio, (flat[:, with_value] / flat[main, with_value]).min(axis=1))
        return float(ratio.sum())

    def virtual_stages(self, schedule: str, n_ranks: int, n_chunks: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the layers of each virtual stage, and the stages of each rank in order, a row per rank."""
        key = (schedule, n_ranks, n_chunks)
        if key not in self._stages:
            counts = np.array(spread(len(self.chain.layers), n_ranks, n_chunks))
            rank_of_stage = schedules.load(schedule).placement(n_ranks, n_chunks)
            self._stages[key] = counts, np.argsort(rank_of_stage, kind="stable").reshape(n_ranks, n_chunks)
        return self._stages[key]

    def stages(self, counts: tuple[int, ...]) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        """Return the layers of each stage and the row of each of them, for a number of layers per stage."""
        chain = self.chain
        row_of = dict(zip(chain.layers, chain.rows, strict=True)) | {i: i for i in (*chain.prefix, *chain.suffix)}
        ops, start = [], 0
        for stage, count in enumerate(counts):
            own = chain.layers[start : start + count]
            start += count
            if stage == 0:
                own = chain.prefix + own
            if stage == len(counts) - 1:
                own = own + chain.suffix
            ops.append(own)
        return ops, [tuple(row_of[i] for i in stage) for stage in ops]


def _key(config: Config, light: bool) -> tuple[object, ...]:
    """Return what the loads of a configuration depend on."""
    mesh = config.mesh
    stride = mesh.pipeline if config.layout == "data" else 0
    return (
        mesh.data,
        mesh.context,
        mesh.tensor,
        mesh.expert,
        mesh.micro_batch,
        config.shard,
        config.shard_degree,
        stride,
        light,
    )


def _ids(devices: NDArray[np.int64]) -> range | tuple[int, ...]:
    """Return neighbouring ids as a `range`, which is recognised again at once, any others as a tuple."""
    first, last = int(devices[0]), int(devices[-1])
    if last - first == len(devices) - 1 and np.array_equal(devices, np.arange(first, last + 1)):
        return range(first, last + 1)
    return tuple(devices.tolist())


def after_name(config: Config) -> str:
    """Return the field of a digest that says what follows the last task of a rank."""
    return "split_after_seconds" if config.split_backward else "after_seconds"


def spread(n_layers: int, n_ranks: int, n_chunks: int) -> tuple[int, ...]:
    """Return how many layers each virtual stage gets: the quotient, and one more for some of them.

    What is left over goes to middle stages first, rank by rank, since the ends also hold embedding and head.
    """
    n_stages = n_ranks * n_chunks
    counts = [n_layers // n_stages] * n_stages
    for stage in [*range(1, n_stages - 1), *sorted({0, n_stages - 1})][: n_layers - sum(counts)]:
        counts[stage] += 1
    return tuple(counts)
