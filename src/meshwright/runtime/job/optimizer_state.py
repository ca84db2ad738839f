"""The state of an optimizer by the names of the model's weights, whichever parts of them a rank updates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from meshwright.base.errors import InputError
from meshwright.runtime.job.holdings import Region
from meshwright.runtime.job.slices import Slice
from meshwright.runtime.parallel.pools import local

__all__ = ["Restored", "groups_of", "numbers_of", "slices_of", "together"]

_STATE = ("optimizer", "state")

Regions = Mapping[nn.Parameter, Sequence[Region]]


def slices_of(optimizer: torch.optim.Optimizer, regions: Regions) -> Iterator[Slice]:
    """Yield what this rank's optimizer remembers of every weight, for a checkpoint.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Of this rank.
    regions : mapping
        Which boxes of which weights what it updates stands for; see `meshwright.runtime.job.holdings.regions_of`.

    Raises
    ------
    InputError
        When it remembers something that is neither a number nor as large as its weight: it has no parts that belong to parts
        of the weight.
    """
    for parameter, found in regions.items():
        for key, value in sorted(optimizer.state.get(parameter, {}).items()):
            if value is None:
                continue
            kept = _as_tensor(value)
            if kept is None or (kept.dim() and kept.shape != parameter.shape):
                shape = f"of shape {tuple(kept.shape)}" if kept is not None else f"a {type(value).__name__}"
                raise InputError(
                    f"{type(optimizer).__name__} remembers '{key}' of {found[0].holding.name if found else 'a weight'}, "
                    f"{shape}, where the weight has {tuple(parameter.shape)}: such state belongs to no part of it and cannot "
                    "be saved; choose an optimizer that treats every element alike, or train without --save"
                )
            for region in found:
                if region.holding.writes:
                    yield _slice(region, key, kept)


def _slice(region: Region, key: str, value: torch.Tensor) -> Slice:
    """Return what is remembered of one box: of a number the number, of a tensor the box of it."""
    path = (*_STATE, region.holding.name, key)
    if value.dim() == 0:
        return Slice(path, (), (), value)
    return Slice(path, region.holding.shape, region.offset, region.of(value))


def _as_tensor(value: object) -> torch.Tensor | None:
    """Return a remembered value as a tensor; plain numbers in double precision."""
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, int | float):
        return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64)
    return None


def numbers_of(optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Return what an optimizer remembers as plain numbers, with the kind of each: ``int`` or ``float``."""
    return {
        key: type(value).__name__
        for state in optimizer.state.values()
        for key, value in state.items()
        if isinstance(value, int | float)
    }


def groups_of(optimizer: torch.optim.Optimizer, regions: Regions) -> list[dict[str, Any]]:
    """Return the options of an optimizer's groups of weights, with the names of the weights that each has on this rank."""
    return [
        {
            **{key: value for key, value in group.items() if key != "params"},
            "params": [region.holding.name for parameter in group["params"] for region in regions.get(parameter, ())],
        }
        for group in optimizer.param_groups
    ]


def together(parts: Sequence[list[dict[str, Any]]], names: Iterable[str]) -> list[dict[str, Any]]:
    """Return the groups of all ranks as those of one optimizer, as ``torch.distributed.checkpoint.state_dict`` writes them.

    `parts`: of every rank, see `groups_of`.
    `names`: of all weights, in the model's order.
    """
    order = {name: i for i, name in enumerate(names)}
    found: list[dict[str, Any]] = []
    for i in range(max(map(len, parts))):
        held = [part[i] for part in parts if i < len(part)]
        of_all = {name for group in held for name in group["params"]}
        found.append({**held[0], "params": sorted(of_all, key=order.__getitem__)})
    return found


