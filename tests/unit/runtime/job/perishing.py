"""Data on which processes are killed, once each."""

from __future__ import annotations

import os
import pathlib
import signal
import time

import torch

WORDS = 40


def tokens(step: int, n_samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the batch of a step: the same tokens in every process, whichever plan it trains under."""
    drawn = torch.randint(WORDS, (n_samples, 65), generator=torch.Generator().manual_seed(step))
    return drawn[:, :-1], drawn[:, 1:]


def killed_twice(step: int, n_samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Kill the last of three processes in the fourth step, and of two in the sixth, as `PERISHED` says that none was yet."""
    world, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    marker = pathlib.Path(os.environ["PERISHED"]) / f"of-{world}"
    if rank == world - 1 and (world, step) in ((3, 3), (2, 5)) and not marker.exists():
        marker.write_text("")
        os.kill(os.getpid(), signal.SIGKILL)
    return tokens(step, n_samples)


def slow(step: int, n_samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the batch of a step after a while."""
    time.sleep(0.05)
    return tokens(step, n_samples)
