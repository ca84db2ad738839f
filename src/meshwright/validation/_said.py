"""What files beside a row of one's own runs say of it: the log of the run, its framework's configuration, a plan of ours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from meshwright import frameworks
from meshwright.base import files
from meshwright.base.errors import InputError
from meshwright.core.flops import model_flops
from meshwright.core.graph import Graph
from meshwright.core.run_config import RunConfig
from meshwright.validation._logs import MeasuredRun, measured_run
from meshwright.validation._points import CellError
from meshwright.writers import plan_json

__all__ = ["Said", "check_work", "configured", "of_log"]

MOST_WORK = 2.0
"""FLOPs of a step as a log's rate has them, over the model's own: what formulas differ by (recomputation, attention, the
head), with room. More is another model, batch or number of devices."""


@dataclass(frozen=True, slots=True)
class Said:
    """A row's cells with what its log adds, and the log.

    Parameters
    ----------
    fields : mapping of str to str
        Cells by column.
    log : MeasuredRun or None
        What the log says; None for a row without one.
    """

    fields: Mapping[str, str]
    log: MeasuredRun | None = None

    @property
    def n_devices(self) -> int:
        """How many devices the log tells; 0 for none."""
        return int(self.log.settings.get("devices", "0")) if self.log else 0


def of_log(fields: Mapping[str, str]) -> Said:
    """Return a row with what its log says in the cells that it leaves empty.

    Raises
    ------
    CellError
        When the log cannot be read, or contradicts a cell.
    """
    path = fields.get("log", "").strip()
    if not path:
        return Said(fields)
    try:
        log = measured_run(path)
    except InputError as error:
        raise CellError("log", str(error)) from None
    told = {name: text for name, text in log.settings.items() if name != "devices"} if not fields.get("config") else {}
    told |= {"global_batch": str(log.global_batch)} if log.global_batch else {}
    told |= {"sequence_length": log.options["--seq-length"][0]} if log.options.get("--seq-length") else {}
    if not fields.get("program", "").strip():
        told["framework"] = log.framework
    for name, text in told.items():
        own = fields.get(name, "").strip()
        if own and name != "framework" and own.replace(",", "") != text:
            raise CellError(name, f"{name} is {own}, but the log {path} says {text}; correct one of them")
    filled = {name: text for name, text in told.items() if not fields.get(name, "").strip()}
    held = {"reserved_gib": log.reserved_bytes, "allocated_gib": log.allocated_bytes}
    if not any(fields.get(name, "").strip() for name in (*held, "nvidia_smi_gib")):
        filled |= {name: f"{n_bytes / 2.0**30:.6g}" for name, n_bytes in held.items() if n_bytes}
    return Said({**fields, **filled}, log)


def configured(said: Said, word: str, graph: Graph, n_devices: int) -> RunConfig | None:
    """Return what a row's configuration, or the options in its log, say of the run; None where there is neither.

    `word`: the framework that trained, as after ``--for``. `n_devices`: how many the cluster has.

    Raises
    ------
    InputError
        When the file cannot be read, or contradicts the model or the log.
    """
    path = said.fields.get("config", "").strip()
    n_devices = said.n_devices or n_devices
    if path:
        found = _of_file(path, word, graph, n_devices)
    elif said.log and "--num-layers" in said.log.options:
        from meshwright.frameworks.megatron import told

        found = told.config_of(said.log.options, said.log.file, graph, n_devices)
    else:
        return None
    batch = said.fields.get("global_batch", "").strip().replace(",", "")
    if batch and batch != str(found.plan.global_batch):
        where = path or (said.log.file if said.log else "")
        raise CellError(
            "global_batch", f"global_batch is {batch}, but {where} says {found.plan.global_batch}; correct one of them"
        )
    return found


def _of_file(path: str, word: str, graph: Graph, n_devices: int) -> RunConfig:
    """Return what a file says: a plan of ours, or a framework's configuration."""
    if path.endswith(".json"):
        entry = files.read_json(path)
        if isinstance(entry, dict) and entry.get("format") == plan_json.FORMAT:
            plan = plan_json.plan_from_json(entry, {op.name: i for i, op in enumerate(graph.ops)}, path)
            return RunConfig(plan, str(entry.get("training", {}).get("precision", "")))
    name = frameworks.find(word).name if word.endswith(".toml") else word.partition(":")[0]
    module = frameworks.load(name) if name in frameworks.names() else None
    if module is None or not hasattr(module, "read"):
        raise CellError("config", f"{path}: there is no reader of the configuration of {word}; name a plan file of ours")
    found: RunConfig = module.read(path, graph, n_devices)
    return found


def check_work(log: MeasuredRun, graph: Graph, global_batch: int, n_devices: int) -> float:
    """Return the seconds of a step, their figures checked against the work of the run's model.

    Raises
    ------
    InputError
        When the log's rates or FLOPs make another amount of work, or it tells no time.
    """
    seconds = log.seconds_of(global_batch, graph.sequence_length, n_devices)
    if not 0.0 < seconds < math.inf:
        raise InputError(f"{log.file}: tells no seconds of a step, and no rate to find them from")
    told = log.device_flops_per_second * seconds * n_devices
    needed = model_flops(graph) * global_batch
    if told and needed and not 1.0 / MOST_WORK < told / needed < MOST_WORK:
        raise InputError(
            f"{log.file}: {log.device_flops_per_second / 1e12:.4g} TFLOP/s a device make {told:.3g} FLOP a step of "
            f"{seconds:.4g} s on {n_devices} devices; {graph.name} needs {needed:.3g} for {global_batch} samples: another "
            "model, batch or number?"
        )
    return seconds
