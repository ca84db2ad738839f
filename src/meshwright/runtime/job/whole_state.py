"""Weights and optimizer state whole, under the model's own names: put together from all ranks, and dealt out to them again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.metadata import TensorProperties, TensorStorageMetadata

from meshwright.base.errors import InputError
from meshwright.runtime.job.holdings import regions_of
from meshwright.runtime.job.optimizer_state import Restored, groups_of, numbers_of, slices_of, together
from meshwright.runtime.job.slices import Slice, begin_overwriting, flat_parts, weight_parts
from meshwright.runtime.job.trainer import Trainer

__all__ = ["load_optimizer", "load_weights", "optimizer_state"]

_STATE = ("optimizer", "state")
_T = TypeVar("_T")


def optimizer_state(trainer: Trainer, *, everywhere: bool) -> dict[str, Any]:
    """Return what the optimizer remembers of every weight, whole and on the CPU; called in every process at once.

    Parameters
    ----------
    trainer : Trainer
        This process.
    everywhere : bool
        Whether every process gets it; else the first one does, and the others an empty one.

    Returns
    -------
    dict
        ``state`` by name of weight and key, ``param_groups`` with names of weights: as
        ``torch.distributed.checkpoint.state_dict.get_optimizer_state_dict`` has it.
    """
    regions = regions_of(trainer.weights.values(), trainer.holdings)
    told: list[Any] = [None] * trainer.layout.n_ranks
    dist.all_gather_object(told, (groups_of(trainer.optimizer, regions), numbers_of(trainer.optimizer)))
    kinds = {key: kind for _, numbers in told for key, kind in numbers.items()}
    found = _gathered(trainer, list(slices_of(trainer.optimizer, regions)), everywhere=everywhere)
    if not everywhere and trainer.rank != 0:
        return {}
    state: dict[str, dict[str, Any]] = {}
    for (*_, name, key), value in found.items():
        kind = {"int": int, "float": float}.get(kinds.get(key, ""))
        state.setdefault(name, {})[key] = kind(value.item()) if kind else value
    return {"state": state, "param_groups": _merged(together([groups for groups, _ in told], trainer.names.shapes))}


def _merged(groups: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return groups of like options as one: those of split weights stand in groups of their own on the ranks."""
    found: list[dict[str, Any]] = []
    for group in groups:
        options = {key: value for key, value in group.items() if key != "params"}
        same = next((one for one in found if {key: value for key, value in one.items() if key != "params"} == options), None)
        if same is None:
            found.append(dict(group))
        else:
            same["params"] = [*same["params"], *group["params"]]
    return found


def _gathered(trainer: Trainer, pieces: Sequence[Slice], *, everywhere: bool) -> dict[tuple[str, ...], torch.Tensor]:
    """Return tensors whole, by path, from the boxes of all ranks; one box travels at a time."""
    mine = {(piece.path, piece.offset): piece for piece in pieces if piece.tensor.numel()}
    told: list[Any] = [None] * trainer.layout.n_ranks
    own = [(p.path, p.shape, p.offset, tuple(p.tensor.shape), p.tensor.dtype) for p in mine.values()]
    dist.all_gather_object(told, own)
    keeps, device = everywhere or trainer.rank == 0, trainer.executor.device
    found: dict[tuple[str, ...], torch.Tensor] = {}
    seen: set[tuple[tuple[str, ...], tuple[int, ...]]] = set()
    for rank, boxes in enumerate(told):
        for path, shape, offset, sizes, dtype in boxes:
            if (path, offset) in seen:  # replicas hold the same
                continue
            seen.add((path, offset))
            value = mine[path, offset].tensor.to(device).contiguous() if rank == trainer.rank else None
            if value is None:
                value = torch.empty(sizes, dtype=dtype, device=device)
            if trainer.layout.n_ranks > 1:
                dist.broadcast(value, rank)
            if keeps:
                whole = found.setdefault(path, torch.zeros(shape, dtype=dtype))
                _box(whole, offset, sizes).copy_(value)
    return found


