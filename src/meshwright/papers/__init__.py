"""Headline results of the five published systems, one file a paper, each repeated when asked.

A paper's file has ``CASES``: what computes each claim, by its id. What was published stands in ``data/NAME.toml`` (claim, place in the
paper, how its value is known) or in the tables of `meshwright.published`; what ours gives is computed, never stored.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.base import files, registry
from meshwright.base.errors import InputError, UnknownNameError

__all__ = ["Case", "Claim", "Paper", "Repeated", "as_json", "chosen", "names", "read", "repeat"]


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


@dataclass(frozen=True, slots=True)
class Paper:
    """A paper and its claims.

    Parameters
    ----------
    name : str
        What the user types.
    title, reference : str
        Its title; authors, venue and year.
    claims : tuple of Claim
        In the paper's order.
    """

    name: str
    title: str
    reference: str
    claims: tuple[Claim, ...]


@dataclass(frozen=True, slots=True)
class Repeated:
    """A claim with its cases computed, and the CPU seconds that took; without cases where it was not."""

    claim: Claim
    cases: tuple[Case, ...] = ()
    cpu_seconds: float = 0.0


def names() -> tuple[str, ...]:
    """Return the papers there are, sorted."""
    return registry.names("papers")


def read(name: str) -> Paper:
    """Return a paper with its claims, without computing anything.

    Parameters
    ----------
    name : str
        One of `names`.

    Raises
    ------
    UnknownNameError
        When there is no such paper.
    """
    name = name.strip().lower()
    if name not in names():
        raise UnknownNameError("paper", name, names())
    held = files.read_toml(str(Path(__file__).resolve().parent / "data" / f"{name}.toml"))
    claims = tuple(
        Claim(
            one["id"], one["says"], one["place"], one["source"], one.get("unit", ""), bool(one.get("higher_is_better", False)),
            one.get("ours", ""), one.get("reason", ""), bool(one.get("by_name", False)), one.get("values", {}),
        )
        for one in held["claims"]
    )  # fmt: skip
    return Paper(name, held["title"], held["reference"], claims)


def chosen(paper: Paper, claim_id: str) -> tuple[Claim, ...]:
    """Return the claims asked for: all, or the one of an id.

    Raises
    ------
    UnknownNameError
        When the paper has no claim of that id.
    """
    if not claim_id:
        return paper.claims
    found = tuple(claim for claim in paper.claims if claim.id == claim_id)
    if not found:
        raise UnknownNameError(f"claim of {paper.name}", claim_id, (claim.id for claim in paper.claims))
    return found


def repeat(paper: Paper, claim: Claim, tell: Callable[[str], None] = lambda line: None) -> Repeated:
    """Compute the cases of a claim.

    Parameters
    ----------
    paper : Paper
        Whose claim it is.
    claim : Claim
        One that can be repeated.
    tell : callable
        Called with a line for every case as it is done.

    Returns
    -------
    Repeated
        The claim with its cases; without any where it cannot be repeated.

    Raises
    ------
    InputError
        When an input of it is missing from the package.
    """
    if claim.reason:
        return Repeated(claim)
    computes: Mapping[str, Callable[[Claim], Iterator[Case]]] = importlib.import_module(f"meshwright.papers.{paper.name}").CASES
    if claim.id not in computes:
        raise InputError(f"papers {paper.name}: claim {claim.id} has neither a computation nor a reason")
    started, cases = time.process_time(), []
    for case in computes[claim.id](claim):
        cases.append(case)
        tell(f"{paper.name} {claim.id}: {case.name}")
    return Repeated(claim, tuple(cases), time.process_time() - started)


def as_json(paper: Paper, repeated: tuple[Repeated, ...]) -> dict[str, Any]:
    """Return a paper with its claims as JSON-ready values; what was not computed is null."""
    return {
        "format": "meshwright/papers/1",
        "paper": paper.name,
        "title": paper.title,
        "reference": paper.reference,
        "claims": [_claim_json(one) for one in repeated],
    }


def _claim_json(one: Repeated) -> dict[str, Any]:
    claim = one.claim
    return {
        "id": claim.id, "says": claim.says, "place": claim.place, "source": claim.source, "unit": claim.unit or None,
        "higher_is_better": claim.higher_is_better, "ours": claim.ours or None, "reason": claim.reason or None,
        "by_name": claim.by_name, "computed": bool(one.cases), "cpu_seconds": one.cpu_seconds,
        "published_values": dict(claim.values),
        "cases": [
            {
                "case": case.name, "published": case.claimed_value, "published_mode": case.published_value,
                "improved": case.improved_value, "best": case.best_value, "bound": case.bound_value,
                "ratio": divided(case.published_value, case.claimed_value), "gain_ratio": gain(claim, case),
                "note": case.note or None,
            }
            for case in one.cases
        ],
    }  # fmt: skip


def divided(value: float | None, by: float | None) -> float | None:
    """Return a quotient; None where a side is missing or it has none."""
    return value / by if value is not None and by else None


def gain(claim: Claim, case: Case) -> float | None:
    """Return how many times better ours improved is than ours as published; None where a side is missing."""
    sides = (case.improved_value, case.published_value)
    return divided(*sides) if claim.higher_is_better else divided(*sides[::-1])
