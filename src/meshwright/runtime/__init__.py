"""Running a plan with PyTorch, measuring layers and links, and comparing what was said with what happened.

Nothing here is imported before it is asked for, so that planning needs no PyTorch. The two calls of a training script of one's
own:

* `meshwright.runtime.apply(model, plan_file)` cuts and wraps the module as the plan says, in every process of a torchrun job;
* ``trainer.step(inputs, targets)`` trains one step and returns the loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshwright.runtime.job.trainer import Trainer

__all__ = ["apply"]


def apply(model: Any, plan_file: str, **options: Any) -> Trainer:
    """Return a trainer for the module, cut and wrapped as a plan says; see `meshwright.runtime.job.trainer.apply`.

    Parameters
    ----------
    model : torch.nn.Module
        The whole model, with the same weights in every process.
    plan_file : str
        A plan as ``meshwright plan --out`` writes it.
    options
        Optimizer and loss, see `meshwright.runtime.job.trainer.apply`.
    """
    from meshwright.runtime.job import trainer

    return trainer.apply(model, plan_file, **options)
