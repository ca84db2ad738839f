"""Random numbers of the ranks of a tensor axis: what they draw for values that all of them hold must be the same."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from meshwright.base.errors import InputError
from meshwright.runtime.ranks import alike
from meshwright.runtime.ranks.layout import Layout
from meshwright.runtime.ranks.meshes import StageGroups

__all__ = ["TensorRandom"]


class TensorRandom:
    """The random numbers of this rank beside those of its tensor group, whose ranks would drift apart if theirs differed.

    `places`: the plan as ranks.
    `rank`: this process.
    `groups`: of its stages.
    `device`: where it trains.
    """

    def __init__(self, places: Layout, rank: int, groups: Mapping[int, StageGroups], device: torch.device) -> None:
        self.device, self.group, self.number = device, None, -1
        self.ranks: list[tuple[int, ...]] = []
        for stage, part in enumerate(places.plan.stages):
            degree = part.strategy.tensor
            if degree == 1:
                continue
            rows = [places.ranks_of_stage[stage][i : i + degree] for i in range(0, len(part.devices), degree)]
            own = next((i for i, row in enumerate(rows) if rank in row), -1)
            if own >= 0 and self.number < 0:
                self.group, self.number = groups[stage].tensor, len(self.ranks) + own
            self.ranks += rows
        self._before: tuple[int, ...] = ()

    def _states(self) -> list[torch.Tensor]:
        return [torch.get_rng_state(), *([torch.cuda.get_rng_state(self.device)] if self.device.type == "cuda" else [])]

    def _fingerprints(self) -> tuple[int, ...]:
        return tuple(zlib.crc32(state.numpy().tobytes()) for state in self._states())

    def align(self) -> None:
        """Take those of the first rank of the tensor group; called in all its processes at once."""
        if self.group is None:
            return
        states: Any = self._states()
        told = [states]
        dist.broadcast_object_list(told, group=self.group, group_src=0)
        torch.set_rng_state(told[0][0])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(told[0][1], self.device)

    def begin(self) -> None:
        """Remember where they stand at the beginning of a step."""
        if self.group is not None:
            self._before = self._fingerprints()

    def votes(self) -> list[float]:
        """Return what this rank adds to the sums that `check` looks at; nothing where no random numbers were drawn since."""
        drew = self.group is not None and self._fingerprints() != self._before
        value = zlib.crc32(repr(self._before).encode()) % alike.N_VALUES
        return alike.votes((self.number, value) if drew else None, len(self.ranks))

    def check(self, sums: list[float]) -> None:
        """Raise `InputError`, in every process, where the ranks of a tensor group drew unlike random numbers in a step.

        `sums`: of the `votes` of all processes.
        """
        unlike = alike.unlike_share(sums)
        if unlike >= 0:
            raise InputError(
                f"ranks {', '.join(map(str, self.ranks[unlike]))} of one tensor group drew unlike random numbers (dropout?) "
                "for values that all of them hold: seed them alike, as torch.manual_seed(seed + engine.data_rank) does"
            )
