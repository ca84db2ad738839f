"""PaSE: the best split of every operator over a number of processors, with a proof that none is better."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field

from meshwright import _files
from meshwright.costs._pase_tables import tables
from meshwright.problem import Problem, Stop
from meshwright.result import Answer, Bound, Objective
from meshwright.search import _pase_answer
from meshwright.search._pase_answer import drawing
from meshwright.search._pase_budget import shortage, solve_within_memory
from meshwright.search._pase_question import PaseSettings, one_stage, question_of

__all__ = ["Params", "search"]


@dataclass(frozen=True, slots=True)
class Params:
    """Options of the search.

    Parameters
    ----------
    n_processors, batch, model, flops, bandwidth
        As in `meshwright.search._pase_question.PaseSettings`.
    memory : float or None
        Most bytes a device may hold; none for no limit.
    certificate : str
        File to write the proof to; empty for none. ``meshwright check FILE`` verifies it.
    dump : str
        File to draw the graph to with the splits chosen: DOT, or a picture where it ends in ``.svg``; empty for none.
    """

    n_processors: int = field(default=0, metadata={"minimum": 1})
    batch: int = field(default=0, metadata={"minimum": 1})
    model: int = field(default=128, metadata={"minimum": 1})
    flops: float = field(default=10e12, metadata={"unit": "flops_per_second"})
    bandwidth: float = field(default=16e9, metadata={"unit": "bytes_per_second"})
    memory: float | None = field(default=None, metadata={"unit": "bytes"})
    certificate: str = ""
    dump: str = ""


def search(problem: Problem, params: Params, *, seed: int, stop: Stop) -> Answer:
    """Return the splits of least cost.

    Parameters
    ----------
    problem : Problem
        A PaSE graph.
    params : Params
        Options.
    seed : int
        Not used: nothing is random.
    stop : Stop
        Its seconds limit integer programming, where that is needed.

    Returns
    -------
    Answer
        One stage with the splits in `Answer.extra`, a proven bound, and a certificate; or what memory is missing.

    Raises
    ------
    InputError
        When the model is not a PaSE graph, or an option is wrong.

    References
    ----------
    .. [1] V. Elango, "PaSE: Parallelization Strategies for Efficient DNN Training", IPDPS 2021.

    Notes
    -----
    Same objective as [1]; the published program joins tables of whole configurations and runs out of memory where this takes
    milliseconds. See `meshwright.solvers.labelling` for the method.
    """
    for path, option in ((params.certificate, "--set certificate"), (params.dump, "--set dump")):
        if path:
            _files.check_target(path, option)
    started = time.perf_counter()
    settings = PaseSettings(params.n_processors, params.batch, params.model, params.flops, params.bandwidth)
    question = question_of(problem, settings, "pase")
    built = time.perf_counter()
    costs = tables(question.network, question.n_processors, question.word_flop)
    costed = time.perf_counter()
    found = solve_within_memory(costs, params.memory, stop.seconds or 600.0)
    phases = {"graph": built - started, "tables": costed - built, "solve": time.perf_counter() - costed}
    if found is None:
        lack = shortage(question, costs, params.memory or 0.0)
        return Answer(None, missing_bytes=lack.missing_bytes, nearest=lack.nearest, notes=question.notes)
    extra = _pase_answer.shardings(question, [costs.splits[v][x] for v, x in enumerate(found.labels.tolist())])
    extra |= {
        "baselines": _pase_answer.baselines(question),
        "phases_seconds": phases,
        "held_bytes": found.used_bytes,
        "n_configurations": len(costs.problem.node_cost),
        "n_configurations_left": found.relaxed.n_left,
    }
    answer = Answer(
        one_stage(question), Objective("flops_equivalent", found.value), Bound(found.bound_value, found.method),
        notes=question.notes, extra=extra, certificate=_pase_answer.certificate(question, costs, found, params.memory),
    )  # fmt: skip
    if params.certificate:
        _files.write(params.certificate, json.dumps(answer.certificate) + "\n")
    if params.dump:
        _files.write(params.dump, drawing(question, extra["operators"], params.dump))
    return answer
