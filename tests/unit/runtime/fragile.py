"""Data, loss and optimizer of one's own, for the tests: the same in every process, or failing in one."""

from __future__ import annotations

import os

import torch


def tokens(step: int, n_samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random tokens."""
    generator = torch.Generator().manual_seed(step)
    drawn = torch.randint(101, (n_samples, 17), generator=generator)
    return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()


def dies_on_rank_two_in_step_three(step: int, n_samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random tokens, but fail once in one process."""
    if step == 3 and os.environ["RANK"] == "2":
        raise OSError("the disk is full")
    return tokens(step, n_samples)


def half_of_cross_entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return a loss that is not the default one."""
    return 0.5 * torch.nn.functional.cross_entropy(output.flatten(0, -2), target.flatten())


def descent(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Return an optimizer that is not the default one."""
    return torch.optim.SGD(parameters, 0.5, foreach=False)
