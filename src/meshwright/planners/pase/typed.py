"""Splits as PaSE's tables write them: of operators, into how many parts each axis is split: ``conv*=b/8; fc1=n/4 c/2``."""

from __future__ import annotations

import fnmatch
import math
import re

import numpy as np
from numpy.typing import NDArray

from meshwright.base.errors import InputError, UnknownNameError
from meshwright.core.plan_forms.typed import whole
from meshwright.planners.pase.answer import data_parallel, expert_splits, impossible, one_weird_trick, outside
from meshwright.planners.pase.operators import PaseOperator
from meshwright.planners.pase.question import PaseQuestion

__all__ = ["splits"]

Ints = NDArray[np.int64]

NAMED = ("data_parallel", "one_weird_trick", "expert")
"""Words for the splits of all operators at once."""


def splits(question: PaseQuestion, text: str) -> tuple[tuple[Ints, ...], tuple[str, ...]]:
    """Return the split of every operator that was typed, and a note where one lies outside PaSE's configurations.

    `text`: one of `NAMED`, or ``OPERATORS=SPLIT;...``: a name, where ``*`` and ``?`` stand for any letters, and words
    ``AXIS/PARTS``, parts of all axes (``8x1x1``), or ``none``. Of several that name an operator the last one counts.
    Raises `InputError` when the text is no such splits, an operator is not named or not there, parts do not divide an axis, or
    an operator is split over more processors than there are.
    """
    operators = question.network.operators
    if text.strip() in NAMED:
        chosen = {
            "data_parallel": lambda: data_parallel(question),
            "one_weird_trick": lambda: one_weird_trick(question),
            "expert": lambda: expert_splits(question.network, question.n_processors),
        }[text.strip()]()
    else:
        chosen = _typed(operators, text)
    wrong = impossible(question.network, chosen)
    for operator, row in zip(operators, chosen, strict=True):
        if not wrong and math.prod(row.tolist()) > question.n_processors:
            wrong = (
                f"{operator.name} is split into {math.prod(row.tolist())} parts; there are {question.n_processors} processors"
            )
    if wrong:
        raise InputError(f"--fix {text}: {wrong}")
    finer = outside(question, chosen)
    notes = (f"{finer} is split finer than PaSE's configurations are, which its search chooses from",) if finer else ()
    return chosen, notes


def _typed(operators: tuple[PaseOperator, ...], text: str) -> tuple[Ints, ...]:
    """Return the splits of ``OPERATORS=SPLIT;...``."""
    names = [operator.name for operator in operators]
    found: dict[int, Ints] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        pattern, equals, split = (side.strip() for side in part.partition("="))
        if not equals:
            raise InputError(
                f"--fix {part}: write OPERATORS=SPLIT;..., for example '*=b/8; fc*=n/8', or one of {', '.join(NAMED)}"
            )
        named = [i for i, name in enumerate(names) if fnmatch.fnmatchcase(name, pattern)]
        if not named:
            raise UnknownNameError("operator (of --fix)", pattern, names)
        for i in named:
            found[i] = _row(operators[i], split, part)
    left = [name for i, name in enumerate(names) if i not in found]
    if left:
        raise InputError(
            f"--fix {text}: says nothing of {len(left)} operators ({', '.join(left[:3])}{', ...' if len(left) > 3 else ''}); "
            "begin with '*=none' or '*=b/N' for all"
        )
    return tuple(found[i] for i in range(len(operators)))


def _row(operator: PaseOperator, split: str, part: str) -> Ints:
    """Return the parts of each axis of an operator."""
    row = np.ones(len(operator.sizes), dtype=np.int64)
    axes = " ".join(operator.axis_names)
    if re.fullmatch(r"\d+(x\d+)*", split):
        parts = split.split("x")
        if len(parts) != len(row):
            raise InputError(f"--fix {part}: gives {len(parts)} parts; {operator.name} has {len(row)} axes: {axes}")
        row[:] = [whole(one, part, "parts of an axis") for one in parts]
        return row
    if not split:
        raise InputError(f"--fix {part}: says no split; write AXIS/PARTS, or none")
    words = [] if split == "none" else split.split()
    for word in words:
        axis, slash, count = word.partition("/")
        if not slash or operator.axis_names.count(axis) != 1:
            raise InputError(f"--fix {part}: '{word}' must be AXIS/PARTS, or none; {operator.name} has the axes {axes}")
        if sum(other.startswith(f"{axis}/") for other in words) > 1:
            raise InputError(f"--fix {part}: axis {axis} is given twice")
        row[operator.axis_names.index(axis)] = whole(count, part, f"parts of axis {axis}")
    return row
