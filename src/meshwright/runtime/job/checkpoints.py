"""Saving and resuming a run with ``torch.distributed.checkpoint``: every rank writes what it holds."""

from __future__ import annotations

import json
import os
import shutil
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as load_state
from torch.distributed.checkpoint.state_dict_saver import save as save_state

from meshwright.base import files
from meshwright.base.errors import InputError
from meshwright.core.plan import Plan
from meshwright.runtime.parallel.sharding import local

if TYPE_CHECKING:
    from meshwright.runtime.job.trainer import Trainer

__all__ = ["check", "last", "load", "load_newest_whole", "save"]


def last(folder: str) -> Path | None:
    """Return the newest complete checkpoint of a folder, or None."""
    return next(iter(_newest_first(folder)), None)


def _newest_first(folder: str) -> list[Path]:
    """Return the complete checkpoints of a folder; what else lies there, as a copy ``step-4.old``, is none."""
    named = [path for path in Path(folder).glob("step-*") if path.name.removeprefix("step-").isdecimal()]
    return sorted((path for path in named if (path / "done.json").is_file()), key=_step_of, reverse=True)


def _step_of(path: Path) -> int:
    """Return after how many steps a checkpoint was written."""
    return int(path.name.removeprefix("step-"))


def _plain(state: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers, texts and lists of a scheduler's state; what else it holds it makes anew."""
    return {key: value for key, value in state.items() if _is_plain(value)}


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _state(trainer: Trainer) -> dict[str, Any]:
    """Return what this rank holds, under names that no other rank uses."""
    parameters = [p for group in trainer.optimizer.param_groups for p in group["params"]]
    entries: dict[str, Any] = {f"rank{trainer.rank}/random/cpu": torch.get_rng_state()}
    if trainer.executor.device.type == "cuda":
        entries[f"rank{trainer.rank}/random/cuda"] = torch.cuda.get_rng_state()
    for stage, weights in trainer.weights.items():
        for i, parameter in enumerate(weights.parameters):
            entries[f"rank{trainer.rank}/stage{stage}/weight{i}"] = local(parameter.detach())
        for name, buffer in weights.module.named_buffers():
            entries[f"rank{trainer.rank}/stage{stage}/buffer/{name}"] = buffer
        for i, part in enumerate(weights.parts()):
            entries[f"rank{trainer.rank}/stage{stage}/part{i}"] = part.detach()
    for i, parameter in enumerate(parameters):
        for key, value in sorted(trainer.optimizer.state.get(parameter, {}).items()):
            if isinstance(value, torch.Tensor):
                entries[f"rank{trainer.rank}/optimizer{i}/{key}"] = local(value)
    return entries


def _sum_of(path: Path) -> list[int]:
    """Return length and CRC-32 of a file."""
    length, crc = 0, 0
    with path.open("rb") as file:
        while block := file.read(1 << 24):
            length, crc = length + len(block), zlib.crc32(block, crc)
    return [length, crc]


def _shared_out(trainer: Trainer, names: list[str]) -> list[str]:
    """Return which of some files this rank reads, so that all ranks together read each once."""
    return names[trainer.rank :: trainer.layout.n_ranks]


def _sums(trainer: Trainer, path: Path) -> dict[str, list[int]]:
    """Return length and CRC-32 of every file of a checkpoint, read by all ranks together."""
    names = sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())
    everyone: list[Any] = [None] * trainer.layout.n_ranks
    dist.all_gather_object(everyone, {name: _sum_of(path / name) for name in _shared_out(trainer, names)})
    return {name: sums for part in everyone for name, sums in sorted(part.items())}


def _damaged(trainer: Trainer, path: Path, content: dict[str, Any]) -> str:
    """Return a file of a checkpoint that is not what was written, or nothing; the same in every process."""
    wanted = content.get("files", {})
    mine = [name for name in _shared_out(trainer, sorted(wanted)) if not _is_as_written(path / name, wanted[name])]
    everyone: list[Any] = [None] * trainer.layout.n_ranks
    dist.all_gather_object(everyone, mine)
    return min((name for part in everyone for name in part), default="")


def _is_as_written(path: Path, wanted: list[int]) -> bool:
    try:
        return _sum_of(path) == wanted
    except OSError:
        return False


def save(trainer: Trainer, folder: str, step: int, keep: int = 2, keep_every: int = 0) -> None:
    """Write a checkpoint: beside the last one first, and under its own name once every rank has written its part.

    `folder`: folder of checkpoints; made if it does not exist.
    `step`: steps trained so far.
    `keep`: how many checkpoints stay, the newest ones up to this step.
    `keep_every`: those of every so many steps stay too; 0 for none.
    """
    final, partial = Path(folder) / f"step-{step}", Path(folder) / f".step-{step}.partial"
    if trainer.rank == 0:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    dist.barrier()
    save_state(_state(trainer), storage_writer=FileSystemWriter(partial), process_group=None)
    dist.barrier()
    sums = _sums(trainer, partial)
    if trainer.rank == 0:
        content = {"step": step, "n_ranks": trainer.layout.n_ranks, "plan": _signature(trainer.layout.plan), "files": sums}
        if trainer.loss_scale is not None:
            content["loss_scale"] = trainer.loss_scale.state()
        if trainer.lr_schedule is not None:
            content["lr_schedule"] = _plain(trainer.lr_schedule.state_dict())
        (partial / "done.json").write_text(json.dumps(content))
        shutil.rmtree(final, ignore_errors=True)
        os.replace(partial, final)
        # those of later steps are of an earlier run, damaged or begun anew: they do not push out what was just written
        written = [path for path in _newest_first(folder) if _step_of(path) <= step]
        older = [path for path in written[keep:] if not keep_every or _step_of(path) % keep_every]
        for old in [*older, *Path(folder).glob(".step-*.partial")]:
            shutil.rmtree(old, ignore_errors=True)
    dist.barrier()


