"""DAPPLE: hybrids of data parallelism and a synchronous pipeline, as published or with its errors put right.

References
----------
.. [1] Fan et al., DAPPLE: A Pipelined Data Parallel Approach for Training Large Models, PPoPP 2021.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from meshwright import sim
from meshwright.base.errors import InputError
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Problem, Stop
from meshwright.core.result import Alternative, Answer, Objective
from meshwright.core.strategy import Strategy
from meshwright.network.numbering import numbered_alike, unlike_links
from meshwright.planners.dapple import published, question
from meshwright.planners.dapple.costs.dapple import stage_costs
from meshwright.planners.dapple.profile import training_of
from meshwright.planners.dapple.states import States, interval_tables, states_of
from meshwright.solvers.mapping.search import pair_seconds

__all__ = ["GIVEN", "Params", "completed", "given", "search"]

GIVEN = (
    "profile_batch", "global_batch", "machines", "min_micro_batch", "optimizer_memory_scaling", "peak_activation_per_sample",
    "recompute",
)  # fmt: skip
"""Options that say something of a plan that is given."""


@dataclass(frozen=True, slots=True)
class Params:
    """Options of the search.

    Parameters
    ----------
    profile_batch : int
        Samples the profile was measured with; 0 for the number after ``pbs-`` in the file's name.
    global_batch : int
        Samples of one step; 0 for ``--global-batch``.
    machines : tuple of int
        Exclusive ends of the machines' device ids, ascending: ``8,16`` is two machines of eight; their links are the published
        constants. Empty for the cluster given.
    min_micro_batch : int
        Fewest samples of one micro-batch in one pipeline, over all replicas of a stage.
    optimizer_memory_scaling : float or None
        Bytes held per byte of weights; none for 1 in published mode, as there, and 4 in corrected mode: weights, gradients and
        two moments of Adam.
    peak_activation_per_sample : float or None
        Activation bytes of one sample at the peak, where measured; none for what the profile adds up to.
    mode : str
        ``corrected``: our planner on the paper's problem. ``published``: what the authors' code answers, to the last bit.
    recompute : str
        Corrected mode: ``choose`` recomputes a stage where it does not fit otherwise; ``never``; ``always``.
    uneven : bool
        Corrected mode: whether the replicas of a stage may take different whole numbers of samples of a micro-batch.
    max_stages : int
        Corrected mode: most stages tried; 0 for no limit beyond what time allows.
    proof_steps : int
        Corrected mode: effort for ruling out, one by one, all other plans of a small problem (8 devices, 26 cuts).
    """

    profile_batch: int = field(default=0, metadata={"minimum": 0})
    global_batch: int = field(default=0, metadata={"minimum": 0})
    machines: tuple[int, ...] = field(default=(), metadata={"minimum": 1})
    min_micro_batch: int = field(default=1, metadata={"minimum": 1})
    optimizer_memory_scaling: float | None = field(default=None, metadata={"minimum": 0})
    peak_activation_per_sample: float | None = field(default=None, metadata={"unit": "bytes"})
    mode: str = field(default="corrected", metadata={"choices": ("corrected", "published")})
    recompute: str = field(default="choose", metadata={"choices": ("choose", "never", "always")})
    uneven: bool = False
    max_stages: int = field(default=0, metadata={"minimum": 0})
    proof_steps: int = field(default=12_000, metadata={"minimum": 0})


def search(problem: Problem, params: Params, *, seed: int, stop: Stop) -> Answer:
    """Return the quickest hybrid plan.

    `problem` holds a profile (formats ``pipedream_txt``, ``pipedream_linearised``); `seed` and `stop` are not used: nothing is
    random, and the search ends by itself. In published mode the objective is the published speed-up over one device and
    ``extra["baselines"]`` holds the published data-parallel speed-ups. In corrected mode it is the simulated seconds of a step,
    with a proven bound.
    Raises `InputError` when a batch size or the machines are missing, contradict each other, or do not go together.
    """
    problem, notes = question.completed(problem, _asked(params), "dapple")
    if params.mode == "published":
        return _published(problem, params, notes)
    from meshwright.planners.dapple import corrected

    limits = corrected.PlanLimits(
        params.min_micro_batch,
        problem.batch.micro_batch,
        params.recompute,
        params.uneven,
        params.max_stages,
        params.proof_steps,
    )
    answer = numbered_alike(problem, lambda asked: corrected.answer(asked, limits), pair_seconds, _seconds)
    notes += unlike_links(problem.required_cluster, pair_seconds)
    return replace(answer, notes=notes + answer.notes, problem=problem)


def given(problem: Problem, params: Params, text: str) -> Answer:
    """Return a plan that was typed, ``8:8@13:6``, with the simulated seconds of its step.

    Raises `InputError` as for `search`, and when the text is no plan of the model on the machines.
    """
    from meshwright.planners.dapple import typed

    problem, notes = question.completed(problem, _asked(params), "dapple")
    answer = typed.answer(problem, text, params.min_micro_batch, params.recompute)
    return replace(answer, notes=notes + answer.notes, problem=problem)


def completed(problem: Problem, params: Params) -> Problem:
    """Return the question with samples, machines and memory as the options say; a cluster given goes before ``machines``.

    Raises `InputError` as for `search`.
    """
    if problem.cluster is not None:
        params = replace(params, machines=())
    return question.completed(problem, _asked(params), "dapple")[0]


def _asked(params: Params) -> question.Asked:
    """Return the options that every search on a profile has."""
    scaling = params.optimizer_memory_scaling
    if scaling is None:
        scaling = 1.0 if params.mode == "published" else 4.0
    return question.Asked(
        params.profile_batch,
        params.global_batch,
        params.machines,
        params.min_micro_batch,
        scaling,
        params.peak_activation_per_sample,
    )


def _seconds(problem: Problem, plan: Plan) -> float:
    """Return the simulated seconds of a step of a plan."""
    return sim.simulate(problem, plan, stage_costs(problem, plan)).step_seconds


def _published(problem: Problem, params: Params, notes: tuple[str, ...]) -> Answer:
    """Return what the authors' code answers."""
    training = training_of(problem)
    for given, name in (
        (params.uneven, "uneven"),
        (params.max_stages, "max_stages"),
        (params.recompute != "choose", "recompute"),
    ):
        if given:
            raise InputError(f"--set {name}: only mode=corrected knows it; leave it out in mode=published")
    states = states_of(problem.model_spec, fold=False)
    peak_activation_bytes = params.peak_activation_per_sample
    if peak_activation_bytes is None:
        peak_activation_bytes = float(states.activation_bytes[-1]) / training.profile_batch
    setting = published.Setting(
        training.profile_batch,
        problem.batch.global_batch,
        problem.batch.micro_batch or params.min_micro_batch,
        _sizes(problem),
        training.optimizer_scaling_ratio,
        peak_activation_bytes,
    )
    seconds, _, parameter_bytes = interval_tables(problem.model_spec, states)
    batch_ratio = setting.global_batch / setting.profile_batch
    instance = published.scaled(seconds, parameter_bytes, states.cut_bytes, (states.before_first, states.before), batch_ratio)
    found, crashes = published.candidates(instance, setting)
    if not params.machines:
        notes += ("mode=published knows three constants instead of the cluster's links; the simulated step uses the links",)
    if states.n_folded:
        notes += (f"{states.n_folded} layers without compute were folded into their input: too many antichains otherwise",)
    if states.is_prefix:
        notes += ("cuts follow one topological order: too many antichains",)
    best = _last_best(found)
    several = _last_best([candidate for candidate in found if len(candidate.stages) > 1])
    alternatives = []
    if several is not None and several is not best:
        plan = _plan(several, states, setting)
        objective = Objective("speedup", several.speedup_ratio)
        alternatives.append(Alternative(plan, objective, "the best with more than one stage"))
    assert best is not None
    return Answer(
        plan=_plan(best, states, setting),
        objective=Objective("speedup", best.speedup_ratio),
        alternatives=tuple(alternatives),
        notes=notes + tuple(crashes),
        extra={
            "baselines": published.baselines(instance, setting),
            "published": {
                "replication": best.replication,
                "stages": [[*stage[:3], list(cards)] for stage, cards in zip(best.stages, best.cards, strict=True)],
                "recursive_speedup": published.recursive_speedup(instance, setting, best),
            },
        },
        problem=problem,
    )