class Restored:
    """What an optimizer remembered when a checkpoint was written, for the weights that this rank updates now.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Of this rank.
    regions : mapping
        See `meshwright.runtime.job.holdings.regions_of`.
    stored : mapping of str to TensorStorageMetadata
        What the checkpoint holds, by name.
    numbers : mapping of str to str
        What is no tensor but a number, and its kind; see `numbers_of`.
    place : str
        Where it was asked for, for messages.

    Attributes
    ----------
    slices : list of Slice
        What has to be read before `finish`.

    Raises
    ------
    InputError
        When the state of a weight is missing, or is of another shape than the weight.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        regions: Regions,
        stored: Mapping[str, Any],
        numbers: Mapping[str, str],
        place: str = "--resume",
    ) -> None:
        self.optimizer, self.numbers, self.place = optimizer, numbers, place
        self.slices: list[Slice] = []
        self.state: dict[nn.Parameter, dict[str, Any]] = {}
        self.counts: list[tuple[nn.Parameter, str, list[tuple[str, torch.Tensor]]]] = []
        known = _keys(stored)
        of_weights = {key for held in known.values() for key, entry in held.items() if entry.size}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                found = regions.get(parameter, ())
                for key in sorted({key for region in found for key in known.get(region.holding.name, ())}):
                    self._ask(parameter, found, key, known, by_element=key in of_weights)

    def _ask(
        self, parameter: nn.Parameter, found: Sequence[Region], key: str, known: Mapping[str, Any], *, by_element: bool
    ) -> None:
        """Make room for what is remembered of a weight under one key."""
        entries = {region.holding.name: known.get(region.holding.name, {}).get(key) for region in found}
        shapes = {region.holding.name: region.holding.shape if by_element else () for region in found}
        for name, entry in entries.items():
            if entry is None or tuple(entry.size) != shapes[name]:
                what = "is not in what was saved" if entry is None else f"was saved with shape {tuple(entry.size)}"
                raise InputError(
                    f"{self.place}: {'.'.join((*_STATE, name, key))} {what}, where this plan needs {shapes[name]}; go on with "
                    "the optimizer that was saved"
                )
        dtype = next(iter(entries.values())).properties.dtype
        if by_element:
            whole = torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
            self.state.setdefault(parameter, {})[key] = whole
            self.slices += [_slice(region, key, whole) for region in found]
        else:
            read = [(name, torch.zeros((), dtype=dtype)) for name in entries]
            self.counts.append((parameter, key, read))
            self.slices += [Slice((*_STATE, name, key), (), (), place) for name, place in read]

    def finish(self) -> None:
        """Give the optimizer what was read, instead of what it remembers now.

        Raises
        ------
        InputError
            When weights that are updated as one vector now have been updated a different number of times.
        """
        for parameter, key, read in self.counts:
            name, value = read[0]
            other = next((other for other, found in read if not torch.equal(found, value)), "")
            if other:
                raise InputError(
                    f"{self.place}: the optimizer's '{key}' of {name} and {other} differ, but this plan's sharding of the "
                    "optimizer state updates them as one; resume with a plan of shard 0 or 3"
                )
            kind = {"int": int, "float": float, "bool": bool}.get(self.numbers.get(key, ""))
            kept: Any = kind(value.item()) if kind else value.to(self._device(parameter, key))
            self.state.setdefault(parameter, {})[key] = kept
        self.optimizer.state.clear()
        for parameter, state in self.state.items():
            self.optimizer.state[parameter] = state

    def _device(self, parameter: nn.Parameter, key: str) -> torch.device:
        """Return where a number of a weight lies: as `torch.optim.Optimizer.load_state_dict` has it."""
        group = next(group for group in self.optimizer.param_groups if any(own is parameter for own in group["params"]))
        on_host = key == "step" and not (group.get("capturable") or group.get("fused"))
        return torch.device("cpu") if on_host else local(parameter.detach()).device


def _keys(stored: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what a checkpoint holds of each weight's optimizer state, by name and key."""
    found: dict[str, dict[str, Any]] = {}
    beginning = ".".join(_STATE) + "."
    for full, entry in stored.items():
        if full.startswith(beginning) and isinstance(entry, TensorStorageMetadata):
            name, _, key = full.removeprefix(beginning).rpartition(".")
            found.setdefault(name, {})[key] = entry
    return found
