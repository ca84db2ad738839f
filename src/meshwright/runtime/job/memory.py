"""Memory that one training step holds on a rank: the allocator's own peak on a GPU, counted tensors on a CPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from meshwright.runtime.job.trainer import Trainer
from meshwright.runtime.parallel.pools import local

__all__ = ["SavedBytes", "allocator_peak", "peak_bytes"]


class SavedBytes:
    """Bytes that autograd keeps for backward passes, each storage counted once; weights are not counted.

    `weights`: addresses of storages that are counted elsewhere.
    """

    def __init__(self, weights: set[int]) -> None:
        self.weights = weights
        self.users: dict[int, int] = {}
        self.now_bytes = 0
        self.peak_bytes = 0

    def pack(self, tensor: torch.Tensor) -> Any:
        """Count a tensor that is kept."""
        tensor_local = local(tensor.detach())
        try:
            storage = tensor_local.untyped_storage()
        except (RuntimeError, NotImplementedError):
            return tensor
        address = storage.data_ptr()
        if address in self.weights or address == 0:
            return tensor
        return _Kept(self, tensor, address, storage.nbytes())

    @staticmethod
    def unpack(kept: Any) -> torch.Tensor:
        """Return the tensor kept."""
        tensor: torch.Tensor = kept.tensor if isinstance(kept, _Kept) else kept
        return tensor


class _Kept:
    """A tensor that counts as long as it lives."""

    def __init__(self, count: SavedBytes, tensor: torch.Tensor, address: int, n_bytes: int) -> None:
        self.count, self.tensor, self.address, self.n_bytes = count, tensor, address, n_bytes
        users = count.users.get(address, 0)
        count.users[address] = users + 1
        if users == 0:
            count.now_bytes += n_bytes
            count.peak_bytes = max(count.peak_bytes, count.now_bytes)

    def __del__(self) -> None:
        self.count.users[self.address] -= 1
        if self.count.users[self.address] == 0:
            self.count.now_bytes -= self.n_bytes


def allocator_peak(trainer: Trainer) -> dict[int, float]:
    """Return the rank's peak in bytes on its GPU since the process began, under each of its stages.

    Only after a second step it holds all there is: the optimizer makes its state at the end of the first.
    """
    return dict.fromkeys(trainer.weights, float(torch.cuda.max_memory_allocated(trainer.executor.device)))


def peak_bytes(trainer: Trainer, step: Callable[[], float]) -> tuple[float, dict[int, float]]:
    """Run a step on the CPU and count the memory it needs.

    `step`: runs it and returns the loss.

    Returns `loss`: what the step returned; `peak`: the rank's peak in bytes, under each of its stages: weights, gradients,
    optimizer state, and the most that autograd kept at once; what operators need for themselves is not seen.
    """
    weights = [parameter for stage in trainer.weights.values() for parameter in stage.parameters]
    count = SavedBytes({local(parameter.detach()).untyped_storage().data_ptr() for parameter in weights})
    hooks = [count.pack, count.unpack]
    if "torch._dynamo" in sys.modules:  # else blocks that are compiled compile these, too, for every tensor anew
        hooks = [torch.compiler.disable(hook) for hook in hooks]  # type: ignore[no-untyped-call]
    with torch.autograd.graph.saved_tensors_hooks(*hooks):
        loss = step()
    held = {id(parameter): _bytes(parameter) for parameter in weights}
    state = sum(
        _bytes(value)
        for entry in trainer.optimizer.state.values()
        for value in entry.values()
        if isinstance(value, torch.Tensor) and value.dim() > 0
    )
    gradients = sum(
        _bytes(parameter.grad)
        for parameter in {id(p): p for p in [*weights, *(p for s in trainer.weights.values() for p in s.optimized())]}.values()
        if parameter.grad is not None
    )
    peak = float(sum(held.values()) + gradients + state + count.peak_bytes)
    return loss, dict.fromkeys(trainer.weights, peak)


def _bytes(tensor: torch.Tensor) -> int:
    mine = local(tensor.detach())
    return mine.numel() * mine.element_size()
