"""What the joint search is asked: the batch where the user gives none, which meshes are legal, what layers may do with activations."""

from __future__ import annotations

import math
from dataclasses import replace

from meshwright.base import registry
from meshwright.base.errors import InputError
from meshwright.core.cluster import Device
from meshwright.core.graph import Graph
from meshwright.core.launch import fills_hosts
from meshwright.core.problem import Problem
from meshwright.core.result import Answer
from meshwright.core.strategy import OFFLOAD, RECOMPUTE, repeats_dispatch
from meshwright.costs import LAYERS, analytic, with_functions
from meshwright.planners.best.layer_sums import chain_of
from meshwright.planners.best.limits import Limits, closed_axes, outside
from meshwright.planners.best.space import VIRTUAL, Config, MeshDegrees, divisors
from meshwright.schedules import in_pairs

__all__ = ["Exchanges", "awkward_batch", "default_batch", "impossible", "settings", "with_batch", "within_limits"]

_NEAR_RATIO = 0.25  # of a batch: how far one that divides better may be to be named
_MANY_MORE = 4  # times as many devices among which it divides


def within_limits(answer: Answer, search: str) -> Answer:
    """Return the answer of a search of a limited space: without its bound, which would be read as one on all plans.

    Where no plan of that space is legal, the search says so under its own name, and that others have more room.
    """
    if answer.plan is None and not answer.missing_bytes:
        notes = (*answer.notes[:-1], f"search {search}: {answer.notes[-1]}")
        return replace(answer, bound=None, notes=notes, nearest="--search best, which is not bound to this space")
    return replace(answer, bound=None)


def default_batch(problem: Problem) -> int:
    """Return the samples of a step where the user gives none: 4 Mi tokens, and at least a sample per eight devices."""
    wanted = max(4 * 2**20 / problem.graph.n_tokens, problem.required_cluster.n_devices / 8, 1)
    return int(2 ** round(math.log2(wanted)))


