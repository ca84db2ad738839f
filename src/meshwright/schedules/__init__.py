"""Pipeline schedules: in which order a pipeline rank runs its work. One file per schedule.

Promises of a schedule module, checked by ``tests/contract/test_schedules.py``:

* ``order(n_ranks, n_chunks, n_microbatches, times) -> Actions``: every micro-batch goes forward and backward once through every
  stage, on the rank that ``placement`` names, and the order does not deadlock; `InputError` for an ``n_chunks`` that the
  schedule does not have;
* ``in_flight(n_ranks, n_chunks, n_microbatches) -> ndarray``: the largest number of (stage, micro-batch) activations that each
  rank holds at once, from the start of the forward to the end of the last backward task that needs it; `order` never holds
  more, and for most sizes as much; both are the same each time;
* ``placement(n_ranks, n_chunks) -> ndarray``: the rank of every stage; ``looped`` or ``v_shaped`` below.

``n_ranks`` is the number of pipeline ranks, ``n_chunks`` of stages per rank, ``n_microbatches`` of micro-batches of one step,
each at least 1; ``times`` are the `Durations` of the tasks, or None for tasks of equal length. ``in_flight`` has shape
(n_ranks,), ``placement`` shape (n_ranks * n_chunks,), both int64.

A new schedule is reached by naming it in a plan: the field ``schedule`` of a plan file, played by ``meshwright simulate``, or
``Plan(schedule=...)`` of a search of one's own, whose plans are judged like all others. ``--set schedules=`` of ``best`` takes
only those that ``best`` has proven bounds for, which a file of this folder cannot bring.

`load` finds a schedule by the word the user types: a file's name (``zb_h1``, ``zb-h1``) or one of the field's own names that
cannot be a file's name (``1f1b``). `ordered` asks one for its order of work and refuses an order that breaks these promises.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING

import numpy as np

from meshwright.base import registry
from meshwright.base.errors import InputError, PluginError, UnknownNameError
from meshwright.base.identity import read_only
from meshwright.core.timeline import PHASES

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "BACKWARD",
    "BACKWARD_INPUT",
    "BACKWARD_WEIGHT",
    "FORWARD",
    "Actions",
    "Durations",
    "Room",
    "in_pairs",
    "load",
    "looped",
    "names",
    "one_chunk",
    "ordered",
    "slots",
    "v_shaped",
    "word",
    "words",
]

FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, BACKWARD = 0, 1, 2, 3
"""Phases of a task: positions in `meshwright.core.timeline.PHASES`. BACKWARD is both gradients in one task."""

_ALIASES: Mapping[str, str] = MappingProxyType({
    "1f1b": "one_f_one_b", "dualpipev": "dualpipe_v", "interleaved": "interleaved_1f1b", "zbv": "zb_v",
})  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Actions:
    """The order of work of every pipeline rank.

    Parameters
    ----------
    first : ndarray, shape (n_ranks + 1,), int64
        Tasks of rank r are ``first[r] : first[r + 1]``, in the order in which it runs them.
    stage, microbatch, phase : ndarray, shape (n_tasks,), int64
        What each task is: stage (virtual stages counted apart), micro-batch, and `FORWARD`, `BACKWARD_INPUT`,
        `BACKWARD_WEIGHT` or `BACKWARD`.
    rank_of_stage : ndarray, shape (n_stages,), int64
        Which rank runs each stage.
    pairs : ndarray, shape (n_pairs,), int64
        Forward tasks, rising, that run beside the whole backward task that comes next: both start once the input of both is
        there, and what either sends leaves when both are done.
    """

    first: NDArray[np.int64]
    stage: NDArray[np.int64]
    microbatch: NDArray[np.int64]
    phase: NDArray[np.int64]
    rank_of_stage: NDArray[np.int64]
    pairs: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            object.__setattr__(self, name, read_only(getattr(self, name), np.int64))

    @property
    def n_ranks(self) -> int:
        """Number of pipeline ranks."""
        return len(self.first) - 1

    @property
    def n_stages(self) -> int:
        """Number of stages, virtual ones counted apart."""
        return len(self.rank_of_stage)

    @property
    def n_microbatches(self) -> int:
        """Number of micro-batches."""
        return int(self.microbatch.max()) + 1 if len(self.microbatch) else 0

    def held(self) -> NDArray[np.int64]:
        """Return how many activations each rank holds while each task runs; shape (n_tasks,), int64.

        An activation is held from the start of its forward task to the end of the last task that needs it: the weight
        gradient where it is a task of its own.
        """
        change = np.where(self.phase == FORWARD, 1, 0)
        freed = np.where((self.phase == BACKWARD) | (self.phase == BACKWARD_WEIGHT), 1, 0)
        level = np.cumsum(change) - np.concatenate(([0], np.cumsum(freed)[:-1])) if len(change) else change
        return np.asarray(level, dtype=np.int64)

    def in_flight(self) -> NDArray[np.int64]:
        """Return the largest number of activations that each rank holds at once; shape (n_ranks,), int64."""
        level = self.held()
        return np.array([level[a:b].max(initial=0) for a, b in zip(self.first[:-1], self.first[1:], strict=True)], np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """The memory that the tasks of a step share on each rank: what a schedule that is fitted to the model keeps to.

    Parameters
    ----------
    kept_bytes, working_bytes : ndarray, shape (n_stages,), float64
        Activations kept of one micro-batch; what a task needs while it runs.
    rank_bytes : ndarray, shape (n_ranks,), float64
        For both together, on each rank.
    """

    kept_bytes: NDArray[np.float64]
    working_bytes: NDArray[np.float64]
    rank_bytes: NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Durations:
    """How long the tasks of each stage take: what a schedule that is fitted to the model looks at.

    Parameters
    ----------
    forward_seconds, backward_input_seconds, backward_weight_seconds : ndarray, shape (n_stages,), float64
        One micro-batch.
    transfer_seconds : ndarray, shape (n_stages - 1,), float64
        From each stage to the next, and back.
    room : Room or None
        Memory that the order should keep to; None where it is not known.
    """

    forward_seconds: NDArray[np.float64]
    backward_input_seconds: NDArray[np.float64]
    backward_weight_seconds: NDArray[np.float64]
    transfer_seconds: NDArray[np.float64]
    room: Room | None = None


def slots(rows: list[list[tuple[int, int, int]]], rank_of_stage: NDArray[np.int64]) -> Actions:
    """Return slots from one list of (stage, micro-batch, phase) per rank."""
    first = np.concatenate(([0], np.cumsum([len(row) for row in rows])))
    flat = np.array([task for row in rows for task in row], dtype=np.int64).reshape(-1, 3)
    return Actions(first, flat[:, 0], flat[:, 1], flat[:, 2], rank_of_stage)


def looped(n_ranks: int, n_chunks: int) -> NDArray[np.int64]:
    """Return the rank of every stage when stages go round the ranks: 0 1 2 0 1 2."""
    return np.tile(np.arange(n_ranks, dtype=np.int64), n_chunks)


def v_shaped(n_ranks: int, n_chunks: int) -> NDArray[np.int64]:
    """Return the rank of every stage when every second round goes back: 0 1 2 2 1 0, the letter V."""
    there = np.arange(n_ranks, dtype=np.int64)
    return np.concatenate([there if chunk % 2 == 0 else there[::-1] for chunk in range(n_chunks)])


def one_chunk(schedule: str, n_chunks: int) -> None:
    """Refuse virtual stages where a schedule has none.

    Raises `InputError` when there is more than one stage per rank.
    """
    if n_chunks != 1:
        raise InputError(
            f"schedule {schedule}: {n_chunks} stages per rank, but it runs one; give every stage its own devices or use "
            "interleaved_1f1b"
        )


def in_pairs(name: str) -> bool:
    """Return whether a schedule runs tasks in pairs (`Actions.pairs`); false of one that there is not."""
    return name.startswith("combined_")


def words() -> tuple[str, ...]:
    """Return the schedules as the user types them, sorted."""
    return tuple(sorted(word(name) for name in names()))


def names() -> tuple[str, ...]:
    """Return the schedules as their files are called, sorted; see `word`."""
    return registry.names("schedules", _ALIASES)


def word(name: str) -> str:
    """Return the word that plans hold for a schedule, whichever of its names is given."""
    wanted = _file(name)
    return "1f1b" if wanted == "one_f_one_b" else wanted


def load(name: str) -> ModuleType:
    """Return the module of a schedule.

    Parameters
    ----------
    name : str
        As typed: ``1f1b``, ``gpipe``, ``interleaved_1f1b``, ``interleaved``, ``zb_h1``, ``zb-v``, ...

    Returns
    -------
    module
        Has `order`, `in_flight` and `placement`.

    Raises
    ------
    UnknownNameError
        When there is no such schedule.
    """
    try:
        return registry.load("schedules", _file(name), "schedule")
    except UnknownNameError:
        raise UnknownNameError("schedule", name, words()) from None


def ordered(name: str, n_ranks: int, n_chunks: int, n_microbatches: int, times: Durations | None = None) -> Actions:
    """Return the order of work that a schedule gives each rank, every task in it looked at.

    Parameters
    ----------
    name : str
        As of `load`.
    n_ranks, n_chunks, n_microbatches : int
        Pipeline ranks, stages per rank, micro-batches of one step.
    times : Durations or None
        Of the tasks, for schedules that are fitted to them.

    Raises
    ------
    InputError
        When there is no such schedule, or it cannot run so many stages per rank.
    PluginError
        When its order leaves out a task, has one twice, one that the plan does not have, or one on the wrong rank.
    """
    made: Actions = load(name).order(n_ranks, n_chunks, n_microbatches, times)
    registry.checked(made, Actions, "schedules", _file(name))
    wrong = _faults(made, n_ranks, n_ranks * n_chunks, n_microbatches)
    if wrong:
        raise PluginError(f"{registry.title('schedules', _file(name), 'schedule')}: its order of work {wrong}")
    return made


def _faults(made: Actions, n_ranks: int, n_stages: int, n_microbatches: int) -> str:
    """Return what is wrong with an order of work, in words; empty where every task of the step is in it once."""
    n_tasks = len(made.stage)
    columns = {"stage": (made.stage, n_stages), "microbatch": (made.microbatch, n_microbatches), "phase": (made.phase, 4)}
    for name, (column, n) in columns.items():
        if column.shape != (n_tasks,):
            return f"has {n_tasks} stages beside {name} of shape {column.shape}; every task needs one of each"
        outside = column[(column < 0) | (column >= n)]
        if len(outside):
            return f"has a task with {name} {outside[0]}; there are 0..{n - 1}"
    first, rank_of_stage = made.first, made.rank_of_stage
    if first.shape != (n_ranks + 1,) or first[0] != 0 or first[-1] != n_tasks or (first[1:] < first[:-1]).any():
        return f"has first {first.tolist()}; it must rise from 0 to {n_tasks}, the number of tasks, over {n_ranks} ranks"
    if rank_of_stage.shape != (n_stages,):
        return f"has rank_of_stage of shape {rank_of_stage.shape}; it must name the rank of each of {n_stages} stages"
    strange = np.flatnonzero(rank_of_stage[made.stage] != np.repeat(np.arange(n_ranks), first[1:] - first[:-1]))
    if len(strange):
        stage = made.stage[strange[0]]
        return f"has a task of stage {stage} on another rank than {rank_of_stage[stage]}, where rank_of_stage has it"
    code = (made.phase * n_stages + made.stage) * n_microbatches + made.microbatch
    counts = np.bincount(code, minlength=4 * n_stages * n_microbatches).reshape(4, n_stages, n_microbatches)
    both = counts[BACKWARD]
    right = (counts[FORWARD] == 1) & (both + counts[BACKWARD_INPUT] == 1) & (both + counts[BACKWARD_WEIGHT] == 1)
    if right.all():
        return _faulty_pairs(made)
    stage, i = np.argwhere(~right)[0]
    found = ", ".join(f"{n} {phase}" for n, phase in zip(counts[:, stage, i], PHASES, strict=False))
    return (
        f"has {found} tasks of micro-batch {i} on stage {stage}; it must have one forward, and one backward or one each of "
        "backward_input and backward_weight"
    )


def _faulty_pairs(made: Actions) -> str:
    """Return what is wrong with the pairs of an order of work, in words; empty where each is of two tasks of one rank."""
    last = set((made.first[1:] - 1).tolist())
    for task in made.pairs.tolist():
        if not 0 <= task < len(made.phase) - 1 or task in last:
            return f"has a pair that begins with task {task}; the next task must be of the same rank"
        both = tuple(made.phase[task : task + 2].tolist())
        if both != (FORWARD, BACKWARD):
            return f"has a pair of {PHASES[both[0]]} and {PHASES[both[1]]}; it must be a forward and a whole backward task"
    return ""


def _file(name: str) -> str:
    wanted = name.strip().lower().replace("-", "_")
    return _ALIASES.get(wanted, wanted)
