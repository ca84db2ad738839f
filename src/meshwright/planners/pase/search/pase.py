"""PaSE: the best split of every operator over processors or a device mesh, with a proof that none is better."""

from __future__ import annotations

import contextlib
import cProfile
import io
import json
import pstats
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from meshwright.base import files, units
from meshwright.base.errors import InputError
from meshwright.core.drawing import dot, svg
from meshwright.core.graph import Graph
from meshwright.core.problem import Problem, Stop
from meshwright.core.result import Answer, Bound, Objective
from meshwright.planners.pase import answer as pase_answer
from meshwright.planners.pase.budget import shortage, solve_within_memory
from meshwright.planners.pase.check import check_certificate
from meshwright.planners.pase.question import PaseSettings, one_stage, question_of
from meshwright.planners.pase.readers.pase_graph import PaseInstance, graph_of
from meshwright.planners.pase.tables import splits_cost, tables

if TYPE_CHECKING:
    from meshwright.planners.pase.our_models import MeshSettings

__all__ = ["GIVEN", "STOPS_EARLY", "Params", "check_certificate", "data_parallel", "given", "search"]

GIVEN = ("n_processors", "batch", "model", "flops", "bandwidth")
"""Options that say something of a plan that is given."""

STOPS_EARLY = True

N_WARM_UPS, N_RUNS = 2, 5
"""Of ``measure``: those of the published program."""


@dataclass(frozen=True, slots=True)
class Params:
    """Options of the search.

    Parameters
    ----------
    n_processors, batch, model, flops, bandwidth
        As in `meshwright.planners.pase.question.PaseSettings`; for PaSE's own graphs only.
    mesh : tuple of int
        Shape of the device mesh, outermost first, for models on a cluster; empty for nodes by devices of a node.
    recompute : str
        For models on a cluster: what the backward pass computes again; ``auto`` takes the quickest that fits.
    memory : float or None
        Most bytes a device may hold; none for no limit on PaSE's own graphs, and for the device's own memory on a cluster.
    gap_ratio : float or None
        Under a memory limit: how far from proven best the answer may stay; none for 0 on PaSE's own graphs and 0.001 otherwise.
    certificate : str
        File to write the proof to; empty for none. ``meshwright check FILE`` verifies it.
    dump : str
        File to draw the graph to with the splits chosen: DOT, or a picture where it ends in ``.svg``; empty for none.
    profile : str
        File to write Python's profile of the search to, by cumulative time; empty for none.
    measure : bool
        Whether the question is solved again, twice to warm up and five times on the clock, as the published program does.
    """

    n_processors: int = field(default=0, metadata={"minimum": 1})
    batch: int = field(default=0, metadata={"minimum": 1})
    model: int = field(default=128, metadata={"minimum": 1})
    flops: float = field(default=10e12, metadata={"unit": "flops_per_second"})
    bandwidth: float = field(default=16e9, metadata={"unit": "bytes_per_second"})
    mesh: tuple[int, ...] = ()
    recompute: str = field(default="auto", metadata={"choices": ("auto", "none", "selective", "full")})
    memory: float | None = field(default=None, metadata={"unit": "bytes"})
    gap_ratio: float | None = field(default=None, metadata={"minimum": 0.0})
    certificate: str = ""
    dump: str = ""
    profile: str = ""
    measure: bool = False


