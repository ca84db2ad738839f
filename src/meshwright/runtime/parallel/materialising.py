"""A rank's part of weights that are on the meta device, made once layers are split and sharded."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from meshwright.runtime.parallel.pools import local
from meshwright.runtime.parallel.sharding import Tie

__all__ = ["Materials"]


class Materials:
    """What was made for weights on the meta device; those of several stages once.

    `device`: where it is made.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._made: dict[nn.Parameter, nn.Parameter] = {}

    def move(self, unit: nn.Module) -> None:
        """Put a layer on the device; of weights on the meta device nothing is made."""
        for part in unit.modules():
            for parameter in part._parameters.values():
                if parameter is not None and not parameter.is_meta:
                    parameter.data = parameter.data.to(self.device)
            for name, buffer in part._buffers.items():
                part._buffers[name] = None if buffer is None else buffer.to(self.device)

    def make(self, module: nn.Module) -> None:
        """Make this rank's part of all weights on the meta device, of zeros, in place.

        `module`: a stage, split and sharded.
        """
        found = False
        for part in module.modules():
            for name, parameter in part._parameters.items():
                if parameter is None or not local(parameter.detach()).is_meta:
                    continue
                found = True
                if parameter not in self._made:
                    value = torch.zeros_like(parameter.detach(), device=self.device)
                    self._made[parameter] = nn.Parameter(value, requires_grad=parameter.requires_grad)
                part._parameters[name] = self._made[parameter]
        if found and isinstance(module, FSDPModule):
            module._apply(lambda tensor: tensor)  # type: ignore[no-untyped-call]  # FSDP2 looks for weights that were replaced

    def of_ties(self, tied: set[nn.Parameter], ties: list[Tie]) -> tuple[set[nn.Parameter], list[Tie]]:
        """Return weights that several stages hold, and a rank's share in them, as they were made."""
        made = self._made
        own = [Tie(made.get(tie.parameter, tie.parameter), tie.group, tie.counts) for tie in ties]
        return {made.get(parameter, parameter) for parameter in tied}, own
