"""Strategy files of FlexFlow and FlexNet (``--export``, ``--import``): the split of every operator and where its parts are.

A file is text, read word by word: the number of operators, then of each its name, the type of its devices (0 is a GPU),
the number of axes of its output, the parts of every axis (the innermost first, samples last), the number of parts, and the
server of each; part p counts the first axis fastest. FlexNet with several devices a server numbers servers, as here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from meshwright.base import files
from meshwright.base.errors import InputError
from meshwright.planners.topoopt.choices import SplitSpace
from meshwright.planners.topoopt.step import Placement, Step

__all__ = ["read", "text", "write"]

GPU = 0
MOST_AXES = 8


def text(step: Step, plan: Placement) -> str:
    """Return a plan as a strategy file.

    Parameters
    ----------
    step : Step
        Whose plan it is.
    plan : Placement
        The plan.

    Returns
    -------
    str
        The content of the file, operators in order of their names, as FlexFlow writes them.

    Raises
    ------
    InputError
        When a table is split by rows, which the format cannot say.
    """
    rows = {}
    for operation, choice, servers in zip(step.space.workload.operations, step.chosen(plan), plan.servers, strict=True):
        if choice.rows > 1:
            raise InputError(
                f"operator {operation.name} is split into {choice.rows} parts by rows, which a strategy file cannot say; "
                "--set shard_weights=no finds a plan that it can"
            )
        parts = [choice.columns, *[1] * (len(operation.shape) - 1), choice.samples]
        words = [operation.name, str(GPU), str(len(parts)), _row(parts), str(len(servers)), _row(servers)]
        rows[operation.name] = "\n".join(words)
    return "\n".join([str(len(rows)), *(rows[name] for name in sorted(rows))]) + "\n"


def _row(numbers: list[int] | tuple[int, ...]) -> str:
    """Return numbers as FlexFlow prints them."""
    return "".join(f"{number}\t" for number in numbers)


def write(step: Step, plan: Placement, path: str) -> None:
    """Write a plan as a strategy file, whole or not at all; see `text`."""
    files.write(path, text(step, plan))


def read(path: str, space: SplitSpace) -> Placement:
    """Return the plan of a strategy file.

    Parameters
    ----------
    path : str
        The file.
    space : SplitSpace
        Operators of the workload, and the ways to split them.

    Returns
    -------
    Placement
        The plan.

    Raises
    ------
    InputError
        When the file is cut off or no strategy, names other operators, splits one in a way for which there are no times, or
        puts a part on a server that is not there.

    Notes
    -----
    Operators are found by name. Where the file has as many, all numbered without a gap (``Dense_100``, ``Add_101``: FlexNet
    numbers operators as they are made), their numbers are the order of the workload.
    """
    words = iter(enumerate(files.read_text(path).split()))
    found: dict[str, tuple[list[int], list[int]]] = {}
    for _ in range(_number(words, path, "the number of operators", 0, 10**6)):
        name = _word(words, path, "the name of an operator")
        if name in found:
            raise InputError(f"{path}: operator {name} stands there twice")
        _number(words, path, f"the type of devices of {name} (0: GPU)", GPU, GPU)
        n_axes = _number(words, path, f"the number of axes of {name}", 1, MOST_AXES)
        parts = [_number(words, path, f"parts of an axis of {name}", 1, 10**6) for _ in range(n_axes)]
        n_ids = _number(words, path, f"the number of parts of {name}", 0, 10**6)
        if n_ids not in (0, math.prod(parts)):
            raise InputError(f"{path}: operator {name} has {n_ids} devices for {math.prod(parts)} parts")
        most = space.servers.n_servers - 1
        ids = [_number(words, path, f"a server of {name}", 0, most) for _ in range(n_ids)] or list(range(math.prod(parts)))
        found[name] = (parts, ids)
    if rest := next(words, None):
        raise InputError(f"{path}: word {rest[0] + 1}: {rest[1]!r} after the last operator")
    return _placement(path, space, _by_position(path, space, found))


def _word(words: Iterator[tuple[int, str]], path: str, what: str) -> str:
    """Return the next word."""
    at = next(words, None)
    if at is None:
        raise InputError(f"{path}: ends before {what}")
    return at[1]


def _number(words: Iterator[tuple[int, str]], path: str, what: str, least: int, most: int) -> int:
    """Return the next word as a number."""
    at = next(words, None)
    if at is None:
        raise InputError(f"{path}: ends before {what}")
    if not re.fullmatch(r"\d{1,9}", at[1]) or not least <= int(at[1]) <= most:
        raise InputError(f"{path}: word {at[0] + 1}: {at[1]!r} is given for {what}; must be a number from {least} to {most}")
    return int(at[1])


def _by_position(
    path: str, space: SplitSpace, found: dict[str, tuple[list[int], list[int]]]
) -> list[tuple[str, list[int], list[int]]]:
    """Return what the file says of every operator of the workload, in its order."""
    names = [operation.name for operation in space.workload.operations]
    if set(names) != set(found):
        numbers = {int(match[1]): name for name in found if (match := re.search(r"_(\d+)$", name))}
        first = min(numbers, default=0)
        if len(found) != len(names) or sorted(numbers) != list(range(first, first + len(names))):
            other = sorted(set(found) - set(names)) or sorted(set(names) - set(found))
            raise InputError(
                f"{path}: has {len(found)} operators, {space.workload.name} {len(names)}, and they differ, for example in "
                f"{other[0]}; the names must be those of the workload, or numbered in its order"
            )
        names = [numbers[first + i] for i in range(len(names))]
    return [(name, *found[name]) for name in names]


def _placement(path: str, space: SplitSpace, rows: list[tuple[str, list[int], list[int]]]) -> Placement:
    """Return the choices of all operators."""
    chosen = []
    for (name, parts, _), operation, options in zip(rows, space.workload.operations, space.choices, strict=True):
        if len(parts) != len(operation.shape) + 1:
            raise InputError(f"{path}: operator {name} has {len(parts)} axes; {operation.name} has {len(operation.shape) + 1}")
        columns = parts[0] if len(parts) > 1 else 1
        asked = (parts[-1], columns, 1)
        known = {(choice.samples, choice.columns, choice.rows): k for k, choice in enumerate(options)}
        if any(n != 1 for n in parts[1:-1]) or asked not in known:
            raise InputError(
                f"{path}: operator {name} is split {'-'.join(map(str, parts))}; there are times for "
                + ", ".join(
                    f"{samples} parts along samples and {wide} along columns" for samples, wide, rows in known if rows == 1
                )
            )
        chosen.append(known[asked])
    return Placement(tuple(chosen), tuple(tuple(ids) for _, _, ids in rows))
