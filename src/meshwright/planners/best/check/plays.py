"""Single splits of the layers, played by the simulator: what no inequality settles, for the check of answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from meshwright import schedules, sim
from meshwright.core.plan import Plan, Stage
from meshwright.core.stage_cost import StageCost
from meshwright.core.strategy import Strategy
from meshwright.planners.best.check.prices import LayerPrices, PricedLayer, Table
from meshwright.planners.best.check.space import CheckedMesh, Form, ranks_of
from meshwright.planners.best.check.virtual_stages import Moments, moments_of, stage_rows
from meshwright.planners.best.check.whole_stages import WholeStages
from meshwright.sim import transfers

__all__ = ["Plays"]


class Plays:
    """The plans of one configuration.

    Parameters
    ----------
    prices : LayerPrices
        Of the pool.
    mesh, form, strategy, layout
        The configuration.
    priced : tuple
        Its prices, as `LayerPrices.of_ranks` returns them.
    """

    def __init__(
        self,
        prices: LayerPrices,
        mesh: CheckedMesh,
        form: Form,
        strategy: Strategy,
        layout: str,
        priced: tuple[list[Table], list[int], list[int]],
    ) -> None:
        self.prices, self.mesh, self.form, self.strategy = prices, mesh, form, strategy
        self.tables, self.of_rank, self.kinds = priced
        self.problem = prices.problem
        self.m = self.problem.batch.global_batch // (mesh.data * mesh.micro_batch)
        ranks, _ = ranks_of(prices.pool, mesh, layout)
        self.devices = [tuple(own.tolist()) for own in ranks]
        self.rank_of_stage = schedules.load(form.schedule).placement(mesh.pipeline, form.n_chunks).tolist()

    def plan(self, counts: Sequence[int], words: Sequence[tuple[str, ...]] | None = None) -> Plan | None:
        """Return the plan of a split, with what every layer of each stage recomputes (pinned ones too); None with an empty stage."""
        chain, stages, start = self.prices.chain, [], 0
        for i, count in enumerate(counts):
            ops = chain.layers[start : start + count]
            start += count
            ops = (chain.prefix if i == 0 else ()) + ops + (chain.suffix if i == len(counts) - 1 else ())
            if not ops:
                return None
            own = words[i] if words else ()
            stages.append(Stage(ops, self.devices[self.rank_of_stage[i]], self.strategy, own))
        return Plan(tuple(stages), self.m, self.mesh.micro_batch, self.form.schedule, self.problem.batch.global_batch)

    def stage_costs(self, plan: Plan) -> tuple[StageCost, ...]:
        """Return what the stages of a plan do, without what they put on links."""
        found: tuple[StageCost, ...] = self.prices.model.stage_costs(self.problem, plan, ledger=False)
        return found

    def hop_seconds(self, counts: Sequence[int]) -> list[float]:
        """Return the least that a transfer from each rank to the next takes in any split of the layers.

        Lemma: what is sent is the output of some layer, so at least the smallest of all; with the same links it takes, beyond the first
        byte, a share of the time that is the share of the bytes. Nothing may come back where the first layers are frozen.
        """
        plan = self.plan(counts)
        if plan is None:
            return []
        sent = transfers.transfers(self.problem, plan, self.stage_costs(plan))
        ends = {*self.prices.chain.rows, *self.prices.chain.prefix[-1:]}
        smallest = min(layer.output_bytes for table in self.tables for (row, _), layer in table.items() if row in ends)
        found = []
        for i in range(len(counts) - 1):
            ways = []
            for way, stage in ((0, i), (1, i + 1)):
                seconds, latency, n_bytes = (float(own[way, stage]) for own in (sent.seconds, sent.latency_seconds, sent.bytes))
                share = min(1.0, smallest / n_bytes) if n_bytes > 0.0 else 0.0
                ways.append(latency + (seconds - latency) * share if n_bytes > 0.0 else 0.0)
            found.append(min(ways))
        frozen = {row for table in self.tables for (row, _), layer in table.items() if not layer.output_gradient}
        silent = 0 if not frozen else len(found) if frozen & set(self.prices.chain.rows) else 1
        return [0.0] * silent + found[silent:]

    def refuted(self, counts: Sequence[int], bound: WholeStages | None, moments: Moments, limit: float) -> bool:
        """Return whether all plans of one split are shown to take `limit` or longer, or not to fit.

        Lemma: where backward passes are whole, every rank's order is fixed, and longer tasks end no step earlier: a split with the least
        recomputation that each rank needs, and links of its own for all that is sent, is below all its plans. The space recomputes
        only where memory asks: the only plan of a split is the one of the least work that fits each rank, but for mixtures of unlike
        layers under 1F1B and GPipe where something is recomputed.

        Parameters
        ----------
        counts : sequence of int
            Layers of each stage.
        bound : WholeStages or None
            What ranks with one stage each recompute at least; None for virtual stages.
        moments : list
            What ranks hold, as `moments_of` says.
        limit : float
            Seconds.
        """
        bare = self.plan(counts)
        if bare is None:
            return True
        if not self.form.is_split and self._with_least(bare, counts, bound) >= limit:
            return True
        words = self._least_work(counts, moments)
        if words is None:
            return (bound is not None and self.prices.chain.is_equal) or self._never_fits(counts, moments)
        plan = self.plan(counts, words)
        assert plan is not None
        alike = self.prices.limits["uniform"]  # then all layers must recompute the same, which the least work need not
        only = not plan.recomputes or (not alike and (bound is None or self.form.is_split or self.prices.chain.is_equal))
        if not only:
            return False
        if (
            self.form.is_split and self.form.n_chunks > 1
        ):  # an order that is fitted to durations may hold more than all orders do
            own = moments_of(sim.order(self.problem, plan, self.stage_costs(plan)), early=False)
            again = self._least_work(counts, own)
            if again is None:
                return False
            if again != words:
                second = self.plan(counts, again)
                return self._takes(plan, limit) and second is not None and self._takes(second, limit)
        return self._takes(plan, limit)

    def _takes(self, plan: Plan, limit: float) -> bool:
        """Return whether one plan takes `limit` or longer: quickly with links for every collective, which takes no longer, or as it is."""
        if sim.least_seconds(self.problem, plan, self.stage_costs(plan)) >= limit:
            return True
        stage_costs = self.prices.model.stage_costs(self.problem, plan)
        return sim.simulate(self.problem, plan, stage_costs).step_seconds >= limit

    def _hops(self, plan: Plan, stage_costs: tuple[StageCost, ...]) -> NDArray[np.float64]:
        """Return what transfers take alone on their links, in the quicker direction."""
        sent = transfers.transfers(self.problem, plan, stage_costs)
        return np.minimum(sent.seconds[0, :-1], sent.seconds[1, 1:])

    def _with_least(self, bare: Plan, counts: Sequence[int], bound: WholeStages | None) -> float:
        """Return the step of a split whose ranks recompute at least as long as they must; virtual stages recompute nothing here."""
        start, stage_costs, bare_loads = 0, [], self.stage_costs(bare)
        if bound is None:
            return sim.estimate(bare, bare_loads, np.zeros(len(counts) - 1))
        for rank, (load, count) in enumerate(zip(bare_loads, counts, strict=True)):
            again = bound.repeated(rank, start, start + count)
            if again == math.inf:
                return math.inf
            stage_costs.append(replace(load, recompute_seconds=load.recompute_seconds + again))
            start += count
        return sim.estimate(bare, tuple(stage_costs), self._hops(bare, bare_loads))

    def _never_fits(self, counts: Sequence[int], moments: Moments) -> bool:
        """Return whether some rank holds more than it can whatever its layers recompute.

        Lemma: at its moments a rank holds at least the least of every figure of each of its layers.
        """
        rows = stage_rows(self.prices, counts)
        for rank in range(self.mesh.pipeline):
            own = [rows[stage] for stage in range(len(rows)) if self.rank_of_stage[stage] == rank]
            table, (times, place) = self.tables[self.of_rank[rank]], moments[rank]
            words = self.prices.words(table)
            ways = [[[table[row, "none" if fixed else word] for word in words] for row, fixed in stage] for stage in own]
            kept = np.array([sum(min(way.kept_bytes for way in layer) for layer in stage) for stage in ways])
            working = np.array(
                [max((min(way.working_bytes for way in layer) for layer in stage), default=0.0) for stage in ways]
            )
            static = sum(layer[0].static_bytes for stage in ways for layer in stage)
            reserved = max(min(way.reserved_bytes for way in layer) for stage in ways for layer in stage)
            if static + reserved + float((times @ kept + working[place]).max()) > self.prices.memory_bytes(self.kinds[rank]):
                return True
        return False

    def _least_work(self, counts: Sequence[int], moments: Moments) -> list[tuple[str, ...]] | None:
        """Return what every layer recomputes by the rule of the space; None where some rank does not fit."""
        rows = stage_rows(self.prices, counts)
        words: list[tuple[str, ...]] = [()] * len(rows)
        for rank in range(self.mesh.pipeline):
            own = [stage for stage in range(len(rows)) if self.rank_of_stage[stage] == rank]
            table = self.tables[self.of_rank[rank]]
            memory = self.prices.memory_bytes(self.kinds[rank])
            chosen = _rule([rows[stage] for stage in own], table, self.prices.words(table), moments[rank], memory)
            if chosen is None:
                return None
            for stage in own:
                words[stage], chosen = tuple(chosen[: len(rows[stage])]), chosen[len(rows[stage]) :]
        return words


def _rule(
    stages: list[list[tuple[int, bool]]],
    table: Table,
    words: tuple[str, ...],
    moments: tuple[NDArray[np.float64], NDArray[np.int64]],
    memory_bytes: float,
) -> list[str] | None:
    """Return what the layers of a rank recompute by the rule of the space: the least work that fits.

    For every number of layers that recompute the most, as few as possible of the others recompute their cheap activations; layers of
    stages that are held most often at the fullest moment come first.
    """
    at = [i for i, rows in enumerate(stages) for _ in rows]
    pinned = [is_pinned for rows in stages for _, is_pinned in rows]
    ways: list[list[PricedLayer]] = [
        [table[row, "none" if fixed else word] for word in words] for rows in stages for row, fixed in rows
    ]
    kept, working, reserved, work = (
        np.array([[getattr(layer, name) for layer in own] for own in ways])
        for name in ("kept_bytes", "working_bytes", "reserved_bytes", "work")
    )
    static = sum(own[0].static_bytes for own in ways)
    times, place = moments

    def peak(choice: NDArray[np.int64]) -> float:
        every, widest = np.arange(len(choice)), np.zeros(len(stages))
        np.maximum.at(widest, at, working[every, choice])
        moving = times @ np.bincount(at, kept[every, choice], len(stages)) + widest[place]
        return float(static + reserved[every, choice].max() + moving.max())

    nothing = np.zeros(len(at), dtype=np.int64)
    best: NDArray[np.int64] | None = nothing if peak(nothing) <= memory_bytes else None
    fullest = int(np.argmax(times @ np.bincount(at, kept[:, 0], len(stages))))
    free = sorted((i for i, fixed in enumerate(pinned) if not fixed), key=lambda i: (-times[fullest, at[i]], i))
    strongest, least = len(words) - 1, math.inf
    for n_strong in range(len(free) + 1) if best is None else ():
        trial = nothing.copy()
        trial[free[:n_strong]] = strongest
        every = np.arange(len(trial))
        if float((work[every, trial] - work[:, 0]).sum()) >= least:
            break
        for weak in [*(free[n_strong:] if strongest == 2 else []), None]:
            if peak(trial) <= memory_bytes:
                seconds = float((work[every, trial] - work[:, 0]).sum())
                if seconds < least:
                    least, best = seconds, trial.copy()
                break
            if weak is not None:
                trial[weak] = 1
    return None if best is None else ["none" if fixed else words[i] for i, fixed in zip(best.tolist(), pinned, strict=True)]
