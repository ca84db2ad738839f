"""Checks a PaSE certificate: builds the costs from the question again and adds up what the file claims."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meshwright.costs._pase_memory import held_bytes
from meshwright.costs._pase_tables import tables
from meshwright.errors import InputError
from meshwright.readers.pase_graph import build
from meshwright.solvers.certificate import Verdict, check
from meshwright.solvers.pairwise import Pairwise

__all__ = ["check_certificate"]


def check_certificate(entry: Any, where: str) -> Verdict:
    """Check a certificate of ``--search pase``.

    Parameters
    ----------
    entry : object
        The parsed file.
    where : str
        The file, for messages.

    Returns
    -------
    Verdict
        Whether splits, cost and bound hold; runs no solver.

    Raises
    ------
    InputError
        When a field is missing or of the wrong kind.
    """
    try:
        asked = entry["question"]
        numbers = {name: _whole(asked[name], name, where) for name in ("n_processors", "batch", "model")}
        words = _real(asked["flop_per_word"], "flop_per_word", where)
        memory = asked["memory_bytes"]
        budget = math.inf if memory is None else _real(memory, "memory_bytes", where)
        multiplier = _real(entry["multiplier"], "multiplier", where)
        value, bound = _real(entry["value"], "value", where), _real(entry["bound"], "bound", where)
        network = build(str(asked["graph"]), numbers["batch"], numbers["model"])
        to_source = [np.asarray(message, dtype=np.float64).ravel() for message in entry["to_source"]]
        to_target = [np.asarray(message, dtype=np.float64).ravel() for message in entry["to_target"]]
        claimed = [tuple(int(part) for part in split) for split in entry["shardings"]]
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{where}: a field is missing or of the wrong kind: {error}") from None
    costs = tables(network, numbers["n_processors"], words)
    if len(claimed) != len(costs.splits):
        return Verdict(False, math.nan, math.nan, f"there are {len(claimed)} splits for {len(costs.splits)} operators")
    labels = []
    for operator, split, rows in zip(network.operators, claimed, costs.splits, strict=True):
        found = np.flatnonzero((rows == np.array(split)).all(axis=1)) if len(split) == rows.shape[1] else np.zeros(0)
        if len(found) != 1:
            return Verdict(False, math.nan, math.nan, f"operator {operator.name} has no configuration {list(split)}")
        labels.append(int(found[0]))
    weights = held_bytes(costs)
    used = math.fsum(weights[costs.problem.first[:-1] + np.array(labels)].tolist())
    if used > budget * (1 + 1e-9):
        return Verdict(False, math.nan, math.nan, f"the splits hold {used!r} bytes on a device, more than {budget!r}")
    if multiplier < 0 or (multiplier > 0 and math.isinf(budget)):
        return Verdict(
            False, math.nan, math.nan, f"the multiplier is {multiplier!r}; it prices memory, of which there is no limit"
        )
    if multiplier == 0:
        return check(costs.problem, labels, to_source, to_target, claimed_value=value, claimed_bound_value=bound)
    p = costs.problem
    priced = Pairwise(
        p.first, p.node_cost + multiplier * weights, p.source, p.target, p.rows, p.columns, p.table_of_edge, p.tables
    )  # fmt: skip
    verdict = check(
        priced, labels, to_source, to_target,
        claimed_value=value + multiplier * used, claimed_bound_value=bound + multiplier * budget,
    )  # fmt: skip
    return Verdict(verdict.valid, value, verdict.bound_value - multiplier * budget, verdict.reason)


def _real(value: Any, name: str, where: str) -> float:
    """Return a finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InputError(f"{where}: {name} is {value!r}; must be a finite number")
    return float(value)


def _whole(value: Any, name: str, where: str) -> int:
    """Return a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{where}: {name} is {value!r}; must be a whole number of at least 1")
    return value
