"""Cost models: what a plan's stages do and hold, in seconds and bytes. One file per model; the name after ``--costs``.

Promises of a cost model module, checked by ``tests/contract/test_costs.py``:

* ``stage_costs(problem, plan) -> tuple[StageCost, ...]``: what each stage of the plan does and holds for one micro-batch, on
  the devices and with the strategy that the plan gives it, in seconds and bytes; one per stage, finite, not negative, the same
  each time; ``()`` where the model says nothing in seconds; `InputError` where a stage's strategy cannot run the model.
* ``FROZEN`` is true where only trained weights have gradients and optimizer state; where it is missing, models with frozen
  weights are refused.
* ``ROUNDS = True`` where the model shares the global batch out itself, so that a plan's `micro_batch` may be off by less than a
  sample; where it is missing, micro-batches that do not make the global batch are refused.

``costs/analytic/__init__.py`` is ours; the others are the published ones, kept to reproduce papers.
"""
