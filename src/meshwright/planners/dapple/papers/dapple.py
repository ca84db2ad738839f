"""DAPPLE (PPoPP 2021): speed-ups, planning times, hybrids against data parallelism, PipeDream's plans and GPipe."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType, ModuleType

import numpy as np

from meshwright import published
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import ModelSpec, Problem
from meshwright.core.result import Result
from meshwright.core.strategy import Strategy
from meshwright.planners.dapple import published as released
from meshwright.planners.dapple.states import States, interval_tables, states_of
from meshwright.published.claims import Case, Claim, divided

__all__ = ["CASES"]


@dataclass(frozen=True, slots=True)
class _Setting:
    """Samples of the profile, of a step, fewest of a micro-batch, and bytes held per byte of weights: the authors' own."""

    profile_batch: int
    global_batch: int
    micro_batch: int
    scaling_ratio: float

    def words(self, **more: str) -> dict[str, str]:
        """Return it as settings of the search, some told otherwise."""
        return {
            "profile_batch": str(self.profile_batch), "global_batch": str(self.global_batch),
            "min_micro_batch": str(self.micro_batch), "optimizer_memory_scaling": repr(self.scaling_ratio),
        } | more  # fmt: skip


_SETTINGS = MappingProxyType({
    "vgg-19-pbs-32": _Setting(32, 1024, 32, 2.0), "gnmt-16-pbs-64": _Setting(64, 1024, 64, 3.0),
    "gnmt-32-pbs-64-simplified": _Setting(64, 1024, 64, 3.0), "bert-48-pbs-2": _Setting(2, 128, 1, 3.0),
    "xlnet-36-pbs-1": _Setting(1, 128, 1, 3.0), "amoeba-18-pbs-8": _Setting(8, 128, 1, 3.0),
})  # fmt: skip
_ENDS = MappingProxyType({"configuration A": "8,16", "configuration B": ",".join(str(end) for end in range(1, 17))})
_CLUSTERS = MappingProxyType({
    "configuration A": "dapple-a:16", "configuration B": "dapple-b:16", "configuration C": "dapple-c:16"
})  # fmt: skip
_GPIPE_DEVICES, _GPIPE_BYTES = 2, 16e9

_Stages = tuple[tuple[int, int, int], ...]
_EXAMPLE: Mapping[str, tuple[_Stages, _Stages]] = MappingProxyType({
    "vgg-19-pbs-32": (((0, 16, 14), (16, 24, 2)), ((0, 11, 8), (11, 17, 6), (11, 19, 1), (19, 24, 1))),
    "xlnet-36-pbs-1": (
        ((0, 22, 8), (22, 40, 8)),
        (
            (0, 6, 1), (6, 8, 1), (8, 11, 1), (11, 14, 1), (14, 17, 1), (17, 20, 1), (20, 23, 1), (23, 26, 1), (26, 29, 2),
            (29, 31, 1), (31, 33, 1), (33, 35, 1), (35, 37, 1), (37, 40, 2),
        ),
    ),
})  # fmt: skip
"""Plans of DAPPLE and of PipeDream in the authors' ``examples/vs_pipedream.rs``: first state, stop, devices. The third stage of
PipeDream's VGG-19 begins at 11 there, which the stage before has already; it is taken as 17 where a plan has to be legal."""


def _spec(api: ModuleType, name: str) -> ModelSpec:
    spec: ModelSpec = api.read(published.path(f"dapple/{name}.txt"))
    return spec


def _planned(api: ModuleType, spec: ModelSpec, place: str | None, **settings: str) -> Result:
    """Return what --search dapple answers."""
    result: Result = api.plan(spec, place, search="dapple", settings=_SETTINGS[spec.name].words(**settings))
    return result


def _alone_seconds(spec: ModelSpec, n_samples: int) -> float:
    """Return the step of one device that has the memory."""
    return float(states_of(spec).compute_seconds[-1]) * n_samples / _SETTINGS[spec.name].profile_batch


def _answered() -> dict[str, dict[str, str]]:
    """Return the released planner's row of each profile at its setting, two machines of eight."""
    return {
        row["profile"]: row
        for row in published.rows("dapple/dapple.csv")
        if row["seps"] == "[8, 16]" and row["profile"] in _SETTINGS
        and int(row["gbs"]) == _SETTINGS[row["profile"]].global_batch
        and float(row["optimizer_memory_scaling"]) == _SETTINGS[row["profile"]].scaling_ratio
        and int(row["min_micro_batch"]) == _SETTINGS[row["profile"]].micro_batch
    }  # fmt: skip


