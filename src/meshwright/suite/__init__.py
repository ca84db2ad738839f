"""Planners compared on one fixed set of problems: who answers (`outside`), who judges (`judging`), what comes out (`results`).

A planner is a command that reads a problem file and writes a plan file; our own searches answer through the same files, each in
a process of its own that is killed at the time limit. One judge reads every plan file alike and believes only the plan in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

__all__ = ["ANSWERED", "DECLINED", "NOTHING", "PROBLEM_FORMAT", "Attempt", "BenchProblem", "Judged"]

PROBLEM_FORMAT = "meshwright/bench_problem/1"

DECLINED = 4
"""Exit code of a search of ours, or of an adapter, that does not take the problem."""

ANSWERED, NOTHING = "answered", "nothing fits"
"""What a planner that ends well may have said; other words of `Attempt.status`: ``refused`` (no legal plan that fits),
``declined`` (a search of ours or an adapter does not take this problem), ``failed`` (an error, or nothing written),
``timed out``."""


@dataclass(frozen=True, slots=True)
class BenchProblem:
    """A problem of the suite.

    Parameters
    ----------
    id : str
        ``"piper/bert32-64x2gib"``: family and name.
    quick : bool
        Whether it is asked by default.
    spec : str
        The model: a built-in name, or a path with what limits it.
    cluster : str
        Where to train it; empty where the file says.
    settings : mapping
        What the options of the family's search say about the question.
    global_batch, sequence_length : int
        Samples of a step and tokens of each; 0 where the file says.
    objective : str
        What is judged: less is better.
    searches : tuple of str
        Searches of ours that answer by default; the first one proves a bound.
    """

    id: str
    quick: bool
    spec: str
    objective: str
    searches: tuple[str, ...]
    cluster: str = ""
    settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    global_batch: int = 0
    sequence_length: int = 0

    @property
    def family(self) -> str:
        """The part before the slash."""
        return self.id.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Judged:
    """What the judge found of a plan file: the plan's value, or why it is refused (empty where it is not).

    `nothing`: whether the planner says that nothing fits.
    `bound_value`: what the file claims as proven of this objective; believed of our own searches only.
    """

    value: float | None = None
    refusal: str = ""
    nothing: bool = False
    bound_value: float | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One planner on one problem.

    Parameters
    ----------
    question_id, planner : str
        Which.
    status : str
        `ANSWERED`, `NOTHING`, ``refused``, ``declined``, ``failed`` or ``timed out``.
    value : float or None
        Of the plan, by the judge.
    bound_value : float or None
        Proven by a search of ours.
    wall_seconds, cpu_seconds : float
        Of the whole command, its start included.
    peak_bytes : int
        The most memory that its largest process held; 0 where the system does not say.
    reason : str
        Why there is no value.
    """

    question_id: str
    planner: str
    status: str
    value: float | None = None
    bound_value: float | None = None
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_bytes: int = 0
    reason: str = ""
