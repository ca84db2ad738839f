"""Searches: from a `Problem` to an `Answer`. One file per recipe; the file name is the word after ``--search``.

Promises of a search module, checked by ``tests/contract/test_search.py``:

* ``Params`` is a frozen dataclass, the recipe's own options (``--set``), all with defaults;
  ``search(problem, params, *, seed, stop) -> Answer`` answers a sample of some reader (``tests/data/readers``), and what it
  cannot read it refuses with an `InputError` of one line that names the search;
* every layer is in exactly one stage; two stages have the same devices or none in common, and every device is there;
* the plan fits the memory of its devices by the simulator's count where the objective is the simulator's; elsewhere it fits, or
  the result says that it does not; without a plan the answer says what is missing;
* same seed, same answer; ties are broken by id; the question, which others are asked too, stays as it was;
* ``objective`` is in the recipe's own cost model at full precision; ``bound`` only where it is proven, and never beyond the
  objective. An objective called ``step_seconds`` or ``simulated_seconds_per_sample`` is what the simulator says, or above it;
  one with ``seconds`` in its name is in seconds of the step, or of a part of it;
* ``STOPS_EARLY`` is true where `stop` ends it early with the best plan so far; where it is missing or false, a limit of time
  has no effect, and the answer says so;
* ``FROZEN`` is true where its answers know that frozen weights have neither gradients nor optimizer state; where it is missing,
  models with frozen weights are refused;
* ``STATES`` is true where its answers know the optimizer that is told; where it is missing, others than Adam are refused;
* ``BASELINES``, if any, names searches whose plans lie in this one's space: where both answer, this one's step is not slower.

Where options say something about the question itself (a batch, machines), so that the plan's cost depends on them,
``completed(problem, params) -> Problem`` returns the question with them, and the answer carries the same as ``problem``. A
search may offer what others ask of it by name: ``data_parallel(problem, settings, stop) -> Answer`` for the models whose
``ModelSpec.search`` it is; ``check_plan(result, entry, where) -> Verdict`` for ``meshwright check``, where ``entry`` is the
plan file as JSON (None for a plan of which it knows nothing), with ``CHECKED``, the fields that it verifies beside objective
and bound; and ``check_infeasible(problem, entry, where) -> Verdict`` for
its answers that nothing fits: without them the plan is judged anew and the search asked again; where ``CHECK_TELLS`` is
true, both take a ``Stop`` behind these, which is told how far they have come;
``given(problem, params, text) -> Answer`` for plans that are typed as a paper's tables have them (``meshwright simulate MODEL
--fix TEXT``), with ``GIVEN``, its options that count.
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
