"""Weights that the same ranks hold: how these add up their gradients, beside the backward pass where that can be, and which
part of the optimizer's state each has.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from meshwright.runtime.parallel.tensor_row import TensorRow
from meshwright.runtime.ranks.meshes import Replicas

__all__ = ["WeightPool", "flatten", "gradient_of", "local", "n_parts_of", "spread"]

_reduce_scatter = dist.reduce_scatter_single if hasattr(dist, "reduce_scatter_single") else dist.reduce_scatter_tensor
_all_gather = dist.all_gather_single if hasattr(dist, "all_gather_single") else dist.all_gather_into_tensor

_BUCKET_ELEMENTS = 8_000_000
"""Gradients and weights are exchanged in pieces of this size, so that no copy of all of them is held. Smaller ones cost more:
three to four per cent of a step over Gloo with 262,144, though nothing was copied then.
"""

_COPIES_UNDER_WAY = 2
"""Of gradients that are put together: one is sent while the next is filled."""


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Weights whose gradients are sent at once.

    `weights`: which.
    `start`: where they begin among all elements of the pool.
    `early`: whether they may be sent as soon as they are there, beside the backward pass.
    """

    weights: tuple[nn.Parameter, ...]
    start: int
    early: bool


@dataclass(frozen=True, slots=True)
class _Sum:
    """A sum over ranks that is under way.

    `work`: waited for.
    `copies`: whether what is sent was put together.
    `finish`: puts it where it belongs.
    """

    work: Any
    copies: bool
    finish: Callable[[], object]


