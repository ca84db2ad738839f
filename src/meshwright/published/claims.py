"""What a paper claims (`Claim`), and one value of it beside what is computed here (`Case`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Case", "Claim", "divided"]


@dataclass(frozen=True, slots=True)
class Case:
    """One value of a claim beside what is computed here; None where there is none.

    Parameters
    ----------
    name : str
        Which input: ``"transformer, 32 processors"``.
    claimed_value : float or None
        What was published.
    published_value : float or None
        What ours gives in the published mode: the same method, or the published plan under the published cost model.
    improved_value : float or None
        What our own search of that system gives on the same input.
    best_value : float or None
        What search ``best`` gives on the same input, where it takes it.
    bound_value : float or None
        Proven: nothing in the space searched is better.
    note : str
        What the reader has to know of this case; empty for nothing.
    """

    name: str
    claimed_value: float | None = None
    published_value: float | None = None
    improved_value: float | None = None
    best_value: float | None = None
    bound_value: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """A headline result of a paper.

    Parameters
    ----------
    id : str
        What the user types after ``--claim``.
    says : str
        The claim in a sentence.
    place : str
        Table or figure of the paper.
    source : str
        How the published values are known here: read in the paper, measured with its released program, ...
    unit : str
        Of all values of its cases.
    higher_is_better : bool
        Whether a larger value is the better one.
    ours : str
        What is computed here, and how it differs from what was published.
    reason : str
        Why it cannot be repeated here, in a line; empty where it can.
    by_name : bool
        Whether it takes so long that it is computed only where named.
    values : mapping
        Published values by case, where they stand with the claim.
    """

    id: str
    says: str
    place: str
    source: str
    unit: str
    higher_is_better: bool
    ours: str
    reason: str
    by_name: bool
    values: Mapping[str, float]


def divided(value: float | None, by: float | None) -> float | None:
    """Return a quotient; None where a side is missing or it has none."""
    return value / by if value is not None and by else None
