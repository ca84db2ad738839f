"""A plan for another program: which writers take a plan, and one of them applied to a plan file or a result."""

from __future__ import annotations

import inspect
from types import ModuleType

from meshwright.api import plan_files
from meshwright.base import files, registry
from meshwright.base.errors import ExportError, InputError, UnknownNameError
from meshwright.core.result import Result

__all__ = ["export", "names"]

_WITH_RINGS = ("chrome_trace", "plan_json", "report_html")  # show or keep what was simulated


def names() -> tuple[str, ...]:
    """Return the writers that take a plan: those whose first argument is called ``result``."""
    return tuple(sorted(name for name, module in registry.each("writers", "export") if _takes_plans(module)))


def _takes_plans(module: ModuleType) -> bool:
    return next(iter(inspect.signature(module.write).parameters)) == "result"


def export(plan: Result | str, to: str, path: str, *, cluster: str = "", model: str = "") -> tuple[str, ...]:
    """Write a plan for another program.

    Parameters
    ----------
    plan : Result or str
        What `meshwright.plan` returned, or a file written by ``meshwright plan --out``.
    to : str
        A file of `meshwright.writers` that takes plans: ``piper_json``, ``megatron_args``, ``chrome_trace``, ...
    path : str
        The file to write.
    cluster, model : str
        For a plan file: another cluster than its own, and where its model lies now; empty for its own.

    Returns
    -------
    tuple of str
        What the format could not say and what was written instead, in sentences; empty where it says all.

    Raises
    ------
    InputError
        When the plan file is wrong, nothing fits, or the file cannot be written.
    UnknownNameError
        When no such writer takes plans.
    ExportError
        When the format cannot say what the plan says.
    """
    wanted = to.replace("-", "_")
    if wanted not in registry.names("writers"):
        raise UnknownNameError("export", to, names())
    writer = registry.load("writers", wanted, "export")
    if not _takes_plans(writer):
        raise ExportError(
            f"--to {to}: is not made from a plan but by 'meshwright codesign' and its options; plans go to: "
            f"{', '.join(names())}"
        )
    files.check_target(path, "--out")
    if isinstance(plan, str):
        result = plan_files.load(plan, cluster, model)
    elif cluster or model:
        raise InputError("cluster and model are for plan files; a Result holds its own")
    else:
        result = plan
    if not result.feasible:
        raise InputError("nothing fits, so there is no plan to export")
    notes: tuple[str, ...] | None = writer.write(result, path)
    notes = notes or ()
    if wanted not in _WITH_RINGS and any(stage.ring for stage in result.plan.stages):
        notes += ("the order of the gradient rings is left out: the communication library finds its own",)
    return notes
