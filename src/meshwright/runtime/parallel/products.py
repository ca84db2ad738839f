"""Products that can be split over a tensor axis: ``nn.Linear``, and ``Conv1D`` of ``transformers``, which keeps its weight the
other way round; and those whose outputs are several parts one after the other: queries, keys and values, or gate and up.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle

from meshwright.base.errors import InputError

__all__ = ["Owner", "RankOrder", "TransposedParallel", "axis_of", "in_rank_order", "is_product", "parts_of", "size_of"]

Owner = tuple[nn.Module, str]
"""A module and the name of one of its parameters: sharding later puts another object at that name."""

_QUERIES_KEYS_VALUES = re.compile(r"^(c_attn|qkv_proj|qkv|Wqkv)$")
_GATE_AND_UP = re.compile(r"^gate_up_proj$")
_SHARES = re.compile(r"\d{1,9}(:\d{1,9})+")


@dataclass(frozen=True, slots=True)
class RankOrder:
    """How an axis of a weight lies while it is split: what each rank holds of every part stands together.

    `axis`: of the weight.
    `parts`: lengths of the parts, in the model's order.
    `degree`: ranks; divides each length.
    """

    axis: int
    parts: tuple[int, ...]
    degree: int

    def runs(self) -> list[tuple[int, int, int]]:
        """Return where stretches begin as they lie, how long they are, and where they begin in the model's weight."""
        found, place = [], 0
        for rank in range(self.degree):
            start = 0
            for part in self.parts:
                length = part // self.degree
                found.append((place, length, start + rank * length))
                place, start = place + length, start + part
        return found

    def index(self) -> torch.Tensor:
        """Return the place in the model's weight of everything along the axis, as it lies."""
        return torch.cat([torch.arange(start, start + length) for _, length, start in self.runs()])

    def restored(self, whole: torch.Tensor) -> torch.Tensor:
        """Return a weight, put together from all ranks, in the model's order."""
        return whole.index_select(self.axis, self.index().argsort().to(whole.device))


def is_product(module: nn.Module) -> bool:
    """Whether a module multiplies by a weight that can be split."""
    return isinstance(module, nn.Linear) or _is_transposed(module)


def _is_transposed(module: nn.Module) -> bool:
    """Whether a module is a ``Conv1D``: inputs along the first axis of its weight, outputs along the second."""
    return type(module).__name__ == "Conv1D" and all(type(getattr(module, name, None)) is int for name in ("nx", "nf"))


def axis_of(product: nn.Module, style: str) -> int:
    """Return the axis along which the weight of a product is split.

    `style`: ``column`` (outputs) or ``row`` (inputs).
    """
    return int((style == "row") != _is_transposed(product))


def size_of(product: nn.Module, style: str) -> int:
    """Return how many outputs (``column``) or inputs (``row``) a product has."""
    weight: Any = product.weight
    return int(weight.shape[axis_of(product, style)])


def parts_of(layer: nn.Module, path: str, wish: str) -> tuple[int, ...]:
    """Return the lengths of the parts that the outputs of a product consist of; one where they are all of a kind.

    Parameters
    ----------
    layer : torch.nn.Module
        The layer, whole.
    path : str
        Of the product in it; where an adapter stands around it, of what is adapted.
    wish : str
        What the model says: ``column`` is one part, ``column 4:1:1`` three in these shares; empty where the name decides.

    Raises
    ------
    InputError
        When what the model says are no shares, or not of this product.

    Notes
    -----
    Names tell that there are parts, and the numbers of heads of the configuration how long those of keys and values are;
    `meshwright.runtime.parallel.shard_equivalence.check_sum` tries whether that is right.
    """
    parent, _, name = path.rpartition(".")
    product = layer.get_submodule(path)
    size = size_of(getattr(product, "base_layer", product), "column")
    shares, told = [1], wish.partition(" ")[2]
    if told:
        shares = [int(word) for word in told.split(":")] if _SHARES.fullmatch(told) else [0]
        if not all(shares) or size % sum(shares):
            raise InputError(
                f"tensor_parallel: '{wish}' of {path}: its {size} outputs are no parts of {told}; say 'column 4:1:1'"
            )
    elif not wish and _QUERIES_KEYS_VALUES.search(name):
        config = getattr(layer.get_submodule(parent), "config", None)
        n_heads, n_groups = (getattr(config, f"num_{kind}_heads", None) for kind in ("attention", "key_value"))
        shares = [n_heads, n_groups, n_groups] if n_heads and n_groups else [1, 1, 1]
    elif not wish and _GATE_AND_UP.search(name):
        shares = [1, 1]
    total = sum(shares)
    return tuple(size * share // total for share in shares) if size % total == 0 else (size,)


def in_rank_order(product: nn.Module, parts: Sequence[int], degree: int) -> dict[Owner, RankOrder]:
    """Let what each rank holds of every part stand together in the weight and bias of a product, in place.

    `product`: whole. `parts`: see `parts_of`. Returns: how they lie, by their place; nothing where there is one part.
    """
    found: dict[Owner, RankOrder] = {}
    if len(parts) == 1:
        return found
    for name, parameter in product.named_parameters(recurse=False):
        order = RankOrder(axis_of(product, "column") if parameter.dim() > 1 else 0, tuple(parts), degree)
        parameter.data = parameter.data.index_select(order.axis, order.index().to(parameter.device))
        found[product, name] = order
    return found


class TransposedParallel(ParallelStyle):
    """Splits a ``Conv1D`` as ``ColwiseParallel`` and ``RowwiseParallel`` split linear layers.

    `style`: ``column`` or ``row``.
    `sequence`: of a column product whether its inputs, of a row product whether its outputs are parts of sequences.
    """

    def __init__(self, style: str, *, sequence: bool) -> None:
        super().__init__()
        self.style, self.whole = style, Shard(1) if sequence else Replicate()

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        column = self.style == "column"
        placed = {"weight": Shard(axis_of(module, self.style)), "bias": Shard(0) if column else Replicate()}

        def partition(_: str, part: nn.Module, mesh: DeviceMesh) -> None:
            for name, parameter in list(part.named_parameters(recurse=False)):
                own = distribute_tensor(parameter, mesh, [placed[name]], src_data_rank=self.src_data_rank)
                part.register_parameter(name, nn.Parameter(own, requires_grad=parameter.requires_grad))

        def enter(_: nn.Module, inputs: tuple[torch.Tensor, ...], mesh: DeviceMesh) -> DTensor:
            given = inputs[0]
            if not isinstance(given, DTensor):  # as what a module has gathered once for all its products
                given = DTensor.from_local(given, mesh, [self.whole if column else Shard(-1)], run_check=False)
            return given.redistribute(placements=[Replicate()]) if column else given

        def leave(_: nn.Module, output: DTensor, mesh: DeviceMesh) -> torch.Tensor:
            local: torch.Tensor = output.redistribute(placements=[Shard(-1) if column else self.whole]).to_local()
            return local

        hooks: tuple[Any, Any] = enter, leave  # declared as if they returned nothing
        return distribute_module(module, device_mesh, partition, *hooks)
