"""Best-first branch and bound over the joint space: a heap of meshes and configurations by bound, plans played by the simulator."""

from __future__ import annotations

import heapq
import math
import time
from dataclasses import replace
from typing import Any

import numpy as np

from meshwright import sim
from meshwright.base import registry
from meshwright.core.plan import Plan
from meshwright.core.problem import Problem, Stop
from meshwright.core.result import Answer, Bound, Objective
from meshwright.planners.best import bounds, incumbents, limits, plans, question, ranks, virtual
from meshwright.planners.best.beside import runners_up, simplest
from meshwright.planners.best.certificate import Record, certificate
from meshwright.planners.best.costs import Costs
from meshwright.planners.best.incumbents import Allowance, Goal, Incumbent, so_far
from meshwright.planners.best.layer_sums import chain_of
from meshwright.planners.best.limits import Limits
from meshwright.planners.best.question import Exchanges, impossible
from meshwright.planners.best.space import ANY, ANY_SPREAD, Config, DevicePool, MeshDegrees, meshes, schedules_of
from meshwright.schedules import in_pairs

__all__ = ["BestFirstSearch", "Entry"]

# what the bound of a heap entry stands on: devices' peak, compute, communication inside layers; of a configuration without and
# with what happens between replicas; with transfers between ranks; with its plan; with the transfers of its only plan
_PEAK, _COMPUTE, _WITH_COMMUNICATION, _UNLIT, _SCHEDULE, _LIGHT, _FULL, _SENT, _BUILT, _CARRIED = range(10)
_TELL_EVERY = 16  # sets of plans looked at until what is proven is noted again, at least,
_ASIDE_PER_LOOK = 32  # and one more for so many that are aside: going through these is not to take longer than the looks
_GRACE_SECONDS = 2.0  # for which a search that dived without finding a plan goes on whatever the limit of time
_MOST_BUILT = 4  # plans built at most for each that may be played

Entry = tuple[float, int, int, MeshDegrees | Config, Plan | None]
"""On the heap: a bound, what it stands on, the pool, a set of plans, and its plan once that is built."""