def check(folder: str, plan: Plan) -> tuple[Path, dict[str, Any]]:
    """Return the newest checkpoint of a folder, and what is written about it.

    Raises `InputError` when there is none, or it was written under another plan.
    """
    path = last(folder)
    if path is None:
        raise InputError(
            f"--resume: {folder or 'no folder (give --save)'} holds no complete checkpoint; run without --resume to begin"
        )
    return path, _content(path, plan)


def _content(path: Path, plan: Plan) -> dict[str, Any]:
    """Return what is written about a checkpoint."""
    content = files.read_json(path / "done.json", "resume from another checkpoint")
    if not isinstance(content, dict) or not _is_description(content):
        raise InputError(f"{path / 'done.json'}: is not what a checkpoint holds; resume from another one")
    if content["plan"] != _signature(plan):
        raise InputError(f"--resume: {path} was written under another plan; resume with that plan")
    return content


def _is_description(content: dict[str, Any]) -> bool:
    """Whether a file says what a checkpoint must."""
    return isinstance(content.get("step"), int) and "plan" in content and isinstance(content.get("files", {}), dict)


def load(trainer: Trainer, folder: str) -> int:
    """Go on from the newest checkpoint of a folder.

    `trainer`: this process; its weights and optimizer state are overwritten.
    Returns: steps trained so far.
    Raises `InputError` when there is none, it was written under another plan, or a file of it was changed since.
    """
    path, content = check(folder, trainer.layout.plan)
    damaged = _damaged(trainer, path, content)
    if damaged:
        raise InputError(
            f"--resume: {path / damaged} is not what was written (cut off or changed); --resume auto takes an older checkpoint"
        )
    return _load(trainer, path, content)


def load_newest_whole(trainer: Trainer, folder: str) -> int:
    """Go on from the newest checkpoint of a folder whose files are as they were written, telling which ones are not.

    `trainer`: this process; its weights and optimizer state are overwritten where there is one.
    Returns: steps trained so far; 0 where there is no such checkpoint.
    Raises `InputError` when it was written under another plan.
    """
    for path in _newest_first(folder):
        try:
            content = _content(path, trainer.layout.plan)
            damaged = _damaged(trainer, path, content)
        except InputError as error:
            if "another plan" in str(error):
                raise
            damaged = "done.json"
        if not damaged:
            return _load(trainer, path, content)
        if trainer.rank == 0:
            print(f"meshwright: {path / damaged} is not what was written; an older checkpoint is tried", file=sys.stderr)
    if trainer.rank == 0:
        print(f"meshwright: {folder} holds no whole checkpoint: training begins at step 1", file=sys.stderr, flush=True)
    return 0


def _load(trainer: Trainer, path: Path, content: dict[str, Any]) -> int:
    """Overwrite weights and optimizer state; return the steps trained so far."""
    _make_state(trainer)
    state = _state(trainer)
    load_state(state, storage_reader=FileSystemReader(path))
    with torch.no_grad():
        for name, tensor in _state(trainer).items():
            if tensor.data_ptr() != state[name].data_ptr():
                tensor.copy_(state[name])
    torch.set_rng_state(state[f"rank{trainer.rank}/random/cpu"])
    if trainer.executor.device.type == "cuda":
        torch.cuda.set_rng_state(state[f"rank{trainer.rank}/random/cuda"])
    if trainer.loss_scale is not None and "loss_scale" in content:
        trainer.loss_scale.restore(content["loss_scale"])
    if trainer.lr_schedule is not None:
        if "lr_schedule" not in content:
            raise InputError(f"--lr-schedule: {path} was written without one; resume without it, or begin anew")
        trainer.lr_schedule.load_state_dict({**trainer.lr_schedule.state_dict(), **content["lr_schedule"]})
        for group, rate in zip(trainer.optimizer.param_groups, trainer.lr_schedule.get_last_lr(), strict=True):
            group["lr"] = rate
    dist.barrier()
    return int(content["step"])


def _make_state(trainer: Trainer) -> None:
    """Let the optimizer make its state, without changing a weight: a step with zero gradients and no learning rate."""
    groups = trainer.optimizer.param_groups
    rates = [(group["lr"], group.get("weight_decay", 0.0)) for group in groups]
    for group in groups:
        group["lr"] = 0.0
        group["weight_decay"] = 0.0
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    trainer.optimizer.step()
    for group, (rate, decay) in zip(groups, rates, strict=True):
        group["lr"] = rate
        if "weight_decay" in group:
            group["weight_decay"] = decay
        for parameter in group["params"]:
            parameter.grad = None


def _signature(plan: Plan) -> list[Any]:
    """Return what must be the same for a checkpoint to fit: layers, devices and degrees of every stage."""
    return [
        [
            len(stage.ops),
            list(stage.devices),
            stage.strategy.data,
            stage.strategy.context,
            stage.strategy.tensor,
            stage.strategy.expert,
            stage.strategy.shard,
            stage.strategy.shard_degree,
        ]
        for stage in plan.stages
    ]
