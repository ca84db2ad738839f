"""One search over many global batch sizes, on as many cores or machines as there are: rows of a table, always the same ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from meshwright import api
from meshwright.api import executors
from meshwright.api.executors import BACKENDS
from meshwright.base import registry
from meshwright.base.errors import InputError
from meshwright.core.formatting import describe
from meshwright.core.plan import Plan
from meshwright.core.problem import Problem, Stop
from meshwright.core.result import Answer, Result
from meshwright.core.words import NOTHING_RATIO

__all__ = ["BACKENDS", "NOT_ANSWERED", "Row", "batches", "sweep"]

NOT_ANSWERED = "not answered: stopped by Ctrl-C"
"""Note of a row whose search had not ended when Ctrl-C came."""

MOST_ROWS = 100_000
"""The longest table."""


@dataclass(frozen=True, slots=True)
class Row:
    """What one global batch size answers.

    Parameters
    ----------
    global_batch : int
        Samples of one step.
    data_parallel_ratio, data_parallel_overlap_ratio, hybrid_ratio : float or None
        Speed-up over one device: data parallel alone, with reductions beside the backward pass, and the plan found; None where
        nothing fits or the search does not know one device's time.
    step_seconds : float or None
        Simulated step of the plan.
    n_microbatches : int
        Micro-batches of the plan; 0 for none.
    schedule : str
        Its schedule.
    stages : tuple of (int, int)
        Layers and devices of each stage.
    objective : tuple of (str, float) or None
        In the search's own cost model.
    note : str
        Why there is no plan; of a plan, that its search was stopped before its end, and how much quicker one may be at most.
    samples_per_second : float or None
        Of the simulated step.
    description : str
        The plan in words.
    """

    global_batch: int
    data_parallel_ratio: float | None = None
    data_parallel_overlap_ratio: float | None = None
    hybrid_ratio: float | None = None
    step_seconds: float | None = None
    n_microbatches: int = 0
    schedule: str = ""
    stages: tuple[tuple[int, int], ...] = ()
    objective: tuple[str, float] | None = None
    note: str = ""
    samples_per_second: float | None = None
    description: str = ""

    @property
    def plan(self) -> str:
        """The stages in short: ``16@14 | 9@2`` is 16 layers on 14 devices, then 9 on 2."""
        return " | ".join(f"{n_layers}@{n_devices}" for n_layers, n_devices in self.stages)


def batches(text: str) -> tuple[int, ...]:
    """Return batch sizes from text.

    Parameters
    ----------
    text : str
        ``64,128,256``, or ``64:4096:64`` for 64, 128, ... up to 4096; parts of both kinds may be joined by commas.

    Returns
    -------
    tuple of int
        In the order given.

    Raises
    ------
    InputError
        When a part does not parse, or there are too many.
    """
    found: list[int] = []
    for part in text.split(","):
        numbers = part.strip().split(":")
        if len(numbers) not in (1, 2, 3) or not all(number.strip().isdigit() for number in numbers):
            raise InputError(
                f"--global-batches: '{part.strip()}' is neither a number nor FIRST:LAST:STEP; write 64,128 or 64:4096:64"
            )
        first, last, step = (*(int(number) for number in numbers), *((int(numbers[0]),) if len(numbers) == 1 else ()), 1)[:3]
        if first < 1 or step < 1 or last < first:
            raise InputError(f"--global-batches: '{part.strip()}': must rise from 1 on, in steps of at least 1")
        if (last - first) // step + len(found) >= MOST_ROWS:
            raise InputError(f"--global-batches: more than {MOST_ROWS} sizes; give a larger step")
        found += range(first, last + 1, step)
    return tuple(found)


def sweep(  # noqa: PLR0913  as many as the command line has
    problem: Problem,
    sizes: Sequence[int],
    *,
    search: str,
    settings: Mapping[str, str] | None = None,
    seed: int = 0,
    jobs: int = 1,
    backend: str = "loky",
    scheduler: str = "",
    time_limit_seconds: float = 0.0,
    done: Callable[[int, int], None] | None = None,
    keep: bool = False,
) -> tuple[Row, ...]:
    """Return a row for each global batch size.

    Parameters
    ----------
    problem : Problem
        The question; its global batch is replaced.
    sizes : sequence of int
        Global batch sizes.
    search : str
        The recipe.
    settings : mapping of str to str or None
        Its options.
    seed : int
        Seed of everything random.
    jobs : int
        Rows at once; 1 runs here, -1 takes every core.
    backend : str
        One of `BACKENDS`.
    scheduler : str
        Address of a Dask scheduler or Ray cluster; empty for one on this machine.
    time_limit_seconds : float
        When to stop the search of each row, with its best plan so far; 0 for never.
    done : callable or None
        Told how many of how many rows there are, after each one on this machine.
    keep : bool
        Whether Ctrl-C, once there is a row, is not raised: the others have the note `NOT_ANSWERED`; here only.

    Returns
    -------
    tuple of Row
        In the order of `sizes`; the same whatever `jobs` and `backend` are, but for a time limit.

    Raises
    ------
    InputError
        When there is no such backend, the settings fix the batch, or a search that cannot stop early has a time limit.
    MissingExtraError
        When the backend's package is not installed.
    """
    chosen = dict(settings or {})
    if "global_batch" in chosen:
        raise InputError("--set global_batch contradicts a sweep over global batches; leave it out")
    if time_limit_seconds and not getattr(registry.load("search", search, "search"), "STOPS_EARLY", False):
        raise InputError(f"--time-limit: search {search} cannot stop early; leave it out")
    with executors.workers(jobs, backend, scheduler, done=done, keep=keep) as run:
        rows = run(_row, [(problem, size, search, chosen, seed, time_limit_seconds) for size in sizes])
    return tuple(row or Row(size, note=NOT_ANSWERED) for size, row in zip(sizes, rows, strict=True))


def _row(problem: Problem, size: int, search: str, settings: dict[str, str], seed: int, time_limit_seconds: float) -> Row:
    """Answer one batch size."""
    asked = replace(problem, batch=replace(problem.batch, global_batch=size))
    try:
        result = api.plan(asked, search=search, settings=settings, seed=seed, stop=Stop(seconds=time_limit_seconds))
    except InputError as error:
        return Row(size, note=str(error))
    answer = result.answer
    ratios = _ratios(answer)
    if answer.plan is None:
        nothing = "nothing fits" if answer.infeasible_proven else "no plan that fits was found"
        return Row(size, *ratios, note=f"{nothing}: {answer.missing_bytes / 2**30:.3g} GiB missing")
    plan: Plan = answer.plan
    step_seconds = None if result.timeline is None else result.timeline.step_seconds
    return Row(
        size,
        *ratios,
        step_seconds,
        plan.n_microbatches,
        plan.schedule,
        tuple((len(stage.ops), len(stage.devices)) for stage in plan.stages),
        None if answer.objective is None else (answer.objective.name, answer.objective.value),
        note=_stopped(result) if answer.extra.get("stopped_early") is True else "",
        samples_per_second=size / step_seconds if step_seconds else None,
        description=describe(plan),
    )


def _stopped(result: Result) -> str:
    """Return what a row says of a search that was stopped before its end."""
    gap = result.gap_ratio
    may_be = "" if gap is None or gap < NOTHING_RATIO else f": a plan at most {gap:.2%} quicker may exist"
    return f"stopped before its end{may_be}"


def _ratios(answer: Answer) -> tuple[float | None, float | None, float | None]:
    """Return the speed-ups over one device of data parallel, with overlap, and of the plan."""
    baselines, alone = answer.extra.get("baselines"), answer.extra.get("one_device_seconds")
    if not isinstance(baselines, Mapping):
        return None, None, None
    if answer.objective is not None and answer.objective.name == "speedup":
        return baselines.get("dp_no_overlap"), baselines.get("dp_ga_normal_overlap"), answer.objective.value
    if not isinstance(alone, float):
        return None, None, None
    seconds = (
        baselines.get("data_parallel"),
        baselines.get("data_parallel_overlap"),
        None if answer.objective is None else answer.objective.value,
    )
    found = tuple(alone / value if value else None for value in seconds)
    return found[0], found[1], found[2]