def speedups(claim: Claim, api: ModuleType) -> Iterator[Case]:
    """Yield the published speed-up of every profile."""
    for name, row in _answered().items():
        result = _planned(api, _spec(api, name), None, machines="8,16", mode="published")
        objective = result.answer.objective
        batch = f"{row['gbs']} samples"
        yield Case(f"{name}, {batch}", float(row["best_hybrid_speedup"]), None if objective is None else objective.value)


def simulated(claim: Claim, api: ModuleType) -> Iterator[Case]:
    """Yield speed-ups in our simulator: of the released planner's plans, of ours, and what is proven."""
    for name, setting in _SETTINGS.items():
        spec = _spec(api, name)
        alone = _alone_seconds(spec, setting.global_batch)
        theirs, ours = (_planned(api, spec, None, machines="8,16", mode=mode) for mode in ("published", "corrected"))
        found = [None if one.timeline is None else alone / one.timeline.step_seconds for one in (theirs, ours)]
        bound = ours.answer.bound
        limit = None if bound is None or not bound.value else alone / bound.value
        yield Case(f"{name}, {setting.global_batch} samples", None, found[0], found[1], None, limit)


def planning_times(claim: Claim, api: ModuleType) -> Iterator[Case]:
    """Yield CPU seconds of the released planner and of both modes of ours."""
    _planned(api, _spec(api, "vgg-19-pbs-32"), None, machines="2,4", mode="published")  # the first calls load kernels
    _planned(api, _spec(api, "vgg-19-pbs-32"), None, machines="2,4")
    for name, row in _answered().items():
        seconds = []
        for mode in ("published", "corrected"):
            started = time.process_time()
            _planned(api, _spec(api, name), None, machines="8,16", mode=mode)
            seconds.append(time.process_time() - started)
        yield Case(name, float(row["cpu_s"]), seconds[0], seconds[1])


def _over_data_parallel(api: ModuleType, spec: ModelSpec, place: str) -> tuple[float, float | None] | None:
    """Return how many times quicker the best hybrid is than one stage in our simulator, and what is proven of that (None where
    nothing is); None where one of them does not fit.
    """
    hybrid, alone = (
        _planned(api, spec, place, global_batch="128"),
        _planned(api, spec, place, global_batch="128", max_stages="1"),
    )
    if hybrid.timeline is None or alone.timeline is None:
        return None
    bound, step = hybrid.answer.bound, alone.timeline.step_seconds
    return step / hybrid.timeline.step_seconds, divided(step, bound.value if bound is not None else None)


def hybrids(claim: Claim, api: ModuleType) -> Iterator[Case]:
    """Yield the mean gain over data parallelism on each configuration."""
    for name, claimed in claim.values.items():
        theirs, ours = [], []
        for profile in _SETTINGS:
            spec = _spec(api, profile)
            if name in _ENDS:
                result = _planned(api, spec, None, machines=_ENDS[name], mode="published", global_batch="128")
                baselines, objective = result.answer.extra["baselines"], result.answer.objective
                assert isinstance(baselines, dict) and objective is not None
                theirs.append(objective.value / max(value for value in baselines.values() if value is not None))
            found = _over_data_parallel(api, spec, _CLUSTERS[name])
            ours += [found] if found is not None else []
        note = f"{len(ours)} of {len(_SETTINGS)} profiles fit both ways"
        gain, limit = _mean([gain for gain, _ in ours]), _mean([limit for _, limit in ours])
        yield Case(name, claimed, _mean(theirs), gain, None, limit, note)


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean, None where there is no value or one is not known: the mean of the others would be of other profiles."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known and len(known) == len(values) else None


def _candidate(stages: _Stages) -> released.Candidate:
    """Return a given plan in the published form, on devices 0, 1, 2, ... of two machines of eight."""
    made, cards, first = [], [], 0
    for begin, stop, n in stages:
        ids = tuple(range(first, first + n))
        made.append((begin, stop, n, (sum(i < 8 for i in ids), sum(i >= 8 for i in ids))))
        cards.append(ids)
        first += n
    return released.Candidate(0.0, 1, tuple(made), tuple(cards))


def _theirs(spec: ModelSpec, states: States, stages: _Stages) -> float:
    """Return the speed-up of a given plan by the authors' event simulation."""
    setting = _SETTINGS[spec.name]
    seconds, _, parameter_bytes = interval_tables(spec, states)
    ratio = setting.global_batch / setting.profile_batch
    instance = released.scaled(seconds, parameter_bytes, states.cut_bytes, (states.before_first, states.before), ratio)
    asked = released.Setting(
        setting.profile_batch, setting.global_batch, setting.micro_batch, (8, 8), setting.scaling_ratio, 1.0
    )  # fmt: skip
    return released.recursive_speedup(instance, asked, _candidate(stages))


