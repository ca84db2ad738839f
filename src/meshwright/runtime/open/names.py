"""Weights of a model that is taken apart over ranks, under the names that they have in the whole model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from meshwright.runtime.parallel.experts import ExpertParallel
from meshwright.runtime.parallel.sharding import StageWeights
from meshwright.runtime.ranks.layout import Layout

__all__ = ["Names", "StateEntry", "Tensors"]


@dataclass(frozen=True, slots=True)
class StateEntry:
    """A tensor of the whole model's ``state_dict``.

    `key`: its name there.
    `name`: the first name of the same tensor, which may have several.
    `shape`, `dtype`: of the whole.
    """

    key: str
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


class Names:
    """Names of the tensors of a model, taken before it is cut.

    `model`: the whole model.
    """

    def __init__(self, model: nn.Module) -> None:
        self._first: dict[int, str] = {}
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            self._first.setdefault(id(tensor), name)
        state = model.state_dict(keep_vars=True)
        kept = {key: value for key, value in state.items() if isinstance(value, torch.Tensor)}
        self.left_out = tuple(key for key in state if key not in kept)
        self.entries = tuple(StateEntry(key, self._first.get(id(v), key), tuple(v.shape), v.dtype) for key, v in kept.items())
        self.trained = {self._first[id(p)]: tuple(p.shape) for p in model.parameters() if p.requires_grad}
        self.untouched: dict[str, torch.Tensor] = {}
        self._alive: tuple[torch.Tensor, ...] = (*model.parameters(), *model.buffers())  # what lives keeps its address

    def of_stages(self, units: Sequence[nn.Module], places: Layout) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
        """Return the names of the weights and of the buffers of every stage, in the order in which its layers hold them.

        `units`: the layers, whole.
        """
        found = []
        for stage in places.plan.stages:
            layers = nn.ModuleList([units[op] for op in stage.ops])
            held = (layers.parameters(), layers.buffers())
            found.append(tuple(tuple(self._first.get(id(tensor), "") for tensor in tensors) for tensors in held))
        known = {name for part in found for names in part for name in names}
        self.untouched = {self._first[id(t)]: t.detach() for t in self._alive if self._first[id(t)] not in known}
        self._alive = ()
        return tuple((weights, buffers) for weights, buffers in found)


def _buffers_of(module: nn.Module) -> list[tuple[nn.Module, str]]:
    """Return where buffers stand, in the order of ``module.buffers()``."""
    found: dict[int, tuple[nn.Module, str]] = {}
    for part in module.modules():
        for name, buffer in part._buffers.items():
            if buffer is not None:
                found.setdefault(id(buffer), (part, name))
    return list(found.values())


class Tensors:
    """The tensors of one rank under their names, and the whole model's put together from those of all ranks.

    `names`: of the whole model.
    `of_stages`: as `Names.of_stages` gives them.
    `places`: the plan as ranks.
    `rank`: this process.
    `weights`: of its stages, split and sharded.
    `device`: where it runs.
    """

    def __init__(
        self,
        names: Names,
        of_stages: Sequence[tuple[Sequence[str], Sequence[str]]],
        places: Layout,
        rank: int,
        weights: Mapping[int, StageWeights],
        device: torch.device,
    ) -> None:
        self.names, self.places, self.rank, self.weights, self.device = names, places, rank, weights, device
        self.home: dict[str, int] = {}
        for stage, found in enumerate(of_stages):
            for name in (name for part in found for name in part if name):
                self.home.setdefault(name, stage)
        self.held: dict[int, dict[str, torch.Tensor]] = {}
        self.buffers: dict[int, dict[str, tuple[nn.Module, str]]] = {}
        for stage, held in weights.items():
            pairs = zip(of_stages[stage][0], held.module.parameters(), strict=True)
            self.held[stage] = {name: tensor for name, tensor in pairs if name}
            stand = zip(of_stages[stage][1], _buffers_of(held.module), strict=True)
            self.buffers[stage] = {name: place for name, place in stand if name}

    def _found(self, stage: int, name: str) -> torch.Tensor:
        """Return a tensor that this rank holds; of a buffer what stands there now, which a pass may have replaced."""
        if name in self.held[stage]:
            return self.held[stage][name]
        part, attribute = self.buffers[stage][name]
        found: torch.Tensor = getattr(part, attribute)
        return found

    def name_of(self) -> dict[nn.Parameter, str]:
        """Return the names of the weights that this rank trains."""
        found: dict[nn.Parameter, str] = {}
        for held in self.held.values():
            for name, tensor in held.items():
                if isinstance(tensor, nn.Parameter) and tensor.requires_grad:
                    found.setdefault(tensor, name)
        return found

    def whole(self, *, everywhere: bool) -> dict[str, torch.Tensor]:
        """Return the ``state_dict`` of the whole model, on the CPU; called in every process at once.

        `everywhere`: whether every process gets it; else the first one does, and the others nothing.
        """
        found: dict[str, torch.Tensor] = {}
        for name, entry in {entry.name: entry for entry in self.names.entries}.items():
            if name in self.names.untouched:  # run by no layer: it is what it was
                if everywhere or self.rank == 0:
                    found[name] = self.names.untouched[name].cpu().clone()
                continue
            stage = self.home[name]
            source = self.places.ranks_of_stage[stage][0]
            value = torch.empty(entry.shape, dtype=entry.dtype, device=self.device)
            if stage in self.held:
                value = self._put_together(stage, self._found(stage, name)).to(entry.dtype).contiguous()
            if self.places.n_ranks > 1:
                dist.broadcast(value, source)
            if everywhere or self.rank == 0:
                found[name] = value.cpu().clone()
        return {entry.key: found[entry.name] for entry in self.names.entries} if found else {}

    def _put_together(self, stage: int, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor of this rank whole, its parts gathered from the ranks of its stage."""
        weights = self.weights[stage]
        whole = weights.whole(tensor)
        for part in weights.module.modules():
            if isinstance(part, ExpertParallel) and any(tensor is own for own in part.parameters()):
                parts = [torch.empty_like(whole) for _ in range(part.degree)]
                dist.all_gather(parts, whole.contiguous(), group=weights.groups.expert)
                return torch.cat(parts)
        return whole
