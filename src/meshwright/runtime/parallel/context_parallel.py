"""Context parallelism: a rank works on a part of every sequence; attention sees the keys and values of all parts.

References
----------
.. [1] Llama Team, The Llama 3 Herd of Models, 2024 (arXiv 2407.21783), section 3.3.2: keys and values are gathered, queries
   stay; the sequence is cut into 2 c chunks, of which rank r has r and 2 c - 1 - r, so that under a causal mask all ranks have
   as much to do.

Notes
-----
A chunk of queries meets the keys up to its own end only, under a causal mask aligned to the last key, which fused attention
knows: masked products are not computed. Where 2 c does not divide the sequence, parts are contiguous, and later ranks have more
to do than earlier ones. Where the model hands on a mask of its own, its rows are taken, and all products are computed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.nn.attention.bias import causal_lower_right
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from meshwright.runtime.model.as_given import compiled_parts
from meshwright.runtime.model.sequence import in_order, part_of_sequence, ranges_of
from meshwright.runtime.parallel import tensor_parallel, written_out

__all__ = ["InContext", "enter_context", "gathered", "leave_context", "spans_context"]

Whole = Callable[[torch.Tensor], torch.Tensor]
"""From this rank's keys or values to those of all ranks."""


def spans_context(n_layers: int, op: int) -> bool:
    """Whether a layer works on parts of sequences: all but the first and the last, which hold positions, table and head."""
    return n_layers <= 2 or 0 < op < n_layers - 1


def gathered(mesh: DeviceMesh) -> Whole:
    """Return the function that puts keys or values together along the sequence, their last dimension but one."""

    def whole(value: torch.Tensor) -> torch.Tensor:
        parts = DTensor.from_local(value, mesh, [Shard(value.dim() - 2)], run_check=False)
        result: torch.Tensor = parts.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
        return result

    return whole


def enter_context(mesh: DeviceMesh, degree: int) -> Any:
    """Return a function that keeps this rank's part of the sequence of every hidden state."""
    enter = tensor_parallel.enter_sequence(mesh)

    def relay(carried: tuple[torch.Tensor, ...]) -> Any:
        return enter(tuple(_each(value, lambda one: _by_rank(one, degree)) for value in carried))

    return relay


def leave_context(mesh: DeviceMesh, degree: int) -> Any:
    """Return a function that puts the sequence of every hidden state together again."""
    leave = tensor_parallel.leave_sequence(mesh)

    def relay(carried: tuple[torch.Tensor, ...]) -> Any:
        return tuple(_each(value, lambda one: in_order(one, 1, degree)) for value in leave(carried))

    return relay


def _by_rank(value: torch.Tensor, degree: int) -> torch.Tensor:
    """Return hidden states with the parts of all ranks one after the other."""
    return torch.cat([part_of_sequence(value, 1, rank, degree) for rank in range(degree)], 1)


def _each(value: torch.Tensor, change: Whole) -> torch.Tensor:
    """Return a hidden state changed; other tensors stay as they are."""
    return change(value) if value.dim() >= 3 and value.is_floating_point() else value


class _WholeKeys(TorchFunctionMode):
    """Gives attention all keys and values that its queries see, and the rows of its mask that belong to this rank's queries."""

    def __init__(self, whole: Whole, rank: int, degree: int) -> None:
        super().__init__()
        self.whole, self.rank, self.degree = whole, rank, degree

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of PyTorch."""
        if func is written_out.attend:
            return self._written_out(*args, **(kwargs or {}))
        if func is not nn.functional.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        given = dict(zip(("query", "key", "value", "attn_mask", "dropout_p", "is_causal"), args, strict=False)) | (kwargs or {})
        length, mask = given["query"].shape[-2] * self.degree, given.get("attn_mask")
        given |= {name: _as_autocast(given[name]) for name in ("query", "key", "value")}
        given |= {name: in_order(self.whole(given[name]), -2, self.degree) for name in ("key", "value")}
        mask = self._own_rows(mask, length)
        if mask is None and given.get("is_causal"):
            return self._causal(func, given, length)
        return func(**given | {"attn_mask": mask, "is_causal": False})

    def _own_rows(self, mask: torch.Tensor | None, length: int) -> torch.Tensor | None:
        """Return the rows of a mask that belong to this rank's queries."""
        if mask is None or mask.shape[-2] != length:
            return mask
        return part_of_sequence(mask, mask.dim() - 2, self.rank, self.degree)

    def _written_out(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        **options: Any,
    ) -> Any:
        """Return attention as the model writes it out, of this rank's queries to all keys."""
        key, value = (in_order(self.whole(part), -2, self.degree) for part in (key, value))
        return written_out.attend(module, query, key, value, self._own_rows(mask, query.shape[-2] * self.degree), **options)

    def _causal(self, func: Any, given: dict[str, Any], length: int) -> torch.Tensor:
        """Return attention of this rank's queries, a chunk of them at a time, to the keys up to its end."""
        ranges, results = ranges_of(length, self.rank, self.degree), []
        queries = given["query"].split([stop - start for start, stop in ranges], -2)
        for (start, stop), query in zip(ranges, queries, strict=True):
            seen = {name: given[name][..., :stop, :] for name in ("key", "value")}
            mask = _up_to_the_last(stop - start, stop) if start else None
            results.append(func(**given | seen | {"query": query, "attn_mask": mask, "is_causal": mask is None}))
        return torch.cat(results, -2)


def _as_autocast(value: torch.Tensor) -> torch.Tensor:
    """Return what attention is given in the type that autocast runs it in, which masks of a class of their own do not meet."""
    device = value.device.type
    if not torch.is_autocast_enabled(device) or not value.is_floating_point() or value.dtype == torch.float64:
        return value
    return value.to(torch.get_autocast_dtype(device))


@cache
def _up_to_the_last(n_queries: int, n_keys: int) -> Any:
    """Return the causal mask, aligned to the last key, of so many queries and keys."""
    with _disable_current_modes():  # selective recomputation watches operators, and masks are made by one
        return causal_lower_right(n_queries, n_keys)  # type: ignore[no-untyped-call]


class InContext(nn.Module):
    """A layer that works on a part of every sequence.

    It runs as it is written, also where the model compiles it: PyTorch's compiler does not follow the exchange of keys and
    values everywhere.

    `layer`: the layer; one of a Hugging Face model is told which positions are its own.
    `whole`: see `gathered`.
    `rank`, `degree`: place on the context axis, and its length.
    """

    def __init__(self, layer: nn.Module, whole: Whole, rank: int, degree: int) -> None:
        super().__init__()
        self.layer, self.told = layer, (whole, rank, degree)
        written_out.hand_over(layer)
        for part in compiled_parts(layer):
            part._compiled_call_impl = None
            if hasattr(part, "_orig_mod"):
                part.forward = part._orig_mod  # type: ignore[method-assign,assignment]
        if hasattr(layer, "positions"):
            layer.positions = (rank, degree)  # type: ignore[assignment]

    def forward(self, *carried: torch.Tensor) -> Any:
        """Run the layer."""
        with _WholeKeys(*self.told):
            return self.layer(*carried)
