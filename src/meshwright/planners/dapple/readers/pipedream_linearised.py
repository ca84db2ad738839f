"""A profile already linearised (``.imp``): states with cumulative metrics, interval tables, cuts and predecessors."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from meshwright.base.errors import InputError
from meshwright.core.graph import Edge, Graph, Op
from meshwright.core.problem import ModelSpec
from meshwright.core.source import Source
from meshwright.planners.dapple.profile import LinearisedProfile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["read", "recognises"]


def recognises(source: Source) -> bool:
    """Return whether the text opens with a number of states and a state line of five fields separated by tabs."""
    if source.text is None:
        return False
    lines = source.text.split("\n", 2)
    if len(lines) < 2 or not re.fullmatch(r"\s*\d{1,7}\s*", lines[0]):
        return False
    return lines[1].count("\t") == 4


def read(source: Source) -> ModelSpec:
    """Read a linearised profile.

    `ModelSpec.instance` is the `LinearisedProfile`; `ModelSpec.graph` is the chain of its states, in their order, the elements
    of an edge being the bytes of the cut at four bytes each, for the whole profile batch.
    Raises `InputError` when a line does not parse; the message names file, line and what was expected.
    """
    place = str(source.path or source.spec)
    if source.text is None:
        raise InputError(f"{place}: is not a text file")
    batch = re.search(r"pbs-(\d{1,9})", source.path.name if source.path else "")
    profile = _parse(source.text.splitlines(), place, int(batch[1]) if batch else 0)
    name = source.path.stem if source.path else source.spec
    n = len(profile.descriptions)
    ops = tuple(Op(f"state{i}", text) for i, text in enumerate(profile.descriptions))
    edges = tuple(Edge(i, i + 1, round(float(profile.cut_bytes[i]) / 4)) for i in range(n - 1))
    graph = Graph(name, ops, edges, tokens_name="")
    return ModelSpec(name, "pipedream_linearised", source.spec, graph, profile, costs="dapple", search="dapple")


def _parse(lines: list[str], place: str, profile_batch: int) -> LinearisedProfile:
    """Read the whole file."""
    try:
        n = int(lines[0])
    except (ValueError, IndexError):
        raise InputError(f"{place}: line 1: expected the number of states") from None
    n_lines = 1 + n + 3 * (n + 1) + 1 + n
    if n < 1:
        raise InputError(f"{place}: line 1: {n} states; expected at least 1")
    # trailing empty lines carry nothing, and the first predecessor line is empty by itself
    if len(lines) < n_lines - (1 if n == 1 else 0) or any(line.strip() for line in lines[n_lines:]):
        raise InputError(
            f"{place}: {len(lines)} lines; {n} states need {n_lines} (states, three tables, cuts, predecessors): cut off?"
        )
    import numpy as np

    cumulative = np.zeros((4, n))
    descriptions = []
    for i in range(n):
        fields = lines[1 + i].split("\t", 4)
        if len(fields) != 5:
            raise InputError(
                f"{place}: line {2 + i}: {len(fields)} fields; expected time, activation, cut, parameters, description "
                "separated by tabs"
            )
        cumulative[:, i] = _row(fields[:4], 4, f"{place}: line {2 + i}", sentinel=False)
        descriptions.append(fields[4])
    tables = []
    at = 1 + n
    for _ in range(3):
        tables.append(np.stack([_row(lines[at + i].split(), n, f"{place}: line {at + i + 1}") for i in range(n + 1)]))
        at += n + 1
    cut_bytes = _row(lines[at].split(), n, f"{place}: line {at + 1}", sentinel=False)
    predecessors = [
        _states(lines[at + 1 + i] if at + 1 + i < len(lines) else "", i, f"{place}: line {at + i + 2}") for i in range(n)
    ]
    return LinearisedProfile(
        tuple(descriptions), tables[0], tables[1], tables[2], cut_bytes, tuple(predecessors),
        cumulative[0].copy(), cumulative[1].copy(), cumulative[3].copy(), profile_batch,
    )  # fmt: skip


def _row(fields: list[str], n: int, place: str, *, sentinel: bool = True) -> NDArray[np.float64]:
    """Read one row of numbers; `sentinel` allows the -1 below the diagonal."""
    import numpy as np

    if len(fields) != n:
        raise InputError(f"{place}: {len(fields)} numbers; expected {n}")
    try:
        row = np.array([float(field) for field in fields])
    except ValueError:
        raise InputError(f"{place}: '{' '.join(fields)[:60]}' is not a row of {n} numbers") from None
    if not np.isfinite(row).all() or (not sentinel and (row < 0).any()):
        raise InputError(f"{place}: a number is negative or not finite; times and sizes must be finite and >= 0")
    return row


def _states(line: str, i: int, place: str) -> NDArray[np.int64]:
    """Read the predecessors of state `i`."""
    import numpy as np

    if not re.fullmatch(r"[\d\s]*", line):
        raise InputError(f"{place}: '{line[:60]}' is not a list of states")
    states = np.array([int(field) for field in line.split()], dtype=np.int64)
    if np.any(states >= i) or len(set(states.tolist())) != len(states):
        raise InputError(f"{place}: predecessors of state {i} must be distinct states before it")
    return states
