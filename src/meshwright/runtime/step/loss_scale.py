"""Scaling the loss so that gradients of products in fp16 neither vanish nor overflow; a step whose gradients do is skipped by
all.

References
----------
.. [1] Micikevicius et al., Mixed Precision Training, ICLR 2018, section 3.2: loss scaling; the scale is found while training.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn

from meshwright.runtime.parallel.pools import local

__all__ = ["LossScale"]

_FIRST, _LEAST = 2.0**16, 1.0
_STEPS_TO_GROW = 2000
"""As `torch.amp.GradScaler`: doubled after so many steps in a row without an overflow, halved at each."""


class LossScale:
    """What the loss is multiplied by before its backward pass, found while training.

    Attributes
    ----------
    value : float
        The factor; a power of two, so that scaling rounds nothing.
    n_good_steps : int
        Steps since it last changed.
    skipped : bool
        Whether the last step was skipped.
    """

    def __init__(self) -> None:
        self.value = _FIRST
        self.n_good_steps = 0
        self.skipped = False

    def unscale(self, parameters: Iterable[nn.Parameter], device: torch.device) -> bool:
        """Divide gradients by the scale, adapt it, and return whether they are finite on every rank.

        `parameters`: what this rank updates; gradients are added up already.
        Raises `FloatingPointError` when they overflow without being scaled: the training has diverged.
        """
        gradients = [local(parameter.grad) for parameter in parameters if parameter.grad is not None]
        overflow = torch.zeros((), device=device)
        for gradient in gradients:
            gradient.mul_(1.0 / self.value)
            overflow = torch.maximum(overflow, (~torch.isfinite(gradient).all()).float())
        dist.all_reduce(overflow, op=dist.ReduceOp.MAX)
        self.skipped = bool(overflow)
        if not self.skipped:
            self.n_good_steps += 1
        if self.skipped and self.value <= _LEAST:
            raise FloatingPointError(
                "gradients are infinite or not a number although the loss is not scaled: training diverged"
            )
        if self.skipped or self.n_good_steps == _STEPS_TO_GROW:
            self.value *= 0.5 if self.skipped else 2.0
            self.n_good_steps = 0
        return not self.skipped

    def state(self) -> dict[str, float]:
        """Return what a checkpoint keeps."""
        return {"value": self.value, "n_good_steps": self.n_good_steps}

    def restore(self, state: dict[str, float]) -> None:
        """Go on from what a checkpoint kept."""
        self.value, self.n_good_steps = float(state["value"]), int(state["n_good_steps"])
