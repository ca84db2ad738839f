"""A search of ours as a planner of the bench, in a process of its own: ``main(["SEARCH", "problem.json", "plan.json"])``.

Ends with 0 and a plan file; with 4 and a line where the search does not take the problem.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from meshwright import api
from meshwright.base import fields, files
from meshwright.base.errors import MeshwrightError
from meshwright.core.problem import Batch, Stop
from meshwright.suite import DECLINED, PROBLEM_FORMAT
from meshwright.writers import plan_json

__all__ = ["answer", "main"]

_SHARE_RATIO = 0.7  # of the time limit, for a search that can stop early: reading, judging and writing need the rest


def answer(search: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Return the plan file of a search for a problem file.

    Parameters
    ----------
    search : str
        A search of the package, or of a plug-in.
    asked : dict
        As `meshwright.suite.questions.problem_json` makes it.

    Raises
    ------
    MeshwrightError
        When the search does not take the problem.
    """
    batch = Batch(asked["global_batch"] or 0 if asked["family"] == "models" else 0, 0, asked["sequence_length"] or 0)
    place = asked["cluster"]["name"] if asked["family"] == "models" else None
    known = asked["settings"]
    options = _options(search)
    settings = {name: value for name, value in known.items() if name in options}
    problem = api.make_problem(asked["model"]["spec"], place, batch=batch)
    result = api.plan(problem, search=search, settings=settings, stop=Stop(seconds=_SHARE_RATIO * asked["time_limit_seconds"]))
    return plan_json.as_json(result) | {"problem": asked["problem"]}


def _options(search: str) -> frozenset[str]:
    """Return the words of a search's options."""
    import dataclasses

    from meshwright.base import registry

    params = registry.load("search", search, "search").Params
    return frozenset(str(one.metadata.get("word", one.name)) for one in dataclasses.fields(params))


def main(words: Sequence[str]) -> int:
    """Answer a problem file; return the exit code."""
    search, problem_path, plan_path = words
    try:
        asked = fields.of_format(files.read_json(problem_path), problem_path, PROBLEM_FORMAT, "a problem of the bench")
        files.write(plan_path, json.dumps(answer(search, asked)))
    except MeshwrightError as error:
        sys.stderr.write(f"{error}\n")
        return DECLINED
    return 0