class WeightPool:
    """Weights that the same ranks hold.

    `parameters`: the weights.
    `shard`: as `meshwright.core.strategy.Strategy.shard`.
    `late`: those whose gradients are not complete after the backward pass.

    Notes
    -----
    Buckets are sent in one order, the last weights first, whatever the order in which their gradients come: replicas of which
    one does not use a weight would wait for each other's sums otherwise. `arrived` sends those that are complete and whose
    turn it is; `start_reduction` the rest.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], shard: int, replicas: Replicas, late: frozenset[nn.Parameter] = frozenset()
    ) -> None:
        self.parameters, self.replicas = list(parameters), replicas
        self.shard = shard if replicas.shard is not None else 0
        self._n_parts = [n_parts_of(parameter) for parameter in self.parameters]
        self.sums: list[_Sum] = []
        self.flat: nn.Parameter | None = None
        if self.shard in (1, 2) and self.parameters:
            size = self._padded() // self.replicas.n_shards
            start = self.replicas.shard_index * size
            own = TensorRow([local(parameter.detach()) for parameter in self.parameters]).between(start, start + size)
            self.flat = nn.Parameter(torch.cat(own))
        sends = self.shard == 1 or (self.shard == 0 and replicas.everyone is not None)
        self.buckets = _buckets(self.parameters, late) if sends else ()
        self.bucket_of = {weight: i for i, bucket in enumerate(self.buckets) if bucket.early for weight in bucket.weights}
        self.begin()

    def begin(self) -> None:
        """Await all gradients of a step."""
        self.missing = [set(bucket.weights) for bucket in self.buckets]
        self.n_sent = 0

    def arrived(self, parameter: nn.Parameter) -> None:
        """Note that the gradient of a weight of `bucket_of` is complete, and send the buckets whose turn it is.

        Raises `RuntimeError` when its bucket is on its way already.
        """
        i = self.bucket_of[parameter]
        self.missing[i].discard(parameter)
        if i < self.n_sent:
            raise RuntimeError(
                "the gradient of a weight came twice in one backward pass, as torch.utils.checkpoint(use_reentrant=True) lets "
                "those of shared weights come; use use_reentrant=False"
            )
        while self.n_sent < len(self.buckets) and self.buckets[self.n_sent].early and not self.missing[self.n_sent]:
            self._send_next()

    def start_reduction(self) -> None:
        """Begin to add up over the ranks what is not under way."""
        while self.n_sent < len(self.buckets):
            self._send_next()
        if self.flat is not None and self.replicas.replicate is not None:
            self._finish_all()
            gradient = self._own_gradient()
            work = dist.all_reduce(gradient, group=self.replicas.replicate, async_op=True)
            self.sums.append(_Sum(work, False, _nothing))

    def finish_reduction(self) -> None:
        """Wait for the sums."""
        self._finish_all()
        if self.shard == 3:  # FSDP averages over the replicas, but losses are weighted by rows already
            held = [local(parameter.grad) for parameter in self.parameters if parameter.grad is not None]
            if held:
                torch._foreach_mul_(held, self.replicas.n_ranks)

    def _send_next(self) -> None:
        """Begin to add up the gradients of the next bucket."""
        bucket = self.buckets[self.n_sent]
        self.n_sent += 1
        gradients = [gradient_of(weight) for weight in bucket.weights]
        if self.flat is None:
            put_together = len(gradients) > 1 or not gradients[0].is_contiguous()
            self._room(put_together)
            whole = flatten(gradients) if put_together else gradients[0]
            work = dist.all_reduce(whole, group=self.replicas.everyone, async_op=True)
            self.sums.append(_Sum(work, put_together, partial(spread, whole, gradients) if put_together else _nothing))
            return
        row, size = TensorRow(gradients), self.flat.numel()
        stop = bucket.start + row.ends[-1]
        self._room(True)
        for rank in range(bucket.start // size, -(-stop // size)):  # every rank's part is summed up there
            first, last = max(bucket.start, rank * size), min(stop, (rank + 1) * size)
            pieces = row.between(first - bucket.start, last - bucket.start)
            part = pieces[0] if len(pieces) == 1 and pieces[0].is_contiguous() else torch.cat(pieces)
            work = dist.reduce(part, group=self.replicas.shard, group_dst=rank, async_op=True)
            kept = self._own_gradient()[first - rank * size : last - rank * size]
            mine = rank == self.replicas.shard_index
            self.sums.append(_Sum(work, True, partial(kept.copy_, part) if mine else _nothing))
        for weight in bucket.weights:
            weight.grad = None

    def _room(self, copies: bool) -> None:
        """Wait for the oldest sums where too many copies are under way."""
        while copies and sum(one.copies for one in self.sums) >= _COPIES_UNDER_WAY * max(1, self._n_pieces()):
            self._finish(self.sums.pop(0))

    def _n_pieces(self) -> int:
        """Return in how many pieces a bucket is sent at most."""
        return 1 if self.flat is None else self.replicas.n_shards

    def _own_gradient(self) -> torch.Tensor:
        """Return the gradient of this rank's part; zeros where nothing has come yet."""
        assert self.flat is not None
        if self.flat.grad is None:
            self.flat.grad = torch.zeros_like(self.flat)
        return self.flat.grad

    def _finish_all(self) -> None:
        for one in self.sums:
            self._finish(one)
        self.sums.clear()

    @staticmethod
    def _finish(one: _Sum) -> None:
        one.work.wait()
        one.finish()

    def _padded(self) -> int:
        """Return the number of elements of all weights, rounded up to equal parts."""
        total = sum(local(parameter).numel() for parameter in self.parameters)
        return -(-total // self.replicas.n_shards) * self.replicas.n_shards

    def _pieces(self) -> Iterator[tuple[slice, list[tuple[int, int]]]]:
        """Yield a slice of every rank's part that is exchanged at once, and where it lies in the whole, rank by rank."""
        assert self.flat is not None
        size = self.flat.numel()
        step = max(1, _BUCKET_ELEMENTS // self.replicas.n_shards)
        for start in range(0, size, step):
            stop = min(size, start + step)
            yield slice(start, stop), [(rank * size + start, rank * size + stop) for rank in range(self.replicas.n_shards)]

    def scatter(self) -> None:
        """Add the gradients held now to this rank's part, a piece of all parts at a time, and drop them (ZeRO-2)."""
        if self.flat is None:
            return
        gradients = TensorRow([gradient_of(parameter) for parameter in self.parameters])
        is_first = self.flat.grad is None
        if self.flat.grad is None:
            self.flat.grad = torch.empty_like(self.flat)
        for place, ranges in self._pieces():
            own = self.flat.grad[place]
            part = own if is_first else torch.empty_like(own)
            _reduce_scatter(
                part, torch.cat([value for ends in ranges for value in gradients.between(*ends)]), group=self.replicas.shard
            )
            if not is_first:
                own += part
        for parameter in self.parameters:
            parameter.grad = None

    def held(self, n_ranks: int, n_parts: int) -> Iterator[tuple[torch.Tensor, float]]:
        """Yield this rank's part of each gradient, and one over the number of ranks that hold the same.

        `n_ranks`: of the stage.
        `n_parts`: in how many parts an axis that DTensor does not know has split the weights (experts).
        """
        if self.flat is None:
            for parameter, parts in zip(self.parameters, self._n_parts, strict=True):
                yield gradient_of(parameter), n_parts * parts / n_ranks
            return
        assert self.flat.grad is not None
        size, start = self.flat.numel(), -self.replicas.shard_index * self.flat.numel()
        for parameter, parts in zip(self.parameters, self._n_parts, strict=True):
            stop = start + local(parameter).numel()
            piece = self.flat.grad[min(max(start, 0), size) : min(max(stop, 0), size)]
            yield piece, n_parts * self.replicas.n_shards * parts / n_ranks
            start = stop

    def after_update(self) -> None:
        """Hand the updated part of the weights to the other ranks (ZeRO-1 and 2), a piece of all parts at a time."""
        if self.flat is None:
            return
        weights = TensorRow([local(parameter.detach()) for parameter in self.parameters])
        for place, ranges in self._pieces():
            own = self.flat.detach()[place]
            whole = own.new_empty(own.numel() * len(ranges))
            _all_gather(whole, own, group=self.replicas.shard)
            for values, (start, stop) in zip(whole.chunk(len(ranges)), ranges, strict=True):
                weights.fill(start, stop, values)


def _nothing() -> None:
    """Stand for what is where it belongs."""


def _buckets(weights: Sequence[nn.Parameter], late: frozenset[nn.Parameter]) -> tuple[_Bucket, ...]:
    """Return neighbours in groups of bounded size, the last ones first; those with late weights at the end."""
    ends = [0, *itertools.accumulate(local(weight).numel() for weight in weights)]
    found: list[list[int]] = []
    for i in reversed(range(len(weights))):
        joins = (
            found
            and ends[found[-1][-1] + 1] - ends[i] <= _BUCKET_ELEMENTS
            and (weights[i] in late) == (weights[found[-1][0]] in late)
        )
        if joins:
            found[-1].insert(0, i)
        else:
            found.append([i])
    buckets = [_Bucket(tuple(weights[i] for i in own), ends[own[0]], weights[own[0]] not in late) for own in found]
    return (*(one for one in buckets if one.early), *(one for one in buckets if not one.early))


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a tensor, of which nothing is differentiated."""
    if not isinstance(tensor, DTensor):
        return tensor
    with torch.no_grad():  # else every look at it is noted for a backward pass
        return tensor.to_local()


def gradient_of(parameter: nn.Parameter) -> torch.Tensor:
    """Return this rank's part of a gradient; zeros where nothing depended on the weight."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    gradient = parameter.grad
    if isinstance(gradient, DTensor) and gradient.placements != parameter.placements:  # type: ignore[attr-defined]
        gradient = gradient.redistribute(placements=parameter.placements)  # type: ignore[attr-defined]
        parameter.grad = gradient
    return local(gradient)


def n_parts_of(parameter: nn.Parameter) -> int:
    """Return in how many parts the axes of its mesh split a weight; no weight is a partial sum."""
    if not isinstance(parameter, DTensor):
        return 1
    mesh, placements = parameter.device_mesh, parameter.placements  # type: ignore[attr-defined]
    return math.prod(mesh.size(axis) for axis, placement in enumerate(placements) if not placement.is_replicate())


def flatten(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return tensors one after the other."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def spread(flat: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Copy what `flatten` put together back."""
    start = 0
    for tensor in tensors:
        tensor.copy_(flat[start : start + tensor.numel()].view_as(tensor))
        start += tensor.numel()
