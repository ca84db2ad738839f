"""Best-first branch and bound over the joint space: a heap of meshes and configurations by bound, plans played by the simulator."""

from __future__ import annotations

import heapq
import math
import time
from dataclasses import replace

import numpy as np

from meshwright import clusters, sim
from meshwright.base import registry
from meshwright.base.units import format_seconds
from meshwright.core.plan import Plan
from meshwright.core.problem import Problem, Stop
from meshwright.core.result import Answer, Bound, Objective
from meshwright.planners.best import bounds, limits, plans
from meshwright.planners.best.costs import Costs
from meshwright.planners.best.incumbents import Incumbent, alternatives, degrees_key, describe, rank
from meshwright.planners.best.layer_sums import chain_of
from meshwright.planners.best.limits import Limits
from meshwright.planners.best.space import ANY, Config, DevicePool, MeshDegrees, meshes, pools, schedules_of
from meshwright.planners.best.virtual import spread

__all__ = ["BestFirstSearch"]

# what the bound of a heap entry stands on: devices' peak, compute, communication inside layers; of a configuration without and
# with what happens between replicas; with the transfers of its plan
_PEAK, _COMPUTE, _WITH_COMMUNICATION, _SCHEDULE, _LIGHT, _FULL, _BUILT = range(7)
_MOST_BUILT = 4  # plans built at most for each that may be played
_MOST_TRIED = 2  # plans played at most for each runner-up
_NEARLY_FULL = 0.95  # share of memory from which on a note says how to leave room