def search(problem: Problem, params: Params, *, seed: int, stop: Stop) -> Answer:
    """Return the splits of least cost.

    `problem` is a PaSE graph, or a model whose layers hold operators, on a cluster; `seed` is not used: nothing is random;
    `stop` ends branching under a memory limit between subproblems, and limits the seconds of integer programming, which once
    begun goes on for as long as they last. Answers one stage with the splits in `Answer.extra`,
    a proven bound, and a certificate; or what memory is missing.
    Raises `InputError` when the model holds no operators, or an option is wrong.

    References
    ----------
    .. [1] V. Elango, "PaSE: Parallelization Strategies for Efficient DNN Training", IPDPS 2021.

    Notes
    -----
    On PaSE's graphs the objective is that of [1]; the published program joins tables of whole configurations and runs out of
    memory where this takes milliseconds. On other models it is seconds per step, see `meshwright.costs.sharded.operator`. The
    method is the same: `meshwright.solvers.pairwise.labelling`.
    """
    for path, option in (
        (params.certificate, "--set certificate"),
        (params.dump, "--set dump"),
        (params.profile, "--set profile"),
    ):
        if path:
            files.check_target(path, option)
    profiler = cProfile.Profile() if params.profile else None
    with profiler or contextlib.nullcontext():
        answer, graph = _solved(problem, params, stop)
    if profiler is not None:
        text = io.StringIO()
        pstats.Stats(profiler, stream=text).sort_stats("cumulative").print_stats()
        files.write(params.profile, text.getvalue())
    if params.measure:
        answer = _measured(answer, lambda: _solved(problem, params, stop))
    if params.certificate and answer.certificate is not None:
        files.write(params.certificate, json.dumps(dict(answer.certificate)) + "\n")
    if params.dump and answer.plan is not None:
        files.write(params.dump, drawing(graph, answer, params.dump))
    return answer


def _solved(problem: Problem, params: Params, stop: Stop) -> tuple[Answer, Graph]:
    """Return the splits of least cost, of a published graph or on a mesh."""
    if isinstance(problem.model_spec.instance, PaseInstance):
        return _on_pase_graph(problem, params, stop)
    from meshwright.planners.pase import our_models  # published graphs need neither costs of ours nor the simulator

    return our_models.on_mesh(problem, _mesh_settings(problem, params), stop)


def _measured(answer: Answer, solve: Callable[[], object]) -> Answer:
    """Return an answer with the seconds of solving its question again: after warm-ups, as the published program measures."""
    seconds = []
    for _ in range(N_WARM_UPS + N_RUNS):
        started = time.perf_counter()
        solve()
        seconds.append(time.perf_counter() - started)
    runs = seconds[N_WARM_UPS:]
    mean = sum(runs) / N_RUNS
    measured = {"warm_ups": N_WARM_UPS, "run_seconds": runs, "mean_seconds": mean}
    note = f"the search takes {units.format_seconds(mean)} (mean of {N_RUNS} runs after {N_WARM_UPS} warm-ups)"
    return replace(answer, notes=(*answer.notes, note), extra={**answer.extra, "measured": measured})


def given(problem: Problem, params: Params, text: str) -> Answer:
    """Return splits of a PaSE graph's operators that were typed, ``*=b/8; fc*=n/8``, with their cost.

    Raises `InputError` when the model is no PaSE graph, an option is wrong, or the text is no split of its operators.
    """
    from meshwright.planners.pase import typed

    settings = PaseSettings(params.n_processors, params.batch, params.model, params.flops, params.bandwidth)
    question = question_of(problem, settings, "pase")
    chosen, notes = typed.splits(question, text)
    extra = pase_answer.shardings(question, chosen)
    if problem.cluster is not None:
        extra["on_cluster"] = pase_answer.on_cluster(question, problem.cluster, chosen)
    extra["baselines"] = pase_answer.baselines(question)
    value = splits_cost(question.network, chosen, question.word_flop)
    notes = question.notes + notes + _priced(extra.get("on_cluster"), problem)
    return Answer(one_stage(question), Objective("flops_equivalent", value), notes=notes, extra=extra)


def _mesh_settings(problem: Problem, params: Params) -> MeshSettings:
    """Return the mesh, the memory limit and recomputation; refuse options that a model on a cluster does not have."""
    for name in ("n_processors", "batch", "model", "flops", "bandwidth"):
        if getattr(params, name) != getattr(Params(), name):
            raise InputError(
                f"--set {name}: is for pase:GRAPH; of {problem.model_spec.name} the cluster and --global-batch say as much"
            )
    from meshwright.planners.pase.our_models import MeshSettings

    gap_ratio = 1e-3 if params.gap_ratio is None else params.gap_ratio
    return MeshSettings(params.mesh, params.memory, params.recompute, gap_ratio)


