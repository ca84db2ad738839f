"""Cost models: what a plan's stages do and hold, in seconds and bytes. One file per model; the name after ``--costs``.

Promises of a cost model module, checked by ``tests/contract/test_costs.py``:

* ``stage_costs(problem, plan) -> tuple[StageCost, ...]``: what each stage of the plan does and holds for one micro-batch, on
  the devices and with the strategy that the plan gives it, in seconds and bytes; one per stage, finite, not negative, the same
  each time; ``()`` where the model says nothing in seconds; `InputError` where a stage's strategy cannot run the model.
* ``FROZEN`` is true where only trained weights have gradients and optimizer state; where it is missing, models with frozen
  weights are refused.
* ``STATES`` is true where state and update are those of the optimizer that is told (`MixedPrecision.optimizer`); where it is
  missing, others than Adam are refused.
* ``ROUNDS = True`` where the model shares the global batch out itself, so that a plan's `micro_batch` may be off by less than a
  sample; where it is missing, micro-batches that do not make the global batch are refused.
* ``CHOICES = True`` where the model reads `meshwright.core.plan.Stage.choices`; where it is missing, a plan that has any is
  refused.

What else a cost model may offer; the searches that need it refuse one without it, others do without:

* ``illegal(problem, strategy, micro_batch) -> str``: why a strategy cannot run the model, empty where it can;
  ``compute_seconds(problem, strategy, micro_batch, device)``: the least seconds of compute of each row of
  `meshwright.costs.analytic.rows`. Searches of the joint space and bounds look at them;
* ``row_costs`` and ``axis_times``, with the arguments of those of `meshwright.costs.analytic`: what one layer does, and what of
  the network it depends on. With the two above, ``best``, ``data_parallel`` and ``megatron_grid`` search with the model;
  ``stage_costs`` is then what `meshwright.costs.analytic.combine` makes of the rows. ``row_costs`` gets ``spare`` only where
  a rank has several layers that share weights (`meshwright.core.graph.Graph.shared`). Without them, ``parmesan``, ``ensemble``
  and searches of one's own plan with it;
* ``unknown_state(problem) -> str``: why the optimizer's state of a model is not known, empty where it is;
* ``FRAMEWORKS = True`` where it heeds ``problem.framework``; where it is missing, ``--for`` is refused.

``costs/analytic/__init__.py`` is ours; the others are the published ones, kept to reproduce papers.
"""

from __future__ import annotations

from types import ModuleType

from meshwright.base import registry
from meshwright.base.errors import InputError

__all__ = ["LAYERS", "knows_frameworks", "offers", "with_functions"]

LAYERS = ("illegal", "compute_seconds", "row_costs", "axis_times")
"""What a search that prices layers one by one needs of a cost model."""


def offers(name: str, functions: tuple[str, ...]) -> bool:
    """Return whether a cost model has all of some functions that not every one has."""
    module = registry.load("costs", name, "cost model")
    return all(hasattr(module, function) for function in functions)


def knows_frameworks(name: str) -> bool:
    """Return whether a cost model heeds the framework of a question."""
    return bool(getattr(registry.load("costs", name, "cost model"), "FRAMEWORKS", False))


def with_functions(name: str, functions: tuple[str, ...], search: str) -> ModuleType:
    """Return a cost model for a search that needs more of it than every one has.

    Raises
    ------
    InputError
        When it lacks one of the functions.
    """
    module = registry.load("costs", name, "cost model")
    lacking = [function for function in functions if not hasattr(module, function)]
    if lacking:
        raise InputError(
            f"search {search}: cannot price its plans by costs {name}, which lacks {', '.join(lacking)}; take another search, "
            "or other costs where the model has them (--costs analytic)"
        )
    return module
