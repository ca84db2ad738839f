"""Saving and resuming a run with ``torch.distributed.checkpoint``: every rank writes what it holds, under the model's own
names, and reads what it needs, whichever plan wrote it.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections.abc import Set
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata

from meshwright.base.errors import InputError
from meshwright.core.plan import Plan
from meshwright.runtime.job import slices
from meshwright.runtime.job.checkpoint_folders import (
    FORMAT,
    check,
    check_format,
    check_model,
    claim,
    content_of,
    damage,
    is_as_written,
    last,
    left_in,
    newest_first,
    nothing,
    step_of,
    sum_of,
    sum_of_description,
)
from meshwright.runtime.job.holdings import regions_of
from meshwright.runtime.job.optimizer_state import Restored, groups_of, numbers_of, slices_of, together
from meshwright.runtime.job.slices import Slice, begin_overwriting, flat_parts, weight_parts

if TYPE_CHECKING:
    from meshwright.runtime.job.trainer import Trainer

__all__ = ["check", "claim", "last", "left_in", "load", "load_newest_whole", "save"]

_RANDOM = "random"
_CYCLED = ("momentum", "betas")
"""What schedules like OneCycleLR change beside learning rates, and would have changed back for the first step that goes on."""


def _plain(state: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers, texts and lists of a scheduler's state; what else it holds it makes anew."""
    return {key: value for key, value in state.items() if _is_plain(value)}


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _shared_out(trainer: Trainer, names: list[str]) -> list[str]:
    """Return which of some files this rank reads, so that all ranks together read each once."""
    return names[trainer.rank :: trainer.layout.n_ranks]


def _sums(trainer: Trainer, path: Path) -> dict[str, list[int]]:
    """Return length and CRC-32 of every file of a checkpoint, read by all ranks together."""
    names = sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())
    everyone: list[Any] = [None] * trainer.layout.n_ranks
    dist.all_gather_object(everyone, {name: sum_of(path / name) for name in _shared_out(trainer, names)})
    return {name: sums for part in everyone for name, sums in sorted(part.items())}


def _damaged(trainer: Trainer, path: Path, content: dict[str, Any]) -> str:
    """Return a file of a checkpoint that is not what was written, or nothing; the same in every process."""
    wanted = content.get("files", {})
    mine = [name for name in _shared_out(trainer, sorted(wanted)) if not is_as_written(path / name, wanted[name])]
    everyone: list[Any] = [None] * trainer.layout.n_ranks
    dist.all_gather_object(everyone, mine)
    return min((name for part in everyone for name in part), default="")


def save(trainer: Trainer, folder: str, step: int, keep: int = 2, keep_every: int = 0) -> None:
    """Write a checkpoint: beside the last one first, and under its own name once every rank has written its part.

    Parameters
    ----------
    trainer : Trainer
        This process.
    folder : str
        Folder of checkpoints; made if it does not exist.
    step : int
        Steps trained so far.
    keep : int
        How many checkpoints stay, the newest ones up to this step; those found damaged when it went on do not count.
    keep_every : int
        Those of every so many steps stay too; 0 for none.

    Raises
    ------
    InputError
        When it cannot be written, as on a full disk: what was written of it is deleted again, older ones stay. When another
        run writes to the folder.
    """
    claim(trainer, folder)
    final, partial = Path(folder) / f"step-{step}", Path(folder) / f".step-{step}.partial"
    try:
        _write(trainer, partial, step)
        if trainer.rank == 0:
            shutil.rmtree(final, ignore_errors=True)
            os.replace(partial, final)
            trainer.passed_over -= {str(final.resolve())}
            _forget(folder, step, (keep, keep_every), trainer.passed_over)
    except (OSError, CheckpointException) as error:
        reason = _reason(error)
        if reason is None:
            raise
        if trainer.rank == 0:
            shutil.rmtree(partial, ignore_errors=True)
        newest = last(folder)
        raise InputError(
            f"--save: the checkpoint of step {step} cannot be written to {folder}: {reason}; "
            f"{f'the newest one is {newest}' if newest else 'there is no earlier one'}: {_help(error)}then go on with --resume"
        ) from error
    dist.barrier()


def _reason(error: OSError | CheckpointException) -> str | None:
    """Return what the system said of a file; None where something else went wrong."""
    causes = [error] if isinstance(error, OSError) else [failure[0] for failure in error.failures.values()]
    for cause in causes:
        inner: BaseException | None = cause
        while inner is not None:
            if isinstance(inner, OSError):
                return inner.strerror or str(inner)
            inner = inner.__cause__ or inner.__context__
        if "unexpected pos" in str(cause):  # what PyTorch's writer of archives says of a disk that is full
            return "not all of a tensor was written"
    return None


