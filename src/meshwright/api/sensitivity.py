"""What would help most: the same question with faster links, more memory or a larger batch, planned again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from meshwright import sim
from meshwright.api.evaluation import judged
from meshwright.base import options, registry
from meshwright.core.cluster import Cluster, Links
from meshwright.core.plan import Plan
from meshwright.core.problem import Problem, Stop
from meshwright.core.result import Objective, Result

__all__ = ["Change", "changes", "near"]

# of each change: plans evaluated, enough to tell what helps, as the gap is not stated; runners-up and layers moved, none
_EFFORT = (("evaluations", "6"), ("alternatives", "1"), ("splits", "0"))


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """One change and the answer under it; `speedup_ratio` compares samples per second with the answer as asked."""

    name: str
    result: Result
    speedup_ratio: float


def changes(result: Result, stop: Stop | None = None) -> tuple[Change, ...]:
    """Return the question planned again under each change, the most helpful first.

    Parameters
    ----------
    result : Result
        A feasible answer of search `best` with the analytic costs.
    stop : Stop or None
        When to stop; its seconds are those of each change.

    Returns
    -------
    tuple of Change
        Empty where the answer is of another kind, or its stages were given (`meshwright.api.fixing`); what else is given stays.
        Without those whose search was stopped, which would say too little.

    Notes
    -----
    Searched are the answer itself and plans whose degrees are half, the same or twice those of the answer, or 1, with its
    schedule or one without virtual stages, or any where the batch divides among further numbers of devices (`near`): what a
    change gains at least. Settings of the search that the answer was found with hold here too.
    """
    problem, timeline = result.problem, result.timeline
    if result.search != "best" or problem.costs != "analytic" or problem.cluster is None or timeline is None:
        return ()
    fixed = result.answer.extra.get("fixed")
    given = fixed["values"] if isinstance(fixed, Mapping) else {}
    if "split" in given or given.get("virtual", "1") != "1":
        return ()
    base = result.plan.global_batch / timeline.step_seconds
    asked = replace(problem, batch=replace(problem.batch, global_batch=result.plan.global_batch))
    # what was set for the answer holds for each change too; how long it was searched, and for how many others, does not
    own = {name: value for name, value in result.settings.items() if name not in dict(_EFFORT)}
    ratio = result.answer.extra.get("within_ratio")
    within = (
        float(ratio) if isinstance(ratio, int | float) else 0.0
    )  # as simple as the answer is, so that only the change counts
    found, stop, variants = [], stop or Stop(), _variants(asked, problem.cluster)
    for i, (name, changed) in enumerate(variants):
        if stop.is_asked():
            break
        stop.tell(partial("{} of {} changes planned".format, i, len(variants)))
        same = _of_batch(result.plan, changed)
        settings = near(changed, result.plan) | own
        planned = _planned(changed, settings, within, same, replace(stop, told=None))
        if planned.answer.extra.get("stopped_early") is True:
            continue
        other = _at_least(same, planned)
        if other.timeline is not None:
            found.append(Change(name, other, other.plan.global_batch / other.timeline.step_seconds / base))
    return tuple(sorted(found, key=lambda change: (-change.speedup_ratio, change.name)))


def _of_batch(plan: Plan, problem: Problem) -> Plan:
    """Return a plan with as many micro-batches as the batch of a problem asks for."""
    times = problem.batch.global_batch // plan.global_batch
    return replace(plan, n_microbatches=times * plan.n_microbatches, global_batch=times * plan.global_batch)


def _planned(problem: Problem, settings: dict[str, str], within: float, same: Plan, stop: Stop) -> Result:
    """Return the answer to a changed question; the search knows the plan as it was, and looks only for what is better."""
    search = registry.load("search", "best", "search")
    params = replace(options.parse(search.Params, settings, "search best"), within_ratio=within)
    answer = search.search(problem, params, seed=0, stop=stop, known=(same,))
    return judged(Result(problem, "best", 0, answer, settings=settings, asked=problem))


def _at_least(same: Plan, other: Result) -> Result:
    """Return an answer to a changed question, or the plan as it was where that is quicker and fits."""
    problem = other.problem
    kept = judged(replace(other, answer=replace(other.answer, plan=same, bound=None)))
    timeline = kept.timeline
    if timeline is None or (other.timeline is not None and other.timeline.step_seconds <= timeline.step_seconds):
        return other
    if sim.excess_bytes(problem, same, timeline.peak_bytes) > 0.0:
        return other
    return replace(kept, answer=replace(kept.answer, objective=Objective("step_seconds", timeline.step_seconds)))


def near(problem: Problem, plan: Plan) -> dict[str, str]:
    """Return settings of the search that keep degrees and schedule near those of a plan.

    Parameters
    ----------
    problem : Problem
        What is asked, of another batch perhaps.
    plan : Plan
        The plan.

    Returns
    -------
    dict of str to str
        As `--set` takes them. No degree and no schedule is limited where the batch divides among numbers of devices among which
        the plan's does not: with those any other degree may be the best. Of powers of two, the new number is near as it is.
    """
    batch = problem.batch.global_batch or plan.global_batch
    numbers = range(1, min(problem.required_cluster.n_devices, batch) + 1)
    if batch & (batch - 1) and any(batch % n == 0 and plan.global_batch % n for n in numbers):
        return dict(_EFFORT)
    strategy = plan.stages[0].strategy
    degrees = {"tensor": strategy.tensor, "context": strategy.context, "expert": strategy.expert}
    degrees |= {"pipeline": len(plan.ranks()), "micro_batch": plan.micro_batch}
    allowed = {name: sorted({1, max(1, degree // 2), degree, 2 * degree}) for name, degree in degrees.items()}
    search = registry.load("search", "best", "search")
    allowed |= {axis: [1] for axis in search.closed_axes(problem)}  # a degree that the framework lacks would be refused
    # what the answer was not compared with, either: a larger one would count as gained by the change
    usual = search.usual_micro_batches(problem.graph, batch)
    largest = max(plan.micro_batch, usual[-1])
    allowed["micro_batch"] = [size for size in allowed["micro_batch"] if size <= largest]
    if problem.batch.micro_batch:
        del allowed["micro_batch"]  # said in the question
    schedules = ",".join(sorted({plan.schedule, "1f1b", "zb_h1"}))
    return {**dict(_EFFORT), "schedules": schedules} | {name: ",".join(map(str, values)) for name, values in allowed.items()}


def _variants(problem: Problem, cluster: Cluster) -> list[tuple[str, Problem]]:
    """Return the changed questions with their names."""
    speeds = np.unique(cluster.links.bytes_per_second)
    variants = []
    if len(cluster.links):
        slowest = cluster.links.bytes_per_second == speeds[0]
        words = "links twice as fast" if len(speeds) == 1 else f"the slowest links ({speeds[0] / 1e9:.3g} GB/s) twice as fast"
        variants.append((words, replace(problem, cluster=_with_links(cluster, np.where(slowest, 2.0, 1.0)))))
    kinds = tuple(replace(kind, memory_bytes=2 * kind.memory_bytes) for kind in cluster.kinds)
    variants.append(("twice the memory", replace(problem, cluster=replace(cluster, kinds=kinds))))
    batch = replace(problem.batch, global_batch=2 * problem.batch.global_batch)
    variants.append(("twice the batch", replace(problem, batch=batch)))
    return variants


def _with_links(cluster: Cluster, factor: np.ndarray) -> Cluster:
    """Return the cluster with the bandwidth of each link multiplied."""
    links = cluster.links
    faster = Links(links.source, links.target, links.bytes_per_second * factor, links.latency_seconds)
    return replace(cluster, links=faster)
