"""Puts repeated layers back into a trace of a shortened module, after checking that each really follows the one before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TypeVar

from meshwright.runtime.capture.repeats import RepeatedModules
from meshwright.runtime.capture.trace import Trace, TracedOperator

__all__ = ["expand"]

T = TypeVar("T")


def expand(trace: Trace, runs: Sequence[RepeatedModules]) -> Trace | None:
    """Return the trace of the whole module, or None where the layers of a run do not form a chain.

    `trace`: of a module whose runs of equal layers were shortened to two.
    Returns: every copy behaves like the second of its run: that one follows a layer of its own kind. None where the second
    layer reads something else than the first one and what the first one reads too (equal branches side by side, connections
    that skip layers): then only the whole module tells.
    """
    ids: dict[str, list[int]] = {}
    for run in runs:
        for copy in range(2):
            ids[_path(run, copy)] = []
    for i, operator in enumerate(trace.operators):
        for path, members in ids.items():
            if _inside(operator.module, path):
                members.append(i)
    if not all(_is_chain(trace, run, ids[_path(run, 0)], ids[_path(run, 1)]) for run in runs):
        return None
    starts = {(ids[_path(run, 1)] or [-1 - k])[0]: run for k, run in enumerate(runs)}
    return _repeated(trace, starts, ids)


def _path(run: RepeatedModules, copy: int) -> str:
    return f"{run.container}.{run.first + copy}".lstrip(".")


def _inside(module: str, path: str) -> bool:
    return module == path or module.startswith(path + ".")


def _is_chain(trace: Trace, run: RepeatedModules, one: list[int], two: list[int]) -> bool:
    """Whether the second layer does the same as the first, on the first one's result, which nobody else reads."""
    n = len(one)
    if not one and not two:
        return True  # layers that this call does not use
    if not n or n != len(two) or one != list(range(one[0], one[0] + n)) or two != list(range(one[0] + n, one[0] + 2 * n)):
        return False
    prefixes = _path(run, 0), _path(run, 1)
    carried: set[int] = set()
    for i, j in zip(one, two, strict=True):
        first, second = trace.operators[i], trace.operators[j]
        if not _does_the_same(first, second, prefixes) or not _reads_the_same(first, second, one[0], n, carried):
            return False
    read = {source - one[0] for operator in trace.operators[two[-1] + 1 :] for source in operator.sources}
    of_one, of_two = read & set(range(n)), {k - n for k in read & set(range(n, 2 * n))}
    return bool(carried) and not of_one and of_two <= carried


def _does_the_same(first: TracedOperator, second: TracedOperator, prefixes: tuple[str, str]) -> bool:
    """Whether two operators have the same shapes and corresponding weights of their own layer."""
    if (first.name, first.inputs, first.outputs, first.numbers) != (second.name, second.inputs, second.outputs, second.numbers):
        return False
    if first.input_gradient != second.input_gradient:
        return False  # nothing before the first layer is trained
    if any(name and not _inside(name, prefixes[0]) for name in first.weights):
        return False
    mine = [name.removeprefix(prefixes[0]) for name in first.weights]
    return mine == [name.removeprefix(prefixes[1]) for name in second.weights]


def _reads_the_same(first: TracedOperator, second: TracedOperator, start: int, n: int, carried: set[int]) -> bool:
    """Whether the second layer's operator reads what corresponds; what it reads of the first layer is added to `carried`."""
    for source, following in zip(first.sources, second.sources, strict=True):
        if start + n <= following < start + 2 * n:
            matches = source == following - n
        elif start <= following < start + n:
            matches = not start <= source < start + n
            carried.add(following - start)
        else:
            matches = source == following
        if not matches:
            return False
    return True


def _repeated(trace: Trace, starts: dict[int, RepeatedModules], ids: dict[str, list[int]]) -> Trace:
    """Write out every copy, with its own names and producers."""
    made: list[TracedOperator] = []
    place: dict[int, int] = {-1: -1}  # old id -> new id of the latest copy
    name = _Names(tuple(starts.values()))
    twins = {i: i + len(ids[_path(run, 0)]) for run in starts.values() for i in ids[_path(run, 0)]}
    i = 0
    while i < len(trace.operators):
        run = starts.get(i)
        if run is None:
            operator = trace.operators[i]
            if i in twins:  # the first layer keeps what a layer after another one keeps
                twin = trace.operators[twins[i]]
                operator = replace(operator, saved_bytes=twin.saved_bytes, saved_other_bytes=twin.saved_other_bytes)
            place[i] = len(made)
            made.append(_renamed(operator, place, name, 0, None))
            i += 1
            continue
        n = len(ids[_path(run, 1)])
        for copy in range(1, run.n_layers):
            base = len(made)
            local = dict(place)
            for k in range(n):
                local[i + k] = base + k
                made.append(_renamed(trace.operators[i + k], local, name, copy - 1, run))
            for k in range(n):
                place[i - n + k] = place[i + k] = base + k  # what the next copy reads of "the layer before"
        i += n
    lists = frozenset(name.of(path, 0, None) for path in trace.lists)
    parameters = MappingProxyType(_for_all_copies(trace.parameters, starts, name))
    classes = MappingProxyType(_for_all_copies(trace.classes, starts, name))
    frozen = frozenset(_for_all_copies(dict.fromkeys(trace.frozen), starts, name))
    return replace(trace, operators=tuple(made), parameters=parameters, classes=classes, lists=lists, frozen=frozen)


def _for_all_copies(values: Mapping[str, T], starts: dict[int, RepeatedModules], name: _Names) -> dict[str, T]:
    """Return values by name for every copy of what repeats."""
    found: dict[str, T] = {}
    for key, value in values.items():
        run = next((run for run in starts.values() if _inside(key, _path(run, 1))), None)
        if run is None:
            found[name.of(key, 0, None)] = value
        else:
            found |= {name.of(key, copy - 1, run): value for copy in range(1, run.n_layers)}
    return found


class _Names:
    """Names as they were before lists were shortened."""

    def __init__(self, runs: tuple[RepeatedModules, ...]) -> None:
        self.runs = runs

    def of(self, path: str, further: int, repeated: RepeatedModules | None) -> str:
        """Return the original path; `further` positions on where it lies in the repeated run."""
        for container in dict.fromkeys(run.container for run in self.runs):
            prefix = container + "." if container else ""
            rest = path[len(prefix) :]
            index, _, tail = rest.partition(".")
            if not path.startswith(prefix) or not index.isdigit():
                continue
            number = int(index)
            skipped = sum(run.n_layers - 2 for run in self.runs if run.container == container and run.first + 1 < number)
            shift = further if repeated is not None and repeated.container == container else 0
            return f"{prefix}{number + skipped + shift}" + (f".{tail}" if tail else "")
        return path


def _renamed(
    operator: TracedOperator, place: dict[int, int], name: _Names, further: int, run: RepeatedModules | None
) -> TracedOperator:
    """Return an operator at its new place."""
    sources = tuple(place[source] for source in operator.sources)
    weights = tuple(name.of(weight, further, run) if weight else "" for weight in operator.weights)
    return replace(operator, module=name.of(operator.module, further, run), sources=sources, weights=weights)
