"""Runs that go on with the devices that are left: planned again, from the newest checkpoint."""

from __future__ import annotations

import atexit
import itertools
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from meshwright.core.result import Result
    from meshwright.runtime.job.job import Job
    from meshwright.runtime.job.launch import Failure
    from meshwright.runtime.ranks.plan_file import PlanFile

__all__ = ["Leg", "Outcome", "check", "fitted", "order_of", "run"]


@dataclass(frozen=True, slots=True, eq=False)
class Leg:
    """A run up to its end or until a device is lost.

    `job`, `read`: what is trained, and the plan.
    `predicted`: the plan's simulated step, or None, and then `why` there is none.
    `gpus`: number on this machine of every device of the plan's cluster; empty for that of the rank.
    """

    job: Job
    read: PlanFile
    predicted: Result | None
    why: str
    gpus: tuple[int, ...] = ()

    @property
    def devices(self) -> list[int]:
        """The plan's devices, by rank."""
        return sorted({device for stage in self.read.plan.stages for device in stage.devices})

    @property
    def visible(self) -> tuple[int, ...]:
        """GPUs of this machine that the ranks use, in their order; empty for the first ones."""
        return tuple(self.gpus[device] for device in self.devices) if self.gpus else ()


Outcome: TypeAlias = "dict[str, Any] | Failure | int"
"""What a leg measured, who failed, or an exit status."""


def order_of(predicted: Result | None) -> list[list[tuple[int, int, int]]]:
    """Return the order of work that was simulated, which zero-bubble schedules fit to durations;
    nothing where there was none.
    """
    if predicted is None or predicted.timeline is None or not predicted.stage_costs:
        return []
    from meshwright import sim

    slots = sim.order(predicted.problem, predicted.plan, predicted.stage_costs)
    work = list(zip(slots.stage.tolist(), slots.microbatch.tolist(), slots.phase.tolist(), strict=True))
    first = slots.first.tolist()
    return [work[start:stop] for start, stop in itertools.pairwise(first)]


def check(job: Job) -> Result:
    """Return the plan with its question, which has to be posed again when a device is lost.

    Raises
    ------
    InputError
        When it cannot be, or when checkpoints of an earlier run lie where this one would look for its own.
    """
    from meshwright.api import replanning
    from meshwright.base.errors import InputError
    from meshwright.runtime.job import checkpoints

    newest = checkpoints.last(job.save)
    if newest is not None and not job.resume:
        raise InputError(
            f"--elastic: {newest} is of an earlier run, from which this one would go on after a loss; give --resume auto, or "
            "another folder"
        )
    try:
        return replanning.question_of(job.plan)
    except InputError as error:
        raise InputError(f"--elastic: cannot plan again: {error}") from None


def run(first: Leg, question: Result, attempt: Callable[[Leg], Outcome], n_allowed: int) -> tuple[Leg, Outcome]:
    """Train, and go on with what is left whenever a device is lost.

    Parameters
    ----------
    first : Leg
        As asked.
    question : Result
        See `check`.
    attempt : callable
        From a leg to what it measured, who failed, or an exit status.
    n_allowed : int
        Processes that this machine may start.

    Returns
    -------
    tuple
        The last leg, and what came of it; an exit status of 3 where nothing fits on what is left, or nothing can be planned
        for it with these settings.

    Raises
    ------
    InputError
        When no plan that the search finds can be run.
    """
    from meshwright.base.errors import InputError
    from meshwright.runtime.job import checkpoints
    from meshwright.runtime.job.launch import Failure

    told: list[dict[str, Any]] = []
    waiting: Iterable[Leg] = [first]
    if len(first.devices) > n_allowed:
        _say(f"the plan needs {len(first.devices)} processes, but {n_allowed} may be started: planning for so many")
        question, waiting = _planned_again(first, question, _all_but(question, first.devices[:n_allowed]), told, first.job.save)
    while question.answer.plan is not None:
        leg, outcome = _first_that_runs(waiting, attempt)
        if told:
            told[-1]["plan"] = leg.job.plan
        if isinstance(outcome, dict):
            return leg, outcome | ({"restarts": told} if told else {})
        if not isinstance(outcome, Failure) or not outcome.lost:
            return leg, outcome
        device = leg.devices[outcome.rank]
        _say(f"rank {outcome.rank} (device {device}) is lost: {outcome.text}")
        if len(told) >= leg.job.max_restarts:
            _say(f"no more restarts (--max-restarts {leg.job.max_restarts}): the run ends")
            return leg, outcome
        try:
            question, waiting = _planned_again(leg, question, [device], told, leg.job.save)
        except InputError as error:  # the settings suit those that are left no more
            newest = checkpoints.last(leg.job.save)
            kept = f"{newest} is the newest checkpoint" if newest is not None else "no checkpoint was written"
            _say(
                f"nothing can be planned for the devices left: {error}; {kept}: plan with other "
                "settings, and go on with --resume auto"
            )
            return leg, 3
    return first, 3