class BestFirstSearch:
    """The state of one best-first search: a heap of meshes and configurations by bound, the plans found, the refusals."""

    def __init__(self, problem: Problem, params: Limits, stop: Stop) -> None:
        self.problem, self.params, self.stop = problem, limits.within(params, problem), stop
        self.chain = chain_of(problem.graph)
        self.heap: list[tuple[float, int, int, MeshDegrees | Config, Plan | None]] = []
        self.costs: list[Costs] = []
        self.found: list[Incumbent] = []
        self.others: list[tuple[float, Config, int, Plan | None]] = []
        self.refused: dict[str, int] = {}
        self.too_large: list[tuple[int, Config, bool]] = []
        self.n_built = self.n_evaluations = 0
        self.open_bound = math.inf
        self.open: list[tuple[float, int, Config]] = []
        self.deadline = time.monotonic() + stop.seconds if stop.seconds else math.inf
        self.model = registry.load("costs", problem.costs, "cost model")

    @property
    def budget(self) -> int:
        """How many plans may be evaluated."""
        return self.stop.n_iterations or self.params.evaluations

    @property
    def best_seconds(self) -> float:
        """Step of the best plan so far."""
        return min((found.step_seconds for found in self.found), default=math.inf)

    def add(self, pool: DevicePool) -> None:
        """Put every legal mesh of a pool on the heap, with the bound that its devices' peak gives."""
        problem, cluster = self.problem, self.problem.required_cluster
        if not limits.allowed_pool(pool, problem):
            return
        spaces = limits.settings(problem, self.params)
        every = Costs(problem, pool, self.chain, spaces[0][0], self.params.memory_ratio, self.params.shard)
        own = [every.recomputing(words, blocks=blocks) for words, blocks in spaces]
        places = range(len(self.costs), len(self.costs) + len(own))
        self.costs += own
        n_layers = len(self.chain.layers)
        degrees = limits.allowed_degrees(problem, self.params, pool.n_devices)
        peak = max(cluster.device(int(devices[0])).peak(problem.training.precision) for devices in pool.devices)
        flops = limits.sample_flops(problem.graph) * problem.batch.global_batch
        legal: dict[tuple[int, int, int, int], str] = {}
        for mesh in meshes(pool, n_layers=n_layers, global_batch=problem.batch.global_batch, degrees=degrees):
            key = (mesh.tensor, mesh.context, mesh.expert, mesh.micro_batch)
            if key not in legal:
                strategy = Config(mesh, 0, 0, "1f1b", 1, "pipeline").strategy
                legal[key] = self.model.illegal(problem, strategy, mesh.micro_batch)
            if legal[key]:
                self.refused[legal[key]] = self.refused.get(legal[key], 0) + 1
                continue
            bound = flops / (peak * mesh.rank_size * mesh.pipeline)
            for place in places:
                heapq.heappush(self.heap, (bound, _PEAK, place, mesh, None))

    def run(self) -> None:
        """Expand and evaluate in order of bound until no bound is below the best plan, or the budget is spent."""
        while self.heap:
            bound, level, pool, config, plan = heapq.heappop(self.heap)
            if bound >= self.best_seconds:
                break
            spent = self.n_evaluations >= self.budget or self.n_built >= _MOST_BUILT * self.budget
            if self.found and (spent or time.monotonic() > self.deadline):
                self.open_bound = min(self.open_bound, bound)
                break
            costs = self.costs[pool]
            if isinstance(config, MeshDegrees):
                if level < _WITH_COMMUNICATION:
                    quick = bounds.of_mesh(costs, config, self.n_microbatches(config), with_communication=level == _COMPUTE)
                    self._push(max(bound, quick), level + 1, pool, config)
                else:
                    self._expand(costs, config, pool)
            elif level == _SCHEDULE:
                for variant in limits.variants(config, self.problem, costs.pool, self.params.shard):
                    self._push_config(costs, variant, pool, _LIGHT)
            elif level == _LIGHT:
                full = bounds.of_config(costs, config, self.n_microbatches(config.mesh), min(self.best_seconds, 1e9))
                self._push(max(bound, full), _FULL, pool, config)
            elif level == _FULL:
                self._build(pool, config, bound)
            elif plan is not None:
                self._evaluate(pool, config, plan, bound)

    def _push(self, bound: float, level: int, pool: int, item: MeshDegrees | Config, plan: Plan | None = None) -> None:
        """Put a mesh or a configuration, and its plan once that is built, on the heap if it may still hold the best plan."""
        if bound < self.best_seconds:
            heapq.heappush(self.heap, (bound, level, pool, item, plan))
        elif isinstance(item, Config) and level > _SCHEDULE and math.isfinite(bound):
            self.others.append((bound, item, pool, plan))

    def n_microbatches(self, mesh: MeshDegrees) -> int:
        return self.problem.batch.global_batch // (mesh.data * mesh.micro_batch)

    def _expand(self, costs: Costs, mesh: MeshDegrees, pool: int) -> None:
        """Put the schedules of a mesh on the heap, each with a bound on all its shardings and layouts: `Costs.rows` has the lemma."""
        n_microbatches, n_layers = self.n_microbatches(mesh), len(self.chain.layers)
        for schedule, chunks in schedules_of(mesh, n_microbatches, n_layers, self.params.schedules):
            if self.params.uniform and n_layers % (mesh.pipeline * chunks):
                continue
            config = Config(mesh, ANY, 0, schedule, chunks, "")
            self._push_config(costs, config, pool, _SCHEDULE)

    def _push_config(self, costs: Costs, config: Config, pool: int, level: int) -> None:
        """Put a configuration on the heap with its light bound, or among those that are too large."""
        bound = bounds.of_config(costs, config, self.n_microbatches(config.mesh), min(self.best_seconds, 1e9), light=True)
        if math.isfinite(bound):
            self._push(bound, level, pool, config)
        elif not self.found:
            self.too_large.append((pool, config, True))

    def _build(self, pool: int, config: Config, bound: float) -> None:
        """Build the plan of a configuration and put it on the heap again, its bound raised by the transfers of its stages."""
        self.n_built += 1
        costs, n_microbatches = self.costs[pool], self.n_microbatches(config.mesh)
        plan = plans.build(costs, config, n_microbatches, bound, uniform=self.params.uniform)
        if plan is None:
            if not self._never_fits(costs, config):
                # its bound stays part of the proof: a split, or a mixture of what is recomputed, that building does not find may fit
                self.open.append((bound, pool, config))
            self.too_large.append((pool, config, False))
            return
        if self._closed(costs, config, plan):
            full = self.least_seconds(costs, config, plan)  # its only plan
        elif config.one_way:
            # no plan of the configuration is quicker than this split with nothing recomputed, whether that fits or not
            even = spread(len(self.chain.layers), config.mesh.pipeline, config.chunks)
            bare = plans.bare(costs, config, n_microbatches, even)
            full = bound if bare is None else self.least_seconds(costs, config, bare)
        else:
            hops = costs.transfer_seconds(config, plan, costs.stage_costs(config, plan))
            full = bounds.of_config(costs, config, n_microbatches, min(self.best_seconds, 1e9), transfer_seconds=hops)
        self._push(max(bound, full), _BUILT, pool, config, plan)

    def _never_fits(self, costs: Costs, config: Config) -> bool:
        """Return whether no plan of a configuration that building found none of fits: proven for its only split."""
        if not config.one_way:
            return False
        if costs.one_setting or (config.mesh.pipeline == 1 and self.chain.equal):
            return True  # what it recomputes was searched through
        counts = spread(len(self.chain.layers), config.mesh.pipeline, config.chunks)
        return plans.never_fits(costs, config, self.n_microbatches(config.mesh), counts)

    def least_seconds(self, costs: Costs, config: Config, plan: Plan) -> float:
        """Return what a plan takes at least, found quickly: with links for every collective, and fixed orders without transfers.

        An order that is fitted to durations is that of the plan itself only with its transfers.
        """
        stage_costs = costs.stage_costs(config, plan)
        if config.split_backward:
            return sim.least_seconds(self.problem, plan, stage_costs)
        return sim.estimate(plan, stage_costs, np.zeros(len(plan.stages) - 1))

    def _closed(self, costs: Costs, config: Config, plan: Plan) -> bool:
        """Return whether a configuration has no other plan: one split, and the least recomputed that fits.

        With virtual stages that is the rule of the space. Without a pipeline any mixture is part of it, but of like layers the least
        is the quickest. Where one setting serves all layers, there is no mixture.
        """
        return config.one_way and (costs.one_setting or config.mesh.pipeline > 1 or not plan.recomputes or self.chain.equal)

    def _evaluate(self, pool: int, config: Config, plan: Plan, bound: float) -> None:
        """Play the plan of a configuration, quickly with links for every collective first, then as it is."""
        self.n_evaluations += 1
        if not self._closed(self.costs[pool], config, plan):
            # its bound stays part of the proof: another split of the layers may be as good as the bound says
            self.open.append((bound, pool, config))
        least = self.least_seconds(self.costs[pool], config, plan)
        if least >= self.best_seconds:
            self.others.append((least, config, pool, plan))
            return
        found = self.play(pool, config, plan)
        if found is not None:
            self.found.append(found)
        elif self._closed(self.costs[pool], config, plan):
            self.open.append((bound, pool, config))

    def play(self, pool: int, config: Config, plan: Plan) -> Incumbent | None:
        """Return the plan simulated; None when it does not fit its devices after all."""
        timeline = sim.simulate(self.problem, plan, self.model.stage_costs(self.problem, plan))
        if sim.excess_bytes(self.problem, plan, timeline.peak_bytes, self.params.memory_ratio) > 0.0:
            return None
        return Incumbent(pool, config, plan, timeline)

    def runners_up(self) -> None:
        """Play the most promising plans that were not played, one of each combination of degrees."""
        seen = {degrees_key(found.config) for found in self.found}
        for bound, level, pool, config, plan in self.heap:
            if isinstance(config, Config) and level > _SCHEDULE:
                self.others.append((bound, config, pool, plan))
        n_tried = 0
        # bounds of what is not built leave more out, so they rank behind
        for bound, config, pool, plan in sorted(self.others, key=lambda other: (other[3] is None, *other[:2])):
            if len(seen) >= self.params.alternatives or n_tried >= _MOST_TRIED * self.params.alternatives:
                break
            if degrees_key(config) in seen:
                continue
            n_tried += 1
            if plan is None:
                uniform, n_microbatches = self.params.uniform, self.n_microbatches(config.mesh)
                plan = plans.build(self.costs[pool], config, n_microbatches, bound, uniform=uniform)
            found = None if plan is None else self.play(pool, config, plan)
            if found is not None:
                seen.add(degrees_key(config))
                self.found.append(found)

    @property
    def proven(self) -> float:
        """Return the smallest bound on any plan not played."""
        return min(self.best_seconds, self.open_bound, *(bound for bound, _, _ in self.open))

    def answer(self, notes: tuple[str, ...]) -> Answer:
        """Return what was found."""
        refused = [{"reason": reason, "n_meshes": count} for reason, count in sorted(self.refused.items())]
        extra = {"refused": refused, "n_plans_simulated": self.n_evaluations}
        if not self.found:
            return self._infeasible(notes, extra)
        ranked = sorted(self.found, key=rank)
        best = ranked[0]
        notes = (*notes, *self._memory_note(best))
        return Answer(
            plan=best.plan,
            objective=Objective("step_seconds", best.step_seconds),
            bound=Bound(self.proven, "branch and bound over the joint space"),
            alternatives=alternatives(ranked),
            n_iterations=self.n_evaluations,
            notes=notes,
            extra=extra,
        )

    def _memory_note(self, best: Incumbent) -> tuple[str, ...]:
        """Warn where the plan leaves little room for an error of the memory model."""
        cluster = self.problem.required_cluster
        shares = [
            peak / cluster.device(ranks[0]).memory_bytes
            for peak, ranks in zip(best.timeline.peak_bytes, best.plan.ranks(), strict=True)
        ]
        if max(shares) < _NEARLY_FULL or self.problem.memory_ratio < 1.0:  # room is left as the question asks
            return ()
        return (
            f"the fullest device is filled to {max(shares):.1%}; where the memory model errs by more than the rest, the plan does not "
            "fit: --set memory_ratio=0.9 leaves a tenth free",
        )

    def _infeasible(self, notes: tuple[str, ...], extra: dict[str, object]) -> Answer:
        """Say which configuration misses the least memory, and by how much."""
        closest = self._closest()
        if closest is None and not self.open:
            reasons = "; ".join(sorted(self.refused)) or limits.impossible(self.problem, self.params, len(self.chain.layers))
            return Answer(
                None,
                notes=(*notes, f"no plan of the space is legal for {self.problem.model_spec.name}: {reasons}"),
                extra=extra,
            )
        if self.open:
            notes = (
                *notes,
                f"no plan was found that fits, which is not proven for {len(self.open)} configurations of the space",
            )
        if "zb_h1" in self.params.schedules and "1f1b" not in self.params.schedules:
            notes = (
                *notes,
                "a plan under zb_h1 must fit with as many micro-batches as its order may hold; 1f1b, which is not allowed here, holds fewer",
            )
        missing, config = closest or (1.0, min(config for _, _, config in self.open))
        nearest = _enough_devices(self.problem, self.params) or f"closest with these devices: {describe(config)}"
        return Answer(None, missing_bytes=missing, nearest=nearest, infeasible_proven=not self.open, notes=notes, extra=extra)

    def _closest(self) -> tuple[float, Config] | None:
        """Return what misses the least memory of all that is too large, layers spread evenly, and how much; None where nothing is.

        What all shardings miss at least tells which meshes are worth a look at each of theirs.
        """
        heap = [self._missing(pool, config, light) for pool, config, light in self.too_large]
        heapq.heapify(heap)
        while heap:
            missing, config, pool = heapq.heappop(heap)
            if config.is_any:
                for variant in limits.variants(config, self.problem, self.costs[pool].pool, self.params.shard):
                    heapq.heappush(heap, self._missing(pool, variant, light=True))
            elif missing > 0.0:
                return missing, config
        return None

    def _missing(self, pool: int, config: Config, light: bool) -> tuple[float, Config, int]:
        return plans.missing_bytes(self.costs[pool], config, self.n_microbatches(config.mesh), light=light), config, pool


def _enough_devices(problem: Problem, params: Limits) -> str:
    """Return the smallest doubling of a built-in kind of cluster on which something fits, and what; empty when there is none."""
    kind, _, count = problem.required_cluster.name.partition(":")
    if not count.isdigit() or params.data:
        return ""
    for doubling in range(1, 8):
        n_devices = int(count) * 2**doubling
        larger = replace(problem, cluster=clusters.cluster(f"{kind}:{n_devices}"))
        state = BestFirstSearch(larger, replace(params, evaluations=1), Stop())
        for pool in pools(larger.cluster):  # type: ignore[arg-type]
            state.add(pool)
        state.run()
        if state.found:
            best = min(state.found, key=rank)
            return f"fits on {kind}:{n_devices}: {describe(best.config)}; a step of about {format_seconds(best.step_seconds)}"
    return ""
