"""Expert parallelism: every rank of a group holds some experts of a layer, and tokens travel to the ranks that hold theirs.

References
----------
.. [1] Lepikhin et al., GShard: Scaling Giant Models with Conditional Computation and Automatic Sharding, ICLR 2021, section 3.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

__all__ = ["ExpertParallel", "Swap", "experts_of", "over_group", "spread"]

Swap = Callable[[torch.Tensor, list[int], list[int]], torch.Tensor]
"""From rows sorted by the rank that they go to, how many go to each rank, and how many come from each,
to the rows that come.
"""

_N_EXPERTS = re.compile(r"^_?(n|num|nb)_(\w+_)?experts$")


def experts_of(layer: nn.Module) -> dict[str, nn.Module]:
    """Return the modules of a layer whose experts can be divided, by path.

    Returns: modules that hold all experts stacked (every parameter has as many entries along its first dimension as an
    attribute like ``num_experts`` says) and are called with tokens, the numbers of the experts chosen for each, and their
    weights. Those of Hugging Face models are.
    """
    return {path: module for path, module in layer.named_modules() if _n_experts(module) > 1}


def _n_experts(module: nn.Module) -> int:
    """Return how many experts a module holds stacked; 0 where it holds none."""
    lengths = {weight.shape[0] if weight.dim() > 1 else 0 for weight in module.parameters()}
    if len(lengths) != 1 or any(True for child in module.children() for _ in child.parameters()):
        return 0
    n_experts = lengths.pop()
    return n_experts if _takes_choices(module) and _counts(module, n_experts) else 0


def _takes_choices(module: nn.Module) -> bool:
    """Whether a module can be called with tokens, choices and weights, and nothing else."""
    try:
        inspect.signature(module.forward).bind("tokens", "choices", "weights")
    except TypeError:
        return False
    return True


def _counts(module: nn.Module, n_experts: int) -> list[str]:
    """Return the names of the attributes that say how many experts there are."""
    return [name for name, value in vars(module).items() if value == n_experts and _N_EXPERTS.search(name)]


def spread(layer: nn.Module, rank: int, degree: int, swap: Swap) -> None:
    """Leave a layer the experts of one rank, in place.

    `rank`, `degree`: place in the expert group, and its length.
    `swap`: see `Swap`.
    """
    for path, module in experts_of(layer).items():
        folder, _, name = path.rpartition(".")
        setattr(layer.get_submodule(folder), name, ExpertParallel(module, rank, degree, swap))


class ExpertParallel(nn.Module):
    """Some experts of a layer, to which all ranks of a group send tokens.

    `experts`: all experts; changed in place.
    `rank`, `degree`: which part of them stays here, of how many.
    `swap`: see `Swap`.

    Notes
    -----
    A token is sent once for each of its experts. Experts run with weights of one, and results are weighted where the tokens
    came from, which saves sending weights.
    """

    def __init__(self, experts: nn.Module, rank: int, degree: int, swap: Swap) -> None:
        super().__init__()
        self.degree, self.swap = degree, swap
        n_experts = _n_experts(experts)
        self.n_held = n_experts // degree
        for name in _counts(experts, n_experts):
            setattr(experts, name, self.n_held)
        for name, weight in list(experts.named_parameters()):
            held = weight.detach()[rank * self.n_held : (rank + 1) * self.n_held].clone()
            setattr(experts, name, nn.Parameter(held, requires_grad=weight.requires_grad))
        self.experts = experts

    def forward(self, hidden: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return the weighted sum of what each token's experts make of it.

        `hidden`: tokens, features last.
        `indices`, `weights`: the experts chosen for each token and what they count; both of shape (tokens, experts chosen).
        """
        rows, chosen = hidden.reshape(-1, hidden.shape[-1]), indices.reshape(-1)
        n_chosen = indices.shape[-1]
        order = chosen.argsort(stable=True)
        sizes = torch.bincount(chosen // self.n_held, minlength=self.degree)
        sent: list[int] = sizes.tolist()
        ones = [1] * self.degree
        received: list[int] = self.swap(sizes, ones, ones).tolist()
        numbers = self.swap(chosen[order] % self.n_held, sent, received)
        copies: Any = _Exchange.apply(rows[order // n_chosen], self.swap, sent, received)  # type: ignore[no-untyped-call]
        results: Any = _Exchange.apply(self._run(copies, numbers, weights.dtype), self.swap, received, sent)  # type: ignore[no-untyped-call]
        by_token = results[order.argsort()].view(len(rows), n_chosen, results.shape[-1])
        total: torch.Tensor = (by_token * weights.reshape(len(rows), n_chosen, 1)).sum(1)
        return total.to(hidden.dtype).view_as(hidden)

    def _run(self, copies: torch.Tensor, numbers: torch.Tensor, weight_type: torch.dtype) -> torch.Tensor:
        """Return what the experts held here make of tokens, each of one expert."""
        n_copies = len(copies)
        if n_copies == 0:  # a row of zeros, so that weights have gradients to add up, and tokens a way back, as on other ranks
            copies, numbers = torch.cat([copies, copies.new_zeros(1, copies.shape[1])]), numbers.new_zeros(1)
        weights = torch.ones(len(copies), 1, dtype=weight_type, device=copies.device)
        result: torch.Tensor = self.experts(copies, numbers[:, None], weights)
        return result[:n_copies]


class _Exchange(torch.autograd.Function):
    """Rows sent to other ranks; their gradients come back the same way."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, swap: Swap, sent: list[int], received: list[int]) -> torch.Tensor:
        """Return the rows that come."""
        ctx.swap, ctx.sent, ctx.received = swap, sent, received
        return swap(rows, sent, received)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        """Return the gradients of the rows that went."""
        return ctx.swap(gradient, ctx.received, ctx.sent), None, None, None


def over_group(group: Any) -> Swap:
    """Return the exchange among the ranks of a process group."""

    def swap(rows: torch.Tensor, sent: list[int], received: list[int]) -> torch.Tensor:
        result = rows.new_empty(sum(received), *rows.shape[1:])
        dist.all_to_all_single(result, rows.contiguous(), received, sent, group=group)
        return result

    return swap
