"""A posed question, searched and judged: what every call that plans does."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from meshwright import frameworks
from meshwright._kernels.compilation import COMPILATION
from meshwright.api import answers, targets
from meshwright.api.evaluation import json_ready, judged
from meshwright.base import fields, options, registry
from meshwright.base.errors import InputError, MeshwrightError
from meshwright.base.units import format_bytes, format_count
from meshwright.core import framework_file
from meshwright.core.launch import fills_hosts
from meshwright.core.problem import Problem, Stop
from meshwright.core.result import Answer, Result

__all__ = ["searched"]

_SHORT_RATIO = 0.02  # of a limit of time: what is less is not worth a note


def searched(
    problem: Problem,
    *,
    search: str = "",
    settings: Mapping[str, str] | None = None,
    seed: int = 0,
    stop: Stop | None = None,
    within: float = 0.0,
) -> Result:
    """Return the best plan that a search finds for a question, judged by the simulator.

    Parameters
    ----------
    problem : Problem
        The question.
    search, settings, seed, stop, within
        As of `meshwright.plan`.

    Returns
    -------
    Result
        The answer.

    Raises
    ------
    InputError, PluginError
        As `meshwright.plan`.
    """
    if not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise InputError(f"--seed {seed}: must be a whole number of at least 0 and below 2^63")
    if not isinstance(within, (int, float)) or not 0.0 <= within <= 1.0:
        raise InputError(f"within {within}: must be a share between 0 and 1, like 0.01")
    fields.of_kind("stop", stop, Stop, "Stop(seconds=30)")
    problem.batch.check()
    name = (search or problem.model_spec.search).replace("-", "_")
    module = registry.load("search", name, "search")
    told = dict(settings or {})
    targets.whole_only(problem.graph, module, f"search {name}")
    targets.runnable_at_all(problem)
    targets.states_known(problem.training, module, f"search {name}")
    params = options.parse(module.Params, told, f"search {name}")
    if within and not hasattr(params, "within_ratio"):
        raise InputError(f"within {within}: search {name} looks for the quickest plan only; leave it out")
    if within and "within_ratio" not in told:
        params = replace(params, within_ratio=within)
    started, stop = time.perf_counter(), stop or Stop()
    compiled = COMPILATION.seconds
    try:
        answer: Answer = module.search(problem, params, seed=seed, stop=stop)
    except MeshwrightError:
        raise
    except Exception as error:
        error.add_note(f"this is a bug in search {name}: another one may do (--search)")
        raise
    registry.checked(answer, Answer, "search", name)
    seconds = time.perf_counter() - started
    unheeded = () if getattr(module, "STOPS_EARLY", False) else stop.unheeded(name)
    answer = replace(answer, notes=problem.model_spec.notes + answer.notes + unheeded)
    compiled = COMPILATION.seconds - compiled
    if answer.extra.get("stopped_early") is True and stop.seconds and compiled > _SHORT_RATIO * stop.seconds:
        note = f"compiling kernels for their first use took {compiled:.1f} s, which the limit of {stop.seconds:g} s counts"
        answer = replace(answer, notes=(*answer.notes, f"{note}; they are kept: asked again, the search looks at more"))
    answers.check_extra(answer, name)
    asked, problem = problem, answers.same_question(problem, answer.problem or problem, name)
    result = Result(
        problem=problem, search=name, seed=seed, answer=answer, planning_seconds=seconds, settings=told, asked=asked,
        compiling_seconds=compiled,
    )  # fmt: skip
    with registry.blamed("search", name):
        json_ready(answer, name)
        if answer.plan is None:
            return replace(result, answer=replace(answer, notes=(*_left_idle(problem, 0), *answer.notes)))
        answers.check_plan(problem, answer.plan, name)
        targets.checked(result, searched=True)
        result = judged(result)
        claims = answers.check_claims(result)
    return replace(
        result, answer=replace(answer, notes=answer.notes + _too_large(result) + _tied(result) + _unsaid(result) + claims)
    )


def _unsaid(result: Result) -> tuple[str, ...]:
    """Say that a framework that the user named leaves open how it runs, or what (defaults are quick), or cannot be told."""
    framework = result.problem.framework
    said = framework_file.unsaid(framework) if result.problem.framework_asked and framework.name != frameworks.ASSUMED else ""
    idle = _left_idle(result.problem, result.plan.n_devices)
    return tuple(filter(None, (said, _calibrated_elsewhere(result)))) + targets.untold(result) + idle


def _left_idle(problem: Problem, n_used: int) -> tuple[str, ...]:
    """Say which numbers of devices are searched where a framework starts equally many of every host, and some stay idle."""
    limits, cluster = problem.framework.limits, problem.cluster
    if cluster is None or limits.any_order or limits.uneven_hosts or n_used >= cluster.n_devices:
        return ()
    even = fills_hosts(cluster)
    if even[n_used + 1 :].all():
        return ()
    counts = ", ".join(str(n) for n in even.nonzero()[0][:0:-1][:3])
    return (
        f"{problem.framework.word} starts equally many devices of every host: the first {counts} or fewer are searched; a "
        "batch that these divide, or a cluster file with fewer devices of each host, may do better",
    )


def _calibrated_elsewhere(result: Result) -> str:
    """Say that the user's own framework was calibrated on other kinds of device than the plan's; empty where it was not."""
    fitted, cluster = frameworks.calibrated_on(result.problem.framework.name), result.problem.cluster
    others = sorted({kind.name for kind in cluster.kinds} - set(fitted)) if fitted and cluster else []
    if not others:
        return ""
    return (
        f"{result.problem.framework.name} was calibrated to runs on {' and '.join(fitted)}; how far its figure holds on "
        f"{' and '.join(others)} is not known"
    )


def _tied(result: Result) -> tuple[str, ...]:
    """Say that weights which layers share are counted for each of them although one rank holds them once."""
    graph = result.problem.graph
    if not graph.n_shared_parameters or result.problem.model_spec.costs != "analytic":
        return ()
    from meshwright.costs.analytic import shared_weights

    n_more = shared_weights.counted_twice(graph, result.plan)
    if not n_more:
        return ()
    return (
        f"layers share {format_count(n_more)} weights that one rank has and holds once, but memory, update and reduction "
        "count them for each: too much, never too little",
    )


def _too_large(result: Result) -> tuple[str, ...]:
    """Say that the plan of a search with another count of memory, or none, does not fit by the simulator's."""
    from meshwright import sim

    timeline = result.timeline
    over = 0.0 if timeline is None else sim.excess_bytes(result.problem, result.plan, timeline.peak_bytes)
    if over <= 0.0:
        return ()
    return (
        f"this plan does not fit: its fullest device lacks {format_bytes(over)} by the simulator's count, which holds more "
        f"than what search {result.search} looks at",
    )
