"""Stages of operators: contraction, the convex partition of the units, and back;
memory limits looked at only where they bind.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from meshwright.solvers.partition.convex import Partition, partition
from meshwright.solvers.partition.hypergraph import Operators, Units, contract

__all__ = ["OperatorStages", "cut", "least_memory"]


@dataclass(frozen=True, slots=True, eq=False)
class OperatorStages:
    """A partition told in operators.

    Parameters
    ----------
    groups : tuple of tuple of int
        Operators of each device, ascending.
    partition : Partition
        The same in units, with loads, bound and proof.
    units : Units
        The units.
    """

    groups: tuple[tuple[int, ...], ...]
    partition: Partition
    units: Units


def cut(
    operators: Operators, n_stages: int, *, n_hosts: int = 0, memory_limit_bytes: float = math.inf, seed: int = 0
) -> OperatorStages:
    """Return the best convex partition of operators over accelerators and hosts.

    Parameters
    ----------
    operators : Operators
        What to partition.
    n_stages, n_hosts : int
        Devices of either kind.
    memory_limit_bytes : float
        Of one accelerator; infinity for none.
    seed : int
        Of the noisy starting orders.

    Returns
    -------
    OperatorStages
        ``partition.feasible`` is False where nothing keeps the limits.

    Notes
    -----
    Without a limit more operators may be joined. If that answer keeps the limit, it is the answer; otherwise the problem is
    solved again with units that are exact under a limit, and the first answer remains as a bound.
    """
    units = contract(operators)
    found = partition(units, n_stages, n_hosts=n_hosts, seed=seed)
    if math.isfinite(memory_limit_bytes) and not _fits(units, found, memory_limit_bytes):
        free_bound = found.bound_value
        units = contract(operators, weigh_memory=True)
        found = partition(units, n_stages, n_hosts=n_hosts, memory_limit_bytes=memory_limit_bytes, seed=seed)
        if found.feasible and free_bound > found.bound_value:
            found = Partition(found.groups, found.hosts, found.loads, free_bound, found.exact, found.n_ideals, found.feasible)
    groups = tuple(tuple(sorted(op for unit in group for op in units.members[unit])) for group in found.groups)
    return OperatorStages(groups, found, units)


def _fits(units: Units, found: Partition, memory_limit_bytes: float) -> bool:
    """Return whether every accelerator keeps the limit."""
    memory = units.arrays.memory
    return found.feasible and all(
        host or float(memory[list(group)].sum()) <= memory_limit_bytes
        for group, host in zip(found.groups, found.hosts, strict=True)
    )


def least_memory(operators: Operators, n_stages: int) -> float:
    """Return the least memory of the fullest of n_stages accelerators over all convex partitions, in bytes."""
    weighed = Operators(
        compute=operators.memory, host=operators.host, memory=np.zeros(len(operators.memory)), supported=operators.supported,
        edges=operators.edges, colocated=operators.colocated, nets=(),
    )  # fmt: skip
    return partition(contract(weighed), n_stages).value
