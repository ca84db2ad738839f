"""Checks certificates: builds the costs from the question again and adds up what the file claims; runs no solver."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.base import fields
from meshwright.base.errors import InputError
from meshwright.core.problem import Problem
from meshwright.planners.pase.memory import held_bytes
from meshwright.planners.pase.readers.pase_graph import PaseInstance
from meshwright.planners.pase.tables import tables
from meshwright.solvers.pairwise.certificate import Verdict, check
from meshwright.solvers.pairwise.problem import Pairwise

__all__ = ["check_certificate"]


@dataclass(frozen=True, slots=True, eq=False)
class _Posed:
    """The problem of a certificate, built again.

    `problem`: costs.
    `weights`, shape (n_labels,), float64: bytes that each label holds.
    `names`: of the nodes.
    `options`: of each node, what its labels stand for.
    """

    problem: Pairwise
    weights: NDArray[np.float64]
    names: tuple[str, ...]
    options: tuple[tuple[Any, ...], ...]


def check_certificate(entry: Any, place: str, problem: Problem | None = None) -> Verdict:
    """Check a certificate of ``--search pase``.

    `problem`: the question of a certificate of kind ``sharding``, posed again from what the file says; None for kind
    ``pase``.
    Returns: whether splits, cost and bound hold.
    Raises `InputError` when a field is missing or of the wrong kind.
    """
    try:
        kind = entry["kind"]
        if kind not in ("pase", "sharding"):
            raise InputError(f"{place}: kind is {fields.show(kind)}; it must be 'pase' or 'sharding'")
        asked = entry["question"]
        memory = asked["memory_bytes"]
        budget = math.inf if memory is None else fields.number(memory, f"{place}: memory_bytes")
        posed = _pase(asked, place) if kind == "pase" else _sharding(asked, problem)
        return _judge(posed, entry, budget, place)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{place}: a field is missing or of the wrong kind: {error}") from None


def _pase(asked: Any, place: str) -> _Posed:
    """Build the problem of one of PaSE's graphs."""
    network = PaseInstance(str(asked["graph"]), fields.text(asked.get("written", ""), f"{place}: written")).built(
        fields.whole(asked["batch"], f"{place}: batch", minimum=1),
        fields.whole(asked["model"], f"{place}: model", minimum=1),
    )
    word_flop = fields.number(asked["flop_per_word"], f"{place}: flop_per_word")
    costs = tables(network, fields.whole(asked["n_processors"], f"{place}: n_processors", minimum=1), word_flop)
    names = tuple(operator.name for operator in network.operators)
    return _Posed(costs.problem, held_bytes(costs), names, tuple(tuple(rows.tolist()) for rows in costs.splits))


def _sharding(asked: Any, problem: Problem | None) -> _Posed:
    """Build the problem of a model on a mesh."""
    assert problem is not None
    from meshwright.planners.pase.our_models import sharding_problem  # published graphs need no costs of ours

    sharding = sharding_problem(problem, tuple(int(size) for size in asked["mesh"]), str(asked["recompute"]))
    names = tuple(node.name for node in sharding.wiring.nodes)
    options = tuple(tuple([choice.name for choice in way] for way in made.choices) for made in sharding.menus)
    return _Posed(sharding.problem, sharding.held_bytes, names, options)


def _judge(posed: _Posed, entry: Any, budget_bytes: float, place: str) -> Verdict:
    """Compare what is claimed with what adds up."""
    value, bound = fields.number(entry["value"], f"{place}: value"), fields.number(entry["bound"], f"{place}: bound")
    multiplier = fields.number(entry["multiplier"], f"{place}: multiplier")
    to_source = [np.asarray(message, dtype=np.float64).ravel() for message in entry["to_source"]]
    to_target = [np.asarray(message, dtype=np.float64).ravel() for message in entry["to_target"]]
    claimed = [list(way) for way in entry["shardings"]]
    if len(claimed) != len(posed.names):
        return _refused(f"there are {len(claimed)} splits for {len(posed.names)} operators")
    labels = []
    for name, way, options in zip(posed.names, claimed, posed.options, strict=True):
        if way not in options:
            return _refused(f"operator {name} has no configuration {way}")
        labels.append(options.index(way))
    problem, weights = posed.problem, posed.weights
    used = math.fsum(weights[problem.first[:-1] + np.array(labels)].tolist())
    if used > budget_bytes * (1 + 1e-9):
        return _refused(f"the splits hold {used!r} bytes on a device, more than {budget_bytes!r}")
    if multiplier < 0 or (multiplier > 0 and math.isinf(budget_bytes)):
        return _refused(f"the multiplier is {multiplier!r}; it prices memory, of which there is no limit")
    if multiplier == 0:
        return check(problem, labels, to_source, to_target, claimed_value=value, claimed_bound_value=bound)
    priced = replace(problem, node_cost=problem.node_cost + multiplier * weights)
    verdict = check(
        priced, labels, to_source, to_target,
        claimed_value=value + multiplier * used, claimed_bound_value=bound + multiplier * budget_bytes,
    )  # fmt: skip
    return Verdict(verdict.valid, value, verdict.bound_value - multiplier * budget_bytes, verdict.reason)


def _refused(reason: str) -> Verdict:
    return Verdict(False, math.nan, math.nan, reason)