def _sizes(problem: Problem) -> tuple[int, ...]:
    """Return the devices of each machine, whose ids must follow each other."""
    cluster = problem.required_cluster
    node = cluster.node_of_device
    if np.any(np.diff(node) < 0):
        raise InputError(f"cluster {cluster.name}: mode=published needs the devices of a machine to have consecutive ids")
    return tuple(int(count) for count in np.unique(node, return_counts=True)[1])


def _last_best(found: Sequence[published.Candidate]) -> published.Candidate | None:
    """Return the last candidate with the largest speed-up, as published."""
    best: published.Candidate | None = None
    for candidate in found:
        if best is None or candidate.speedup_ratio >= best.speedup_ratio:
            best = candidate
    return best


def _plan(candidate: published.Candidate, states: States, setting: published.Setting) -> Plan:
    """Return a published plan as stages of layers; a stage's replicas include the copies of the whole pipeline."""
    last_states = [stage[1] - 1 for stage in candidate.stages[:-1]] + [states.n_states - 1]
    # a published two-stage cut may follow any state in their order: what the states up to it contain lies before it
    earlier = np.logical_or.accumulate(states.inside, axis=0)
    ordered = replace(states, inside=earlier)
    n_microbatches = max(1, setting.global_batch // candidate.replication // setting.min_micro_batch)
    samples = -(-setting.global_batch // n_microbatches)
    stages = tuple(
        Stage(ops, cards, Strategy(data=len(cards)), ("none",) * len(ops))
        for ops, cards in zip(ordered.ops_of_stages(last_states), candidate.cards, strict=True)
    )
    widest = max(len(cards) for cards in candidate.cards)
    return Plan(stages, n_microbatches, max(1, samples // widest), "1f1b", setting.global_batch)
