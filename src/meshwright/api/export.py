"""A plan for another program: which writers take a plan, and one of them applied to a plan file or a result."""

from __future__ import annotations

import inspect
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from meshwright import launchers
from meshwright.api import plan_files, targets
from meshwright.base import files, kinds, registry
from meshwright.base.errors import ExportError, InputError, PluginError, UnknownNameError
from meshwright.core.framework import FrameworkLimits
from meshwright.core.result import Result
from meshwright.frameworks import searched, torchtitan
from meshwright.frameworks.torchtitan import in_trainer
from meshwright.models.documents import UNTOLD

__all__ = ["export", "launch_path", "names", "several", "torchtitan_config", "torchtitan_functions"]

_FRAMEWORK_OF: Mapping[str, str] = MappingProxyType({"megatron_args": "megatron"})  # other names of their writers
_FOR_PLANS: Mapping[str, str] = MappingProxyType({"chakra": "chakra_plan"})  # by a name that 'codesign' has, too


def names() -> tuple[str, ...]:
    """Return what takes a plan: writers whose first argument is called ``result``, and frameworks that can be told one."""
    writers = {name for name, module in registry.each("writers", "export") if _takes_plans(module)}
    told = {name for name, module in registry.each("frameworks", "framework") if hasattr(module, "write")}
    return tuple(sorted(writers | told))


def _writer(to: str) -> ModuleType:
    """Return what writes a plan: a writer, or a framework that can be told one.

    Raises `UnknownNameError` when there is none of this name, `ExportError` when it is made from something else.
    """
    wanted = _FOR_PLANS.get(to, to.replace("-", "_"))
    if wanted in registry.names("writers"):
        writer = registry.load("writers", wanted, "export")
        if _takes_plans(writer):
            return writer
        raise ExportError(
            f"--to {to}: is not made from a plan but by 'meshwright codesign' and its options; plans go to: "
            f"{', '.join(names())}"
        )
    if wanted in registry.names("frameworks"):
        framework = registry.load("frameworks", wanted, "framework")
        if hasattr(framework, "write"):
            return framework
        raise ExportError(f"--to {to}: there is no writer of its configuration yet; plans go to: {', '.join(names())}")
    raise UnknownNameError("export", to, names())


def _takes_plans(module: ModuleType) -> bool:
    return next(iter(inspect.signature(module.write).parameters)) == "result"


def launch_path(path: str, launch: str) -> str:
    """Return where the launcher's file lies: beside the configuration, with an ending of its own.

    Parameters
    ----------
    path : str
        The framework's configuration.
    launch : str
        A launcher: ``slurm``, ``torchrun``, ``k8s``.

    Returns
    -------
    str
        The path.

    Raises
    ------
    UnknownNameError
        When there is no such launcher.
    InputError
        When the configuration itself has this name.
    """
    suffix: str = launchers.load(launch).SUFFIX
    found = Path(path).parent / f"{Path(path).stem}{suffix}"
    if found == Path(path):
        raise InputError(f"--out {path}: is the name of the launcher's file, which lies beside it; give another ending")
    return str(found)


def several(to: str) -> bool:
    """Return whether there is no file of the path itself but several that begin with it, as the first note of `export` says."""
    return bool(getattr(_writer(to), "SEVERAL", False))


def export(plan: Result | str, to: str, path: str, *, cluster: str = "", model: str = "", launch: str = "") -> tuple[str, ...]:
    """Write a plan for another program.

    Parameters
    ----------
    plan : Result or str
        What `meshwright.plan` returned, or a file written by ``meshwright plan --out``.
    to : str
        A writer that takes plans, or a framework that can be told one: ``megatron``, ``piper_json``, ``chrome_trace``, ...
    path : str
        The file to write.
    cluster, model : str
        For a plan file: another cluster than its own, and where its model lies now; empty for its own.
    launch : str
        For a framework: what starts the hosts (``slurm``, ``torchrun``, ``k8s``), written to `launch_path`; empty for nothing.

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
        When the format cannot say what the plan says, or the launcher cannot keep its order of ranks.
    """
    wanted, writer = to.replace("-", "_"), _writer(to)
    files.check_target(path, "--out")
    started = _started(to) if launch else None
    beside = launch_path(path, launch) if launch else ""
    if isinstance(plan, str):
        result = plan_files.load(plan, cluster, model)
    elif cluster or model:
        raise InputError("cluster and model are for plan files; a Result holds its own")
    else:
        result = plan
    if not result.feasible:
        raise InputError("nothing fits, so there is no plan to export")
    if wanted not in registry.names("frameworks"):
        another = "export it to another format, like plan_json or dot"
        targets.whole_only(result.problem.graph, writer, f"--to {to}", another)
        targets.states_known(result.problem.training, writer, f"--to {to}", "FROZEN", another)
    try:
        notes = (
            _written(writer, wanted, result, path)
            if started is None
            else _write_both(result, (writer, wanted), started, (path, beside), launch)
        )
    except ExportError as error:
        raise ExportError(f"{_unhinted(str(error), result, wanted)}{_nearest(result, wanted)}") from None
    if not getattr(writer, "RINGS", False) and any(stage.ring for stage in result.plan.stages):
        notes += ("the order of the gradient rings is left out: the communication library finds its own",)
    if result.problem.model_spec.pairs_ratio != 1.0 and wanted not in registry.names("writers"):
        notes += (UNTOLD,)
    return notes


