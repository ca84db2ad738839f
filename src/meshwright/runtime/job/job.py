"""What every process of a run is told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from meshwright.base import files

__all__ = ["Job"]


@dataclass(frozen=True, slots=True)
class Job:
    """A run.

    `plan`, `model`: the plan file and ``package.module:callable``.
    `n_steps`: steps to train.
    `data`, `loss`, `optimizer`: ``package.module:callable`` of the user's own, or empty.
    `learning_rate_value`: of the optimizer used where the user gives none.
    `seed`: of weights and synthetic data.
    `folder`: where processes leave results and errors.
    `save`: folder of checkpoints; empty for none.
    `save_every`: steps between checkpoints.
    `keep`: how many checkpoints stay in the folder.
    `resume`: ``last``: go on from the last checkpoint; ``auto``: from the newest one that is whole, or from the beginning
    where there is none; empty: from the beginning.
    `non_finite`: what a loss or a gradient that is not finite does: ``stop`` ends the run, ``skip`` leaves the step out.
    `lr_schedule`: ``package.module:callable`` from the optimizer to a scheduler of learning rates, or empty.
    `keep_every`: checkpoints of every so many steps stay as well; 0 for none.
    `clip_norm_value`: the largest norm of the whole gradient; 0 for no limit.
    `log`: file to which rank 0 adds a line of JSON for every step; empty for none.
    `backend`: ``gloo`` or ``nccl``; empty for NCCL where there are GPUs.
    `memory`: whether the first step measures memory, which makes it slower.
    `order` (sequence of sequence of (int, int, int)): the order of work that was predicted, as
    `meshwright.runtime.ranks.layout.layout` takes it; none for the schedule's own.
    `elastic`: whether the run is planned again and goes on when devices are lost.
    `max_restarts`: how often.
    `precision`: of products; empty for that of the weights.
    `monitor`: ``package.module:callable`` that rank 0 hands what `log` is told of every step, or empty.
    `weights`: folder whose files the weights are read from; empty where they are made from the seed.
    `profiled`: folder in which every rank leaves the trace of the last step; empty for none.
    """

    plan: str
    model: str
    n_steps: int = 5
    data: str = ""
    loss: str = ""
    optimizer: str = ""
    learning_rate_value: float = 1e-3
    seed: int = 0
    folder: str = ""
    save: str = ""
    save_every: int = 0
    keep: int = 2
    resume: str = ""
    non_finite: str = "stop"
    backend: str = ""
    memory: bool = True
    order: Sequence[Sequence[tuple[int, int, int]]] = ()
    precision: str = ""
    clip_norm_value: float = 0.0
    log: str = ""
    lr_schedule: str = ""
    keep_every: int = 0
    elastic: bool = False
    max_restarts: int = 3
    profiled: str = ""
    monitor: str = ""
    weights: str = ""

    def write(self, path: Path) -> None:
        """Write it for the processes to read."""
        files.write(path, json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Job:
        """Return the job of a file."""
        return cls(**json.loads(path.read_text(encoding="utf-8")))
