"""A planner of others as one of the bench, in its own process: ``main(["calculon", "PATH", "problem.json", "plan.json"])``.

Ends with 0 and a plan file; with 4 and a line where the planner does not take the problem; with 1 and a line where it failed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.base import fields, files, registry
from meshwright.base.errors import MeshwrightError
from meshwright.suite import DECLINED, PROBLEM_FORMAT

__all__ = ["PlannerFailed", "ask", "main", "names", "plan_entry"]


class PlannerFailed(RuntimeError):
    """The planner ended with an error, or with something that is none of its answers."""


def names() -> tuple[str, ...]:
    """Return the planners of others that there are adapters for."""
    return registry.names("adapters")


def ask(words: Sequence[str], folder: str) -> str:
    """Run a planner's command to its end and return what it printed; the bench kills it at the limit of time.

    Parameters
    ----------
    words : sequence of str
        Program and arguments.
    folder : str
        Where it runs.

    Raises
    ------
    PlannerFailed
        When it cannot be started or ends with another code than 0.
    """
    try:
        done = subprocess.run(list(words), cwd=folder, capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        raise PlannerFailed(f"{words[0]}: cannot be run: {error.strerror or error}") from None
    if done.returncode:
        last = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise PlannerFailed(f"{words[0]}: ended with {done.returncode}{f': {last[-1]}' if last else ''}")
    return done.stdout


def plan_entry(asked: Mapping[str, Any], stages: Sequence[Mapping[str, Any]], schedule: Mapping[str, Any]) -> dict[str, Any]:
    """Return a plan file that answers a problem.

    Parameters
    ----------
    asked : mapping
        The problem file.
    stages, schedule
        As a plan file has them.
    """
    return {
        "format": "meshwright/plan/1", "problem": asked["problem"], "feasible": True, "stages": [dict(one) for one in stages],
        "schedule": dict(schedule),
    }  # fmt: skip


def main(words: Sequence[str]) -> int:
    """Answer a problem file; return the exit code."""
    name, place, problem_path, plan_path = words
    try:
        asked = fields.of_format(files.read_json(problem_path), problem_path, PROBLEM_FORMAT, "a problem of the bench")
        entry = registry.load("adapters", name, "adapter").answer(asked, place)
        files.write(plan_path, json.dumps(entry))
    except MeshwrightError as error:
        sys.stderr.write(f"{error}\n")
        return DECLINED
    except PlannerFailed as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0
