"""What the routers of a mixture add to the loss of a micro-batch, whose rows lie on several replicas."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

__all__ = ["RouterLoss"]


class RouterLoss:
    """The load balancing loss of a micro-batch, every replica of the last stage adding its share.

    It is a product of two means over all tokens of the micro-batch: of one of them, which has no gradient, replicas exchange
    the sums.

    `coefficient_ratio`: what it is multiplied by.
    `group`: of the replicas of the last stage; None for one.
    """

    def __init__(self, coefficient_ratio: float, group: Any) -> None:
        self.coefficient_ratio, self.group = coefficient_ratio, group

    def share(self, sums: torch.Tensor, count: torch.Tensor | float) -> torch.Tensor:
        """Return what this rank's rows add, times all that the micro-batch counts.

        `sums`: see `meshwright.runtime.model.routers.Routing.sums`; of this rank's rows.
        `count`: how much these rows count in the loss beside it (samples, tokens).
        """
        n_experts = (len(sums) - 1) // 2
        counted = torch.as_tensor(count, dtype=torch.float64, device=sums.device).reshape(1)
        told = torch.cat([sums[:n_experts].detach().double(), sums[-1:].detach().double(), counted])
        if self.group is not None:
            dist.all_reduce(told, group=self.group)
        factors = told[:n_experts] * (n_experts * self.coefficient_ratio * told[-1] / told[n_experts].clamp(min=1.0) ** 2)
        return (factors.float() * sums[n_experts:-1]).sum()
