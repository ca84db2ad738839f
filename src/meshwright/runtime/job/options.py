"""Options of a run that are out of range or do not go together."""

from __future__ import annotations

import math
from pathlib import Path

from meshwright.base.errors import InputError
from meshwright.runtime.job.job import Job

__all__ = ["check", "profiled_folder"]


def check(job: Job, limits: tuple[float, float], profiles: tuple[str, str], *, emulate: bool = False) -> None:
    """Refuse options that are out of range or do not go together.

    `limits`: ``--processes`` and ``--timeout``.
    `profiles`: ``--profile`` and ``--calibrate``.
    `emulate`: ``--emulate``.
    Raises `InputError` when one is wrong.
    """
    if not 1 <= job.n_steps <= 10**9:
        raise InputError(f"--steps {job.n_steps}: must be between 1 and {10**9}")
    if job.backend not in ("", "gloo", "nccl"):
        raise InputError(f"--backend {job.backend}: must be gloo or nccl")
    if job.non_finite not in ("stop", "skip"):
        raise InputError(f"--non-finite {job.non_finite}: must be stop or skip")
    _check_figures(job)
    check_limits(*limits)
    if job.keep_every < 0 or (job.keep_every and not job.save_every):
        raise InputError(f"--keep-every {job.keep_every}: must be at least 0, and needs --save-every")
    if job.keep_every and job.keep_every % job.save_every:
        raise InputError(f"--keep-every {job.keep_every}: must be a multiple of --save-every {job.save_every}")
    if job.keep < 1:
        raise InputError(f"--keep {job.keep}: must be at least 1")
    if job.save_every < 0:
        raise InputError(f"--save-every {job.save_every}: must be at least 0")
    if (job.resume or job.save_every) and not job.save:
        raise InputError("--resume and --save-every need --save FOLDER")
    if profiles[1] and not profiles[0]:
        raise InputError("--calibrate corrects the profile of --profile; give that too")
    _check_elastic(job, any(profiles) or emulate)


def _check_figures(job: Job) -> None:
    """Refuse figures of the training that are out of range."""
    if not 0.0 <= job.clip_norm_value < math.inf:
        raise InputError(f"--clip-norm {job.clip_norm_value:g}: must be a number of at least 0 (0: no limit)")
    if not 0.0 <= job.learning_rate_value < math.inf:
        raise InputError(f"--learning-rate {job.learning_rate_value:g}: must be a number of at least 0")
    if not 0 <= job.seed < 2**63:
        raise InputError(f"--seed {job.seed}: must be a whole number of at least 0 and below 2^63")


def check_limits(n_processes: float, timeout_seconds: float, n_machines: int = 0) -> None:
    """Refuse ``--processes``, ``--timeout`` and ``--torchrun`` out of range.

    Raises `InputError` when one is.
    """
    if n_processes < 0:
        raise InputError(f"--processes {n_processes}: must be at least 0 (0: one for each device of the plan)")
    if not 0.0 <= timeout_seconds < math.inf:
        raise InputError(f"--timeout {timeout_seconds:g}: must be a number of seconds of at least 0 (0: never)")
    if n_machines < 0:
        raise InputError(f"--torchrun {n_machines}: must be at least 1")


def _check_elastic(job: Job, fixed: bool) -> None:
    """Refuse what does not go with plans that change; `fixed`: whether something suits the plan given only."""
    if not 0 <= job.max_restarts <= 10**9:
        raise InputError(f"--max-restarts {job.max_restarts}: must be between 0 and {10**9}")
    if job.elastic and not (job.save and job.save_every):
        raise InputError("--elastic goes on from checkpoints: give --save FOLDER and --save-every N too")
    if job.elastic and fixed:
        raise InputError("--elastic plans for other devices while it runs: leave --profile, --calibrate and --emulate out")


def profiled_folder(trace: str) -> str:
    """Return the folder that ``--trace`` names, which is made; nothing where it names a file.

    Raises `InputError` when it cannot be made.
    """
    path = Path(trace)
    if not trace.endswith("/") and not (trace and path.is_dir()):
        return ""
    try:
        path.mkdir(parents=True, exist_ok=True)
        for old in path.glob("rank-*.json"):
            old.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"--trace {trace}: {error.strerror}") from None
    return str(path.absolute())
