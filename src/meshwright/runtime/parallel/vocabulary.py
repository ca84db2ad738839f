"""Word tables and heads split by words over a tensor axis, whose ranks each look up and multiply their own."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from meshwright.base.errors import InputError
from meshwright.core.plan import Plan
from meshwright.runtime.model.in_place import let_change
from meshwright.runtime.parallel import tensor_parallel

__all__ = ["VocabularySplit", "check_classes", "left_whole", "of_own_loss", "split", "vocabulary_split"]


@dataclass(frozen=True, slots=True)
class VocabularySplit:
    """What of a stage is split by words.

    `table`, `head`: paths of a table in the first layer of the model and of a linear layer in the last, in these layers; empty
    where they are not split, or not of this stage.
    `reasons`: why what might be split is not.
    """

    table: str = ""
    head: str = ""
    reasons: tuple[str, ...] = ()


def vocabulary_split(units: Sequence[nn.Module], plan: Plan, stage: int, tp_plan: Mapping[str, str]) -> VocabularySplit:
    """Return what of a stage is split by words over its tensor axis.

    `units`: all layers of the model, whole; the first and the last say where their table and head are (`token_table`,
    `class_product`), where they know.
    `tp_plan`: see `meshwright.runtime.parallel.tensor_parallel.styles`; ``whole`` keeps a table or head whole.
    """
    part, strategy = plan.stages[stage], plan.stages[stage].strategy
    if strategy.tensor == 1:
        return VocabularySplit()
    n_pieces = strategy.tensor * ((strategy.shard_degree or strategy.data) if strategy.shard == 3 else 1)
    first, last = units[0], units[-1]
    known = {"table": (first, "token_table", 0), "head": (last, "class_product", len(units) - 1)}
    said = {name: (unit, _said(unit, word)) for name, (unit, word, op) in known.items() if op in part.ops}
    found = {name: told for name, told in said.items() if told[1]}
    reasons = {name: _against(unit, path, n_pieces, tp_plan) for name, (unit, path) in found.items()}
    chosen = {unit.get_submodule(path) for name, (unit, path) in found.items() if not reasons[name]}
    holders = [module for unit in dict.fromkeys(units) for module in unit.modules()]
    for name, (unit, path) in found.items():
        weight = unit.get_submodule(path).weight
        others = {module for module in holders if any(own is weight for own in module._parameters.values())} - chosen
        if not reasons[name] and others:
            reasons[name] = "its weights are those of a layer that is not split, or of another stage, too"
    held = {name: path for name, (_, path) in found.items() if not reasons[name]}
    told = tuple(f"{path}: {reasons[name]}" for name, (_, path) in found.items() if reasons[name])
    return VocabularySplit(held.get("table", ""), held.get("head", ""), told)


def _said(unit: nn.Module, word: str) -> str:
    """Return the path that a layer says of itself; empty where it says none."""
    found: Any = getattr(unit, word, None)
    return str(found or "")


def _against(unit: nn.Module, path: str, n_pieces: int, tp_plan: Mapping[str, str]) -> str:
    """Return why a table or a head cannot be split by itself; nothing where it can."""
    module = unit.get_submodule(path)
    if any(style == "whole" and fnmatch.fnmatch(path, f"*{pattern}") for pattern, style in tp_plan.items()):
        return "the model wishes it whole"
    if tensor_parallel.styles(unit, tp_plan):
        return "its layer is split otherwise"
    if type(module) is not nn.Linear and not isinstance(module, nn.Embedding):
        return f"it is a {type(module).__name__}, no nn.Linear or nn.Embedding"
    if isinstance(module, nn.Embedding) and (module.max_norm is not None or module.scale_grad_by_freq or module.sparse):
        return "it has a norm, frequencies or sparse gradients of its own"
    n_words = len(module.weight)  # type: ignore[arg-type]
    return f"its {n_words} words do not divide by {n_pieces}" if n_words % n_pieces else ""


def left_whole(units: Sequence[nn.Module], plan: Plan, tp_plan: Mapping[str, str]) -> list[str]:
    """Return sentences about tables and heads that every rank of a tensor group holds whole.

    `units`, `tp_plan`: see `vocabulary_split`.
    """
    found = []
    for stage, name in dict.fromkeys(((0, "word table"), (len(plan.stages) - 1, "head"))):
        degree = plan.stages[stage].strategy.tensor
        told = vocabulary_split(units, plan, stage, tp_plan)
        if degree == 1 or (told.head if name == "head" else told.table):
            continue
        unit, attribute = (units[-1], "class_product") if name == "head" else (units[0], "token_table")
        path = _said(unit, attribute)
        why = next((reason for reason in told.reasons if path and reason.startswith(f"{path}: ")), "none was recognised")
        found.append(
            f"the {name} stays whole on every rank of a tensor group ({why}); the plan is priced with it split, in time and "
            "memory"
        )
    return found


def of_own_loss(units: Sequence[nn.Module], plan: Plan, tp_plan: Mapping[str, str]) -> list[str]:
    """Return a sentence about what a loss of the user's own is given, where each rank has some classes.

    `units`, `tp_plan`: see `vocabulary_split`.
    """
    if not vocabulary_split(units, plan, len(plan.stages) - 1, tp_plan).head:
        return []
    return [
        f"the head is split by words over {plan.stages[-1].strategy.tensor} ranks: a loss of your own is given all logits, put "
        "together on each of them"
    ]


def check_classes(unit: nn.Module, path: str, entering: Sequence[torch.Tensor], degree: int, place: str) -> None:
    """Refuse a head of which some classes alone are not what they are among all.

    `unit`: the model's last layer, whole. `path`: of its head. `entering`: what it takes.
    Raises `InputError` when what follows the product mixes classes.
    """

    def run(rank: int) -> torch.Tensor:
        def own(_: nn.Module, __: Any, output: torch.Tensor) -> torch.Tensor:
            return output.chunk(degree, -1)[rank] if rank >= 0 else output

        handle = unit.get_submodule(path).register_forward_hook(own)
        try:
            with torch.no_grad():
                result: torch.Tensor = unit(*entering)[0]
            return result
        finally:
            handle.remove()

    help_ = f"say in the model that it stays whole: tensor_parallel = {{..., '{path.rpartition('.')[2]}': 'whole'}}"
    try:
        joined, expected = torch.cat([run(rank) for rank in range(degree)], -1), run(-1)
    except (RuntimeError, IndexError, ValueError) as error:
        raise InputError(f"{place}: split by classes over {degree} ranks, it cannot run: {error}; {help_}") from None
    if joined.shape != expected.shape or not torch.allclose(joined, expected, rtol=1e-4, atol=1e-6):
        raise InputError(f"{place}: split by classes over {degree} ranks, it computes something else than whole; {help_}")


def split(first: nn.Module, last: nn.Module, found: VocabularySplit, mesh: DeviceMesh) -> None:
    """Split table and head by words, in place; each rank looks up and multiplies its own.

    `first`, `last`: the layers of the model that hold them. `mesh`: the tensor axis.
    """
    table = first.get_submodule(found.table) if found.table else None
    head = last.get_submodule(found.head) if found.head else None
    shared = table is not None and head is not None and table.weight is head.weight
    if head is not None:
        parallelize_module(last, mesh, {found.head: ColwiseParallel()})
        let_change(head)
    if table is None:
        return
    assert isinstance(table, nn.Embedding)
    if shared:
        assert head is not None
        table.weight = head.weight  # type: ignore[assignment]
    else:
        part = distribute_tensor(table.weight.detach(), mesh, [Shard(0)])
        table.weight = nn.Parameter(part, requires_grad=table.weight.requires_grad)
    kind = type(table)  # what a class of the model's own does with rows, it does with those of all ranks
    table.__class__ = _SplitTable if kind is nn.Embedding else type(kind.__name__, (kind, _SplitTable), {})
    let_change(table)
    table.words = (mesh, mesh.get_local_rank() * (table.num_embeddings // mesh.size()))  # type: ignore[assignment]


class _SplitTable(nn.Embedding):
    """A table of which this rank holds some words: the others' rows come from other ranks.

    `words`: the mesh of the ranks, and the first word of this one.
    """

    words: tuple[DeviceMesh, int]

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of all words."""
        (mesh, first), weight = self.words, self.weight
        assert isinstance(weight, DTensor)
        n_words = self.num_embeddings // mesh.size()
        padding = -1 if self.padding_idx is None else self.padding_idx - first
        known = (ids >= first) & (ids < first + n_words)
        rows = nn.functional.embedding(
            (ids - first).masked_fill(~known, 0),
            weight.to_local(grad_placements=[Shard(0)]),
            padding if 0 <= padding < n_words else None,
        )
        share = DTensor.from_local(rows.masked_fill(~known.unsqueeze(-1), 0.0), mesh, [Partial()], run_check=False)
        made: torch.Tensor = share.redistribute(placements=[Replicate()]).to_local(grad_placements=[Replicate()])
        return made
