"""Cost models: what a plan's stages do and hold, in seconds and bytes. One file per model; the name after ``--costs``.

Promises of a cost model module, checked by ``tests/contract/test_costs.py``:

* ``loads(problem, plan) -> tuple[StageCost, ...]``, one per stage, finite and not negative;
* more devices never make the compute of a stage longer.

``costs/analytic/__init__.py`` is ours; the others are the published ones, kept to reproduce papers.
"""
