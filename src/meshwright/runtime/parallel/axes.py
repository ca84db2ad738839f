"""The layers of a stage, split over its tensor, context and expert axes,
and what is done to hidden states on the way in and out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from meshwright.core.strategy import Strategy
from meshwright.runtime.parallel import tensor_parallel
from meshwright.runtime.parallel.context_parallel import InContext, enter_context, gathered, leave_context, spans_context
from meshwright.runtime.parallel.experts import ExpertParallel, over_group, spread
from meshwright.runtime.parallel.products import Owner, RankOrder
from meshwright.runtime.ranks.meshes import StageGroups

__all__ = ["SplitLayers", "split_layers"]


class SplitLayers:
    """Layers as one rank runs them, collected one after the other.

    `layers`: in order.
    `before`: changes of hidden states before a layer, by its place; under the number of layers, after the last.
    `partial` (dict of str to list of (torch.nn.Module, str)): weights whose gradients the ranks of an axis, ``tensor`` or
    ``context``, hold in parts.
    `orders`: how weights lie that do not lie as in the model.
    `parts`: of every layer, which part of a sequence this rank runs it on; 0 also where it runs it on all.
    """

    def __init__(self) -> None:
        self.layers: list[nn.Module] = []
        self.before: dict[int, list[Callable[..., Any]]] = {}
        self.partial: dict[str, list[Owner]] = {"tensor": [], "context": []}
        self.orders: dict[Owner, RankOrder] = {}
        self.parts: list[int] = []


def split_layers(
    units: Sequence[nn.Module],
    places: Sequence[tuple[int, int]],
    strategy: Strategy,
    groups: StageGroups,
    tp_plan: dict[str, str],
) -> SplitLayers:
    """Split the layers of a stage over its axes.

    `units`: the layers whole; changed in place.
    `places`: of each layer its number in the model, and how many there are.
    `tp_plan`: see `meshwright.runtime.parallel.tensor_parallel.styles`.
    """
    found = SplitLayers()
    split, spanned = [], []
    for i, (unit, (op, n_layers)) in enumerate(zip(units, places, strict=True)):
        layer = unit
        if strategy.expert > 1:
            spread(unit, groups.expert_index, strategy.expert, over_group(groups.expert))
        if strategy.tensor > 1 and tensor_parallel.styles(unit, tp_plan):
            split.append(i)
            partial, orders = tensor_parallel.parallelize(unit, groups.tensor_mesh, tp_plan, strategy.sequence_parallel)
            found.partial["tensor"] += partial
            found.orders.update(orders)
        if strategy.context > 1 and (i in split or spans_context(n_layers, op)):
            spanned.append(i)
            found.partial["context"] += [
                (module, name) for module in unit.modules() for name, _ in module.named_parameters(recurse=False)
            ]
            layer = InContext(unit, gathered(groups.context_mesh), groups.context_index, strategy.context)
        found.layers.append(layer)
        found.parts.append(0)
    experts = {
        part for unit in units for module in unit.modules() if isinstance(module, ExpertParallel) for part in module.modules()
    }
    found.partial.update(
        {axis: [owner for owner in owners if owner[0] not in experts] for axis, owners in found.partial.items()}
    )
    mesh, degree = groups.context_mesh, strategy.context
    if spanned:
        ends = enter_context(mesh, degree), leave_context(mesh, degree)
        _split_sequence(found, units, spanned, ends, degree, groups.context_index)
    if strategy.sequence_parallel and split:
        ends = tensor_parallel.enter_sequence(groups.tensor_mesh), tensor_parallel.leave_sequence(groups.tensor_mesh)
        _split_sequence(found, units, split, ends, strategy.tensor, groups.tensor_index)
    return found


def _split_sequence(
    found: SplitLayers, units: Sequence[nn.Module], inside: Sequence[int], ends: tuple[Any, Any], n_parts: int, part: int
) -> None:
    """Keep a part of every sequence from the first of some layers to the last; what was split first is put together last."""
    for i in range(inside[0], inside[-1] + 1):
        found.parts[i] = found.parts[i] * n_parts + part
    found.before.setdefault(inside[0], []).append(ends[0])
    found.before.setdefault(inside[-1] + 1, []).insert(0, ends[1])
    for i in inside:
        if hasattr(units[i], "n_parts"):  # of a Hugging Face model
            units[i].n_parts *= n_parts  # type: ignore[assignment,operator]
