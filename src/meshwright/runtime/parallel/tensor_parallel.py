"""Tensor and sequence parallelism of a layer, by DTensor: which products are split,
and how the layer's input and output lie.
"""

from __future__ import annotations

import copy
import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from meshwright.base.errors import InputError
from meshwright.runtime.model.in_place import changeable, let_change
from meshwright.runtime.parallel.own_draws import draw_apart
from meshwright.runtime.parallel.products import (
    Owner,
    RankOrder,
    TransposedParallel,
    in_rank_order,
    is_product,
    parts_of,
    size_of,
)

__all__ = [
    "Owner",
    "between",
    "check",
    "column_parts",
    "enter_sequence",
    "gather_hook",
    "gathers",
    "head_weights",
    "leave_sequence",
    "own_heads",
    "parallelize",
    "share_sizes",
    "shared_columns",
    "styles",
    "sum_shared",
    "wishes_of",
]

_COLUMN = re.compile(
    r"(^|\.)(q_proj|k_proj|v_proj|wq|wk|wv|query|key|value|q|k|v|gate_proj|up_proj|gate|up|w1|w3|wi|wi_0|wi_1|fc1|fc_in|dense_h_to_4h|q_b_proj|kv_b_proj"
    r"|c_attn|c_fc|qkv_proj|qkv|Wqkv|gate_up_proj|intermediate\.dense)$"
)
_ROW = re.compile(r"(^|\.)(o_proj|wo|out_proj|c_proj|down_proj|down|w2|fc2|fc_out|dense_4h_to_h|o|out|output\.dense)$")
_ADAPTER = re.compile(r"^(.+)\.(base_layer|lora_A|lora_B)(?:\.\w+)?$")
_N_HEADS = re.compile(r"^_?(n|num|nb)_(\w+_)?heads?$|^nhead$|^heads$")
_HEAD_WEIGHT = re.compile(r"^sinks?$")
_HEAD_NORM = re.compile(r"(^|\.)(q_norm|k_norm|query_norm|key_norm)$")


def styles(layer: nn.Module, tp_plan: Mapping[str, str], prefix: str = "") -> dict[str, str]:
    """Return how each product inside a layer is split: ``column`` (outputs) or ``row`` (inputs).

    `tp_plan`: patterns of paths and ``column`` (``column 4:1:1`` where the outputs are parts, see
    `meshwright.runtime.parallel.products.parts_of`), ``row``, ``whole`` or ``between`` (see `between`): the model's own
    ``tensor_parallel`` attribute, or the plan of a Hugging Face configuration (``colwise``, ``rowwise``). Where there is
    none, the names that most models use decide. Adapters are split as the product that they stand around.
    `prefix`: path of the layer in the model, for the patterns.
    """
    found: dict[str, str] = {}
    for path, module in layer.named_modules():
        if not is_product(module):
            continue
        known, part = _adapted(path)
        wished = _wish(f"{prefix}.{known}" if prefix else known, tp_plan)
        if not wished:
            wished = "column" if _COLUMN.search(known) else "row" if _ROW.search(known) else ""
        style = next((style for style in ("column", "row") if wished.startswith(style[:3])), "")
        if style and part != {"column": "lora_A", "row": "lora_B"}[style]:  # these work on what is whole, or was added up
            found[path] = style
    return found if "column" in found.values() and "row" in found.values() else {}


