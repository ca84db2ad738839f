"""Whether processes that must have the same weights and samples do: what differs would be trained on without a sign."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn

__all__ = ["N_VALUES", "fingerprint", "make_alike", "unlike_share", "votes"]

_LOOKED_AT = 65_536
"""Elements of a tensor that a fingerprint looks at, spread over it."""

N_VALUES = 65_536
"""Fingerprints are smaller, so that sums of their squares over all processes are exact in doubles."""


def make_alike(model: nn.Module) -> tuple[str, ...]:
    """Give every process the weights of process 0 where they differ; return a sentence about that.

    `model`: whole; called in every process at once.
    """
    tensors = [tensor.detach() for tensor in (*model.parameters(), *model.buffers()) if not tensor.is_meta]
    if dist.get_world_size() == 1 or not tensors:
        return ()
    device = torch.device("cuda", torch.cuda.current_device()) if "cuda:nccl" in dist.get_backend_config() else None
    sums = torch.stack([part for t in tensors for part in (t.double().sum().cpu(), t.double().square().sum().cpu())])
    low, high = (sums.to(device, copy=True), sums.to(device, copy=True)) if device else (sums.clone(), sums.clone())
    dist.all_reduce(low, op=dist.ReduceOp.MIN)
    dist.all_reduce(high, op=dist.ReduceOp.MAX)
    if bool((low == high).all()):
        return ()
    for tensor in tensors:
        value = tensor.to(device) if device else tensor
        dist.broadcast(value, 0)
        tensor.copy_(value)
    return ("the processes built models of unlike weights (seeds?): all take those of process 0",)


def fingerprint(values: Iterable[object]) -> int:
    """Return a number that tells apart what processes hold; of tensors on the CPU, others would wait for their device."""
    found = 0
    for value in values:
        if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
            continue
        flat = value.detach().reshape(-1)
        flat = flat[:: max(1, flat.numel() // _LOOKED_AT)].contiguous()
        found = zlib.crc32(repr(tuple(value.shape)).encode(), found)
        found = zlib.crc32(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"", found)
    return found % N_VALUES


def votes(mark: tuple[int, int] | None, n_parts: int) -> list[float]:
    """Return what one process adds to the sums from which `unlike_share` tells whether all agree.

    `mark`: part of the data and fingerprint of this process's samples; None where it looks at none.
    `n_parts`: how many parts there are.
    """
    found = [0.0] * (3 * n_parts)
    if mark is not None:
        part, value = mark
        found[3 * part : 3 * part + 3] = [1.0, float(value), float(value * value)]
    return found


def unlike_share(sums: list[float]) -> int:
    """Return the first part of the data of which processes hold unlike samples; -1 where there is none.

    `sums`: of `votes` of all processes. Numbers are all the same where their number times the sum of squares is the square of
    their sum, else it is larger (Cauchy and Schwarz).
    """
    for part in range(len(sums) // 3):
        n, total, squares = sums[3 * part : 3 * part + 3]
        if n * squares != total * total:
            return part
    return -1