def _box(whole: torch.Tensor, offset: Sequence[int], sizes: Sequence[int]) -> torch.Tensor:
    """Return a box of a tensor."""
    return whole[tuple(slice(start, start + size) for start, size in zip(offset, sizes, strict=True))]


def load_weights(trainer: Trainer, state: Mapping[str, Any] | None, *, strict: bool, place: str) -> None:
    """Overwrite weights and buffers by a whole model's; called in every process at once.

    Parameters
    ----------
    trainer : Trainer
        This process.
    state : mapping or None
        As ``model.state_dict()``; the same in every process, or in process 0 alone, with None or nothing in the others.
    strict : bool
        Whether names must be those of the model, no fewer and no more.
    place : str
        Where this was asked for, for messages.

    Raises
    ------
    InputError
        In every process, when names or shapes are not the model's.
    """
    names = trainer.names
    given = {key: value for key, value in (state or {}).items() if isinstance(value, torch.Tensor)}
    found = {name: given[key] for key, name in (*names.aliases.items(), *((n, n) for n in names.shapes)) if key in given}
    wrong = ""
    if state:
        missing = [name for name in names.shapes if name not in found]
        more = [key for key in given if key not in names.shapes and key not in names.aliases]
        odd = [name for name, value in found.items() if tuple(value.shape) != tuple(names.shapes[name])]
        if odd:
            shapes = f"{tuple(found[odd[0]].shape)}, but in the model {tuple(names.shapes[odd[0]])}"
            wrong = f"{place}: '{odd[0]}' has shape {shapes}"
        elif strict and (missing or more):
            what = f"has no '{missing[0]}'" if missing else f"has '{more[0]}', which the model has not"
            wrong = f"{place}: the state given {what}; is it of another model? strict=False loads what both have"
    whole = _Whole(trainer, found if state else None, wrong, place)
    begin_overwriting(trainer)
    regions = regions_of(trainer.weights.values(), trainer.holdings)
    with torch.no_grad():
        whole.fill([*weight_parts(trainer, writing=False), *flat_parts(trainer, regions)])


class _Whole:
    """Whole tensors by name, of every process or of the first one, from which ranks take their boxes.

    `tensors`: of this process; None where it was given nothing.
    `wrong`: what is wrong with what was given; raised in every process.
    """

    def __init__(self, trainer: Trainer, tensors: Mapping[str, torch.Tensor] | None, wrong: str, place: str) -> None:
        told: list[Any] = [None] * trainer.layout.n_ranks
        shapes = {name: (tuple(value.shape), value.dtype) for name, value in (tensors or {}).items()}
        dist.all_gather_object(told, (tensors is not None, wrong, shapes if trainer.rank == 0 else None))
        message = next((text for _, text, _ in told if text), "")
        if not message and not told[0][0]:
            message = f"{place}: process 0 was given nothing; give it the whole state (others may give None)"
        if message:
            raise InputError(message)
        self.trainer, self.tensors, self.shapes = trainer, tensors, told[0][2]
        self.of_first = not all(has for has, _, _ in told)

    def fill(self, pieces: Iterable[Slice]) -> None:
        """Overwrite boxes; those of names that are not known stay as they are."""
        by_name: dict[str, list[Slice]] = {}
        for piece in pieces:
            by_name.setdefault(piece.name, []).append(piece)
        for name, (shape, dtype) in self.shapes.items():
            value = None if self.tensors is None else self.tensors.get(name)
            if self.of_first:
                device = self.trainer.executor.device
                first = value is not None and self.trainer.rank == 0
                sent = value.detach().to(device).contiguous() if first else torch.empty(shape, dtype=dtype, device=device)  # type: ignore[union-attr]
                dist.broadcast(sent, 0)
                value = sent
            if value is None:
                continue
            for piece in by_name.get(name, ()):
                piece.tensor.copy_(_box(value, piece.offset, piece.tensor.shape))