def _step_seconds(api: ModuleType, problem: Problem, states: States, stages: _Stages, micro_batch: int) -> float:
    """Return the step of a given plan in our simulator, with micro-batches of the size that suits it best."""
    earlier = replace(states, inside=np.logical_or.accumulate(states.inside, axis=0))
    lasts = [stop - 1 for _, stop, _ in stages[:-1]] + [states.n_states - 1]
    candidate, n = _candidate(stages), problem.batch.global_batch
    made = tuple(
        Stage(ops, cards, Strategy(data=len(cards)), ("none",) * len(ops))
        for ops, cards in zip(earlier.ops_of_stages(lasts), candidate.cards, strict=True)
    )
    widest = max(len(cards) for cards in candidate.cards)
    found: list[float] = []
    while micro_batch <= n:
        _, timeline = api.evaluate(problem, Plan(made, n // micro_batch, -(-micro_batch // widest), "1f1b", n))
        assert timeline is not None
        found.append(timeline.step_seconds)
        micro_batch *= 2
    return min(found)


def vs_pipedream(claim: Claim, api: ModuleType) -> Iterator[Case]:
    """Yield the ratio of the two given plans, by both simulators; then the largest."""
    largest = [0.0, 0.0, 0.0]
    for name, (dapple, pipedream) in _EXAMPLE.items():
        spec, setting = _spec(api, name), _SETTINGS[name]
        states = states_of(spec, fold=False)
        problem = api.completed(api.make_problem(spec), "dapple", setting.words(machines="8,16"))
        legal = tuple((pipedream[i - 1][1] if i else 0, stop, n) for i, (_, stop, n) in enumerate(pipedream))
        steps = [_step_seconds(api, problem, states, stages, setting.micro_batch) for stages in (dapple, legal)]
        corrected = _planned(api, spec, None, machines="8,16").timeline
        assert corrected is not None
        ratios = (
            _theirs(spec, states, dapple) / _theirs(spec, states, pipedream), steps[1] / steps[0],
            steps[1] / corrected.step_seconds,
        )  # fmt: skip
        largest = [max(pair) for pair in zip(largest, ratios, strict=True)]
        yield Case(f"{name}, {setting.global_batch} samples", None, *ratios)
    for name, claimed in claim.values.items():
        yield Case(name, claimed, largest[0], largest[1], largest[2], note="here: of the two profiles that are published")


def _even(problem: Problem, spec: ModelSpec) -> tuple[Stage, ...]:
    """Return two stages of about equal time on one device each."""
    states = states_of(spec)
    middle = int(np.argmin(np.abs(states.compute_seconds - states.compute_seconds[-1] / 2.0)))
    groups: Sequence[Sequence[int]] = states.ops_of_stages([middle, states.n_states - 1])
    return tuple(Stage(tuple(ops), (i,), recompute=("none",) * len(ops)) for i, ops in enumerate(groups))


def gpipe(claim: Claim, api: ModuleType) -> Iterator[Case]:
    """Yield throughput and memory of the early-backward schedule over GPipe's."""
    spec = _spec(api, "bert-48-pbs-2")
    setting, played = _SETTINGS[spec.name], {}
    for schedule, counts in (("gpipe", range(1, 17)), ("early_backward_a", (16,))):
        for count in counts:
            words = setting.words(machines=str(_GPIPE_DEVICES), global_batch=str(2 * count))
            problem = api.completed(api.make_problem(spec), "dapple", words)
            _, timeline = api.evaluate(problem, Plan(_even(problem, spec), count, 2, schedule, 2 * count))
            assert timeline is not None
            if max(timeline.peak_bytes) <= _GPIPE_BYTES:
                played[schedule] = (2 * count / timeline.step_seconds, max(timeline.peak_bytes), count)
    if len(played) < 2:
        note = f"nothing to compare: of {len(played)} schedule a plan fits into {_GPIPE_BYTES / 1e9:.0f} GB"
        yield from (Case(name, claimed, note=note) for name, claimed in claim.values.items())
        return
    theirs, ours = played["gpipe"], played["early_backward_a"]
    note = f"GPipe with {theirs[2]} micro-batches, early backward with {ours[2]}"
    for (name, claimed), i in zip(claim.values.items(), (0, 1), strict=True):
        yield Case(name, claimed, ours[i] / theirs[i], note=note)


CASES: Mapping[str, Callable[[Claim, ModuleType], Iterator[Case]]] = MappingProxyType(
    {
        "speedups": speedups,
        "plans-simulated": simulated,
        "planning-times": planning_times,
        "hybrid-over-data-parallel": hybrids,
        "vs-pipedream": vs_pipedream,
        "gpipe": gpipe,
    }
)
"""What computes each claim."""
