"""What every process of a run is told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["Job"]


@dataclass(frozen=True, slots=True)
class Job:
    """A run.

    Parameters
    ----------
    plan, model : str
        The plan file and ``package.module:callable``.
    n_steps : int
        Steps to train.
    data, loss, optimizer : str
        ``package.module:callable`` of the user's own, or empty.
    learning_rate_value : float
        Of the optimizer used where the user gives none.
    seed : int
        Of weights and synthetic data.
    folder : str
        Where processes leave results and errors.
    save : str
        Folder of checkpoints; empty for none.
    save_every : int
        Steps between checkpoints.
    resume : bool
        Whether to go on from the last checkpoint.
    backend : str
        ``gloo`` or ``nccl``.
    memory : bool
        Whether the first step measures memory, which makes it slower.
    order : sequence of sequence of (int, int, int)
        The order of work that was predicted, as `meshwright.runtime.ranks.layout.layout` takes it; none for the schedule's own.
    precision : str
        Of products; empty for that of the weights.
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
    resume: bool = False
    backend: str = "gloo"
    memory: bool = True
    order: Sequence[Sequence[tuple[int, int, int]]] = ()
    precision: str = ""

    def write(self, path: Path) -> None:
        """Write it for the processes to read."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Job:
        """Return the job of a file."""
        return cls(**json.loads(path.read_text(encoding="utf-8")))