class BestFirstSearch:
    """The state of one best-first search: a heap of meshes and configurations by bound, the plans found, the refusals."""

    def __init__(self, problem: Problem, params: Limits, stop: Stop) -> None:
        self.problem, self.params, self.stop = problem, limits.inside_framework(params, problem), stop
        self.chain = chain_of(problem.graph)
        self.heap: list[Entry] = []
        # what was of no use when it was looked at, and may be for another goal: it takes as long as its limit then, or does not fit
        self.later: list[Entry] = []
        self.away: list[Entry] = []  # what is not looked at for now
        self.told_seconds = 0.0  # what was proven of all plans when it was last noted
        self.goal: Goal | None = None
        self.costs: list[Costs] = []
        self.found: list[Incumbent] = []
        self.best_seconds = math.inf  # of all that is found
        self.refused: dict[str, int] = {}
        self.record = Record()
        self.too_large: list[tuple[int, Config, bool]] = []
        self.n_built = self.n_evaluations = self.n_looked = self.tell_at = 0
        self.allowance = Allowance()
        self.open: list[tuple[float, int, Config]] = []
        self.was_stopped = self.is_diving = False
        self.deadline = time.monotonic() + stop.seconds if stop.seconds else math.inf
        self.model = registry.load("costs", problem.costs, "cost model")
        self.exchanges = Exchanges(problem, self.params.context_exchange, self.params.state_offloads)
        stop.tell(lambda: so_far(self.found, self.told_seconds))

    @property
    def budget(self) -> int:
        """How many plans may be evaluated."""
        return self.stop.n_iterations or self.params.evaluations

    @property
    def is_over(self) -> bool:
        """Whether time is up, or the user asked for what there is; from then on for good.

        A plan is better than none: as long as there is none yet, a dive for one goes on whatever the time.
        """
        late = time.monotonic() > self.deadline and (bool(self.found) or not self.is_diving)
        self.was_stopped = self.was_stopped or self.stop.is_asked() or late
        return self.was_stopped

    def dive(self, is_diving: bool) -> None:
        """Begin or end the part of the search that ends with a plan wherever it can; after it there is time for a look at the rest."""
        self.is_diving = is_diving
        if not is_diving and not self.found:
            self.deadline = max(self.deadline, time.monotonic() + _GRACE_SECONDS)

    @property
    def is_spent(self) -> bool:
        """Whether as much was looked at, built or evaluated as is allowed."""
        most = self.allowance
        return self.n_evaluations >= most.n_evaluations or self.n_built >= most.n_built or self.n_looked >= most.n_looked

    def allow(self, n_evaluations: int, n_looked: float = math.inf) -> None:
        """Allow so many more plans to be evaluated, four times as many to be built, and so many more entries to be looked at."""
        built = self.n_built + _MOST_BUILT * n_evaluations
        self.allowance = Allowance(self.n_evaluations + n_evaluations, built, self.n_looked + n_looked)

    def limit(self, item: MeshDegrees | Config) -> float:
        """Return the step from which on plans of a set are of no use: that of the best plan, or what the goal says."""
        return self.best_seconds if self.goal is None else self.goal.limit(item)

    def pursue(self, goal: Goal | None) -> None:
        """Search for something else from now on: all that was put aside for the last goal is looked at anew."""
        self.goal = goal
        self.heap += self.later
        self.later = []
        heapq.heapify(self.heap)

    def add(self, pool: DevicePool) -> None:
        """Put every legal mesh of a pool on the heap, with the bound that its devices' peak gives."""
        problem, cluster = self.problem, self.problem.required_cluster
        if not ranks.allowed_pool(pool, problem):
            return
        spaces = question.settings(problem, self.params)
        every = Costs(
            problem, pool, self.chain, spaces[0][0], self.params.memory_ratio, self.params.shard, exchanges=self.exchanges,
            in_pairs=any(in_pairs(word) for word in self.params.schedules),
        )  # fmt: skip
        own = [every.recomputing(words, blocks=blocks) for words, blocks in spaces]
        places = range(len(self.costs), len(self.costs) + len(own))
        self.costs += own
        n_layers = len(self.chain.layers)
        degrees = limits.allowed_degrees(problem, self.params, pool.n_devices)
        peak = max(cluster.device(int(devices[0])).peak(problem.training.precision) for devices in pool.devices)
        flops = limits.sample_flops(problem.graph) * problem.batch.global_batch
        whole = problem.framework.limits.experts_over_tensor
        for mesh in meshes(pool, n_layers=n_layers, global_batch=problem.batch.global_batch, degrees=degrees):
            if (mesh.whole_experts and not whole) or not ranks.taken_in_order(pool, mesh, problem):
                continue
            own_places = [place for place in places if mesh.pipeline == 1 or not self.costs[place].offloads]
            if reason := self.exchanges.refusal(mesh):
                self.refused[reason] = self.refused.get(reason, 0) + 1
                self.record.illegal.update({(place, mesh): None for place in own_places})
                continue
            bound = flops / (peak * mesh.rank_size * mesh.pipeline)
            for place in own_places:
                self.record.bound(place, mesh, bound)
                heapq.heappush(self.heap, (bound, _PEAK, place, mesh, None))

    def look_at(self, entries: list[Entry], away: list[Entry]) -> None:
        """Search some sets of plans only from now on; what is `away` counts for what is proven as they do."""
        self.heap, self.away = entries, away
        heapq.heapify(self.heap)

    def know(self, plan: Plan) -> None:
        """Take a plan for found where it is one of the space and fits."""
        place = incumbents.place_of(plan, self.costs)
        found = None if place is None else self.play(*place, plan)
        if found is not None:
            self.keep(found)

    def keep(self, found: Incumbent) -> None:
        """Take a plan that fits for found."""
        self.found.append(found)
        self.best_seconds = min(self.best_seconds, found.step_seconds)

    def run(self) -> None:
        """Look at sets of plans in order of bound until none is below the best plan or the goal, the allowance is spent, or time is up."""
        while self.heap:
            bound, level, pool, config, plan = self.heap[0]
            if bound >= (self.best_seconds if self.goal is None else self.goal.cutoff_seconds):
                break
            if self.is_over or (self.found and self.is_spent):
                break
            if self.n_looked >= self.tell_at:  # told from another thread, which would miss the set that is looked at
                self.told_seconds = max(self.told_seconds, self.proven)
                self.tell_at = self.n_looked + _TELL_EVERY + (len(self.later) + len(self.away)) // _ASIDE_PER_LOOK
            heapq.heappop(self.heap)
            if bound >= self.limit(config):
                self.later.append((bound, level, pool, config, plan))
                continue
            self.n_looked += 1
            self._look(bound, level, pool, config, plan)

    def _look(self, bound: float, level: int, pool: int, config: MeshDegrees | Config, plan: Plan | None) -> None:
        """Raise the bound of a set of plans, let it fall into smaller ones, or play its plan."""
        costs = self.costs[pool]
        if isinstance(config, MeshDegrees):
            self._look_at_mesh(costs, config, pool, level, bound)
        elif level == _UNLIT:
            self._push_config(costs, config, pool, _SCHEDULE if config.is_any else _LIGHT, bound)
        elif level == _SCHEDULE:
            self._vary(costs, config, pool, bound)
        elif level == _LIGHT:
            limit = self._limit_of_bound(config)
            full = bounds.of_config(costs, config, self.n_microbatches(config.mesh), limit)
            if math.isfinite(full):
                self._push(max(bound, full), _FULL, pool, config)
            else:
                self._set_aside(pool, config, _LIGHT, max(bound, limit))
        elif level == _FULL:
            (self._spread if config.fewer == ANY_SPREAD else self._send)(pool, config, bound)
        elif level == _SENT:
            self._build(pool, config, bound)
        elif plan is not None:
            carried = self._with_transfers(costs, config, plan) if level == _BUILT else 0.0
            if carried > bound:
                self._push(carried, _CARRIED, pool, config, plan)
            else:
                self._evaluate(pool, config, plan, bound)

    def _look_at_mesh(self, costs: Costs, mesh: MeshDegrees, pool: int, level: int, bound: float) -> None:
        """Raise the bound of a mesh, or let it fall into its schedules."""
        if level < _WITH_COMMUNICATION:
            quick = bounds.of_mesh(costs, mesh, self.n_microbatches(mesh), with_communication=level == _COMPUTE)
            self.record.bound(pool, mesh, max(bound, quick))
            self._push(max(bound, quick), level + 1, pool, mesh)
        else:
            self._expand(costs, mesh, pool, bound)

    def _push(self, bound: float, level: int, pool: int, item: MeshDegrees | Config, plan: Plan | None = None) -> None:
        """Put a mesh or a configuration, and its plan once that is built, on the heap, or aside if it is of no use now."""
        if bound < self.limit(item):
            heapq.heappush(self.heap, (bound, level, pool, item, plan))
        elif math.isfinite(bound):
            self.later.append((bound, level, pool, item, plan))

    def _limit_of_bound(self, config: Config) -> float:
        """Return the step above which a bound need not be told."""
        return min(max(self.limit(config), 0.0), runners_up.LONGEST_SECONDS)

    def n_microbatches(self, mesh: MeshDegrees) -> int:
        return self.problem.batch.global_batch // (mesh.data * mesh.micro_batch)

    def _expand(self, costs: Costs, mesh: MeshDegrees, pool: int, least: float) -> None:
        """Put the schedules of a mesh on the heap, each with a bound on all its shardings and layouts: `Costs.rows` has the lemma."""
        n_microbatches, n_layers = self.n_microbatches(mesh), len(self.chain.layers)
        for schedule, chunks in schedules_of(mesh, n_microbatches, n_layers, self.params.schedules):
            uneven = self.params.uniform and n_layers % (mesh.pipeline * chunks)
            if uneven or (in_pairs(schedule) and costs.repeats_dispatch):
                continue
            fewer = ANY_SPREAD if chunks > 1 and not self.params.uniform else (0, 0)
            config = Config(mesh, ANY, 0, schedule, chunks, "", fewer=fewer)
            self._push_config(costs, config, pool, _SCHEDULE, least)

    def _vary(self, costs: Costs, config: Config, pool: int, least: float) -> None:
        """Put the shardings, layouts and exchanges of a schedule on the heap."""
        own = (self.params.shard, self.exchanges.of(config.mesh), self.params.state_offloads)
        for variant in limits.variants(config, self.problem, costs.pool, *own):
            if reasons := self.problem.framework.limits.unpaired(variant.strategy):
                self.refused[reasons[0]] = self.refused.get(reasons[0], 0) + 1
            else:
                self._push_config(costs, variant, pool, _LIGHT, least)

    def _push_config(self, costs: Costs, config: Config, pool: int, level: int, least: float) -> None:
        """Put a configuration on the heap with its light bound, not below that of the set it is of, or among the too large."""
        limit = self._limit_of_bound(config)
        bound = bounds.of_config(costs, config, self.n_microbatches(config.mesh), limit, light=True)
        if math.isfinite(bound):
            return self._push(max(bound, least), level, pool, config)
        return self._set_aside(pool, config, _UNLIT, max(least, limit))

    def _set_aside(self, pool: int, config: Config, level: int, least: float) -> None:
        """Put a configuration that fits nothing below the limit aside; one of virtual stages, whose bounds have no limit, for good."""
        if not self.found:
            self.too_large.append((pool, config, level == _UNLIT))
        elif config.chunks == 1:
            self.later.append((least, level, pool, config, None))

    def _spread(self, pool: int, config: Config, least: float) -> None:
        """Put every spread of the layers over virtual stages on the heap, each with its own bound; what never fits is left out."""
        own = virtual.bounds_of(self.costs[pool], config, self.n_microbatches(config.mesh), light=False)
        for fewer, bound in zip(virtual.spreads(self.costs[pool], config), own.tolist(), strict=True):
            self._push(max(bound, least), _FULL, pool, replace(config, fewer=fewer))

    def _send(self, pool: int, config: Config, bound: float) -> None:
        """Raise the bound of a configuration by what its ranks send each other; where that changes nothing, build its plan."""
        limit = self._limit_of_bound(config)
        sent = bounds.with_transfers(self.costs[pool], config, self.n_microbatches(config.mesh), limit)
        if sent >= limit and self.found and not config.one_way:
            self.later.append((max(bound, limit), _FULL, pool, config, None))
        elif sent > bound:
            self._push(sent if math.isfinite(sent) else limit, _SENT, pool, config)
        else:
            self._build(pool, config, bound)

    def _build(self, pool: int, config: Config, bound: float) -> None:
        """Build the plan of a configuration, and put it on the heap again."""
        costs, n_microbatches = self.costs[pool], self.n_microbatches(config.mesh)
        self.n_built += 1
        plan = plans.build(costs, config, n_microbatches, bound, uniform=self.params.uniform)
        if plan is None:
            if not plans.only_split_never_fits(costs, config, n_microbatches):
                # its bound stays part of the proof: a split, or a mixture of what is recomputed, that building does not find may fit
                self.open.append((bound, pool, config))
            self.too_large.append((pool, config, False))
            return
        least = self.least_seconds(costs, config, plan)
        if not self._closed(costs, config, plan):
            even = plans.even(costs, config, n_microbatches) if config.one_way and not config.split_backward else None
            # no plan of the configuration is quicker than this split with nothing recomputed, whether that fits or not
            full = bound if even is None else max(bound, self.least_seconds(costs, config, even))
            # its bound stays part of the proof: another split, or mixture of what is recomputed, may be as good as it says
            self.open.append((full, pool, config))
        self._push(max(bound, least), _BUILT, pool, config, plan)

    def least_seconds(self, costs: Costs, config: Config, plan: Plan) -> float:
        """Return what a plan takes at least, found quickly: with links for every collective, and fixed orders without transfers.

        An order that is fitted to durations is that of the plan itself only with its transfers.
        """
        stage_costs = costs.stage_costs(config, plan)
        if config.split_backward:
            return sim.least_seconds(self.problem, plan, stage_costs)
        return sim.estimate(plan, stage_costs, np.zeros(len(plan.stages) - 1))

    def _with_transfers(self, costs: Costs, config: Config, plan: Plan) -> float:
        """Return what a plan takes at least with its transfers; 0 where `least_seconds` has them, or there are none."""
        if config.split_backward or config.mesh.pipeline == 1:
            return 0.0
        return sim.least_seconds(self.problem, plan, costs.stage_costs(config, plan))

    def _closed(self, costs: Costs, config: Config, plan: Plan) -> bool:
        """Return whether no plan of a configuration is quicker: it has one split, and nothing is recomputed, or one setting serves all
        layers, or layers are alike on one rank, of which the fewest that fit recompute.

        Which of unlike layers, or of layers of several stages, recompute is open: the least work need not be the shortest step.
        """
        alike = self.chain.equal and config.mesh.pipeline == 1
        return config.one_way and (costs.one_setting or alike or not plan.recomputes)

    def _evaluate(self, pool: int, config: Config, plan: Plan, bound: float) -> None:
        """Play the plan of a configuration, quickly with links for every collective first, then as it is."""
        self.n_evaluations += 1
        least = self.least_seconds(self.costs[pool], config, plan)
        if least >= self.limit(config):
            if self._closed(self.costs[pool], config, plan):
                self.later.append((max(bound, least), _BUILT, pool, config, plan))
            return
        found = self.play(pool, config, plan)
        if found is not None:
            self.keep(found)
        elif self._closed(self.costs[pool], config, plan):
            self.open.append((bound, pool, config))

    def play(self, pool: int, config: Config, plan: Plan) -> Incumbent | None:
        """Return the plan simulated; None when it does not fit its devices after all."""
        timeline = sim.simulate(self.problem, plan, self.model.stage_costs(self.problem, plan))
        if sim.excess_bytes(self.problem, plan, timeline.peak_bytes, self.params.memory_ratio) > 0.0:
            return None
        return Incumbent(pool, config, plan, timeline)

    @property
    def proven(self) -> float:
        """Return the smallest bound on any plan not played."""
        left = self.heap[0][0] if self.heap else math.inf
        bounds_left = [*(entry[0] for entry in (*self.later, *self.away)), *(bound for bound, _, _ in self.open)]
        return min(self.best_seconds, left, *bounds_left)

    def certificate(self) -> dict[str, Any]:
        """Return what was closed by which bound: of all plans, or of all configurations where nothing fits."""
        seconds, own = self.proven if self.found else math.inf, [costs.pool for costs in self.costs]
        return certificate(self.problem, self.params, own, self.record, len(self.chain.layers), seconds, self.exchanges)

    def answer(self, notes: tuple[str, ...]) -> Answer:
        """Return what was found."""
        refused = [{"reason": reason, "n_meshes": count} for reason, count in sorted(self.refused.items())]
        extra: dict[str, object] = {
            "refused": refused,
            "n_plans_simulated": self.n_evaluations,
            "stopped_early": self.was_stopped,
        }
        if self.was_stopped:
            notes = (*notes, incumbents.STOPPED if self.found else incumbents.STOPPED_WITHOUT)
        if not self.found:
            return self._infeasible(notes, extra)
        chosen = simplest.chosen(self.found, self.params.within_ratio)
        notes = (*notes, *incumbents.memory_notes(self.problem, chosen))
        n_others, left = self.params.alternatives - 1, ((entry[0], entry[3]) for entry in (*self.heap, *self.later))
        least = Bound(self.proven, "branch and bound over the joint space")
        extra["within_ratio"] = self.params.within_ratio
        extra["fastest"] = simplest.fastest_json(self.found, chosen, least)
        every = (*left, *((bound, config) for bound, _, config in self.open))
        extra["runners_up"] = runners_up.rest(self.found, every, chosen, n_others) if n_others else None
        step, others = Objective("step_seconds", chosen.step_seconds), runners_up.alternatives(self.found, chosen, n_others)
        return Answer(chosen.plan, step, least, alternatives=others, n_iterations=self.n_evaluations, notes=notes, extra=extra)

    def _infeasible(self, notes: tuple[str, ...], extra: dict[str, object]) -> Answer:
        """Say which configuration misses the least memory, and by how much."""
        if self.was_stopped:
            return Answer(None, notes=notes, extra=extra)
        closest = plans.closest(self.problem, self.costs, self.too_large, self.params.shard, lambda: self.is_over)
        extra["stopped_early"] = self.was_stopped
        if closest is None and not self.open:
            reasons = "; ".join(sorted(self.refused)) or impossible(self.problem, self.params, len(self.chain.layers))
            illegal = f"no plan of the space is legal for {self.problem.model_spec.name}: {reasons}"
            return Answer(None, infeasible_proven=not self.too_large, notes=(*notes, illegal), extra=extra)
        if self.open:
            unproven = f"no plan was found that fits, which is not proven for {len(self.open)} configurations of the space"
            notes = (*notes, unproven)
        if {"zb_h1", "zb_h2"} & set(self.params.schedules) and "1f1b" not in self.params.schedules:
            held = "a plan under zb_h1 or zb_h2 must fit with as many micro-batches as its order may hold"
            notes = (*notes, f"{held}; 1f1b, which is not allowed here, holds fewer")
        missing, config = closest or (1.0, min(config for _, _, config in self.open))
        nearest = f"closest {'of what there was time for' if self.was_stopped else 'with these devices'}: {incumbents.describe(config)}"
        return Answer(None, missing_bytes=missing, nearest=nearest, infeasible_proven=not self.open, notes=notes, extra=extra)
