"""Searches: from a `Problem` to an `Answer`. One file per recipe; the file name is the word after ``--search``.

Promises of a search module, checked by ``tests/contract/test_search.py``:

* ``Params`` is a frozen dataclass, the recipe's own options (``--set``); ``search(problem, params, *, seed, stop) -> Answer``;
* every layer is in exactly one stage, stages follow the edges, every device is named at most once per stage;
* the plan fits the memory of its devices, or the answer has no plan and says what is missing;
* same seed, same answer, whatever the number of workers; ties are broken by id;
* where options say something about the question itself (a batch, machines), so that the plan's cost depends on them,
  ``completed(problem, params) -> Problem`` returns the question with them, and the answer carries the same as ``problem``;
* ``objective`` is in the recipe's own cost model at full precision; ``bound`` only where it is proven.
"""

from __future__ import annotations

from typing import Any, Protocol

from meshwright.core.problem import Problem, Stop
from meshwright.core.result import Answer

__all__ = ["Search"]


class Search(Protocol):
    """The one function of a search module."""

    def __call__(self, problem: Problem, params: Any, *, seed: int, stop: Stop) -> Answer:
        """Return the best plan found for a problem.

        Parameters
        ----------
        problem : Problem
            The question: model, cluster, batch, precision.
        params : Params
            The recipe's own options, as ``--set`` gave them.
        seed : int
            Of everything random.
        stop : Stop
            When to end a search that would go on.

        Returns
        -------
        Answer
            The plan with its objective, and a bound where one is proven; or no plan, and what is missing.

        Raises
        ------
        InputError
            When the problem is none that this search knows, or options are wrong or contradict each other.
        """
