"""Cost models: what a plan's stages do and hold, in seconds and bytes. One file per model; the name after ``--costs``.

Promises of a cost model module, checked by ``tests/contract/test_costs.py``:

* ``loads(problem, plan) -> tuple[StageCost, ...]``, one per stage, finite and not negative, the same each time; ``()`` where the
  model says nothing in seconds.

``costs/analytic/__init__.py`` is ours; the others are the published ones, kept to reproduce papers.
"""
