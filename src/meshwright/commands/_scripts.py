"""``meshwright run SCRIPT.py --plan PLAN``: a training script of the user's own under a plan."""

from __future__ import annotations

import typer

__all__ = ["check_told", "ended", "is_asked", "run_script"]

_WITH_SCRIPTS = ("plan", "script_plan", "backend", "processes", "timeout", "torchrun")


def is_asked(word: str, plan: str, model: str) -> bool:
    """Whether ``meshwright run`` was given a script instead of a plan file.

    `word`: its first one.
    `plan`, `model`: of ``--plan``, which scripts have, and of ``--model``, which plan files need.
    Raises `InputError` when a plan file is given what scripts are, or no model.
    """
    from meshwright.base.errors import InputError

    if word.endswith(".py"):
        return True
    if plan or not model:
        wrong = "--plan goes with SCRIPT.py" if plan else "--model is missing"
        raise InputError(f"run: {wrong}; write 'run PLAN --model package.module:callable' or 'run SCRIPT.py --plan PLAN'")
    return False


def check_told(context: typer.Context, elastic: bool, n_machines: int) -> None:
    """Refuse options of a run of a plan file that say nothing there.

    Raises `InputError` for ``--max-restarts`` without ``--elastic``, and ``--torchrun`` out of range.
    """
    from meshwright.base.errors import InputError
    from meshwright.runtime.job import options

    options.check_limits(0, 0.0, n_machines)
    source = context.get_parameter_source("max_restarts")
    if source is not None and source.name == "COMMANDLINE" and not elastic:
        raise InputError("--max-restarts: is for runs with --elastic; give that too")


def run_script(context: typer.Context, plan: str, backend: str, n_machines: int, limits: tuple[int, float]) -> int:
    """Start a script of the user's own under a plan, join torchrun's processes, or print their command; return the exit status.

    `context`: of the command; its first word is the script.
    `plan`: of ``--plan``.
    `backend`, `n_machines`: of ``--backend`` where it is given, and of ``--torchrun``.
    `limits`: ``--processes`` and ``--timeout``.
    Raises `InputError` when the plan is missing or wrong, or an option is for runs of a plan file.
    """
    from meshwright.base.errors import InputError
    from meshwright.runtime.job import launch, options
    from meshwright.runtime.open import script

    def given(name: str) -> bool:
        found = context.get_parameter_source(name)
        return found is not None and found.name == "COMMANDLINE"

    other = next(
        (param for param in context.command.params if param.name not in _WITH_SCRIPTS and given(param.name or "")), None
    )
    if other is not None:
        raise InputError(
            f"{max(other.opts, key=len)}: is for runs of a plan file ('run PLAN --model package.module:callable'); "
            "a script has its own loop"
        )
    options.check_limits(*limits, n_machines)
    if not plan:
        raise InputError(f"run {context.params['plan']}: give the script's plan: --plan plan.json")
    told = script.Script(context.params["plan"], plan, tuple(context.args), backend)
    if n_machines > 0:
        print("\n".join(script.torchrun_lines(told, n_machines)))
        return 0
    if launch.under_torchrun():
        return ended(script.join(told))
    return ended(script.start(told, processes=limits[0], timeout_seconds=limits[1]))


def ended(status: int) -> int:
    """Return an exit status; one of a signal ends the program at once, since what happened is told and nothing is to be added.

    Raises `SystemExit` then.
    """
    if status > 128:
        raise SystemExit(status)
    return status
