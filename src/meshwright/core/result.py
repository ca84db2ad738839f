"""What a search answers (`Answer`): a plan with its objective and a proven bound, or what is missing."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from meshwright.base import registry
from meshwright.base.errors import InputError
from meshwright.core import words
from meshwright.core.plan import Plan
from meshwright.core.problem import Problem
from meshwright.core.stage_cost import StageCost
from meshwright.core.timeline import Timeline

__all__ = ["Alternative", "Answer", "AnswerVerdict", "Bound", "Objective", "Result"]


@dataclass(frozen=True, slots=True)
class Objective:
    """What a search minimises (or, for a speed-up, maximises), in its own cost model: a name with its unit, and the value."""

    name: str
    value: float


@dataclass(frozen=True, slots=True)
class Bound:
    """A proven bound on the objective over the whole space searched; method says by what: ``exact``, ``relaxation``, ..."""

    value: float
    method: str

    def gap_ratio(self, objective: Objective) -> float:
        """Return objective / bound - 1 (bound / objective - 1 for a speed-up, which is maximised)."""
        if objective.name == "speedup":
            return self.value / objective.value - 1.0
        return objective.value / self.value - 1.0 if self.value else 0.0


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another plan worth knowing, what it costs in the same objective, and why it lost."""

    plan: Plan
    objective: Objective
    why: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What a search found.

    Parameters
    ----------
    plan : Plan or None
        The best plan; None when nothing fits.
    objective : Objective or None
        Its value in the search's own cost model.
    bound : Bound or None
        Proven; None where none is.
    alternatives : tuple of Alternative
        Runners-up, best first.
    missing_bytes : float
        When nothing fits: by how much the nearest plan exceeds the memory of its fullest device.
    nearest : str
        When nothing fits: the nearest plan that does, in words (more devices, smaller batch, ...); empty for none.
    infeasible_proven : bool
        Without a plan: whether the search proved that none of its own plans, as its options limit them, fits or is legal;
        otherwise none was found.
    n_iterations : int
        Steps of the search, for searches that could go on; -1 otherwise.
    notes : tuple of str
        Sentences the user should read.
    extra : mapping
        Further fields of the JSON answer, for example ``baselines``; JSON-ready values.
    certificate : mapping or None
        A proof in a form that an independent checker reads; JSON-ready values.
    problem : Problem or None
        The question as the recipe's own options complete it (the machines of a published instance, say), for the judge; None
        where it is the question asked.
    """

    plan: Plan | None
    objective: Objective | None = None
    bound: Bound | None = None
    alternatives: tuple[Alternative, ...] = ()
    missing_bytes: float = 0.0
    nearest: str = ""
    infeasible_proven: bool = False
    n_iterations: int = -1
    notes: tuple[str, ...] = ()
    extra: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    certificate: Mapping[str, object] | None = None
    problem: Problem | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt(self)

    def __post_init__(self) -> None:
        object.__setattr__(self, "extra", MappingProxyType(dict(self.extra)))
        if self.certificate is not None:
            object.__setattr__(self, "certificate", MappingProxyType(dict(self.certificate)))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Result:
    """A question with its answer, judged: what `meshwright.plan` returns.

    In a notebook it shows itself in a few lines; `show` prints what the command ``plan`` prints.

    Parameters
    ----------
    problem : Problem
        The question.
    search : str
        The search that answered.
    seed : int
        Its seed.
    answer : Answer
        What it found.
    stage_costs : tuple of StageCost
        What each stage of the plan does; empty where the cost model cannot tell.
    timeline : Timeline or None
        The simulated step; None where the input lacks what is needed.
    planning_seconds : float
        Wall time of the search.
    settings : mapping of str to str
        The search's options as given.
    asked : Problem or None
        The question before the search completed it; None where that is `problem`.
    compiling_seconds : float
        How much of the search's time kernels were compiled for their first use.
    """

    problem: Problem
    search: str
    seed: int
    answer: Answer
    stage_costs: tuple[StageCost, ...] = ()
    timeline: Timeline | None = None
    planning_seconds: float = 0.0
    settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    asked: Problem | None = None
    compiling_seconds: float = 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt(self)

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", MappingProxyType(dict(self.settings)))

    def __repr__(self) -> str:
        return words.as_text(self.to_dict(), self.answer.plan)

    def _repr_html_(self) -> str:
        return words.as_html(self.to_dict(), self.answer.plan)

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as ``plan --json`` prints it: JSON-ready, base units, full precision."""
        entry: dict[str, Any] = registry.load("writers", "plan_json", "export").as_json(self)
        return entry

    def to_frame(self, library: str = "") -> Any:
        """Return a table with a row for each stage: layers, devices, degrees, bytes.

        Parameters
        ----------
        library : str
            ``pandas`` or ``polars``; empty for the first of them that is installed.

        Returns
        -------
        pandas.DataFrame or polars.DataFrame
            Columns ``stage``, ``n_ops``, ``first_op``, ``last_op``, ``n_devices``, the degrees, ``n_recomputing``,
            ``peak_bytes``, ``free_bytes``.

        Raises
        ------
        InputError
            When the library is another one, or not installed.
        """
        known = ("pandas", "polars")
        if library not in ("", *known):
            raise InputError(f"library {library!r}: must be one of {', '.join(known)}, as in to_frame('pandas')")
        for name in (library,) if library else known:
            if importlib.util.find_spec(name) is not None:
                return importlib.import_module(name).DataFrame(words.rows(self.to_dict()))
        wanted = library or "pandas nor polars"
        raise InputError(
            f"to_frame: {'neither ' * (not library)}{wanted} is {'not ' * bool(library)}installed; pip install "
            f"{library or 'pandas'}, or use to_dict()"
        )

    def show(self, *, verbose: bool = False) -> None:
        """Print the answer as the command ``plan`` does.

        Parameters
        ----------
        verbose : bool
            Every stage and table, as with ``-v``.
        """
        registry.load("commands", "plan", "command").display(self, verbose=verbose)

    @property
    def feasible(self) -> bool:
        """Whether there is a plan."""
        return self.answer.plan is not None

    @property
    def plan(self) -> Plan:
        """The plan (AttributeError when nothing fits)."""
        if self.answer.plan is None:
            raise AttributeError("nothing fits: read Result.answer.missing_bytes and Result.answer.nearest")
        return self.answer.plan

    @property
    def step_seconds(self) -> float | None:
        """The simulated step; None without a plan, or where the cost model says nothing in seconds."""
        return None if self.timeline is None else self.timeline.step_seconds

    @property
    def samples_per_second(self) -> float | None:
        """Samples of the simulated step by its seconds; None as for `step_seconds`."""
        return self.plan.global_batch / self.timeline.step_seconds if self.timeline and self.timeline.step_seconds else None

    @property
    def objective(self) -> Objective | None:
        """What the search minimises, in its own cost model; None without a plan."""
        return self.answer.objective

    @property
    def bound(self) -> Bound | None:
        """The proven bound on the objective; None where none is proven."""
        return self.answer.bound

    @property
    def gap_ratio(self) -> float | None:
        """How far the objective may be from the best there is, as a share of the bound; None where none is proven."""
        return self.bound.gap_ratio(self.objective) if self.bound and self.objective else None


def _rebuilt(noun: Answer | Result) -> tuple[Any, ...]:
    """Return how to build a noun anew, for pickles and copies: mappings that cannot be written to do not pickle."""
    values = [getattr(noun, name) for name in noun.__dataclass_fields__]
    return type(noun), tuple(dict(value) if isinstance(value, MappingProxyType) else value for value in values)


@dataclass(frozen=True, slots=True)
class AnswerVerdict:
    """What the check of an answer found.

    Parameters
    ----------
    valid : bool
        Whether all that is listed in `checked` holds, and it is all that the answer claims of optimality.
    value : float
        What the plan costs, mostly its step in seconds; nan where nothing fits.
    bound_value : float
        The bound that the check proves itself; nan where it proves none.
    reason : str
        Why it is refused; empty when valid.
    checked, not_checked : tuple of str
        What was confirmed, and what nobody looked at.
    """

    valid: bool
    value: float
    bound_value: float
    reason: str = ""
    checked: tuple[str, ...] = ()
    not_checked: tuple[str, ...] = ()
