"""Groups of weights that an optimizer treats unlike, said by the names of the whole model, over whatever each rank holds."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from meshwright.base.errors import InputError
from meshwright.runtime.parallel.sharding import StageWeights

__all__ = ["GroupOf", "WeightGroups", "grouped_optimizer", "groups_of"]

GroupOf = Mapping[str, Mapping[str, Any]] | Callable[[str, tuple[int, ...]], Mapping[str, Any]]
"""Options of an optimizer by pattern of names (the first that fits counts), or from name and whole shape to options."""


class WeightGroups:
    """Groups of weights, the same in every process.

    `options`: of each group, in order.
    `number`: the group of every trained weight, by name.
    """

    def __init__(self, options: Sequence[Mapping[str, Any]], number: Mapping[str, int]) -> None:
        self.options, self.number = tuple(options), dict(number)


def groups_of(trained: Mapping[str, tuple[int, ...]], told: GroupOf | None) -> WeightGroups:
    """Return the group of every weight.

    `trained`: names and whole shapes of the model's trained weights, in its order.
    `told`: see `GroupOf`; None for one group.
    Raises `InputError` when a pattern fits no name, or the function gives no options.
    """
    given: Callable[[str, tuple[int, ...]], Mapping[str, Any]] = told if callable(told) else (lambda *_: {})
    if told is not None and not callable(told):
        patterns = told
        for pattern in patterns:
            if not fnmatch.filter(trained, pattern):
                raise InputError(f"groups: the pattern '{pattern}' fits no trained weight; they are called {_some(trained)}")

        def given(name: str, _: tuple[int, ...]) -> Mapping[str, Any]:
            return next((options for pattern, options in patterns.items() if fnmatch.fnmatchcase(name, pattern)), {})

    options: list[dict[str, Any]] = []
    number = {}
    for name, shape in trained.items():
        found = given(name, shape)
        if not isinstance(found, Mapping):
            raise InputError(f"groups: gave a {type(found).__name__} for '{name}'; give the options of its group, as a mapping")
        if dict(found) not in options:
            options.append(dict(found))
        number[name] = options.index(dict(found))
    return WeightGroups(options or [{}], number)


def _some(names: Mapping[str, Any]) -> str:
    return ", ".join(list(names)[:6]) + (", ..." if len(names) > 6 else "")


def grouped_optimizer(
    weights: Sequence[StageWeights],
    name_of: Mapping[nn.Parameter, str],
    groups: WeightGroups,
    make: Callable[[list[dict[str, Any]]], torch.optim.Optimizer],
    device: torch.device,
) -> torch.optim.Optimizer:
    """Return one optimizer for everything that this rank updates, in groups that are the same in every process.

    `weights`: of the stages of this rank.
    `name_of`: names of their weights.
    `make`: from groups, as ``torch.optim`` takes them, to an optimizer.
    `device`: where a group is that has nothing on this rank, and gets a weight of nobody's.

    Notes
    -----
    What `foreach` and fused optimizers cannot treat at once (plain tensors, and those split over unlike meshes) stands in
    groups of its own, with the same options.
    """
    number = {weight: groups.number[name] for weight, name in name_of.items()}
    kinds: list[list[tuple[Any, list[nn.Parameter]]]] = [[] for _ in groups.options]
    seen: set[int] = set()
    for stage in weights:
        stage.regroup(number if len(groups.options) > 1 else {})
        for group, parameter in stage.grouped():
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            kind = parameter.device_mesh if isinstance(parameter, DTensor) else None  # type: ignore[attr-defined]
            known = next((members for other, members in kinds[group] if other == kind), None)
            if known is None:
                kinds[group].append((kind, [parameter]))
            else:
                known.append(parameter)
    n_kinds = torch.tensor([max(1, len(kind)) for kind in kinds], device=device)
    dist.all_reduce(n_kinds, op=dist.ReduceOp.MAX)
    made: list[dict[str, Any]] = []
    for options, held, most in zip(groups.options, kinds, n_kinds.tolist(), strict=True):
        members = [own for _, own in held] + [[nn.Parameter(torch.zeros(1, device=device))] for _ in range(most - len(held))]
        made += [{"params": own, **options} for own in members]
    optimizer = make(made)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(f"the optimizer's function gave a {type(optimizer).__name__}; it must give a torch.optim.Optimizer")
    return optimizer
