"""Single splits of the layers, played by the simulator: what no inequality settles, for the check of answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from meshwright import schedules, sim
from meshwright.core.plan import Plan, Stage
from meshwright.core.stage_cost import StageCost
from meshwright.core.strategy import OFFLOAD, Strategy
from meshwright.planners.best.check.fitted_orders import least_step, longest_way
from meshwright.planners.best.check.prices import MEMORY_ROUNDING, LayerPrices, PricedLayer, Table
from meshwright.planners.best.check.rank_ways import RankWays
from meshwright.planners.best.check.space import CheckedMesh, Form, ranks_of
from meshwright.planners.best.check.step_ends import LastTraffic
from meshwright.planners.best.check.virtual_stages import Beside, Moments, VirtualStages, beside_of, stage_rows
from meshwright.planners.best.check.ways import all_take, rank_choices
from meshwright.planners.best.check.whole_stages import WholeStages
from meshwright.sim import engine, transfers
from meshwright.sim.transfers import Transfers

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
        self.prices, self.mesh, self.form, self.strategy, self.layout = prices, mesh, form, strategy, layout
        self.tables, self.of_rank, self.kinds = priced
        self.problem = prices.problem
        self.m = self.problem.batch.global_batch // (mesh.data * mesh.micro_batch)
        ranks, _ = ranks_of(prices.pool, mesh, layout)
        self.devices = [tuple(own.tolist()) for own in ranks]
        module = schedules.load(form.schedule)
        self.rank_of_stage = module.placement(mesh.pipeline, form.n_chunks).tolist()
        self.beside: list[Beside] | None = None
        if form.is_paired:
            n_told = VirtualStages.n_told(form, mesh.pipeline, self.m)
            self.beside = beside_of(module.order(mesh.pipeline, form.n_chunks, n_told, None))

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
        recomputation that each rank needs, and links of its own for all that is sent, is below all its plans. What
        recomputes nothing, or fits by one setting for all layers, or is the least of like layers of one stage each is the quickest plan
        of its split, and is played; of other mixtures only the bound is known. An order that is fitted to durations may hold more than
        the least of all orders: where that plan then does not fit, others that recompute more are left.

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
        bare = self.plan(counts, self._least_words(counts))
        if bare is None:
            return True
        if not self.form.is_split and self._with_least(bare, counts, bound, moments) >= limit:
            return True
        words = self._least_work(counts, moments)
        if words is None:
            counted = self.form.is_paired and self.prices.recompute.one_way  # with all that pairs hold
            return counted or (bound is not None and self.prices.chain.is_equal) or self._never_fits(counts, moments)
        plan = self.plan(counts, words)
        assert plan is not None
        alike = self.prices.limits["uniform"]  # then all layers must recompute the same, which the least work need not
        only = not alike and bound is not None and self.prices.chain.is_equal
        only = only or self.prices.recompute.one_way or not plan.recomputes
        if not only:
            return False
        if self.form.is_fitted and not self._fits(plan):  # such an order may hold more than all orders do
            return bool(self.prices.recompute.one_way)  # then there is no other plan
        return self._takes(plan, limit)

    def left(
        self,
        among: Sequence[int],
        every: Sequence[tuple[int, ...]],
        of: Callable[[int], VirtualStages],
        moments: Moments,
        limit: float,
    ) -> list[int]:
        """Return which of some spreads over virtual stages are not shown to take `limit` or longer by what each rank recomputes at least.

        Parameters
        ----------
        among : sequence of int
            The places of those that are asked.
        every : sequence of tuple of int
            Layers of each stage, of each spread.
        of : callable
            The bound of a spread, by its place.
        moments : list
            What ranks hold, as `moments_of` says.
        limit : float
            Seconds.
        """
        found = []
        for i in among:
            rows = stage_rows(self.prices, every[i])

            def least_work(rank: int, rows: list[list[tuple[int, bool]]] = rows) -> float:
                return self._rank_ways(rows, rank, moments).least_work(self._memory(rank))

            if not of(i).refuted(limit, least_work):
                found.append(i)
        return found

    def least_in_order(self, counts: Sequence[int], stage_costs: tuple[StageCost, ...]) -> float:
        """Return what a split takes at least: in the order that its schedule has, or every one that it may be fitted to.

        Lemma: no plan of the split takes less for any task, as `stage_costs` recompute the least, nor for what stages send, which has
        links of its own here. In a given order nothing starts earlier where anything takes longer; of others `least_step` has the lemma.

        Parameters
        ----------
        counts : sequence of int
            Layers of each stage.
        stage_costs : tuple of StageCost
            Of the split, as `Spreads.stage_costs` returns them.
        """
        bare = self.plan(counts)
        if bare is None:
            return math.inf
        send_seconds = self._send_seconds(bare, stage_costs)
        if not self.form.is_split:
            ranks, nothing = np.array(self.rank_of_stage), np.zeros_like(send_seconds)
            return engine.played_seconds(
                bare, stage_costs, Transfers(transfers.channels(ranks), send_seconds, nothing, nothing)
            )
        none = [0.0] * len(counts)
        return least_step(bare, stage_costs, send_seconds, none, none, self._last_reduced(stage_rows(self.prices, counts)))

    def _send_seconds(self, plan: Plan, stage_costs: tuple[StageCost, ...]) -> NDArray[np.float64]:
        """Return what each stage sends forward (row 0) and backward (row 1), alone on its links; remembered by all that it depends on."""
        sent = tuple((load.output_bytes, load.output_gradient) for load in stage_costs)
        key = (self.mesh, self.layout, tuple(self.rank_of_stage), sent)
        if key not in self.prices.sent:
            self.prices.sent[key] = transfers.transfers(self.problem, plan, stage_costs).seconds
        return self.prices.sent[key]

    def least_fitted(self, counts: Sequence[int], moments: Moments, stage_costs: tuple[StageCost, ...]) -> float:
        """Return `least_in_order` by what each rank must recompute; inf where nothing fits."""
        bare = self.plan(counts)
        if bare is None:
            return math.inf
        rows = stage_rows(self.prices, counts)
        of_stage, of_rank = [0.0] * len(rows), [0.0] * self.mesh.pipeline
        for rank in range(self.mesh.pipeline) if len(self.prices.recompute.words) > 1 else ():
            ways, memory = self._rank_ways(rows, rank, moments), self._memory(rank)
            of_rank[rank] = ways.least_work(memory)
            own = [stage for stage in range(len(rows)) if self.rank_of_stage[stage] == rank]
            for place, stage in enumerate(own) if of_rank[rank] > 0.0 else ():
                of_stage[stage] = ways.least_work(memory, place)
        if math.inf in of_rank:
            return math.inf
        send_seconds = self._send_seconds(bare, stage_costs)
        last = LastTraffic(self.problem, bare, self.prices.model.stage_costs(self.problem, bare))
        return least_step(bare, stage_costs, send_seconds, of_stage, of_rank, self._last_reduced(rows), last)

    def outweighed(self, counts: Sequence[int], moments: Moments, stage_costs: tuple[StageCost, ...], limit: float) -> bool:
        """Return whether a split is shown to take `limit` or longer by all that its ranks may recompute, together; arguments as above."""
        bare = self.plan(counts)
        if bare is None:
            return True
        rows, of_rank = stage_rows(self.prices, counts), self.rank_of_stage
        choices = []
        for rank in range(self.mesh.pipeline):
            own = rank_choices(self._rank_ways(rows, rank, moments), self._memory(rank))
            if own is None:
                return False
            choices.append(own)
        places = [[i for i, of in enumerate(of_rank) if of == rank] for rank in range(self.mesh.pipeline)]
        sent, reduced = self._send_seconds(bare, stage_costs), self._last_reduced(rows)
        return all_take(choices, places, lambda again: longest_way(bare, stage_costs, sent, again.tolist(), reduced), limit)

    def _last_reduced(self, rows: list[list[tuple[int, bool]]]) -> list[float]:
        """Return of every rank what of its reductions follows its last task at least: those of some layer of one of its stages."""
        found = [math.inf] * self.mesh.pipeline
        for rank, stage in zip(self.rank_of_stage, rows, strict=True):
            table = self.tables[self.of_rank[rank]]
            word = self.prices.words(table)[0]
            largest = max((table[row, word].reduce for row, fixed in stage if not fixed), default=0.0)
            found[rank] = min(found[rank], largest)
        return found

    def _rank_ways(self, rows: list[list[tuple[int, bool]]], rank: int, moments: Moments) -> RankWays:
        """Return the layers of a rank, of all stages."""
        own = [rows[stage] for stage in range(len(rows)) if self.rank_of_stage[stage] == rank]
        beside = None if self.beside is None else self.beside[rank]
        return RankWays(self.prices, own, self.tables[self.of_rank[rank]], moments[rank], beside)

    def _memory(self, rank: int) -> float:
        return self.prices.memory_bytes(self.kinds[rank])

    def _takes(self, plan: Plan, limit: float) -> bool:
        """Return whether one plan takes `limit` or longer: quickly with links for every collective, which takes no longer, or as it is."""
        if sim.least_seconds(self.problem, plan, self.stage_costs(plan)) >= limit:
            return True
        stage_costs = self.prices.model.stage_costs(self.problem, plan)
        return sim.simulate(self.problem, plan, stage_costs).step_seconds >= limit

    def _fits(self, plan: Plan) -> bool:
        """Return whether a plan, played as it is, fits every rank."""
        timeline = sim.simulate(self.problem, plan, self.prices.model.stage_costs(self.problem, plan))
        return sim.excess_bytes(self.problem, plan, timeline.peak_bytes, float(self.prices.limits["memory_ratio"])) <= 0.0

    def _hops(self, plan: Plan, stage_costs: tuple[StageCost, ...]) -> NDArray[np.float64]:
        """Return what transfers take alone on their links, in the quicker direction."""
        sent = transfers.transfers(self.problem, plan, stage_costs)
        return np.minimum(sent.seconds[0, :-1], sent.seconds[1, 1:])

    def _with_least(self, bare: Plan, counts: Sequence[int], bound: WholeStages | None, moments: Moments) -> float:
        """Return the step of a split whose ranks recompute at least as long as they must; virtual stages recompute nothing here.

        Of a single rank that is exact; of several ranks it would be asked too often.
        """
        start, stage_costs, bare_loads = 0, [], self.stage_costs(bare)
        if bound is None:
            if not self.form.is_paired:
                return sim.least_seconds(self.problem, bare, bare_loads)
            return sim.estimate(bare, bare_loads, np.zeros(len(counts) - 1))
        for rank, (load, count) in enumerate(zip(bare_loads, counts, strict=True)):
            again = bound.repeated(rank, start, start + count)
            if len(counts) == 1 and not self.prices.chain.is_equal:
                again = max(
                    again, self._rank_ways(stage_rows(self.prices, counts), rank, moments).least_work(self._memory(rank))
                )
            if again == math.inf:
                return math.inf
            stage_costs.append(replace(load, recompute_seconds=load.recompute_seconds + again))
            start += count
        return sim.estimate(bare, tuple(stage_costs), self._hops(bare, bare_loads))

    def _never_fits(self, counts: Sequence[int], moments: Moments) -> bool:
        """Return whether some rank holds more than it can whatever its layers recompute.

        Lemma: at each of its moments the layers of the stage at work need, while they run, as much as some way of one of them says, and each
        keeps no less than by the best of its ways that need no more; layers of other stages keep their least, all reserve their least.
        """
        rows = stage_rows(self.prices, counts)
        for rank in range(self.mesh.pipeline):
            own = [rows[stage] for stage in range(len(rows)) if self.rank_of_stage[stage] == rank]
            table, (times, place) = self.tables[self.of_rank[rank]], moments[rank]
            words = self.prices.words(table)
            ways = [
                [[table[row, self.prices.pinned_word(row) if fixed else word] for word in words] for row, fixed in stage]
                for stage in own
            ]
            kept = np.array([sum(min(way.kept_bytes for way in layer) for layer in stage) for stage in ways])
            moving = max(
                float(held @ kept - held[at] * kept[at]) + _at_work(ways[at], float(held[at]))
                for held, at in zip(times, place.tolist(), strict=True)
            )
            if self.beside is not None and len(self.beside[rank][0]):  # a second stage at work needs its least too
                low = [max((min(way.working_bytes for way in layer) for layer in stage), default=0.0) for stage in ways]
                moving = max(
                    moving,
                    max(
                        float(held @ kept - held[i] * kept[i]) + _at_work(ways[i], float(held[i])) + low[j]
                        for held, (i, j) in zip(self.beside[rank][0], self.beside[rank][1].tolist(), strict=True)
                    ),
                )
            static = sum(layer[0].static_bytes for stage in ways for layer in stage)
            reserved = max(min(way.reserved_bytes for way in layer) for stage in ways for layer in stage)
            if static + reserved + moving > self.prices.memory_bytes(self.kinds[rank]) * (1.0 + MEMORY_ROUNDING):
                return True
        return False

    def _least_words(self, counts: Sequence[int]) -> list[tuple[str, ...]]:
        """Return what every layer recomputes at least."""
        least = self.prices.recompute.words[0] if len(self.prices.recompute.words) == 1 else "none"
        rows = stage_rows(self.prices, counts)
        return [tuple(self.prices.pinned_word(row) if fixed else least for row, fixed in stage) for stage in rows]

    def _least_blocks(self, counts: Sequence[int], moments: Moments) -> list[tuple[str, ...]] | None:
        """Return what every layer recomputes where the first layers of each stage recompute all: as few as fit; None where none do.

        Lemma: a layer more in every block takes longer and shortens nothing, so the smallest block that fits is the quickest.
        """
        rows = stage_rows(self.prices, counts)
        ranks = []
        for rank in range(self.mesh.pipeline):
            own = [stage for stage in range(len(rows)) if self.rank_of_stage[stage] == rank]
            ranks.append((self._rank_ways(rows, rank, moments), own, self._memory(rank)))
        strongest = self.prices.recompute.words[-1]  # of blocks: none and another
        most = max(counts) - int(strongest == OFFLOAD)
        for n_full in range(1 if self.form.is_paired else most + 1):
            words = []
            for stage in rows:
                place = accumulate((not fixed for _, fixed in stage), initial=0)
                words.append(
                    tuple("none" if fixed or i >= n_full else strongest for (_, fixed), i in zip(stage, place, strict=False))
                )
            if all(
                ways.peak(np.array([int(word == strongest) for stage in own for word in words[stage]])) <= memory
                for ways, own, memory in ranks
            ):
                return words
        return None

    def _least_work(self, counts: Sequence[int], moments: Moments) -> list[tuple[str, ...]] | None:
        """Return what every layer recomputes by the rule of the space; None where some rank does not fit."""
        if self.prices.recompute.blocks:
            return self._least_blocks(counts, moments)
        rows = stage_rows(self.prices, counts)
        words: list[tuple[str, ...]] = [()] * len(rows)
        for rank in range(self.mesh.pipeline):
            own = [stage for stage in range(len(rows)) if self.rank_of_stage[stage] == rank]
            chosen = self._rank_ways(rows, rank, moments).rule(self._memory(rank))
            if chosen is None:
                return None
            for stage in own:
                words[stage], chosen = tuple(chosen[: len(rows[stage])]), chosen[len(rows[stage]) :]
        return words


def _at_work(layers: Sequence[Sequence[PricedLayer]], held: float) -> float:
    """Return what a stage at work holds at least: of its layers, each with its ways to recompute, so many micro-batches and what is needed."""
    best = math.inf if layers else 0.0
    for level in {way.working_bytes for layer in layers for way in layer}:
        kept = [min((way.kept_bytes for way in layer if way.working_bytes <= level), default=math.inf) for layer in layers]
        best = min(best, (held * sum(kept) if held else 0.0) + level)
    return best