def _started(to: str) -> ModuleType:
    """Return the framework that launchers start; raises `ExportError` for what no launcher can."""
    name = _FRAMEWORK_OF.get(to.replace("-", "_"), to.replace("-", "_"))
    known = {word: module for word, module in registry.each("frameworks", "framework") if hasattr(module, "program")}
    if name not in known:
        raise ExportError(f"--launch: starts a framework: {', '.join(known)}; not what --to {to} writes")
    return known[name]


def _write_both(
    result: Result, writer: tuple[ModuleType, str], started: ModuleType, paths: tuple[str, str], launch: str
) -> tuple[str, ...]:
    """Write a configuration and its launcher, both or neither; return what is to be told."""
    path, beside = paths
    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder) / Path(path).name
        notes = _written(*writer, result, str(draft))
        text = files.read_text(draft)
    job = launchers.job_of(result, started.program(result, path), path, text)
    started_by: str = launchers.load(launch).text(job)
    files.write(path, text)
    files.write(beside, started_by)
    return (*notes, *job.remarks)


def _written(writer: ModuleType, name: str, result: Result, path: str) -> tuple[str, ...]:
    """Let a writer write; return what is to be told. What another package's leaves is put in place only once it is done."""
    room = "writers" if name in registry.names("writers") else "frameworks"
    if not registry.package(room, name):
        notes: Sequence[str] | None = writer.write(result, path)
        return tuple(notes or ())
    target = Path(path)
    with tempfile.TemporaryDirectory() as folder, registry.blamed(room, name):
        notes = writer.write(result, str(Path(folder) / target.name))
        given = tuple(notes) if isinstance(notes, list) else notes
        wrong = kinds.mismatch(given, tuple[str, ...] | None, "notes")
        left = sorted(file for file in Path(folder).iterdir() if file.is_file())
        if wrong or target.name not in [file.name for file in left]:
            raise PluginError(f"{registry.title(room, name)} {f'returned {wrong}' if wrong else 'wrote no file'}")
        contents = [(target.parent / file.name, files.read_bytes(file)) for file in left]
    for file, content in contents:
        files.write(file, content)
    return tuple(" ".join(note.split()) for note in notes or ())


def _unhinted(message: str, result: Result, to: str) -> str:
    """Return a refusal without the advice to plan for a framework, where that is what the plan was made for."""
    name, problem = _FRAMEWORK_OF.get(to, to), result.problem
    return message.replace(f"{searched(name)}, ", "") if problem.framework_asked and problem.framework.name == name else message


def _nearest(result: Result, to: str) -> str:
    """Say what makes a plan one that a framework runs, with the same stages and degrees, and the step then; empty for none."""
    name = _FRAMEWORK_OF.get(to, to)
    near = targets.nearest(result, name) if name in registry.names("frameworks") else None
    if near is None or not near.changed:
        return ""
    return f". Nearest with the same stages: {near.changed}, {near.step_seconds:.4g} s a step"


def torchtitan_functions(plan: Result | str | os.PathLike[str], spec: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return ``parallelize_fn`` and ``pipelining_fn`` of a torchtitan model under a plan, for torchtitan 0.3.0.

    They take the place of the model's own in its ``ModelSpec`` (``TrainSpec`` before 0.3), with the same arguments, and call
    these: with the plan's stages, its order of work (of every schedule), resharding, and the recomputation of each layer by
    itself. What the trainer makes before, meshes and batches, its configuration has to say; where it says otherwise than the
    plan, they refuse, with all fields to be set. `torchtitan_config` sets them.

    Parameters
    ----------
    plan : Result, str or path
        What `meshwright.plan` returned, or a file written by ``meshwright plan --out``.
    spec : torchtitan.protocols.model_spec.ModelSpec
        The model's own: ``model_registry("8B")``.

    Returns
    -------
    tuple of callable
        ``parallelize_fn`` and ``pipelining_fn``.

    Raises
    ------
    InputError
        When the plan file is wrong, or nothing fits.
    ExportError
        When torchtitan's trainer cannot do what the plan says, or another release than 0.3.0 is installed.
    MissingExtraError
        Without torchtitan.

    Examples
    --------
    >>> spec = model_registry("8B")  # doctest: +SKIP
    >>> parallelize_fn, pipelining_fn = meshwright.torchtitan_functions("plan.json", spec)  # doctest: +SKIP
    >>> spec = dataclasses.replace(spec, parallelize_fn=parallelize_fn, pipelining_fn=pipelining_fn)  # doctest: +SKIP
    """
    return in_trainer.functions(_result(plan), _limits(), spec)


def torchtitan_config(plan: Result | str | os.PathLike[str], config: Any) -> Any:
    """Make a configuration of torchtitan's trainer run a plan: degrees, batches, `torchtitan_functions`.

    Parameters
    ----------
    plan : Result, str or path
        As in `torchtitan_functions`.
    config : torchtitan.trainer.Trainer.Config
        Changed in place. Optimizer, data, checkpoints and loss stay as they are, and ``torch.compile`` where the
        plan was not made for torchtitan.

    Returns
    -------
    torchtitan.trainer.Trainer.Config
        The same.

    Raises
    ------
    InputError, ExportError, MissingExtraError
        As `torchtitan_functions`.
    """
    return in_trainer.configure(_result(plan), _limits(), config)


def _limits() -> FrameworkLimits:
    return next(one.framework.limits for one in torchtitan.VARIANTS if one.framework.variant == "functions")


def _result(plan: Result | str | os.PathLike[str]) -> Result:
    return plan if isinstance(plan, Result) else plan_files.load(os.fspath(plan))
