"""Saving and resuming a run with ``torch.distributed.checkpoint``: every rank writes what it holds."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as load_state
from torch.distributed.checkpoint.state_dict_saver import save as save_state

from meshwright.base.errors import InputError
from meshwright.core.plan import Plan
from meshwright.runtime.parallel.sharding import local

if TYPE_CHECKING:
    from meshwright.runtime.job.trainer import Trainer

__all__ = ["check", "last", "load", "save"]


_KEPT = 2
"""Checkpoints kept: the newest, and the one before it."""


def last(folder: str) -> Path | None:
    """Return the newest complete checkpoint of a folder, or None."""
    found = [path for path in Path(folder).glob("step-*") if (path / "done.json").is_file()]
    return max(found, key=lambda path: int(path.name.removeprefix("step-")), default=None)


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


def save(trainer: Trainer, folder: str, step: int) -> None:
    """Write a checkpoint: beside the last one first, and under its own name once every rank has written its part.

    `folder`: folder of checkpoints; made if it does not exist.
    `step`: steps trained so far.
    """
    final, partial = Path(folder) / f"step-{step}", Path(folder) / f".step-{step}.partial"
    if trainer.rank == 0:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    dist.barrier()
    save_state(_state(trainer), storage_writer=FileSystemWriter(partial), process_group=None)
    if trainer.rank == 0:
        content = {"step": step, "n_ranks": trainer.layout.n_ranks, "plan": _signature(trainer.layout.plan)}
        if trainer.loss_scale is not None:
            content["loss_scale"] = trainer.loss_scale.state()
        (partial / "done.json").write_text(json.dumps(content))
        shutil.rmtree(final, ignore_errors=True)
        os.replace(partial, final)
        for old in sorted(Path(folder).glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))[:-_KEPT]:
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
    content: dict[str, Any] = json.loads((path / "done.json").read_text())
    if content["plan"] != _signature(plan):
        raise InputError(f"--resume: {path} was written under another plan; resume with that plan")
    return path, content


def load(trainer: Trainer, folder: str) -> int:
    """Go on from the newest checkpoint of a folder.

    `trainer`: this process; its weights and optimizer state are overwritten.
    Returns: steps trained so far.
    Raises `InputError` when there is none, or it was written under another plan.
    """
    path, content = check(folder, trainer.layout.plan)
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
