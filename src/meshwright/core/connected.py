"""Whether every device of a cluster reaches every other: what `Cluster` refuses where it is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from meshwright.base.identity import distinct

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ends = tuple[NDArray[np.int64], NDArray[np.int64]]

__all__ = ["fault"]


def fault(ends: Ends, n_devices: int, n_switches: int, *, forwards: bool, names: Sequence[str] = ()) -> str:
    """Return which device cannot reach which, in words; empty where every device reaches every other.

    Parameters
    ----------
    ends : tuple of ndarray, each of shape (n_links,), int64
        Source and target of every directed link; both are there.
    n_devices, n_switches : int
        At least one device.
    forwards : bool
        Whether devices pass on traffic; where not, only switches and direct links count.
    names : sequence of str
        Names of the devices, for the message; their ids where empty.
    """
    n_nodes = n_devices + n_switches
    for verb, source, target in (("reach", *ends), ("be reached from", *ends[::-1])):
        lost = np.flatnonzero(_smallest_before(source, target, n_nodes)[:n_devices])
        if len(lost):
            more = f" (nor {len(lost) - 1} others)" if len(lost) > 1 else ""
            return f"{_called(0, names)} cannot {verb} {_called(lost[0], names)}{more}; add links or switches"
    return "" if forwards else _fault_without_forwarding(ends, n_devices, n_nodes, names)


def _called(i: int, names: Sequence[str]) -> str:
    return names[i] if names else f"device {i}"


def _smallest_before(source: NDArray[np.int64], target: NDArray[np.int64], n_nodes: int) -> NDArray[np.int64]:
    """Return the smallest id that reaches each node, itself included: 0 for all that node 0 reaches.

    What reaches the smallest id before a node reaches that node too, so each round looks twice as far where ids rise along the
    links.
    """
    found = np.arange(n_nodes)
    while True:
        smaller = found.copy()
        np.minimum.at(smaller, target, found[source])
        smaller = smaller[smaller]
        if np.array_equal(smaller, found):
            return found
        found = smaller


def _fault_without_forwarding(ends: Ends, n: int, n_nodes: int, names: Sequence[str]) -> str:
    """Return which device reaches which over other devices only; `fault` has seen that all reach all where devices forward."""
    source, target = ends
    up, down = target >= n, source >= n
    between = source[up & down], target[up & down]
    part = _smallest_before(*between, n_nodes)
    one_way = not np.array_equal(part, _smallest_before(*between[::-1], n_nodes))
    if one_way:  # what switches join is then no net that is left where it is entered: each is looked at for itself
        part = np.arange(n_nodes)
    into = distinct(part[target[up & ~down]] * n + source[up & ~down])
    out = distinct(part[source[down & ~up]] * n + target[down & ~up])
    if n == 1 or (np.bincount(np.intersect1d(into, out, assume_unique=True) // n) == n).any():
        return ""  # one net of switches joins all of them
    direct = ~(up | down)
    reached_from: list[set[int]] = [{i} for i in range(n)]
    for a, b in zip(source[direct].tolist(), target[direct].tolist(), strict=True):
        reached_from[a].add(b)
    members: dict[int, set[int]] = {}
    for code in out.tolist():
        members.setdefault(code // n, set()).add(code % n)
    if one_way:
        members = {switch: _members_from(switch, between, members) for switch in {code // n for code in into.tolist()}}
    for code in into.tolist():
        reached_from[code % n] |= members.get(code // n, set())
    for i, reach in enumerate(reached_from):
        if len(reach) < n:
            other = next(j for j in range(n) if j not in reach)
            return (
                f"{_called(i, names)} reaches {_called(other, names)} only through other devices, which do not forward; "
                "add a switch or let devices forward (forwards: true)"
            )
    return ""


def _members_from(switch: int, between: Ends, members: Mapping[int, set[int]]) -> set[int]:
    """Return the devices that a switch reaches over switches only, in the direction of their links."""
    source, target = between
    found, new = {switch}, [switch]
    while new:
        new = [i for i in np.unique(target[np.isin(source, new)]).tolist() if i not in found]
        found.update(new)
    return set().union(*(members.get(i, set()) for i in found))