def _help(error: OSError | CheckpointException) -> str:
    """Return what helps before the run goes on: room, where that is what there was none of."""
    full = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT), os.strerror(errno.EFBIG), "not all of a tensor was written")
    return "make room, " if _reason(error) in full else "see that the folder can be written to, "


def _write(trainer: Trainer, partial: Path, step: int) -> None:
    """Write what all ranks hold to a new folder, and what is said about it."""
    if trainer.rank == 0:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    regions = regions_of(trainer.weights.values(), trainer.holdings)
    mine = (groups_of(trainer.optimizer, regions), numbers_of(trainer.optimizer))
    everyone: list[Any] = [None] * trainer.layout.n_ranks
    dist.all_gather_object(everyone, mine)
    groups = together([part for part, _ in everyone], trainer.names.shapes)
    pieces = [*weight_parts(trainer, writing=True), *_random(trainer), *slices_of(trainer.optimizer, regions)]
    slices.write(partial, pieces, {("optimizer", "param_groups"): groups}, trainer.names.aliases)
    dist.barrier()
    sums = _sums(trainer, partial)
    if trainer.rank == 0:
        content = {
            "format": FORMAT,
            "step": step,
            "n_ranks": trainer.layout.n_ranks,
            "plan": _signature(trainer.layout.plan),
            "global_batch": trainer.layout.plan.global_batch,
            "optimizer": type(trainer.optimizer).__name__,
            "numbers": {key: kind for _, kinds in everyone for key, kind in kinds.items()},
            "files": sums,
        }
        numbers = trainer.executor.numbers
        content["layer_numbers"] = {"seed": numbers.seed, "n_steps": numbers.n_steps}
        if trainer.loss_scale is not None:
            content["loss_scale"] = trainer.loss_scale.state()
        if trainer.lr_schedule is not None:
            content["lr_schedule"] = _plain(trainer.lr_schedule.state_dict())
            content["momenta"] = [
                {key: group[key] for key in _CYCLED if key in group} for group in trainer.optimizer.param_groups
            ]
        content["sum"] = sum_of_description(content)
        with (partial / "done.json").open("w") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())


def _forget(folder: str, step: int, keep: tuple[int, int], damaged: Set[str]) -> None:
    """Delete the checkpoints that do not stay, and what is left of others that were never completed.

    `keep`: how many of the newest ones stay, and those of every how many steps. `damaged`: those that do not count.
    """
    # those of later steps are of an earlier run, damaged or begun anew: they do not push out what was just written
    written = [path for path in newest_first(folder) if step_of(path) <= step]
    newest = [path for path in written if str(path.resolve()) not in damaged][: keep[0]]
    oldest = min(map(step_of, newest), default=step)
    older = [path for path in written if step_of(path) < oldest and (not keep[1] or step_of(path) % keep[1])]
    for old in [*older, *Path(folder).glob(".step-*.partial")]:
        shutil.rmtree(old, ignore_errors=True)


def _random(trainer: Trainer) -> list[Slice]:
    """Return the state of this rank's random numbers."""
    states = {"cpu": torch.get_rng_state()}
    if trainer.executor.device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state()
    return [Slice((_RANDOM, f"rank{trainer.rank}", kind), tuple(state.shape), (0,), state) for kind, state in states.items()]


def load(trainer: Trainer, folder: str) -> int:
    """Go on from the newest checkpoint of a folder, whichever plan and number of processes wrote it.

    Parameters
    ----------
    trainer : Trainer
        This process; its weights and optimizer state are overwritten.
    folder : str
        Folder of checkpoints.

    Returns
    -------
    int
        Steps trained so far.

    Raises
    ------
    InputError
        When there is none, it holds another model or the state of another optimizer, an earlier version wrote it, or a file
        of it was changed since.
    """
    path = last(folder)
    if path is None:
        raise InputError(nothing(folder))
    content = content_of(path)
    damaged = _damaged(trainer, path, content)
    if damaged:
        raise InputError(damage(path / damaged))
    return _load(trainer, path, content)


