"""Plays candidate plans of measured profiles by the exact schedule, and improves them by small moves."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from meshwright import sim
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Problem
from meshwright.core.stage_cost import StageCost
from meshwright.core.strategy import Strategy
from meshwright.planners.dapple import device_orders
from meshwright.planners.dapple.costs import dapple as costs
from meshwright.planners.dapple.profile import ProfiledTraining
from meshwright.planners.dapple.states import States
from meshwright.sim import engine, transfers

__all__ = ["Around", "Cut", "Evaluator", "PlanOutline"]

SCHEDULES = ("1f1b", "early_backward_b")
"""Warm-up as deep as stages follow (policy A, which is 1F1B), and about twice as deep (policy B) to hide transfers."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A stage: the state it ends with, and its devices in order."""

    state: int
    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlanOutline:
    """A plan before it is judged: micro-batches, stages, schedule."""

    n_microbatches: int
    cuts: tuple[Cut, ...]
    schedule: str


@dataclass(frozen=True, slots=True)
class Around:
    """What small moves may use: states a stage may end with and numbers of micro-batches, each in order, and uneven shares."""

    states: tuple[int, ...]
    n_microbatches: tuple[int, ...]
    uneven: bool


class Evaluator:
    """Knows the problem, and remembers what it was asked.

    `problem`: completed.
    `training`: its profile with settings.
    `states`: its cuts.
    `recompute`: ``choose``, ``never`` or ``always``.
    """

    def __init__(self, problem: Problem, training: ProfiledTraining, states: States, recompute: str) -> None:
        self.problem, self.training, self.states, self.recompute = problem, training, states, recompute
        self._quick: dict[PlanOutline, float] = {}
        self._exact: dict[PlanOutline, float] = {}
        self._smallest: dict[tuple[int, ...], float] = {}
        self._sends: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[tuple[float, float], tuple[float, float]]] = {}
        self._reduce: dict[tuple[tuple[int, ...], float], float] = {}

    @property
    def n_states(self) -> int:
        """Number of states."""
        return self.states.n_states

    def stage_costs(self, shape: PlanOutline) -> tuple[StageCost, ...]:
        """Return what each stage does and holds; it recomputes where allowed and it does not fit otherwise."""
        found, before = [], -1
        for i, cut in enumerate(shape.cuts):
            plain = self._load(shape, i, before, recomputes=self.recompute == "always")
            if self.recompute == "choose" and self._bytes(shape, i, plain) > self._memory(cut.devices):
                plain = self._load(shape, i, before, recomputes=True)
            found.append(plain)
            before = cut.state
        return tuple(found)

    def _load(self, shape: PlanOutline, i: int, before: int, *, recomputes: bool) -> StageCost:
        """Return the load of stage `i`, which begins after state `before`."""
        states, training, cut = self.states, self.training, shape.cuts[i]
        batch = self.problem.batch.global_batch

        def part(cumulative: NDArray[np.float64]) -> float:
            return float(cumulative[cut.state] - (cumulative[before] if before >= 0 else 0.0))

        n_samples = costs.samples_per_replica(batch, shape.n_microbatches, len(cut.devices))
        ratio = n_samples / training.profile_batch
        share = batch / shape.n_microbatches / len(cut.devices) / training.profile_batch
        parameter = part(states.parameter_bytes)
        kept = part(states.activation_bytes) * training.activation_ratio * ratio
        forward = part(states.forward_seconds) * ratio
        entering = float(states.needed_bytes[before]) if before >= 0 else 0.0
        last = i + 1 == len(shape.cuts)
        key = (cut.devices, parameter)
        if key not in self._reduce:
            self._reduce[key] = costs.reduce_seconds(self.problem, training, cut.devices, parameter)
        return StageCost(
            forward_seconds=forward,
            backward_input_seconds=part(states.backward_seconds) * ratio,
            recompute_seconds=forward if recomputes else 0.0,
            output_bytes=0.0 if last else float(states.needed_bytes[cut.state]) * share,
            reduce_seconds=self._reduce[key],
            weight_bytes=parameter,
            optimizer_bytes=parameter * max(training.optimizer_scaling_ratio - 1.0, 0.0),
            activation_bytes=entering * ratio if recomputes else kept,
            working_bytes=kept if recomputes else 0.0,
        )

    def _memory(self, devices: tuple[int, ...]) -> float:
        cluster = self.problem.required_cluster
        if devices not in self._smallest:
            self._smallest[devices] = sim.free_bytes(map(cluster.device, devices), self.problem.memory_ratio)
        return self._smallest[devices]

    def _depths(self, shape: PlanOutline) -> list[int]:
        """Return the micro-batches whose activations each stage holds."""
        return [self._depth(shape, i) for i in range(len(shape.cuts))]

    def _depth(self, shape: PlanOutline, i: int) -> int:
        left = len(shape.cuts) - i
        return min(shape.n_microbatches, 2 * left - 1 if shape.schedule == "early_backward_b" else left)

    def _bytes(self, shape: PlanOutline, i: int, load: StageCost) -> float:
        """Return what one device of stage `i` holds at its peak."""
        return load.static_bytes + self._depth(shape, i) * load.activation_bytes + load.working_bytes

    def missing_bytes(self, shape: PlanOutline) -> float:
        """Return by how much the fullest device exceeds its memory; not positive where the plan fits."""
        return max(
            self._bytes(shape, i, load) - self._memory(shape.cuts[i].devices) for i, load in enumerate(self.stage_costs(shape))
        )

    def quick_seconds(self, shape: PlanOutline) -> float:
        """Return the step if no two transfers shared a link, which is never more than `seconds`;
        infinite where it does not fit.
        """
        if shape in self._quick:
            return self._quick[shape]
        from meshwright._kernels.dapple import early_backward as kernel

        stage_costs = self.stage_costs(shape)
        if any(self._bytes(shape, i, load) > self._memory(shape.cuts[i].devices) for i, load in enumerate(stage_costs)):
            self._quick[shape] = math.inf
            return math.inf
        drained = kernel.drained_seconds(
            np.array([load.forward_total_seconds for load in stage_costs]),
            np.array([load.backward_total_seconds for load in stage_costs]),
            self._send_seconds(shape, stage_costs),
            np.array(self._depths(shape)),
            shape.n_microbatches,
        )
        seconds = max(float(end) + load.reduce_seconds for end, load in zip(drained, stage_costs, strict=True))
        self._quick[shape] = seconds
        return seconds

    def _send_seconds(self, shape: PlanOutline, stage_costs: tuple[StageCost, ...]) -> NDArray[np.float64]:
        """Return what each stage's transfers take alone, forward and backward."""
        cluster = self.problem.required_cluster
        seconds = np.zeros((2, len(stage_costs)))
        for i, (here, there) in enumerate(itertools.pairwise(shape.cuts)):
            n_bytes = stage_costs[i].output_bytes * len(here.devices)
            if n_bytes == 0.0:
                continue
            key = (here.devices, there.devices)
            if key not in self._sends:
                self._sends[key] = device_orders.send_lines(cluster, *key, published_links=self.training.published_links)
            for way, (latency_seconds, seconds_per_byte) in enumerate(self._sends[key]):
                seconds[way, i + way] = latency_seconds + seconds_per_byte * n_bytes
        return seconds

    def seconds(self, shape: PlanOutline) -> float:
        """Return the simulated step; infinite where the plan does not fit."""
        if shape in self._exact:
            return self._exact[shape]
        seconds = self.quick_seconds(shape)
        if math.isfinite(seconds) and len(shape.cuts) > 1:
            plan, stage_costs = self._skeleton(shape), self.stage_costs(shape)
            seconds = engine.played_seconds(plan, stage_costs, transfers.transfers(self.problem, plan, stage_costs))
        self._exact[shape] = seconds
        return seconds

    def overlapped_seconds(self, shape: PlanOutline) -> float:
        """Return the step of one stage whose layers reduce their gradients, one after the other, as soon as they are there."""
        (load,) = self.stage_costs(shape)
        compute = load.forward_total_seconds + load.backward_total_seconds
        # where states branch, what is common to all before them counts with the first
        backward = np.maximum.accumulate(self.states.backward_seconds)
        parameters = np.maximum.accumulate(self.states.parameter_bytes)
        start = (shape.n_microbatches - 1) * compute + load.forward_total_seconds
        total, line = float(backward[-1]), start
        for state in range(self.n_states - 1, -1, -1):
            before = state - 1
            passed = total - (float(backward[before]) if state else 0.0)
            ready = start + (passed / total if total else 1.0) * load.backward_total_seconds
            n_bytes = float(parameters[state] - (parameters[before] if state else 0.0))
            if n_bytes > 0.0:
                devices = shape.cuts[0].devices
                line = max(line, ready) + costs.reduce_seconds(self.problem, self.training, devices, n_bytes)
        return max(line, shape.n_microbatches * compute)

    def _skeleton(self, shape: PlanOutline) -> Plan:
        """Return the plan without its layers: enough to be played."""
        stages = tuple(Stage((), cut.devices, Strategy(data=len(cut.devices))) for cut in shape.cuts)
        return Plan(stages, shape.n_microbatches, 1, shape.schedule, self.problem.batch.global_batch)

    def plan(self, shape: PlanOutline) -> Plan:
        """Return the plan with its layers."""
        stage_costs = self.stage_costs(shape)
        ops = self.states.ops_of_stages([cut.state for cut in shape.cuts])
        n_samples = -(-self.problem.batch.global_batch // shape.n_microbatches)
        stages = tuple(
            Stage(inside, cut.devices, Strategy(data=len(cut.devices)), (word,) * len(inside))
            for inside, cut, word in zip(
                ops, shape.cuts, ("full" if load.recompute_seconds else "none" for load in stage_costs), strict=True
            )
        )
        widest = max(len(cut.devices) for cut in shape.cuts)
        return Plan(stages, shape.n_microbatches, max(1, n_samples // widest), shape.schedule, self.problem.batch.global_batch)

    def best(self, shapes: Sequence[PlanOutline], below_seconds: float = math.inf) -> tuple[float, PlanOutline] | None:
        """Return the quickest of some plans, each with both schedules; the earlier one on ties.

        `shapes`: plans; their schedules do not matter.
        `below_seconds`: only plans quicker than this count.
        Returns: None where none fits, or none is quick enough.
        """
        best: tuple[float, PlanOutline] | None = None
        for quick, shape in self.ranked(shapes):
            if quick >= below_seconds:
                break
            seconds = self.seconds(shape)
            if seconds < below_seconds:
                best, below_seconds = (seconds, shape), seconds
        return best

    def ranked(self, shapes: Sequence[PlanOutline]) -> list[tuple[float, PlanOutline]]:
        """Return those plans that fit, with both schedules, by `quick_seconds`; the earlier one on ties."""
        tried = [
            replace(shape, schedule=schedule)
            for shape in shapes
            for schedule in (SCHEDULES if len(shape.cuts) > 1 else SCHEDULES[:1])
        ]
        found = [(self.quick_seconds(shape), shape) for shape in tried]
        return sorted((item for item in found if math.isfinite(item[0])), key=lambda item: item[0])

    def improved(self, start: PlanOutline, around: Around, n_rounds: int = 16) -> PlanOutline:
        """Return the plan after the best small move of each round by `quick_seconds`, until none helps.

        `n_rounds`: most moves.
        """
        best = start
        for _ in range(n_rounds):
            ranked = self.ranked(list(self._moves(best, around)))
            if not ranked or ranked[0][0] >= self.quick_seconds(best):
                break
            best = ranked[0][1]
        return best

    def polished(self, best: tuple[float, PlanOutline], around: Around, n_rounds: int = 6) -> tuple[float, PlanOutline]:
        """Return the plan after moves that the simulator agrees with: of each round the two that promise most are played."""
        for _ in range(n_rounds):
            ranked = self.ranked(list(self._moves(best[1], around)))
            found = self.best([shape for _, shape in ranked[:2]], best[0])
            if found is None:
                break
            best = found
        return best

    def _moves(self, shape: PlanOutline, around: Around) -> Iterator[PlanOutline]:
        """Yield plans one move away: a cut shifted, two neighbours' devices exchanged or shared out anew, a stage on free
        devices, the next smaller or larger micro-batch."""
        cuts, kept = shape.cuts, around.states
        at = around.n_microbatches.index(shape.n_microbatches)
        for other in around.n_microbatches[max(0, at - 1) : at] + around.n_microbatches[at + 1 : at + 2]:
            n_samples = self.problem.batch.global_batch // other
            if around.uneven or all(n_samples % len(cut.devices) == 0 for cut in cuts):
                yield replace(shape, n_microbatches=other)
        for i in range(len(cuts) - 1):
            for step in (-2, -1, 1, 2):
                at = bisect.bisect_left(kept, cuts[i].state) + step
                if not 0 <= at < len(kept) - 1:
                    continue
                moved = replace(cuts[i], state=kept[at])
                if self._leads(cuts[i - 1].state if i else -1, moved.state) and self._leads(moved.state, cuts[i + 1].state):
                    yield replace(shape, cuts=(*cuts[:i], moved, *cuts[i + 1 :]))
            first, second = cuts[i].devices, cuts[i + 1].devices
            if len(first) != len(second):
                both = first + second
                yield self._shared(shape, i, (both[: len(second)], both[len(second) :]))
            yield self._shared(shape, i, (second, first))
        yield from self._elsewhere(shape)

    def _elsewhere(self, shape: PlanOutline) -> Iterator[PlanOutline]:
        """Yield plans with one stage on devices that no stage uses, from either end of their ids."""
        cluster = self.problem.required_cluster
        taken = {device for cut in shape.cuts for device in cut.devices}
        free = tuple(device for device in range(cluster.n_devices) if device not in taken)
        for i, cut in enumerate(shape.cuts):
            width = len(cut.devices)
            if width <= len(free):
                for devices in (free[:width], free[-width:]):
                    cuts = list(shape.cuts)
                    cuts[i] = replace(cut, devices=devices)
                    yield replace(shape, cuts=tuple(cuts))

    def _shared(self, shape: PlanOutline, i: int, devices: tuple[tuple[int, ...], tuple[int, ...]]) -> PlanOutline:
        """Return the plan with other devices for stages `i` and `i + 1`."""
        cuts = list(shape.cuts)
        cuts[i], cuts[i + 1] = replace(cuts[i], devices=devices[0]), replace(cuts[i + 1], devices=devices[1])
        return replace(shape, cuts=tuple(cuts))

    def _leads(self, earlier: int, later: int) -> bool:
        """Return whether a stage may begin after one state and end with another."""
        if earlier < 0 or later == self.n_states - 1:
            return earlier < later
        first = self.states.before_first
        return bool(np.any(self.states.before[first[later] : first[later + 1]] == earlier))

    def even_shape(self, n_microbatches: int, order: tuple[int, ...], width: int, n_stages: int) -> PlanOutline:
        """Return stages of about equal weight and activations, for saying what is missing where nothing fits."""
        load = self.states.parameter_bytes + self.states.activation_bytes
        chain = [self.n_states - 1]
        for i in range(n_stages - 1, 0, -1):
            later = chain[-1]
            first = self.states.before_first
            before = self.states.before[first[later] : first[later + 1]] if later < self.n_states - 1 else np.arange(later)
            if not len(before):
                break
            wanted = float(load[-1]) * i / n_stages
            chain.append(int(before[np.argmin(np.abs(load[before] - wanted))]))
        ends = chain[::-1]
        cuts = tuple(Cut(state, order[i * width : (i + 1) * width]) for i, state in enumerate(ends))
        return PlanOutline(n_microbatches, cuts, "1f1b")
