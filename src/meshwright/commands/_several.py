"""``meshwright run PLAN PLAN ...`` and ``--dry-run``: several plans one after the other, or what a run would be."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from meshwright.base.errors import InputError, MeshwrightError

if TYPE_CHECKING:
    from meshwright.core.result import Result
    from meshwright.runtime.job.job import Job
    from meshwright.runtime.ranks.plan_file import PlanFile

__all__ = ["PlanRun", "check", "dry", "each", "plans_and_resume", "tell"]

FORMAT = "meshwright/runs/1"

Predict: TypeAlias = "Callable[[PlanFile, str], tuple[Result | None, str]]"
"""What simulates a plan file: the step, or None and why there is none."""


@dataclass(frozen=True, slots=True)
class PlanRun:
    """What became of one plan: the exit status, what was measured and predicted, and why there is nothing."""

    plan: str
    status: int
    entry: Mapping[str, Any]
    reason: str = ""


def plans_and_resume(words: list[str], resume: bool) -> tuple[list[str], bool]:
    """Return the plan files, and whether ``auto`` stands beside them after ``--resume``, whose value may be left out.

    Raises `InputError` when a word behind the first is no file.
    """
    auto = resume and len(words) > 1 and "auto" in words
    if auto:
        words.remove("auto")
    wrong = next((word for word in words[1:] if not Path(word).is_file()), "")
    if wrong:
        raise InputError(f"run: unexpected word '{wrong}'; give plan files")
    return words, auto


def check(job: Job, files: Sequence[tuple[str, object]], n_machines: int) -> None:
    """Refuse options that are for one plan.

    `files`: options that name a file for one run, with their values.
    `n_machines`: ``--torchrun``.
    Raises `InputError` when one is given, or torchrun started this process.
    """
    from meshwright.runtime.job import launch

    told = [("--save", job.save), ("--resume", job.resume), ("--elastic", job.elastic), ("--log", job.log), *files]
    wrong = next((option for option, value in [*told, ("--torchrun", n_machines)] if value), "")
    if wrong or launch.under_torchrun():
        raise InputError(f"run: {wrong or 'torchrun'} is for one plan; leave it out, or run each plan by itself")


def each(plans: Sequence[str], call: Callable[[str], PlanRun]) -> list[PlanRun]:
    """Return what became of each plan; one that is wrong, or that fails, leaves the others to run.

    `call`: runs one plan. A status above 128 (a signal) ends them all.
    """
    runs: list[PlanRun] = []
    for i, plan in enumerate(plans):
        print(f"plan {i + 1} of {len(plans)}: {plan}", file=sys.stderr)
        try:
            runs.append(call(plan))
        except MeshwrightError as error:
            runs.append(PlanRun(plan, 2, {}, str(error)))
            print(f"meshwright: {error}", file=sys.stderr)
        if runs[-1].status > 128:
            break
    return runs


def dry(job: Job, processes: int, predict: Predict, prepare: Callable[[Job, PlanFile, Result | None], list[str]]) -> PlanRun:
    """Return what a run of the plan would be: everything is checked and predicted that can be without a process.

    `processes`: of ``--processes``.
    `predict`, `prepare`: those of `meshwright.commands.run`.
    Raises `InputError` for whatever a run would refuse, but that this machine has too few devices: that is said.
    """
    from meshwright.commands import _elastic
    from meshwright.runtime.job import preflight
    from meshwright.runtime.profile import comparison
    from meshwright.runtime.ranks.layout import layout
    from meshwright.runtime.ranks.plan_file import read_plan
    from meshwright.runtime.step import autocast

    autocast.dtype_of(job.precision)
    read = read_plan(job.plan)
    predicted, why = predict(read, job.plan)
    job = preflight.with_backend(replace(job, order=_elastic.order_of(predicted)))
    for note in [*prepare(job, read, predicted), *([why] if why else [])]:
        print(f"note: {note}", file=sys.stderr)
    places, lacking = layout(read.plan), ""
    try:
        preflight.check_machine(places, job.backend, processes, job.plan)
    except InputError as error:
        lacking = str(error).removeprefix(f"{job.plan}: ")
    nothing = {"step_seconds": [], "losses": [], "gradient_norms": [], "first_step": 0, "ranks": []}
    entry = comparison.as_json(read.plan, nothing, predicted, None)
    kept = {name: entry[name] for name in ("step_seconds", "stages", "bubble_ratio")}
    return PlanRun(job.plan, 0, {**kept, "n_ranks": places.n_ranks, "backend": job.backend, "lacking": lacking or None})


def tell(runs: Sequence[PlanRun], *, as_json: bool, dry_run: bool) -> int:
    """Print all runs, the quickest first; return the exit status: that of the first which was none."""
    if as_json:
        told = [{"plan": one.plan, "status": one.status, "reason": one.reason or None, **one.entry} for one in runs]
        print(json.dumps({"format": FORMAT, "dry_run": dry_run, "runs": told}))
    else:
        print("\n".join(_lines(runs, dry_run)))
    return next((one.status for one in runs if one.status), 0)


def _lines(runs: Sequence[PlanRun], dry_run: bool) -> Iterator[str]:
    """Give the table: of each plan its step as measured and predicted, fullest rank and processes."""
    from meshwright.base.units import format_bytes, format_seconds

    which = "predicted" if dry_run else "measured"

    def seconds(one: PlanRun, kind: str) -> float | None:
        return one.entry["step_seconds"][kind] if one.entry else None

    def row(one: PlanRun) -> list[str]:
        found, said = seconds(one, "measured"), seconds(one, "predicted")
        peaks = [stage["peak_bytes"][which] for stage in one.entry.get("stages", ()) if stage["peak_bytes"][which] is not None]
        cells = [] if dry_run else ["-" if found is None else format_seconds(found)]
        cells += ["-" if said is None else format_seconds(said)]
        cells += [] if dry_run else [f"{found / said:.2f}" if found and said else "-"]
        return [one.plan, *cells, format_bytes(max(peaks)) if peaks else "-", str(one.entry.get("n_ranks", "-"))]

    head = ["", *([] if dry_run else ["measured"]), "predicted", *([] if dry_run else ["measured / predicted"])]
    ordered = sorted(runs, key=lambda one: (not one.entry, seconds(one, which) is None, seconds(one, which) or 0.0))
    rows = [[*head, "peak memory", "processes"], *(row(one) for one in ordered)]
    widths = [max(len(cells[i]) for cells in rows) for i in range(len(rows[0]))]
    for cells in rows:
        padded = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
        yield "  ".join([cells[0].ljust(widths[0]), *padded]).rstrip()
    for one in ordered:
        if one.reason or one.status:
            yield f"{one.plan}: {one.reason or f'ended with exit status {one.status}'}"
        elif one.entry.get("lacking"):
            yield f"{one.plan}: not on this machine: {one.entry['lacking']}"