def awkward_batch(problem: Problem, params: Limits) -> str:
    """Return a sentence where the batch divides among few of the devices, and one near it among many more; empty elsewhere.

    Parameters
    ----------
    problem, params
        The question, its batch decided, and what is given: with data degrees or a micro-batch, nothing is said.

    Returns
    -------
    str
        Names the batch near it (by at most `_NEAR_RATIO`) that divides among the most. It says nothing of plans: none was
        looked for.
    """
    batch, n_devices = problem.batch.global_batch, problem.required_cluster.n_devices
    if params.data or params.micro_batch or problem.batch.micro_batch:
        return ""
    limits = problem.framework.limits
    if not (limits.any_order or limits.uneven_hosts or fills_hosts(problem.required_cluster)[n_devices]):
        return ""  # all devices are not taken together, whatever the batch, and another note says how many are
    common = math.gcd(batch, n_devices)
    for n in reversed(divisors(n_devices)):
        near = max(1, (2 * batch + n - 1) // (2 * n)) * n
        if n < _MANY_MORE * common:
            break
        if abs(near - batch) <= _NEAR_RATIO * batch:
            above = f" above {common}" if common > 1 else ""
            return (
                f"{batch} samples and {n_devices} devices have no common divisor{above}; {near} samples divide over {n} devices"
            )
    return ""


def with_batch(problem: Problem, search: str, notes: list[str]) -> Problem:
    """Return the problem with its global batch decided, after checking that the search can read it.

    Parameters
    ----------
    problem : Problem
        The question.
    search : str
        The search, for messages.
    notes : list of str
        Gets a sentence where the batch was not given.

    Raises
    ------
    InputError
        When there is no cluster, the costs are not ours, or the micro-batch does not divide the batch.
    """
    if problem.cluster is None:
        raise InputError(f"search {search}: model {problem.model_spec.name}: say where to train it: --cluster dgx-h100:64")
    with_functions(problem.costs, LAYERS, search)
    batch = problem.batch
    if batch.global_batch == 0:
        size = default_batch(problem)
        notes.append(f"no --global-batch given: {size} samples of {problem.graph.n_tokens} tokens a step are assumed")
        return replace(problem, batch=replace(batch, global_batch=size))
    batch.check()
    return problem


def impossible(problem: Problem, params: Limits, n_layers: int) -> str:
    """Return why no combination of the degrees given can be: what they need and what there is.

    Parameters
    ----------
    problem, params
        The question, and what is given.
    n_layers : int
        Layers that stages can be made of.

    Returns
    -------
    str
        A sentence without a full stop.
    """
    n_devices, batch = problem.required_cluster.n_devices, problem.batch.global_batch
    given = {name: getattr(params, name) for name in ("tensor", "context", "pipeline", "data") if getattr(params, name)}
    words = " x ".join(f"{name} {min(values)}" for name, values in given.items())
    n_needed = math.prod(min(values) for values in given.values())
    if n_needed > n_devices:
        return f"{words} {'need' if len(given) > 1 else 'needs'} {n_needed} devices, there are {n_devices}"
    if params.pipeline and min(params.pipeline) > n_layers:
        return f"pipeline {min(params.pipeline)} needs as many layers, there are {n_layers}"
    closed = "pipeline" in closed_axes(problem)
    if (closed or (params.pipeline and max(params.pipeline) == 1)) and "1f1b" not in params.schedules:
        only = f", all that framework {problem.framework.word} has here," if closed else ""
        return f"pipeline 1{only} runs 1f1b, which is not among the schedules given: {', '.join(params.schedules)}"
    micro = params.micro_batch or ((problem.batch.micro_batch,) if problem.batch.micro_batch else (1,))
    shares = [data * own for data in params.data or (1,) for own in micro]
    if all(batch % share for share in shares):
        return f"{min(shares)} samples (data degree x micro-batch) do not divide the batch of {batch}"
    text = "no combination of degrees divides the batch, the layers and the devices"
    if not (problem.framework.limits.uneven_hosts or fills_hosts(problem.required_cluster).all()):
        text += f" ({problem.framework.word} is started with equally many of every host)"
    if all(word in VIRTUAL for word in params.schedules):
        text += (
            f" with the micro-batches that {' and '.join(params.schedules)} ask for: interleaved ones multiples of the pipeline degree, those "
            "in a V at least twice as many, both two stages or more of a layer each on every rank"
        )
    return text


class Exchanges:
    """Which context exchanges the meshes of a space have, and what may lie on the host, remembered while one problem is searched.

    Parameters
    ----------
    problem : Problem
        The question.
    asked : tuple of str
        Those allowed; empty for those of the framework, with ``all_gather`` only where it has no ring: it sends as much, and by our
        prices waits as long at least and holds more; and without ``all_to_all+ring``, which is a choice only where it is asked for.
    offloads : tuple of str
        What may lie on the host, as `meshwright.core.strategy.OFFLOADS`.
    """

    def __init__(self, problem: Problem, asked: tuple[str, ...] = (), offloads: tuple[str, ...] = ("none",)) -> None:
        self._problem, self.offloads = problem, offloads
        known = problem.framework.limits.exchanges(problem.graph)
        usual = tuple(kind for kind in known if kind != "all_to_all+ring" and (kind != "all_gather" or "ring" not in known))
        self.allowed = tuple(dict.fromkeys(kind for kind in asked if kind in known)) if asked else usual
        self._model = registry.load("costs", problem.costs, "cost model")
        self._reasons: dict[tuple[int, ...], dict[str, str]] = {}

    def _of(self, mesh: MeshDegrees) -> dict[str, str]:
        """Return every exchange with why it is illegal; empty where it is legal."""
        key = mesh.layer_shape
        if key not in self._reasons:
            plain = Config(mesh, 0, 0, "1f1b", 1, "pipeline")
            kinds = self.allowed if mesh.context > 1 else ("ring",)
            self._reasons[key] = {
                kind: self._model.illegal(self._problem, replace(plain, exchange=kind).strategy, mesh.micro_batch)
                for kind in kinds
            }
        return self._reasons[key]

    def of(self, mesh: MeshDegrees) -> tuple[str, ...]:
        """Return the exchanges of a mesh: ``ring`` where there is nothing to exchange."""
        return tuple(kind for kind, reason in self._of(mesh).items() if not reason)

    def compute_seconds(self, mesh: MeshDegrees, device: Device) -> dict[int, float]:
        """Return what every distinct layer of a micro-batch computes at least on a device, by row.

        Lemma: a configuration has one exchange for all layers, so it computes no less of any than the least over all exchanges.
        """
        plain = Config(mesh, 0, 0, "1f1b", 1, "pipeline")
        every = [
            self._model.compute_seconds(self._problem, replace(plain, exchange=kind).strategy, mesh.micro_batch, device)
            for kind in self.of(mesh)
        ]
        return {row: min(own[row] for own in every) for row in every[0]}

    def refusal(self, mesh: MeshDegrees) -> str:
        """Return why a mesh is legal with no exchange; empty where it is with one."""
        reasons = self._of(mesh)
        if not reasons:
            return f"{self._problem.framework.word} exchanges keys and values of this model in no way over a context axis"
        return "" if "" in reasons.values() else next(iter(reasons.values()))


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
