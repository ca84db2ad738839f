"""Headline results of the five published systems, each repeated when asked.

A paper lies with its system: ``planners/piper/papers/piper.py`` has ``CASES``, what computes each claim, by its id, from the
claim and the calls of `meshwright.api`; ``piper.toml`` beside it says what was published, where in the paper, and how that is
known. Long tables lie in `meshwright.published`. What ours gives is computed, never stored.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from meshwright import api
from meshwright.base import files, registry
from meshwright.base.errors import InputError, UnknownNameError
from meshwright.published.claims import Case, Claim, divided

__all__ = ["ClaimRepeated", "Paper", "as_json", "chosen", "names", "read", "repeat"]


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
class ClaimRepeated:
    """A claim with its cases computed, and the CPU seconds that took; without cases where it was not.

    `complete`: whether all its cases are there; else Ctrl-C or a limit of time came before.
    """

    claim: Claim
    cases: tuple[Case, ...] = ()
    cpu_seconds: float = 0.0
    complete: bool = True


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
    held = files.read_toml(str(_beside(name)))
    claims = tuple(
        Claim(
            one["id"], one["says"], one["place"], one["source"], one.get("unit", ""), bool(one.get("higher_is_better", False)),
            one.get("ours", ""), one.get("reason", ""), bool(one.get("by_name", False)), one.get("values", {}),
        )
        for one in held["claims"]
    )  # fmt: skip
    return Paper(name, held["title"], held["reference"], claims)


def _beside(name: str) -> Path:
    """Return what was published, beside the file of a paper, which is not imported for it."""
    home = str(registry.home("papers", name))
    return Path(__file__).resolve().parents[2].joinpath(*home.split(".")).with_suffix(".toml")


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


def repeat(paper: Paper, claim: Claim, tell: Callable[[Case], None] = lambda case: None) -> ClaimRepeated:
    """Compute the cases of a claim.

    Parameters
    ----------
    paper : Paper
        Whose claim it is.
    claim : Claim
        One that can be repeated.
    tell : callable
        Called with every case as it is done.

    Returns
    -------
    ClaimRepeated
        The claim with its cases; without any where it cannot be repeated.

    Raises
    ------
    InputError
        When an input of it is missing from the package.
    """
    if claim.reason:
        return ClaimRepeated(claim)
    computes: Mapping[str, Callable[[Claim, ModuleType], Iterator[Case]]] = registry.load("papers", paper.name, "paper").CASES
    if claim.id not in computes:
        raise InputError(f"papers {paper.name}: claim {claim.id} has neither a computation nor a reason")
    started, cases = time.process_time(), []
    for case in computes[claim.id](claim, api):
        cases.append(case)
        tell(case)
    return ClaimRepeated(claim, tuple(cases), time.process_time() - started)


def as_json(paper: Paper, repeated: tuple[ClaimRepeated, ...]) -> dict[str, Any]:
    """Return a paper with its claims as JSON-ready values; what was not computed is null."""
    return {
        "format": "meshwright/papers/1",
        "paper": paper.name,
        "title": paper.title,
        "reference": paper.reference,
        "claims": [_claim_json(one) for one in repeated],
    }


def _claim_json(one: ClaimRepeated) -> dict[str, Any]:
    claim = one.claim
    return {
        "id": claim.id, "says": claim.says, "place": claim.place, "source": claim.source, "unit": claim.unit or None,
        "higher_is_better": claim.higher_is_better, "ours": claim.ours or None, "reason": claim.reason or None,
        "by_name": claim.by_name, "computed": bool(one.cases), "complete": one.complete, "cpu_seconds": one.cpu_seconds,
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


def gain(claim: Claim, case: Case) -> float | None:
    """Return how many times better ours improved is than ours as published; None where a side is missing."""
    sides = (case.improved_value, case.published_value)
    return divided(*sides) if claim.higher_is_better else divided(*sides[::-1])
