"""A character-level language model on four of Shakespeare's sonnets (1609, in the public domain), for the tutorial."""

from __future__ import annotations

import pathlib

import torch
from models import Transformer
from torch import nn

LENGTH = 64


def text() -> str:
    """Return the sonnets."""
    return (pathlib.Path(__file__).parent / "sonnets.txt").read_text(encoding="utf-8")


def letters() -> list[str]:
    """Return the characters there are, sorted: the vocabulary."""
    return sorted(set(text()))


def model() -> nn.Module:
    """Return a transformer of four layers of width 128 over characters."""
    return Transformer(n_layers=4, width=128, n_heads=4, vocabulary=len(letters()), length=LENGTH)


def batch(step: int, n_samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets of one step: windows of the text, and the same one character on; equal in every process."""
    number = {letter: i for i, letter in enumerate(letters())}
    tokens = torch.tensor([number[letter] for letter in text()])
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(len(tokens) - LENGTH - 1, (n_samples,), generator=generator).tolist()
    windows = torch.stack([tokens[start : start + LENGTH + 1] for start in starts])
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
