"""The order of work of every pipeline rank as PyTorch's schedule file: one row per rank, ``0F0,0F1,0B0,...``.

``torch.distributed.pipelining`` plays it by ``_PipelineScheduleRuntime(stages, n_microbatches, loss_fn=...)._load_csv(path)``,
for plans whose stages all have one replica per rank of PyTorch's own pipeline group.

References
----------
.. [1] PyTorch, torch/distributed/pipelining/schedules.py: F forward, B both gradients, I those of activations, W those of
   weights.
"""

from __future__ import annotations

import numpy as np

from meshwright import sim
from meshwright.base import files
from meshwright.base.errors import ExportError
from meshwright.core.result import Result
from meshwright.schedules import Actions, Durations
from meshwright.sim import tasks

__all__ = ["render", "rows", "write"]

_LETTERS = "FIWB"
"""By phase of `meshwright.schedules`: FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, BACKWARD."""


def render(slots: Actions) -> str:
    """Return an order of work as text."""
    rows = []
    for rank in range(slots.n_ranks):
        some = range(int(slots.first[rank]), int(slots.first[rank + 1]))
        rows.append(",".join(f"{slots.stage[i]}{_LETTERS[int(slots.phase[i])]}{slots.microbatch[i]}" for i in some))
    return "\n".join(rows) + "\n"


def write(result: Result, path: str) -> None:
    """Write the schedule of a plan.

    Schedules that are fitted to durations take those of the result's stages.
    Raises `ExportError` when there is no plan, or its stages have different numbers of replicas, which PyTorch's runtime has no
    word for.
    """
    files.write(path, rows(result))


def rows(result: Result) -> str:
    """Return the schedule of a plan as text; raises `ExportError` as `write`."""
    plan = result.answer.plan
    if plan is None:
        raise ExportError("pytorch_schedule: nothing fits, so there is no order of work to write")
    widths = sorted({len(stage.devices) for stage in plan.stages})
    if len(widths) > 1:
        raise ExportError(
            f"pytorch_schedule: stages have {', '.join(map(str, widths))} devices; PyTorch's runtime needs equal stages"
        )
    if result.stage_costs:
        return render(sim.order(result.problem, plan, result.stage_costs))
    n = len(plan.stages)  # the cost model cannot tell: all tasks alike
    return render(tasks.order(plan, Durations(np.ones(n), np.ones(n), np.ones(n), np.zeros(n - 1))))
