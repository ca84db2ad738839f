"""The suite's problems: read from its list, chosen by the user's words, written down for a planner."""

from __future__ import annotations

import fnmatch
import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from meshwright import api, published
from meshwright.base import files
from meshwright.base.errors import InputError
from meshwright.core.flops import model_flops
from meshwright.core.graph import Graph
from meshwright.core.problem import Batch, Problem
from meshwright.suite import PROBLEM_FORMAT, BenchProblem, graphs

__all__ = ["VERSION", "chosen", "digest", "generate", "load", "posed", "problem_json"]

VERSION = 1

_GENERATED = "generated:"


def load() -> tuple[BenchProblem, ...]:
    """Return all problems of the suite, in its order."""
    return tuple(_all(_list()))


def _list() -> dict[str, Any]:
    return files.read_toml(str(Path(__file__).resolve().parent / "data" / f"suite_{VERSION}.toml"))


def _all(held: Mapping[str, Any]) -> Iterator[BenchProblem]:
    for family in ("piper", "pase", "dapple", "partition", "generated", "models"):
        entry = held[family]
        objective, searches = entry["objective"], tuple(entry["searches"])
        if family == "models":
            for name in entry["names"]:
                for cluster in entry["clusters"]:
                    word = f"{name}@{cluster}"
                    yield BenchProblem(
                        f"models/{word}", word in entry["quick"], name, objective, searches, cluster, {},
                        entry["global_batch"], entry["sequence_length"],
                    )  # fmt: skip
            continue
        problems = entry.get("problems") or [
            {"id": f"{shape}-{n}", "spec": f"{_GENERATED}{shape}-{n}", "quick": f"{shape}-{n}" in entry["quick"]}
            for shape in entry["shapes"]
            for n in entry["sizes"]
        ]
        for one in problems:
            spec, quick, settings = one["spec"], bool(one.get("quick", False)), one.get("settings", {})
            if not spec.startswith(("pase:", _GENERATED)):
                file, mark, limits = spec.partition("#")
                spec = published.path(file) + mark + limits
            for n_stages in entry.get("stages", [0]):
                told = settings | ({"n_stages": str(n_stages), "memory_limit": "none"} if n_stages else {})
                tail = f"-{n_stages}" if n_stages and family == "partition" else ""
                asked = quick and n_stages in (0, 4)
                yield BenchProblem(f"{family}/{one['id']}{tail}", asked, spec, objective, searches, "", told)


def chosen(select: str) -> tuple[BenchProblem, ...]:
    """Return the problems that the user's words name.

    Parameters
    ----------
    select : str
        Words separated by commas: ``quick`` (also where empty), ``full``, a family, or a pattern of ids (``models/llama*``).

    Raises
    ------
    InputError
        When a word names none.
    """
    every = load()
    found: set[str] = set()
    for word in (part.strip() for part in (select or "quick").split(",")):
        mine = [
            one.id
            for one in every
            if word == "full" or (word == "quick" and one.quick) or word == one.family or fnmatch.fnmatchcase(one.id, word)
        ]
        if not mine:
            families = ", ".join(dict.fromkeys(one.family for one in every))
            raise InputError(
                f"--problems {word}: names no problem; write quick, full, a family ({families}) or a pattern of ids such as "
                "'models/llama*' (meshwright bench --list --problems full shows all)"
            )
        found.update(mine)
    return tuple(one for one in every if one.id in found)


def generate(question: BenchProblem, folder: str) -> BenchProblem:
    """Return the question with its graph written to a file, where it is a generated one.

    Parameters
    ----------
    question : BenchProblem
        Of the suite.
    folder : str
        Where the file goes.
    """
    from dataclasses import replace

    if not question.spec.startswith(_GENERATED):
        return question
    word = question.spec.removeprefix(_GENERATED)
    path = Path(folder) / f"{word}.json"
    files.write(path, _graph(word))
    return replace(question, spec=str(path))


def _graph(word: str) -> str:
    """Return the text of a generated graph; its seed follows from its size."""
    shape, _, n = word.rpartition("-")
    return graphs.placement_graph(shape, int(n), seed=int(n))


@cache
def digest() -> str:
    """Return a check sum of the suite: its problems, the files they name, and the graphs it makes; none of them changes."""
    found = hashlib.sha256(json.dumps(_list(), sort_keys=True).encode())
    for one in dict.fromkeys(question.spec.partition("#")[0] for question in load() if question.family != "models"):
        if one.startswith(_GENERATED):
            found.update(_graph(one.removeprefix(_GENERATED)).encode())
        elif not one.startswith("pase:"):
            found.update(files.read_bytes(one))
    return found.hexdigest()[:16]


def posed(question: BenchProblem) -> Problem:
    """Return a question as a problem, completed by what its settings say."""
    return api.completed(_asked(question), question.searches[0], question.settings)


def _asked(question: BenchProblem) -> Problem:
    """Return a question as a problem, as the file or the name has it."""
    batch = Batch(question.global_batch, 0, question.sequence_length)
    return api.make_problem(question.spec, question.cluster or None, batch=batch)


def problem_json(question: BenchProblem, limit_seconds: float) -> dict[str, Any]:
    """Return the problem file that a planner gets, see ``docs/howto/compare_planners.md``."""
    problem = posed(question)
    spec, cluster = problem.model_spec, problem.cluster
    n_devices = int(question.settings.get("n_stages", 0)) or (cluster.n_devices if cluster is not None else 0)
    return {
        "format": PROBLEM_FORMAT, "suite": VERSION, "problem": question.id, "family": question.family,
        "objective": {"name": question.objective, "better": "less"}, "time_limit_seconds": limit_seconds,
        "model": {"name": spec.name, "spec": question.spec, "format": spec.format},
        "cluster": None if cluster is None else {"name": cluster.name, "n_devices": cluster.n_devices},
        "settings": dict(question.settings), "searches": list(question.searches),
        "global_batch": question.global_batch or problem.batch.global_batch or None,
        "sequence_length": question.sequence_length or None,
        "n_devices": n_devices or None,
        "memory_bytes": None if cluster is None else min(kind.memory_bytes for kind in cluster.kinds),
        "n_microbatches": getattr(spec.instance, "n_microbatches", None),
        "layers": _layers(_asked(question)),
        "edges": [[edge.source, edge.target] for edge in problem.graph.edges],
    }  # fmt: skip


def _layers(problem: Problem) -> list[dict[str, Any]]:
    """Return name, weights and, where the file tells, seconds (forward and backward on one device) or operations of a layer."""
    from meshwright.planners.dapple.profile import PipeDreamProfile
    from meshwright.planners.parmesan.readers.dnn_partitioning_json import PlacementGraph
    from meshwright.planners.piper.problem import PiperInstance

    instance, graph = problem.model_spec.instance, problem.graph
    seconds: list[float | None] = [None] * len(graph.ops)
    if isinstance(instance, PlacementGraph):
        seconds = [node.accelerator_cost for node in instance.nodes]
    elif isinstance(instance, PiperInstance):
        seconds = [min((choice.seconds for choice in node.at(1)), default=None) for node in instance.nodes]
    elif isinstance(instance, PipeDreamProfile):
        of = {node.name: node.compute_seconds for node in instance.nodes}
        seconds = [of.get(op.name) for op in graph.ops]
    flops = [model_flops(Graph("", (op,))) if op.body else None for op in graph.ops]
    return [
        {"name": op.name, "seconds": time, "flops": count, "n_parameters": op.n_parameters or None}
        for op, time, count in zip(graph.ops, seconds, flops, strict=True)
    ]