def fitted(leg: Leg, n_ranks: int, rank: int, check_plan: Callable[[Leg], object]) -> Leg | None:
    """Return a leg for the processes that torchrun started, where these are fewer than the plan's devices.

    Every process plans for itself, since the same question has the same answer; the first one tells of it.

    `n_ranks`, `rank`: how many there are, and which this one is.
    `check_plan`: raises `InputError` where a plan cannot be run.
    Returns: None where nothing fits on so many devices.
    Raises `InputError` when the plan cannot be made anew, or none of the plans found can be run.
    """
    question, place = check(leg.job), leg.job.save
    if rank:
        place = tempfile.mkdtemp(prefix="meshwright-plan-")
        atexit.register(shutil.rmtree, place, ignore_errors=True)
    else:
        _say(f"the plan needs {len(leg.devices)} processes, but torchrun started {n_ranks}: planning for so many")
    found, waiting = _planned_again(leg, question, _all_but(question, leg.devices[:n_ranks]), [], place, quiet=rank > 0)
    return None if found.answer.plan is None else _first_that_runs(waiting, check_plan, quiet=rank > 0)[0]


def _all_but(question: Result, kept: Sequence[int]) -> list[int]:
    """Return the devices of a question's cluster but for some."""
    cluster = question.problem.cluster
    return [] if cluster is None else [device for device in range(cluster.n_devices) if device not in kept]


def _first_that_runs(waiting: Iterable[Leg], attempt: Callable[[Leg], Any], *, quiet: bool = False) -> tuple[Leg, Any]:
    """Run the first of several legs that the runtime can run; where there is none, the last one says why."""
    from meshwright.base.errors import InputError

    refused = InputError("no plan was found")
    for i, leg in enumerate(waiting):
        if i and not quiet:
            _say(f"{refused}; the next best plan is tried: {leg.job.plan}")
        try:
            return leg, attempt(leg)
        except InputError as error:
            refused = error
    raise refused


def _planned_again(
    leg: Leg, question: Result, lost: Sequence[int], told: list[dict[str, Any]], folder: str, *, quiet: bool = False
) -> tuple[Result, Iterator[Leg]]:
    """Plan for the devices that are left; return the new question, and a leg for each plan found, best first.

    `lost`: devices of the question's cluster.
    `told`: restarts so far; this one is added.
    `folder`: where the plans are written.
    """
    from meshwright.api import replanning

    found = replanning.on_what_is_left(question, lost)
    n_left = found.problem.cluster.n_devices if found.problem.cluster is not None else 0
    known = leg.gpus or _numbers(leg.devices, n_left + len(lost))
    gpus = tuple(number for device, number in enumerate(known) if device not in lost)
    place = Path(folder) / f"plan-{len(told) + 1}"
    told.append({"lost_devices": list(lost), "n_devices": n_left, "plan": ""})
    if quiet:
        return found, _legs(leg, found, place, gpus)
    left = "one device left" if n_left == 1 else f"{n_left} devices left"
    if found.answer.plan is None:
        _say(f"nothing fits on the {left}{f'; nearest: {found.answer.nearest}' if found.answer.nearest else ''}")
    else:
        sizes = ", ".join(str(len(stage.devices)) for stage in found.answer.plan.stages)
        _say(
            f"planned again for the {left}, in {found.planning_seconds:.1f} s: {place}.json (devices by stage: "
            f"{sizes}); going on from the newest checkpoint in {leg.job.save}"
        )
    return found, _legs(leg, found, place, gpus)


def _legs(leg: Leg, found: Result, place: Path, gpus: tuple[int, ...]) -> Iterator[Leg]:
    """Yield a leg for each plan of an answer, each written to a file once it is asked for."""
    from meshwright.api import replanning
    from meshwright.runtime.ranks.plan_file import read_plan
    from meshwright.writers import plan_json

    place.parent.mkdir(parents=True, exist_ok=True)
    for i, result in enumerate(replanning.candidates(found)):
        path = f"{place}.json" if i == 0 else f"{place}-{i + 1}.json"
        plan_json.write(result, path)
        job = replace(leg.job, plan=path, resume="auto", order=order_of(result))
        yield Leg(job, read_plan(path), result, "", gpus)


def _numbers(devices: Sequence[int], n_devices: int) -> tuple[int, ...]:
    """Return the GPU of every device of a cluster: that of its rank; those that have none come after."""
    rank_of = {device: rank for rank, device in enumerate(devices)}
    rest = iter(range(len(devices), n_devices))
    return tuple(rank_of[device] if device in rank_of else next(rest) for device in range(n_devices))


def _say(sentence: str) -> None:
    print(f"meshwright: {sentence}", file=sys.stderr, flush=True)