def load_optimizer(trainer: Trainer, state: Mapping[str, Any] | None, *, place: str) -> None:
    """Overwrite what the optimizer remembers, and the options of its groups; called in every process at once.

    Parameters
    ----------
    trainer : Trainer
        This process.
    state : mapping or None
        As `optimizer_state` returns it, or an optimizer's own ``state_dict()`` whose groups have ``param_names``; the same in
        every process, or in process 0 alone.
    place : str
        Where this was asked for, for messages.

    Raises
    ------
    InputError
        In every process, when it has another form, or is not of this optimizer and model.
    """
    wrong = ""
    groups: list[dict[str, Any]] = []
    tensors: dict[str, torch.Tensor] = {}
    numbers: dict[str, str] = {}
    if state:
        try:
            by_name, groups = _by_name(state, place)
            for name, held in by_name.items():
                for key, value in held.items():
                    if isinstance(value, int | float):
                        numbers[key] = type(value).__name__
                    if value is not None:
                        tensors[".".join((*_STATE, name, key))] = torch.as_tensor(value).detach()
            strange = next((name for name in by_name if name not in trainer.names.shapes), "")
            wrong = f"{place}: the state given has '{strange}', which the model has not" if strange else ""
        except InputError as error:
            wrong = str(error)
    whole = _Whole(trainer, tensors if state else None, wrong, place)
    told: list[Any] = [(numbers, groups)]
    if whole.of_first:
        dist.broadcast_object_list(told, src=0)
    regions = regions_of(trainer.weights.values(), trainer.holdings)
    stored = {
        name: TensorStorageMetadata(TensorProperties(dtype=dtype), torch.Size(shape), [])
        for name, (shape, dtype) in whole.shapes.items()
    }
    restored = _everywhere(trainer, lambda: Restored(trainer.optimizer, regions, stored, told[0][0], place))
    whole.fill(restored.slices)
    _everywhere(trainer, restored.finish)
    of_name = {name: group for group in told[0][1] for name in group["params"]}
    for group in trainer.optimizer.param_groups:
        names = [region.holding.name for parameter in group["params"] for region in regions.get(parameter, ())]
        other: dict[str, Any] = next((of_name[name] for name in names if name in of_name), {})
        group.update({key: value for key, value in other.items() if key not in ("params", "param_names")})


def _everywhere(trainer: Trainer, do: Callable[[], _T]) -> _T:
    """Do something in every process; what one of them refuses is raised in all."""
    result, wrong = None, ""
    try:
        result = do()
    except InputError as error:
        wrong = str(error)
    told: list[Any] = [None] * trainer.layout.n_ranks
    dist.all_gather_object(told, wrong)
    if any(told):
        raise InputError(next(text for text in told if text))
    return result  # type: ignore[return-value]


def _by_name(state: Mapping[str, Any], place: str) -> tuple[dict[str, Mapping[str, Any]], list[dict[str, Any]]]:
    """Return the state of every weight by name, and the groups with names."""
    if not isinstance(state.get("state"), Mapping) or not isinstance(state.get("param_groups"), list | tuple):
        raise InputError(f"{place}: has {', '.join(map(str, state))}; give what optimizer_state_dict() returns")
    groups = [dict(group) for group in state["param_groups"]]
    pairs = [(list(group["params"]), list(group.get("param_names") or group["params"])) for group in groups]
    numbers = {number: name for held, names in pairs for number, name in zip(held, names, strict=True)}
    for group in groups:
        group["params"] = [numbers[number] for number in group["params"]]
    nameless = next((key for key in (*numbers.values(), *state["state"]) if not isinstance(numbers.get(key, key), str)), None)
    if nameless is not None:
        raise InputError(
            f"{place}: knows weights by number ({nameless}), which says nothing under a plan; make the optimizer with "
            "model.named_parameters(), or save get_optimizer_state_dict(...) of torch.distributed.checkpoint.state_dict"
        )
    return {numbers.get(key, key): held for key, held in state["state"].items()}, groups
