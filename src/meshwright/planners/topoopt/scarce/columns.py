"""Matrices split by columns so that servers have memory for their parts: whole shapes, and stretches of operators on blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from meshwright.planners.topoopt.choices import OperatorSplit, SplitSpace
from meshwright.planners.topoopt.moves import streams
from meshwright.planners.topoopt.step import Placement, data_parallel
from meshwright.planners.topoopt.workloads.workload import DATA

__all__ = ["narrowed", "packed"]


def packed(space: SplitSpace, fits: Callable[[Placement], bool]) -> Iterator[Placement]:
    """Yield placements with stretches of streams on blocks of servers, so that blocks hold about as much, in ever smaller
    blocks: where no server has memory for its part of all operators.

    `fits`: whether servers have memory for a placement.
    Yields: for each size the one with matrices in the fewest parts by columns that fits: what servers exchange grows with them.
    """
    n, base = space.servers.n_servers, data_parallel(space)
    operations = space.workload.operations
    order = [i for stream in streams(space.workload) for i in stream if operations[i].weights]
    for size in (k for k in range(n // 2, 0, -1) if n % k == 0):
        for columns in (k for k in range(1, size + 1) if size % k == 0):
            alike = [_alike(space, i, size // columns, columns) for i in order]
            like = [k for k in alike if k >= 0]
            if len(like) < len(order):
                break
            held = [space.choices[i][k].memory_bytes for i, k in zip(order, like, strict=True)]
            middles = np.cumsum(held) - np.array(held) / 2.0
            made = base
            for i, k, middle in zip(order, like, middles, strict=True):
                block = min(int(middle / max(sum(held), 1.0) * (n // size)), n // size - 1)
                made = made.with_op(i, k, tuple(range(block * size, block * size + size)))
            if fits(made):
                yield made
                break


def narrowed(space: SplitSpace, plan: Placement, capacity_bytes: float) -> Placement | None:
    """Return a placement on the same servers whose matrices are split by columns until every server has memory for its parts.

    Returns: with columns in as few parts at most as fit; below that, what saves most memory for what servers then exchange goes
    first. None where nothing fits.
    """
    n_parts = [len(servers) for servers in plan.servers]
    options = [
        sorted((c.columns, k) for k, c in enumerate(choices) if c.rows == 1 and c.n_parts == n)
        for choices, n in zip(space.choices, n_parts, strict=True)
    ]
    for most in sorted({columns for row in options for columns, _ in row} - {1}):
        rows = [[(columns, k) for columns, k in row if columns <= most] for row in options]
        if found := _narrowed(space, plan, rows, capacity_bytes):
            return found
    return None


def _narrowed(
    space: SplitSpace, plan: Placement, options: list[list[tuple[int, int]]], capacity_bytes: float
) -> Placement | None:
    """Return what `narrowed` does with choices of these columns."""
    held, at = np.zeros(space.servers.n_servers), [0] * len(options)
    steps: dict[int, tuple[float, float]] = {}

    def choice(i: int, further: int = 0) -> OperatorSplit:
        return space.choices[i][options[i][at[i] + further][1]] if options[i] else space.choices[i][plan.choice[i]]

    def look(i: int) -> None:
        """Note what the next choice of an operator saves on a server, and what a server then sends more."""
        steps.pop(i, None)
        if at[i] + 1 < len(options[i]):
            saved = choice(i).memory_bytes - choice(i, 1).memory_bytes
            if saved > 0:
                steps[i] = (saved / max(_gathered(space, i, choice(i, 1)) - _gathered(space, i, choice(i)), 1.0), saved)

    for i, servers in enumerate(plan.servers):
        held[list(servers)] += choice(i).memory_bytes
        look(i)
    while held.max() > capacity_bytes:
        fullest = int(held.argmax())
        worth = [(-steps[i][0], i) for i in steps if fullest in plan.servers[i]]
        if not worth:
            return None
        _, i = min(worth)
        held[list(plan.servers[i])] -= steps[i][1]
        at[i] += 1
        look(i)
    chosen = tuple(row[a][1] if row else k for row, a, k in zip(options, at, plan.choice, strict=True))
    return replace(plan, choice=chosen)


def _gathered(space: SplitSpace, i: int, choice: OperatorSplit) -> float:
    """Return what a server with a part of an operator gets of its inputs from the parts of other columns, if inputs are split
    like it.
    """
    operations = space.workload.operations
    width = sum(operations[p].n_elements for p in operations[i].inputs if p != DATA)
    return space.workload.element_bytes * width * space.workload.global_batch / choice.samples * (1.0 - 1.0 / choice.columns)


def _alike(space: SplitSpace, i: int, samples: int, columns: int) -> int:
    """Return an operator's choice of so many parts along samples and by columns, of all along samples where it has no such
    one, or -1.
    """
    for asked in ((samples, columns, 1), (samples * columns, 1, 1)):
        for k, choice in enumerate(space.choices[i]):
            if (choice.samples, choice.columns, choice.rows) == asked:
                return k
    return -1
