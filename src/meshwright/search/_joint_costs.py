"""What one configuration of the joint space costs at least: layers' loads, memory left, and the bound on its step."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from meshwright import schedules
from meshwright.costs import analytic
from meshwright.graph import Graph
from meshwright.problem import Problem
from meshwright.search._joint_space import Config, Mesh, Pool
from meshwright.solvers import pipeline_split
from meshwright.strategy import RECOMPUTE
from meshwright.table import StageLoad

__all__ = ["Chain", "Costs", "RowLoads", "chain_of", "spread"]


@dataclass(frozen=True, slots=True)
class Chain:
    """A model as a chain: layers that repeat in the middle, what is pinned to the first and to the last stage around them.

    Parameters
    ----------
    prefix, layers, suffix : tuple of int
        Ids, in topological order; together all of the graph.
    rows : tuple of int
        Row (id of the first like layer) of every entry of `layers`.
    main_row : int
        The row that occurs most often.
    """

    prefix: tuple[int, ...]
    layers: tuple[int, ...]
    suffix: tuple[int, ...]
    rows: tuple[int, ...]
    main_row: int

    @property
    def equal(self) -> bool:
        """Whether all layers are alike."""
        return len(set(self.rows)) == 1


def chain_of(graph: Graph) -> Chain:
    """Return the graph as a chain: from the first layer that repeats to the last one.

    Parameters
    ----------
    graph : Graph
        The model.

    Returns
    -------
    Chain
        Where nothing repeats, everything is a layer.
    """
    order = graph.topological_order()
    row = {i: graph.ops[i].like if graph.ops[i].like >= 0 else i for i in order}
    counts: dict[int, int] = {}
    for i in order:
        counts[row[i]] = counts.get(row[i], 0) + 1
    repeated = [position for position, i in enumerate(order) if counts[row[i]] > 1]
    first, last = (repeated[0], repeated[-1]) if repeated else (0, len(order) - 1)
    layers = order[first : last + 1]
    main_row = max(sorted({row[i] for i in layers}), key=lambda r: counts[r])
    return Chain(order[:first], layers, order[last + 1 :], tuple(row[i] for i in layers), main_row)


RowLoads = dict[tuple[int, str], StageLoad]


@dataclass(frozen=True, slots=True, eq=False)
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
    """

    problem: Problem
    pool: Pool
    chain: Chain
    recompute: tuple[str, ...] = RECOMPUTE
    _rows: dict[tuple[object, ...], list[RowLoads]] = field(default_factory=dict, repr=False)

    def rows(self, config: Config) -> list[RowLoads]:
        """Return the loads of every distinct layer, one mapping per kind of device in the pool, in pipeline order.

        Parameters
        ----------
        config : Config
            The configuration.

        Returns
        -------
        list of dict
            ``(row, recompute) -> StageLoad`` of that one layer.
        """
        mesh = config.mesh
        spread = mesh.pipeline if config.layout == "data" else 0
        key = (mesh.data, mesh.context, mesh.tensor, mesh.expert, mesh.micro_batch, config.shard, config.shard_degree, spread)
        if key not in self._rows:
            self._rows[key] = [
                analytic.row_loads(self.problem, config.strategy, tuple(int(i) for i in devices), mesh.micro_batch)
                for devices in self._samples(config)
            ]
        return self._rows[key]

    def _samples(self, config: Config) -> list[NDArray[np.int64]]:
        """Return the devices of one rank of every kind of device."""
        if config.layout == "data":
            return self.pool.ranks(config)[:1]
        size = config.mesh.rank_size
        return [devices[:size] for devices in self.pool.devices if len(devices) >= size]

    def kind_of_rank(self, config: Config) -> list[int]:
        """Return, for every pipeline rank, the index of its kind of device into what `rows` returns."""
        if config.layout == "data":
            return [0] * config.mesh.pipeline
        size = config.mesh.rank_size
        counts = [len(devices) // size for devices in self.pool.devices if len(devices) >= size]
        return [kind for kind, count in enumerate(counts) for _ in range(count)][: config.mesh.pipeline]

    def memory_bytes(self, config: Config) -> list[float]:
        """Return the memory of a device of every pipeline rank."""
        cluster = self.problem.cluster
        assert cluster is not None
        return [cluster.device(int(devices[0])).memory_bytes for devices in self.pool.ranks(config)]

    def words(self, rows: RowLoads) -> tuple[str, ...]:
        """Return what layers may recompute, `selective` only where it changes anything."""
        row = self.chain.main_row
        useful = (row, "selective") in rows and rows[row, "selective"].activation_bytes < rows[row, "none"].activation_bytes
        return tuple(word for word in self.recompute if (word != "selective" or useful) and (row, word) in rows)

    def quick_bound(self, mesh: Mesh, n_microbatches: int) -> float:
        """Return a bound on the step of every configuration of a mesh: the work of its slowest rank, shared evenly."""
        rows = self.rows(Config(mesh, 1, 0, "1f1b", 1, "pipeline"))
        chain = self.chain
        words = [self.words(kind)[0] for kind in rows]
        work = []
        for kind, word in zip(rows, words, strict=True):
            pinned = sum(_work(kind[i, "none"]) for i in (*chain.prefix, *chain.suffix))
            work.append(pinned + sum(_work(kind[row, word]) for row in chain.rows))
        kinds = self.kind_of_rank(Config(mesh, 1, 0, "1f1b", 1, "pipeline"))
        return n_microbatches / sum(1.0 / work[kind] for kind in kinds)

    def bound(self, config: Config, n_microbatches: int, limit_seconds: float) -> float:
        """Return a proven lower bound on the simulated step of a configuration, over all splits and recomputations.

        Parameters
        ----------
        config : Config
            The configuration.
        n_microbatches : int
            Micro-batches of a step.
        limit_seconds : float
            Above this the answer may be inf.

        Returns
        -------
        float
            Seconds; inf when no split fits the memory.
        """
        if config.chunks > 1:
            return self._spread_bound(config, n_microbatches)
        ranks, n_layers, after = self.pipeline_ranks(config, n_microbatches)
        return after + pipeline_split.bound(
            ranks,
            n_layers,
            n_microbatches,
            split_backward=config.schedule.startswith("zb"),
            whole=self.chain.equal,
            limit_seconds=limit_seconds,
        )

    def pipeline_ranks(self, config: Config, n_microbatches: int) -> tuple[pipeline_split.PipelineRanks, float, float]:
        """Return a configuration as ranks of equal layers, how many layers those are, and seconds pinned after the step.

        Where layers are of several kinds, each is counted as the number of main layers it needs at least in every resource.
        """
        kinds = self.rows(config)
        chain, p = self.chain, config.mesh.pipeline
        of_rank = self.kind_of_rank(config)
        in_flight = schedules.load(config.schedule).in_flight(p, config.chunks, n_microbatches) / config.chunks
        words = self.words(kinds[0])
        split_backward = config.schedule.startswith("zb")
        columns: dict[str, list[object]] = {name: [] for name in pipeline_split.PipelineRanks.__dataclass_fields__}
        memory = self.memory_bytes(config)
        for rank in range(p):
            rows = kinds[of_rank[rank]]
            main = [rows[chain.main_row, word] for word in words]
            pinned = [rows[i, "none"] for i in (*(chain.prefix if rank == 0 else ()), *(chain.suffix if rank == p - 1 else ()))]
            fixed_bytes = sum(load.static_bytes + float(in_flight[rank]) * load.activation_bytes for load in pinned)
            columns["work_seconds"].append([_work(load) for load in main])
            columns["layer_bytes"].append([load.static_bytes + float(in_flight[rank]) * load.activation_bytes for load in main])
            columns["forward_seconds"].append(main[0].forward_total_seconds)
            back = main[0].backward_total_seconds - (main[0].backward_weight_seconds if split_backward else 0.0)
            columns["backward_seconds"].append(min(back, *(_returns(load, split_backward) for load in main)))
            columns["fixed_work_seconds"].append(sum(_work(load) for load in pinned))
            columns["fixed_forward_seconds"].append(sum(load.forward_total_seconds for load in pinned))
            columns["budget_bytes"].append(memory[rank] - main[0].reserved_bytes - fixed_bytes)
            columns["in_flight"].append(float(in_flight[rank]))
            columns["after_seconds"].append(_after(main[0]))
        ranks = pipeline_split.PipelineRanks(**{name: np.asarray(values, np.float64) for name, values in columns.items()})
        once = sum(_after(kinds[of_rank[0]][i, "none"]) for i in (*chain.prefix, *(chain.suffix if p == 1 else ())))
        return ranks, self._comparable(kinds, words), once

    def _comparable(self, kinds: list[RowLoads], words: tuple[str, ...]) -> float:
        """Return the number of main layers that the chain's layers need at least, in every resource and on every device."""
        chain = self.chain
        if chain.equal:
            return float(len(chain.layers))
        ratios: dict[int, float] = {}
        for row in set(chain.rows):
            ratio = math.inf
            for rows in kinds:
                for word in words:
                    ours, main = rows[row, word], rows[chain.main_row, word]
                    for mine, other in (
                        (_work(ours), _work(main)),
                        (ours.forward_total_seconds, main.forward_total_seconds),
                        (_returns(ours, True), _returns(main, True)),
                        (ours.static_bytes, main.static_bytes),
                        (ours.activation_bytes, main.activation_bytes),
                        (_after(ours), _after(main)),
                    ):
                        ratio = min(ratio, mine / other) if other > 0 else ratio
            ratios[row] = 1.0 if row == chain.main_row else ratio
        return sum(ratios[row] for row in chain.rows)

    def _spread_bound(self, config: Config, n_microbatches: int) -> float:
        """Return the bound for virtual stages, whose layers `spread` puts in one way: only what they recompute is open.

        A rank works for all micro-batches between the first arrival at its first stage and the last return from it.
        """
        p = config.mesh.pipeline
        schedule = schedules.load(config.schedule)
        rank_of_stage = schedule.placement(p, config.chunks)
        in_flight = schedule.in_flight(p, config.chunks, n_microbatches) / config.chunks
        kinds, of_rank, memory = self.rows(config), self.kind_of_rank(config), self.memory_bytes(config)
        _, rows = self.stages(spread(len(self.chain.layers), p, config.chunks))
        step, before = 0.0, 0.0
        for rank in range(p):
            loads = kinds[of_rank[rank]]
            own = [row for stage in range(len(rows)) if rank_of_stage[stage] == rank for row in rows[stage]]
            # the first rank's last backward ends the pipeline: its own end of step follows
            after = sum(_after(loads[row, "none"]) for row in own) if rank == 0 else 0.0
            work = self._least_work(loads, own, float(in_flight[rank]), memory[rank])
            step = max(step, before + n_microbatches * work + after)
            for row in rows[rank]:
                before += loads[row, "none"].forward_total_seconds
                before += 0.0 if config.schedule.startswith("zb") else _returns(loads[row, "none"], False)
        return step

    def _least_work(self, loads: RowLoads, rows: list[int], in_flight: float, memory_bytes: float) -> float:
        """Return the least seconds a rank works for one micro-batch when as little as possible is recomputed, in real shares.

        Every byte over the memory costs at least the best ratio of seconds recomputed to bytes saved of any layer.
        """
        words = self.words(loads)
        plain = [loads[row, words[0] if row in self.chain.rows else "none"] for row in rows]
        held = sum(load.static_bytes + in_flight * load.activation_bytes for load in plain)
        excess = held + max(load.reserved_bytes for load in plain) - memory_bytes
        work = sum(_work(load) for load in plain)
        if excess <= 0:
            return work
        saved, cheapest = 0.0, math.inf
        for row, load in zip(rows, plain, strict=True):
            if row not in self.chain.rows:
                continue
            others = [loads[row, word] for word in words[1:]]
            saved += in_flight * max((load.activation_bytes - other.activation_bytes for other in others), default=0.0)
            for other in others:
                if other.activation_bytes < load.activation_bytes:
                    price = (_work(other) - _work(load)) / (in_flight * (load.activation_bytes - other.activation_bytes))
                    cheapest = min(cheapest, price)
        return work + excess * max(cheapest, 0.0) if excess <= saved else math.inf

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


def spread(n_layers: int, n_ranks: int, n_chunks: int) -> tuple[int, ...]:
    """Return how many layers each virtual stage gets: the quotient, and one more for some of them.

    What is left over goes to middle stages first, rank by rank, since the ends also hold embedding and head.
    """
    n_stages = n_ranks * n_chunks
    counts = [n_layers // n_stages] * n_stages
    middle = sorted(range(n_stages), key=lambda stage: (stage in (0, n_stages - 1), stage))
    for stage in middle[: n_layers - sum(counts)]:
        counts[stage] += 1
    return tuple(counts)


def _work(load: StageLoad) -> float:
    """Return the seconds one layer keeps its device busy for one micro-batch."""
    return load.forward_total_seconds + load.backward_total_seconds


def _returns(load: StageLoad, split_backward: bool) -> float:
    """Return the part of the backward pass that the previous stage waits for, at least."""
    weight = load.backward_weight_seconds if split_backward else 0.0
    return load.backward_total_seconds - load.recompute_seconds - weight


def _after(load: StageLoad) -> float:
    """Return what must follow the last backward pass: the optimizer, and gathering what it updated.

    The reduction is left out: how much of it hides depends on the layers before it.
    """
    return load.gather_seconds + load.optimizer_seconds
