"""What layers may do with activations: recompute them, each setting a space of plans, or have them on the host."""

from __future__ import annotations

from meshwright.base.errors import InputError
from meshwright.core.graph import Graph
from meshwright.core.problem import Problem
from meshwright.core.strategy import OFFLOAD, RECOMPUTE, repeats_dispatch
from meshwright.costs import analytic
from meshwright.planners.best.layer_sums import chain_of
from meshwright.planners.best.limits import Limits, outside
from meshwright.schedules import in_pairs

__all__ = ["settings"]


def settings(problem: Problem, params: Limits) -> tuple[tuple[tuple[str, ...], bool], ...]:
    """Return what layers may do with activations, one entry for each space that is searched apart, and whether it is by blocks.

    By layer, any mixture of all words is one space. Where a framework tells one setting for the whole plan, each setting is a space
    of its own, and so are blocks: the first layers of every stage recompute all, equally many of each (none and all included).
    Where activations may be on the host, those of the first layers are, as blocks (none included, all not), or nothing is.

    Raises
    ------
    InputError
        When the framework has nothing of what is given.
    """
    framework, usual = problem.framework.limits, params.recompute == RECOMPUTE
    known = analytic.distinct_settings(problem.graph, framework.recompute)
    chosen = tuple(word for word in known if usual or word in params.recompute)
    if not chosen:
        raise outside(problem, f"recompute {', '.join(params.recompute)}", f"{', '.join(known)}")
    if params.schedules and all(map(in_pairs, params.schedules)) and all(map(repeats_dispatch, chosen)):
        raise InputError(
            f"schedules {', '.join(params.schedules)} with recompute {', '.join(chosen)}: that repeats the all-to-alls of experts, which no "
            f"pair of tasks does; allow another schedule, or to recompute {_without_dispatch(known)}"
        )
    away = _away(problem, params)
    if params.offload == ("activations",):
        return away
    if framework.recompute_scope == "layer":
        return ((chosen, False), *away)
    blocks = framework.block_recompute and {"none", "full"} <= set(chosen) and not params.uniform and not _pinned(problem.graph)
    alike = tuple(((word,), False) for word in chosen if not blocks or word not in ("none", "full"))
    return (((("none", "full"), True),) if blocks else ()) + alike + away


def _without_dispatch(known: tuple[str, ...]) -> str:
    """Return what layers may recompute where tasks run in pairs."""
    return " or ".join(word for word in known if not repeats_dispatch(word)) or "something else"


def _pinned(graph: Graph) -> bool:
    """Return whether layers beside embedding and head are pinned to the ends of the model."""
    chain = chain_of(graph)
    return any(graph.ops[i].kind not in ("embedding", "head") for i in (*chain.prefix, *chain.suffix))


def _away(problem: Problem, params: Limits) -> tuple[tuple[tuple[str, ...], bool], ...]:
    """Return the space of plans with activations on the host, if it is asked for."""
    if "activations" not in params.offload:
        return ()
    if reason := _no_activations(params, problem):
        raise InputError(f"offload {', '.join(params.offload)}: {reason}")
    return ((("none", OFFLOAD), True),)


def _no_activations(params: Limits, problem: Problem) -> str:
    """Return why no plan of the space can have activations on the host; empty where one can."""
    if problem.costs != "analytic":
        return f"--costs {problem.costs} does not price activations on the host; leave activations out"
    if params.recompute != RECOMPUTE and "none" not in params.recompute:
        return "layers beside those whose activations are there recompute nothing; allow none with --set recompute"
    if (params.pipeline and 1 not in params.pipeline) or "1f1b" not in params.schedules:
        return "activations are there without a pipeline only; allow pipeline 1 and schedule 1f1b"
    if params.uniform:
        return "activations are there of the first layers, so that not all layers are alike; leave uniform out"
    if _pinned(problem.graph) or len(chain_of(problem.graph).layers) < 2:
        return f"{problem.graph.name} has too few layers alike between embedding and head; leave activations out"
    return ""
