"""Launchers: how the hosts of a plan are found, put in order and started. One file per launcher.

Promises of a launcher's module, checked by ``tests/contract/test_launchers.py``:

* ``SUFFIX``: the end of its file's name, beside that of the framework's configuration: ``.sbatch``;
* ``text(job) -> str``: what that file holds, or an `ExportError` where the launcher cannot keep the plan's order. Host k of the
  job gets ``NODE_RANK`` k, every host the same ``MASTER_ADDR`` (host 0) and ``MASTER_PORT``, and runs ``job.program.command``;
* the same job gives the same text.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

from meshwright.base import registry
from meshwright.core.launch import LaunchJob, StartCommand, hosts_of
from meshwright.core.result import Result
from meshwright.launchers import _groups, _network

__all__ = ["job_of", "load", "names"]


def names() -> tuple[str, ...]:
    """Return the launchers there are, sorted."""
    return registry.names("launchers")


def load(name: str) -> ModuleType:
    """Return a launcher's module.

    Raises
    ------
    UnknownNameError
        When there is none of this name.
    PluginError
        When it is broken.
    """
    return registry.load("launchers", name, "launcher")


def job_of(result: Result, program: StartCommand, file: str, text: str) -> LaunchJob:
    """Return what a launcher writes down of a plan.

    Parameters
    ----------
    result : Result
        With plan.
    program : StartCommand
        What every host starts.
    file, text : str
        The framework's configuration: its path and content.

    Returns
    -------
    LaunchJob
        With the remarks on groups and nodes.

    Raises
    ------
    ExportError
        When hosts take part with different devices, or the framework's ranks would tear a group out of the node that it was
        planned in.
    """
    plan, cluster = result.plan, result.problem.cluster
    hosts = hosts_of(plan, cluster)
    remarks = _groups.checked(plan, cluster, program.axes)
    where = f" of {cluster.name}" if cluster is not None else ""
    seconds = "" if result.timeline is None else f", {result.timeline.step_seconds:.4g} s a step predicted"
    name = result.problem.model_spec.name
    return LaunchJob(
        re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-") or "plan",
        f"{name} on {plan.n_devices} devices{where}{seconds}", Path(file).name, text,
        _network.with_environment(program, cluster, hosts), hosts, remarks,
    )  # fmt: skip