def load_newest_whole(trainer: Trainer, folder: str) -> int:
    """Go on from the newest checkpoint of a folder whose files are as they were written, telling which ones are not.

    Parameters
    ----------
    trainer : Trainer
        This process; its weights and optimizer state are overwritten where there is one.
    folder : str
        Folder of checkpoints.

    Returns
    -------
    int
        Steps trained so far; 0 where there is no such checkpoint.

    Raises
    ------
    InputError
        When it holds another model or the state of another optimizer, or an earlier version wrote it.
    """
    for path in newest_first(folder):
        content, damaged = {}, "done.json"
        with suppress(InputError):
            content = content_of(path)
            damaged = _damaged(trainer, path, content)
        if not damaged:
            return _load(trainer, path, content)
        trainer.passed_over |= {str(path.resolve())}
        if trainer.rank == 0:
            print(f"meshwright: {path / damaged} is not what was written; an older checkpoint is tried", file=sys.stderr)
    if trainer.rank == 0:
        print(f"meshwright: {folder} holds no whole checkpoint: training begins at step 1", file=sys.stderr, flush=True)
    return 0


def _load(trainer: Trainer, path: Path, content: dict[str, Any]) -> int:
    """Overwrite weights and optimizer state; return the steps trained so far."""
    check_format(path, content)
    metadata = slices.metadata_of(path)
    check_model(path, metadata, trainer.names)
    optimizer = type(trainer.optimizer).__name__
    if content["optimizer"] != optimizer:
        raise InputError(
            f"--resume: {path} holds the state of the optimizer {content['optimizer']}, but this run has {optimizer}; resume "
            "with the optimizer that was saved, or begin anew with another folder"
        )
    begin_overwriting(trainer)
    regions = regions_of(trainer.weights.values(), trainer.holdings)
    state = Restored(trainer.optimizer, regions, metadata.state_dict_metadata, content["numbers"])
    random = _random_of(trainer, content["n_ranks"], metadata)
    slices.read(path, [*weight_parts(trainer, writing=False), *flat_parts(trainer, regions), *state.slices, *random])
    state.finish()
    for piece in random:
        torch.set_rng_state(piece.tensor) if piece.path[-1] == "cpu" else torch.cuda.set_rng_state(piece.tensor)
    numbers, was = trainer.executor.numbers, content.get("layer_numbers", {})  # versions before them wrote none
    numbers.seed, numbers.n_steps = was.get("seed", numbers.seed), was.get("n_steps", content["step"])
    _restore_schedules(trainer, path, content)
    if trainer.rank == 0:
        _tell_changes(trainer, path, content)
    dist.barrier()
    return int(content["step"])


def _random_of(trainer: Trainer, n_ranks: int, metadata: Metadata) -> list[Slice]:
    """Return places for the random numbers of this rank; of another one where there were fewer ranks."""
    return [
        Slice((_RANDOM, f"rank{trainer.rank % n_ranks}", *piece.path[2:]), piece.shape, piece.offset, piece.tensor)
        for piece in _random(trainer)
        if ".".join((_RANDOM, f"rank{trainer.rank % n_ranks}", *piece.path[2:])) in metadata.state_dict_metadata
    ]


def _restore_schedules(trainer: Trainer, path: Path, content: dict[str, Any]) -> None:
    """Let loss scale and learning rates go on where they were."""
    if trainer.loss_scale is not None and "loss_scale" in content:
        trainer.loss_scale.restore(content["loss_scale"])
    if trainer.lr_schedule is None:
        return
    if "lr_schedule" not in content:
        raise InputError(f"--lr-schedule: {path} was written without one; resume without it, or begin anew")
    trainer.lr_schedule.load_state_dict({**trainer.lr_schedule.state_dict(), **content["lr_schedule"]})
    for group, rate in zip(trainer.optimizer.param_groups, trainer.lr_schedule.get_last_lr(), strict=True):
        group["lr"] = rate
    for group, cycled in zip(trainer.optimizer.param_groups, content.get("momenta", ()), strict=False):
        group.update({key: tuple(value) if key == "betas" else value for key, value in cycled.items()})


def _tell_changes(trainer: Trainer, path: Path, content: dict[str, Any]) -> None:
    """Say what is not as it was when the checkpoint was written."""
    plan = trainer.layout.plan
    told = []
    if content["plan"] != _signature(plan):
        there, here = content["n_ranks"], trainer.layout.n_ranks
        sizes = "" if there == here else f" ({there} process{'es' * (there > 1)}, now {here})"
        told.append(f"{path} was written under another plan{sizes}: weights and state are dealt anew")
    if content["global_batch"] != plan.global_batch:
        told.append(f"{path} is of steps of {content['global_batch']} samples; this plan has {plan.global_batch}")
    for sentence in told:
        print(f"meshwright: {sentence}", file=sys.stderr, flush=True)


def _signature(plan: Plan) -> list[Any]:
    """Return layers, devices and degrees of every stage: what says who holds what."""
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
