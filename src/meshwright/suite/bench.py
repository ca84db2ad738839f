"""The bench itself: every planner asked every problem, one after the other."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshwright.base import files
from meshwright.base.errors import InputError
from meshwright.suite import ANSWERED, DECLINED, NOTHING, Attempt, BenchProblem, adapting, judging, outside, questions
from meshwright.suite.results import BenchRun

__all__ = ["Planner", "adapter", "bench", "machine", "planners_of"]

_HERE = f"import sys; sys.path.insert(0, {str(Path(__file__).resolve().parents[2])!r})\n"  # this copy of the package
_PROGRAM = _HERE + "from meshwright.suite import planning; sys.exit(planning.main(sys.argv[1:]))"
_ADAPTED = _HERE + "from meshwright.suite import adapting; sys.exit(adapting.main(sys.argv[1:]))"


@dataclass(frozen=True, slots=True)
class Planner:
    """Who answers.

    `name`: as the table calls it.
    `words`: the command; the problem file and the plan file to write are added at its end.
    `ours`: whether its bounds are believed.
    `adapted`: whether an adapter asks it, which may decline a problem.
    """

    name: str
    words: tuple[str, ...]
    ours: bool = False
    adapted: bool = False


def planners_of(question: BenchProblem, searches: Sequence[str] | None, others: Sequence[Planner]) -> tuple[Planner, ...]:
    """Return who is asked a problem: searches of ours, then the planners from outside.

    Parameters
    ----------
    question : BenchProblem
        The problem.
    searches : sequence of str or None
        Searches by name; None for those that the suite names for the family.
    others : sequence of Planner
        From outside.
    """
    named = question.searches if searches is None else searches
    ours = (Planner(name, (sys.executable, "-c", _PROGRAM, name), ours=True) for name in named)
    return (*ours, *others)


def adapter(command: str) -> Planner | None:
    """Return the planner of others that a command names, ``calculon:PATH``; None where it names none.

    Parameters
    ----------
    command : str
        As typed after ``--planner``.

    Raises
    ------
    InputError
        When nothing stands behind the colon.
    """
    name, colon, place = command.strip().partition(":")
    if not colon or name not in adapting.names():
        return None
    if not place.strip():
        raise InputError(f"--planner {command}: say where {name} lies, as in --planner {name}:PATH")
    title = (
        f"{name}:{os.path.basename(place.strip().rstrip(os.sep)) or place.strip()}"  # a search of ours may be called like it
    )
    return Planner(title, (sys.executable, "-c", _ADAPTED, name, place.strip()), adapted=True)


def bench(
    asked: Sequence[BenchProblem],
    searches: Sequence[str] | None,
    others: Sequence[Planner],
    limit_seconds: float,
    tell: Callable[[str], None],
) -> tuple[BenchRun, bool]:
    """Ask every planner every problem.

    Parameters
    ----------
    asked : sequence of BenchProblem
        Of the suite.
    searches, others
        As of `planners_of`.
    limit_seconds : float
        Wall time of each attempt.
    tell : callable
        Called with a line for every attempt.

    Returns
    -------
    run : BenchRun
        What came out; problems that an interrupt cut short are left out.
    interrupted : bool
        Whether Ctrl-C ended it.

    Raises
    ------
    InputError
        When a planner cannot be run at all.
    """
    begun = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    attempts: list[Attempt] = []
    done: list[BenchProblem] = []
    interrupted = False
    try:
        for one in asked:
            mine = list(_attempts(one, planners_of(one, searches, others), limit_seconds, tell))
            attempts += mine
            done.append(one)
    except KeyboardInterrupt:
        interrupted = True
    names = tuple(dict.fromkeys(one.planner for one in attempts))
    run = BenchRun(
        questions.VERSION, questions.digest(), limit_seconds, len(asked), tuple(done), names, tuple(attempts), begun, machine()
    )  # fmt: skip
    return run, interrupted


def machine() -> str:
    """Return the processor, the cores this process may use, and the system: what seconds and bytes were measured on."""
    processor = platform.processor() or platform.machine()
    with contextlib.suppress(OSError, InputError):
        lines = files.read_text("/proc/cpuinfo").splitlines()
        processor = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), processor)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return f"{processor}, {cores} core{'' if cores == 1 else 's'}, {platform.system()}, Python {platform.python_version()}"


def _attempts(
    question: BenchProblem, planners: Sequence[Planner], limit_seconds: float, tell: Callable[[str], None]
) -> Iterator[Attempt]:
    """Yield the attempt of each planner at one problem."""
    with files.temporary_folder("meshwright-bench-") as own:
        kept = questions.generate(question, own)  # the judge's own copy, which no planner is told of
        for planner in planners:
            with files.temporary_folder("meshwright-bench-") as folder:
                told = questions.generate(question, folder)
                problem_path, plan_path = (os.path.join(folder, name) for name in ("problem.json", "plan.json"))
                files.write(problem_path, json.dumps(questions.problem_json(told, limit_seconds)))
                attempt = _attempt(kept, planner, problem_path, plan_path, limit_seconds)
            value = "" if attempt.value is None else f" {attempt.value:.6g}"
            tell(f"{question.id}: {planner.name}: {attempt.status}{value}, {attempt.wall_seconds:.1f} s")
            yield attempt


def _attempt(question: BenchProblem, planner: Planner, problem_path: str, plan_path: str, limit_seconds: float) -> Attempt:
    """Return what comes of one planner and one problem."""
    ran = outside.run((*planner.words, problem_path, plan_path), limit_seconds)
    used = (ran.wall_seconds, ran.cpu_seconds, ran.peak_bytes)

    def ended(status: str, reason: str = "", value: float | None = None, bound_value: float | None = None) -> Attempt:
        return Attempt(question.id, planner.name, status, value, bound_value, *used, reason)

    if ran.code is None:
        return ended("timed out", f"killed after {limit_seconds:g} s")
    if (planner.ours or planner.adapted) and ran.code == DECLINED:
        return ended("declined", ran.said)
    if ran.code:
        ending = f"ended by signal {-ran.code}" if ran.code < 0 else f"exit code {ran.code}"
        return ended("failed", f"{ending}{f': {ran.said}' if ran.said else ''}")
    if not os.path.lexists(plan_path):
        return ended("failed", f"wrote no plan file{f': {ran.said}' if ran.said else ''}")
    if Path(plan_path).is_symlink():
        return ended("refused", "the plan file is a link")
    judged = judging.judge(question, plan_path)
    if judged.refusal:
        return ended("refused", judged.refusal)
    if judged.nothing:
        return ended(NOTHING)
    return ended(ANSWERED, "", judged.value, judged.bound_value if planner.ours else None)