def column_parts(layer: nn.Module, tp_plan: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    """Return column products, and of each the lengths of the parts that its outputs consist of.

    `tp_plan`: see `styles`. Raises `InputError` as `meshwright.runtime.parallel.products.parts_of` does.
    """
    columns = {path: _adapted(path)[0] for path, style in styles(layer, tp_plan).items() if style == "column"}
    return {path: parts_of(layer, known, _wish(known, tp_plan)) for path, known in columns.items()}


def _adapted(path: str) -> tuple[str, str]:
    """Return the path of the product that a linear layer belongs to where an adapter (of ``peft``) stands around it, and which
    part of it this is: ``base_layer``, ``lora_A``, ``lora_B``; else its own path, and nothing.
    """
    found = _ADAPTER.match(path)
    return (found[1], found[2]) if found else (path, "")


def _wish(path: str, tp_plan: Mapping[str, str]) -> str:
    return next((style for pattern, style in tp_plan.items() if fnmatch.fnmatch(path, f"*{pattern}")), "")


def between(layer: nn.Module, tp_plan: Mapping[str, str]) -> set[str]:
    """Return paths of modules whose weights stay whole but work on split values: norms of heads, attention with a weight of
    each head, and what the model names so.
    """
    named = {path for path, _ in layer.named_modules() if _HEAD_NORM.search(path) or _wish(path, tp_plan) == "between"}
    return named | set(head_weights(layer, tp_plan))


def head_weights(layer: nn.Module, tp_plan: Mapping[str, str]) -> dict[str, str]:
    """Return modules of column products whose only weight of their own has a number for each query head, and its name: sinks,
    to which attention may go instead of to a token.
    """
    columns = (path for path, style in styles(layer, tp_plan).items() if style == "column")
    found = {}
    for path in dict.fromkeys(_adapted(path)[0].rpartition(".")[0] for path in columns):
        own = list(layer.get_submodule(path).named_parameters(recurse=False))
        if len(own) == 1 and own[0][1].dim() == 1 and _HEAD_WEIGHT.search(own[0][0]):
            found[path] = own[0][0]
    return found


def own_heads(layer: nn.Module, rank: int, degree: int, tp_plan: Mapping[str, str]) -> None:
    """Let modules with a weight of each head use those of one rank's heads, in place; the weight stays whole.

    `rank`, `degree`: place on the tensor axis, and its length.
    """
    for path, name in head_weights(layer, tp_plan).items():
        module, own = layer.get_submodule(path), _OwnHeads(name, rank, degree)
        module.register_forward_pre_hook(own.take)
        module.register_forward_hook(own.give_back, always_call=True)  # recomputation ends by an exception


class _OwnHeads:
    """Puts a part of a weight in its place while its module runs."""

    def __init__(self, name: str, rank: int, degree: int) -> None:
        self.name, self.rank, self.degree = name, rank, degree
        self.whole: Any = None

    def take(self, module: nn.Module, _: Any) -> None:
        """Put the part in the weight's place."""
        self.whole = module._parameters[self.name]
        module._parameters[self.name] = self.whole.chunk(self.degree)[self.rank]

    def give_back(self, module: nn.Module, _: Any, __: Any) -> None:
        """Put the weight where it was."""
        if self.whole is not None:
            module._parameters[self.name], self.whole = self.whole, None


def shared_columns(layer: nn.Module, tp_plan: Mapping[str, str]) -> dict[str, int]:
    """Return whole products of which some of the last outputs go to split values directly, and how many.

    That is the part of a key with positions that all heads of multi-head latent attention share (DeepSeek-V2, section 2.1.3):
    every rank has the gradient of its own heads, where that of the other outputs comes whole out of the next column product.
    """
    chosen, found = styles(layer, tp_plan), {}
    for path, module in layer.named_modules():
        inner = f"{path}.".removeprefix(".")
        n_shared = getattr(module, "qk_rope_head_dim", None)
        if type(n_shared) is int and chosen.get(f"{inner}kv_b_proj") == "column" and hasattr(module, "kv_a_proj_with_mqa"):
            found[f"{inner}kv_a_proj_with_mqa"] = n_shared
    return found


def sum_shared(n_shared: int, summed: Callable[[Any], Any]) -> Any:
    """Return a forward hook that lets the gradients of a product's last outputs be added up over ranks.

    `summed`: from a tensor that all ranks have to itself, with gradients added up.
    """

    def hook(_: nn.Module, __: Any, output: torch.Tensor) -> torch.Tensor:
        own, shared = output.split([output.shape[-1] - n_shared, n_shared], -1)
        return torch.cat([own, summed(shared)], -1)

    return hook


def share_sizes(layer: nn.Module, degree: int, tp_plan: Mapping[str, str]) -> None:
    """Divide the numbers by which modules with column products take their results apart: heads, also those of a configuration,
    and features of those products.

    `layer`: one layer, its products still whole; changed in place.
    `tp_plan`: see `styles`.

    Notes
    -----
    Many modules write ``view(batch, length, self.n_heads, self.head)``, where a rank has a part of the heads only. Whether it
    then computes the same is checked before anything starts, by `meshwright.runtime.parallel.shard_equivalence.check_sum`.
    """
    features: dict[str, set[int]] = {}
    for path, parts in column_parts(layer, tp_plan).items():
        features.setdefault(_adapted(path)[0].rpartition(".")[0], set()).update((*parts, sum(parts)))
    for path, sizes in features.items():
        module = layer.get_submodule(path)
        for name, value in list(vars(module).items()):
            if type(value) is int and value % degree == 0 and (value in sizes or _N_HEADS.search(name)):
                setattr(module, name, value // degree)
        if hasattr(module, "config"):  # which layers share, and some ask for heads
            module.config = copy.copy(module.config)
            for name, value in list(vars(module.config).items()):
                if type(value) is int and value % degree == 0 and _N_HEADS.search(name):
                    setattr(module.config, name, value // degree)


def wishes_of(model: nn.Module) -> dict[str, str]:
    """Return the patterns that a model brings along."""
    own = getattr(model, "tensor_parallel", None)
    if isinstance(own, Mapping):
        return {str(pattern): str(style) for pattern, style in own.items()}
    plan = getattr(getattr(model, "config", None), "base_model_tp_plan", None)
    if not isinstance(plan, Mapping):
        return {}
    return {pattern.rpartition("*.")[2]: style for pattern, style in plan.items() if style in ("colwise", "rowwise")}


def check(layer: nn.Module, name: str, degree: int, tp_plan: Mapping[str, str]) -> None:
    """Refuse a layer that cannot be split.

    Raises `InputError` when a product's size, a part of it, or the number of heads does not divide.
    """
    columns = column_parts(layer, tp_plan)
    for path, style in styles(layer, tp_plan).items():
        parts = columns.get(path) or (size_of(layer.get_submodule(path), style),)
        size = next((part for part in parts if part % degree), 0)
        if size:
            of = "" if len(parts) == 1 else f" of part {parts.index(size) + 1} of {len(parts)}"
            raise InputError(f"layer '{name}': tensor degree {degree} does not divide the {size} features{of} of {path}")
    inner = getattr(layer, "layer", layer)
    attention = next(
        (part for part in (getattr(inner, word, None) for word in ("self_attn", "attn")) if part is not None), None
    )
    config = getattr(inner, "config", None) or getattr(attention, "config", None)
    groups, heads = (getattr(config, f"num_{kind}_heads", None) for kind in ("key_value", "attention"))
    if (groups or heads or degree) % degree:
        kind = "key-value " if groups else ""
        raise InputError(f"layer '{name}': tensor degree {degree} does not divide its {groups or heads} {kind}heads")


def parallelize(
    layer: nn.Module, mesh: DeviceMesh, tp_plan: Mapping[str, str], sequence: bool
) -> tuple[list[Owner], dict[Owner, RankOrder]]:
    """Split the products of a layer over the tensor axis, in place.

    `tp_plan`: see `styles`.
    `sequence`: whether what lies between products is split along the sequence.
    Returns: weights that stay whole but whose gradients each rank holds a part of: the module that has one, and its name
    there; and how weights lie whose outputs are several parts.
    """
    chosen = styles(layer, tp_plan)
    if any(isinstance(layer.get_submodule(path).weight, DTensor) for path in chosen):
        return [], {}  # the same layer stands at an earlier place too
    columns, orders = column_parts(layer, tp_plan), {}
    share_sizes(layer, mesh.size(), tp_plan)
    for path, parts in columns.items():
        orders.update(in_rank_order(layer.get_submodule(path), parts, mesh.size()))
    row = RowwiseParallel(output_layouts=Shard(1)) if sequence else RowwiseParallel()
    inside = between(layer, tp_plan)
    once, each = gathers(layer, tp_plan) if sequence else (set(), set())
    if sequence:
        _gather_once(layer, mesh, once, columns.keys() - each)
    column, gathered = ColwiseParallel(), ColwiseParallel(input_layouts=Shard(1))
    layouts: dict[str, Any] = {}
    for path, style in chosen.items():
        layouts[path] = row if style == "row" else gathered if path in each else column
        if not isinstance(layer.get_submodule(path), nn.Linear):
            layouts[path] = TransposedParallel(style, sequence=sequence if style == "row" else path in each)
    parallelize_module(layer, mesh, layouts)
    for path in chosen:
        let_change(layer.get_submodule(path))
    for path, n_shared in shared_columns(layer, tp_plan).items():
        layer.get_submodule(path).register_forward_hook(sum_shared(n_shared, _summed(mesh)))
    own_heads(layer, mesh.get_local_rank(), mesh.size(), tp_plan)
    if not sequence:  # else the layer draws numbers of its own part throughout
        rows = [path for path, style in chosen.items() if style == "row"]
        draw_apart(layer, columns, rows, mesh.get_local_rank(), torch.device(mesh.device_type))
    partial = []
    for path, module in layer.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if not isinstance(parameter, DTensor) and (sequence or path in inside):
                partial.append((module, name))
    return partial, orders


def _gather_once(layer: nn.Module, mesh: DeviceMesh, modules: Iterable[str], products: Iterable[str]) -> None:
    """Let modules put the parts of a sequence together once for all products in them, in place, before these are split."""
    for path in products:
        layer.get_submodule(path).register_forward_pre_hook(_take_whole(mesh))
    for path in modules:
        layer.get_submodule(path).register_forward_pre_hook(gather_hook(_whole(mesh)), with_kwargs=True, prepend=True)


def gathers(layer: nn.Module, tp_plan: Mapping[str, str]) -> tuple[set[str], set[str]]:
    """Return where parts of a sequence are put together: modules whose input is gathered once,
    and products that gather their own.
    """
    chosen = styles(layer, tp_plan)
    known = {*chosen, *between(layer, tp_plan)}
    columns = {path for path, style in chosen.items() if style == "column"}
    parents = {path: _adapted(path)[0].rpartition(".")[0] for path in columns}
    once = {parent for parent in parents.values() if _only_products(layer.get_submodule(parent), parent, known)}
    return once, {path for path, parent in parents.items() if parent not in once}


def _only_products(module: nn.Module, place: str, known: set[str]) -> bool:
    """Whether a module holds nothing but split products and what lies between them: its input can be gathered once for all."""
    owners = (path for path, part in module.named_modules() if any(True for _ in part.parameters(recurse=False)))
    return all(f"{place}.{path}".strip(".") in known for path in owners)


def _whole(mesh: DeviceMesh) -> Callable[[Any], Any]:
    """Return the function that puts the parts of a sequence together, in a plain tensor from which a model may make others;
    each rank adds its part to the gradient.
    """

    def whole(value: Any) -> Any:
        parts = DTensor.from_local(value, mesh, [Shard(1)], run_check=False)
        return parts.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])

    return whole


class _Whole(torch.autograd.Function):
    """Hands a tensor that all ranks have to a product; what comes back is this rank's part of the gradient."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, mesh: DeviceMesh) -> Any:
        """Return it as a DTensor."""
        return DTensor.from_local(value, mesh, [Replicate()], run_check=False)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """Return the gradient as this rank has it, not added up: that is done once, where the sequence was put together."""
        if gradient.placements == (Partial(),):
            return gradient.to_local(), None
        return gradient.redistribute(placements=[Replicate()]).to_local() / gradient.device_mesh.size(), None


def _take_whole(mesh: DeviceMesh) -> Any:
    """Return a hook of a product whose input its module has put together."""

    def hook(_: nn.Module, arguments: tuple[Any, ...]) -> Any:
        return (_Whole.apply(arguments[0], mesh), *arguments[1:])  # type: ignore[no-untyped-call]

    return hook


def _summed(mesh: DeviceMesh) -> Callable[[Any], Any]:
    """Return the function that adds up the gradients of a tensor that all ranks have."""

    def summed(value: torch.Tensor) -> torch.Tensor:
        whole = DTensor.from_local(value, mesh, [Replicate()], run_check=False)
        return whole.to_local(grad_placements=[Partial()])

    return summed


def gather_hook(whole: Callable[[Any], Any]) -> Any:
    """Return a hook that puts the sequence of a module's first tensor together."""

    def hook(_: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if arguments and isinstance(arguments[0], torch.Tensor):
            return (whole(arguments[0]), *arguments[1:]), named
        for key, value in named.items():
            if isinstance(value, torch.Tensor) and value.dim() == 3 and value.is_floating_point():
                return arguments, {**named, key: whole(value)}
        return arguments, named

    return hook


def enter_sequence(mesh: DeviceMesh) -> Any:
    """Return a function that keeps this rank's part of the sequence of every hidden state."""
    return _relay(mesh, Replicate(), Shard(1))


def leave_sequence(mesh: DeviceMesh) -> Any:
    """Return a function that puts the sequence of every hidden state together again."""
    return _relay(mesh, Shard(1), Replicate())


def _relay(mesh: DeviceMesh, before: Any, after: Any) -> Any:
    def one(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() < 3 or not tensor.is_floating_point():
            return tensor
        whole = DTensor.from_local(tensor, mesh, [before], run_check=False)
        made: torch.Tensor = changeable(whole.redistribute(placements=[after]).to_local(grad_placements=[after]))
        return made

    def relay(carried: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return tuple(one(tensor) for tensor in carried)

    return relay
