"""Plays candidate plans of measured profiles by the exact schedule, and improves them by small moves."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from meshwright import sim
from meshwright.costs import _dapple_states
from meshwright.costs import dapple as costs
from meshwright.plan import Plan, Stage
from meshwright.problem import Problem
from meshwright.readers._profile import ProfiledTraining
from meshwright.sim import transfers
from meshwright.strategy import Strategy
from meshwright.table import StageLoad

__all__ = ["Around", "Cut", "Judge", "Shape"]

SCHEDULES = ("1f1b", "early_backward_b")
"""Warm-up as deep as stages follow (policy A, which is 1F1B), and about twice as deep (policy B) to hide transfers."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A stage: the state it ends with, and its devices in order."""

    state: int
    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Shape:
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


@dataclass(frozen=True, slots=True, eq=False)
class Judge:
    """Knows the problem, and remembers what it was asked.

    Parameters
    ----------
    problem : Problem
        Completed.
    training : ProfiledTraining
        Its profile with settings.
    states : States
        Its cuts.
    recompute : str
        ``choose``, ``never`` or ``always``.
    """

    problem: Problem
    training: ProfiledTraining
    states: _dapple_states.States
    recompute: str
    _seen: dict[Shape, float] = field(default_factory=dict, repr=False)
    _reduce: dict[tuple[tuple[int, ...], float], float] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, problem: Problem, training: ProfiledTraining, states: _dapple_states.States, recompute: str) -> Judge:
        """Return a judge that has not been asked anything."""
        return cls(problem, training, states, recompute)

    @property
    def n_states(self) -> int:
        """Number of states."""
        return self.states.n_states

    def loads(self, shape: Shape) -> tuple[StageLoad, ...]:
        """Return what each stage does and holds; it recomputes where allowed and it does not fit otherwise."""
        found, before = [], -1
        for i, cut in enumerate(shape.cuts):
            plain = self._load(shape, i, before, recomputes=self.recompute == "always")
            if self.recompute == "choose" and self._bytes(shape, i, plain) > self._memory(cut.devices):
                plain = self._load(shape, i, before, recomputes=True)
            found.append(plain)
            before = cut.state
        return tuple(found)

    def _load(self, shape: Shape, i: int, before: int, *, recomputes: bool) -> StageLoad:
        """Return the load of stage `i`, which begins after state `before`."""
        states, training, cut = self.states, self.training, shape.cuts[i]
        batch = self.problem.batch.global_batch

        def part(cumulative: np.ndarray) -> float:
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
        return StageLoad(
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
        cluster = self.problem.cluster
        assert cluster is not None
        return min(cluster.device(device).memory_bytes - cluster.device(device).reserved_bytes for device in devices)

    def _bytes(self, shape: Shape, i: int, load: StageLoad) -> float:
        """Return what one device of stage `i` holds at its peak."""
        left = len(shape.cuts) - i
        depth = min(shape.n_microbatches, 2 * left - 1 if shape.schedule == "early_backward_b" else left)
        return load.static_bytes + depth * load.activation_bytes + load.working_bytes

    def missing_bytes(self, shape: Shape) -> float:
        """Return by how much the fullest device exceeds its memory; not positive where the plan fits."""
        return max(
            self._bytes(shape, i, load) - self._memory(shape.cuts[i].devices) for i, load in enumerate(self.loads(shape))
        )

    def seconds(self, shape: Shape) -> float:
        """Return the simulated step; infinite where the plan does not fit."""
        if shape in self._seen:
            return self._seen[shape]
        loads = self.loads(shape)
        fits = all(self._bytes(shape, i, load) <= self._memory(shape.cuts[i].devices) for i, load in enumerate(loads))
        seconds = math.inf
        if fits:
            plan = self._skeleton(shape)
            seconds = sim.estimate(plan, loads, transfers.seconds(self.problem, plan, loads))
        self._seen[shape] = seconds
        return seconds

    def _skeleton(self, shape: Shape) -> Plan:
        """Return the plan without its layers: enough to be played."""
        stages = tuple(Stage((), cut.devices, Strategy(data=len(cut.devices))) for cut in shape.cuts)
        return Plan(stages, shape.n_microbatches, 1, shape.schedule, self.problem.batch.global_batch)

    def plan(self, shape: Shape) -> Plan:
        """Return the plan with its layers."""
        loads = self.loads(shape)
        ops = self.states.ops_of_stages([cut.state for cut in shape.cuts])
        n_samples = -(-self.problem.batch.global_batch // shape.n_microbatches)
        stages = tuple(
            Stage(inside, cut.devices, Strategy(data=len(cut.devices)), (word,) * len(inside))
            for inside, cut, word in zip(
                ops, shape.cuts, ("full" if load.recompute_seconds else "none" for load in loads), strict=True
            )
        )
        widest = max(len(cut.devices) for cut in shape.cuts)
        return Plan(stages, shape.n_microbatches, max(1, n_samples // widest), shape.schedule, self.problem.batch.global_batch)

    def best(self, shapes: Sequence[Shape]) -> tuple[float, Shape] | None:
        """Return the quickest of some plans, each with both schedules; the earlier one on ties; None where none fits."""
        best: tuple[float, Shape] | None = None
        for shape in shapes:
            for schedule in SCHEDULES if len(shape.cuts) > 1 else SCHEDULES[:1]:
                tried = replace(shape, schedule=schedule)
                seconds = self.seconds(tried)
                if math.isfinite(seconds) and (best is None or seconds < best[0]):
                    best = (seconds, tried)
        return best

    def ranked(self, shapes: Sequence[Shape]) -> list[tuple[float, Shape]]:
        """Return those plans that fit, each with its better schedule, quickest first; the earlier one on ties."""
        found = [self.best([shape]) for shape in shapes]
        return sorted((item for item in found if item is not None), key=lambda item: item[0])

    def improved(self, start: tuple[float, Shape], around: Around, n_rounds: int = 12) -> tuple[float, Shape]:
        """Return the plan after the best small move of each round, until none helps.

        Parameters
        ----------
        start : (float, Shape)
            Where to start.
        around : Around
            What cuts and numbers of micro-batches there are.
        n_rounds : int
            Most moves.
        """
        best = start
        for _ in range(n_rounds):
            found = self.best(list(self._moves(best[1], around)))
            if found is None or found[0] >= best[0]:
                break
            best = found
        return best

    def _moves(self, shape: Shape, around: Around) -> Iterator[Shape]:
        """Yield plans one move away: a cut shifted, two neighbours' devices exchanged or shared out anew, a stage on free devices,
        the next smaller or larger micro-batch."""
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

    def _elsewhere(self, shape: Shape) -> Iterator[Shape]:
        """Yield plans with one stage on devices that no stage uses, from either end of their ids."""
        cluster = self.problem.cluster
        assert cluster is not None
        taken = {device for cut in shape.cuts for device in cut.devices}
        free = tuple(device for device in range(cluster.n_devices) if device not in taken)
        for i, cut in enumerate(shape.cuts):
            width = len(cut.devices)
            if width <= len(free):
                for devices in (free[:width], free[-width:]):
                    cuts = list(shape.cuts)
                    cuts[i] = replace(cut, devices=devices)
                    yield replace(shape, cuts=tuple(cuts))

    def _shared(self, shape: Shape, i: int, devices: tuple[tuple[int, ...], tuple[int, ...]]) -> Shape:
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

    def even_shape(self, n_microbatches: int, order: tuple[int, ...], width: int, n_stages: int) -> Shape:
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
        return Shape(n_microbatches, cuts, "1f1b")