def _on_pase_graph(problem: Problem, params: Params, stop: Stop) -> tuple[Answer, Graph]:
    """Solve one of the published graphs in the published cost model."""
    if params.mesh or params.recompute != "auto":
        raise InputError("--set mesh, recompute: PaSE's own graphs know a number of processors only; use --set n_processors")
    started = time.perf_counter()
    settings = PaseSettings(params.n_processors, params.batch, params.model, params.flops, params.bandwidth)
    question = question_of(problem, settings, "pase")
    graph = graph_of(question.network)
    built = time.perf_counter()
    costs = tables(question.network, question.n_processors, question.word_flop)
    costed = time.perf_counter()
    found = solve_within_memory(costs, params.memory, stop, params.gap_ratio or 0.0)
    phases = {"graph": built - started, "tables": costed - built, "solve": time.perf_counter() - costed}
    if found is None:
        lack = shortage(question, costs, params.memory or 0.0)
        # None means that the leanest splits of all operators together exceed the memory
        nothing = Answer(
            None, missing_bytes=lack.missing_bytes, nearest=lack.nearest, infeasible_proven=True, notes=question.notes
        )
        return nothing, graph
    chosen = [costs.splits[v][x] for v, x in enumerate(found.labels.tolist())]
    extra = pase_answer.shardings(question, chosen)
    if problem.cluster is not None:
        extra["on_cluster"] = pase_answer.on_cluster(question, problem.cluster, chosen)
    extra |= {
        "baselines": pase_answer.baselines(question),
        "phases_seconds": phases,
        "held_bytes": found.used_bytes,
        "n_configurations": len(costs.problem.node_cost),
        "n_configurations_left": found.relaxed.n_left,
    }
    answer = Answer(
        one_stage(question), Objective("flops_equivalent", found.value), Bound(found.bound_value, found.method),
        notes=question.notes + pase_answer.baseline_notes(question) + _priced(extra.get("on_cluster"), problem), extra=extra,
        certificate=pase_answer.certificate(question, costs, found, params.memory),
    )  # fmt: skip
    return answer, graph


def _priced(seconds: object, problem: Problem) -> tuple[str, ...]:
    """Return what the splits take on the cluster in words; nothing without one that they can be priced on."""
    if problem.cluster is None or not isinstance(seconds, dict) or seconds["step_seconds"] is None:
        return ()
    ours, theirs = units.format_seconds(seconds["step_seconds"]), seconds["data_parallel_step_seconds"]
    beside = "" if theirs is None else f", data parallelism {units.format_seconds(theirs)}"
    return (f"on {problem.cluster.name} these splits take {ours} a step{beside} (single precision, no overlap)",)


def data_parallel(problem: Problem, settings: Mapping[str, float], stop: Stop) -> Answer:
    """Return every operator of a graph of PaSE's split along the batch, whether or not the published space contains that.

    `problem`: a PaSE graph.
    `settings`: options as in `PaseSettings`.
    `stop`: not used: there is nothing to choose. On other models search best answers the same question.
    """
    if not isinstance(problem.model_spec.instance, PaseInstance):
        raise InputError(f"search data_parallel: {problem.model_spec.spec} is no graph of PaSE's")
    question = question_of(problem, PaseSettings(**settings), "data_parallel")  # type: ignore[arg-type]
    chosen = pase_answer.data_parallel(question)
    wrong = pase_answer.impossible(question.network, chosen)
    if wrong:
        raise InputError(f"search data_parallel: {wrong}; give --set n_processors or batch so that it does")
    value = splits_cost(question.network, chosen, question.word_flop)
    extra = pase_answer.shardings(question, chosen)
    return Answer(one_stage(question), Objective("flops_equivalent", value), notes=question.notes, extra=extra)


def drawing(graph: Graph, answer: Answer, path: str) -> str:
    """Return the graph with the split of each operator: SVG where the path ends so, else DOT."""
    rows = answer.extra["operators"]
    assert isinstance(rows, list)
    captions = [str(row["split"]) for row in rows]
    return svg(graph, captions) if path.endswith(".svg") else dot(graph, captions)
