"""Data, loss, optimizer and models of one's own, for the tests: the same in every process, or failing in one."""

from __future__ import annotations

import os
import signal
import time

import torch
import torch.fx
from torch import nn


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


def killed_in_step_two(step: int, n_samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random tokens, but let the system kill one process."""
    if step == 2 and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return tokens(step, n_samples)


def slowly(step: int, n_samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random tokens, after a while."""
    time.sleep(0.2)
    return tokens(step, n_samples)


def broken_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return a loss that is no number where a batch begins with the token of the third step's."""
    loss = nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())
    return loss * float("nan") if bool((target[0] == tokens(2, 16)[1][0]).all()) else loss


def hangs_on_rank_one(step: int, n_samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the batch of a step, but on rank 1 never."""
    if os.environ.get("RANK") == "1":
        time.sleep(600)
    return tokens(step, n_samples)


def loader() -> torch.utils.data.DataLoader:
    """Return a loader that shuffles forty samples anew in every epoch."""
    drawn = torch.randint(101, (40, 17), generator=torch.Generator().manual_seed(7))
    samples = torch.utils.data.TensorDataset(drawn[:, :-1], drawn[:, 1:])
    return torch.utils.data.DataLoader(samples, batch_size=16, shuffle=True, drop_last=True)


class Decides(nn.Module):
    """Runs its layers by what it computes, so that it cannot be cut between them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(101, 16)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(6))
        self.head = nn.Linear(16, 101)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x) if x.sum() > 0 else x
        return self.head(x)


class HandsOnALength(Decides):
    """Hands a number on from layer to layer, which cannot be sent."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        half = _half(x)
        for layer in self.layers:
            x = layer(x) * half
        return self.head(x)


class HeadsByNumber(nn.Module):
    """Takes its products apart by numbers that it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.width, self.n_heads = 64, 4
        self.query, self.key, self.value, self.out = (nn.Linear(64, 64) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        sizes = (batch, length, self.n_heads, self.width // self.n_heads)
        q, k, v = (layer(x).view(sizes).transpose(1, 2) for layer in (self.query, self.key, self.value))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, self.width))


def heads_by_number() -> nn.Module:
    """Return a transformer with such attention."""
    import models

    model = models.Transformer(n_layers=2)
    for layer in model.layers:
        layer.attention = HeadsByNumber()
    return model


def repeated() -> nn.Module:
    """Return a transformer of three layers whose last is the first again."""
    import models

    model = models.Transformer(n_layers=3)
    model.layers[2] = model.layers[0]
    return model


class Encoder(nn.Module):
    """PyTorch's own encoder, whose forward looks at its layers and cannot be traced."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.embed = nn.Embedding(101, 32)
        self.encoder = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.head = nn.Linear(32, 101)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embed(tokens)))


def steep() -> nn.Module:
    """Return a chain of linear layers whose scaled gradients overflow in fp16 at first."""
    chain = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(3)), nn.Linear(32, 16))
    with torch.no_grad():
        chain[3].bias.fill_(60.0)
    return chain


def halved() -> nn.Module:
    """Return a model whose weights are fp16."""
    import models

    return models.small().half()


def _half(x: torch.Tensor) -> float:
    return x.shape[1] / 2


torch.fx.wrap("_half")


def half_of_cross_entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return a loss that is not the default one."""
    return 0.5 * torch.nn.functional.cross_entropy(output.flatten(0, -2), target.flatten())


def warming(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    """Raise the learning rate from a quarter in three steps, then let it fall."""
    rates = (0.25, 0.5, 0.75, 1.0, 0.6, 0.3)
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rates[min(step, 5)])


def descent(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Return an optimizer that is not the default one."""
    return torch.optim.SGD(parameters, 0.5, foreach=False)
