"""What files beside a row of one's own runs say of it: the log of the run, its framework's configuration, a plan of ours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshwright import frameworks, schedules
from meshwright.base import files
from meshwright.base.errors import InputError
from meshwright.core import plan_fields
from meshwright.core.cluster import Cluster
from meshwright.core.flops import model_flops
from meshwright.core.graph import Graph
from meshwright.core.plan import Plan
from meshwright.core.plan_forms import inner_words
from meshwright.core.problem import MixedPrecision
from meshwright.core.run_config import RunConfig
from meshwright.validation._logs import AGREEMENT, MeasuredRun, alike, measured_run
from meshwright.validation._logs.beside import kind_word
from meshwright.validation._points import CellError, count, counts, ratio
from meshwright.writers import plan_json

__all__ = ["FAILED", "Said", "check_log", "check_seconds", "check_work", "configured", "of_log", "usual_variant"]

DEGREES = ("data", "tensor", "context", "expert", "pipeline")
"""What a log tells of a plan for certain; the rest of it may be assumed."""

FAILED = ("oom", "failed")
"""What a run that failed for memory has for seconds."""

MOST_WORK = 2.0
"""FLOPs of a step as a log's rate has them, over the model's own: what formulas differ by (recomputation, attention, the
head), with room. More is another model, batch or number of devices."""


WEIGHTS_RATIO = 1.03
"""Weights that a log tells may be so many times the model's: vocabularies are padded, counts rounded."""


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
    _check_measured(fields, log, path)
    if log.refused and not fields.get("config", "").strip():
        raise CellError("log", f"{path}: {log.refused}; give the program's configuration in the column config")
    taken = ("precision",) if fields.get("config", "").strip() else set(log.settings) - {"devices"}
    told = {name: text for name, text in log.settings.items() if name in taken}
    told |= {"global_batch": str(log.global_batch)} if log.global_batch else {}
    told |= {"sequence_length": log.options["--seq-length"][0]} if log.options.get("--seq-length") else {}
    if not fields.get("program", "").strip():
        told["framework"] = _writer(log.framework, fields.get("config", "").strip())
    for name, text in told.items():
        own = fields.get(name, "").strip()
        if own and name != "framework" and own.replace(",", "") != text:
            raise CellError(name, f"{name} is {own}, but the log {path} says {text}; correct one of them")
    filled = {name: text for name, text in told.items() if not fields.get(name, "").strip()}
    held = {"reserved_gib": log.reserved_bytes, "allocated_gib": log.allocated_bytes}
    if not any(fields.get(name, "").strip() for name in (*held, "nvidia_smi_gib")):
        filled |= {name: f"{n_bytes / 2.0**30:.6g}" for name, n_bytes in held.items() if n_bytes}
    return Said({**fields, **filled}, log)


def _writer(framework: str, config: str) -> str:
    """Return what wrote a log: the framework whose configuration stands beside it, where its log may be of that kind."""
    try:
        found = frameworks.recognised(files.read_text(config)) if config else ()
    except InputError:
        return framework  # whoever reads the configuration says what is wrong with it
    return found[0] if len(found) == 1 and found[0] != framework and alike(framework, found[0]) else framework


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
        if said.log and "--num-layers" in said.log.options:
            _check_options(said.log, found, graph, path)
    elif said.log and "--num-layers" in said.log.options:
        from meshwright.frameworks.megatron import told

        path = said.log.file
        own = said.log.framework == "megatron"
        found = told.config_of(said.log.options, path, graph, n_devices, says_overlaps=own)
    else:
        return None
    _check_cells(said.fields, found.plan, graph, path)
    if said.log:
        degrees = {name: text for name, text in said.log.settings.items() if name in DEGREES}
        try:
            _check_cells(degrees, found.plan, graph, path)
        except CellError as error:
            raise CellError("config", f"by {said.log.file} {error}") from None
    return found


def _check_options(log: MeasuredRun, found: RunConfig, graph: Graph, path: str) -> None:
    """Refuse a configuration whose plan or precision is not that of the options in the log beside it, as far as these are a
    plan's.
    """
    from meshwright.frameworks.megatron import told

    try:
        own = told.config_of(log.options, log.file, graph, found.plan.n_devices)
    except InputError:
        return
    for name, value in _words(own.plan, graph).items():
        other = _words(found.plan, graph)[name]
        if value != other:
            raise CellError("config", f"by {log.file} {name} is {value}, but {path} says {other}; correct one of them")
    if own.precision and found.precision and own.precision != found.precision:
        said = f"precision is {own.precision}, but {path} says {found.precision}; correct one of them"
        raise CellError("config", f"by {log.file} {said}")


def _words(plan: Plan, graph: Graph) -> dict[str, object]:
    """Return what the columns of a row say of a plan whose stages are alike."""
    one, n_ranks = plan.stages[0].strategy, len(plan.ranks())
    every = sorted({word for stage in inner_words(plan, graph) for word in stage})
    return {
        "micro_batch": plan.micro_batch, "tensor": one.tensor, "pipeline": n_ranks, "context": one.context,
        "expert": one.expert, "data": one.data, "virtual": len(plan.stages) // n_ranks, "shard": one.shard,
        "recompute": " and ".join(every),
    }  # fmt: skip


def _check_measured(fields: Mapping[str, str], log: MeasuredRun, path: str) -> None:
    """Refuse cells of what was measured that the log beside them contradicts."""
    text = fields.get("step_seconds", "").strip()
    if text.lower() in FAILED and not log.out_of_memory:
        raise CellError(
            "step_seconds", f"step_seconds is {text}, but the log {path} times {log.n_entries} lines and no such end"
        )
    told = {
        "step_seconds": log.step_seconds,
        "reserved_gib": log.reserved_bytes / 2.0**30,
        "allocated_gib": log.allocated_bytes / 2.0**30,
    }
    for name, value in told.items():
        own = fields.get(name, "").strip()
        if value and own and not own.isalpha() and abs(ratio(fields, name) / value - 1.0) > AGREEMENT:
            raise CellError(
                name, f"{name} is {own}, but the log {path} says {value:.4g}; correct one of them, or leave it empty"
            )


def _of_file(path: str, word: str, graph: Graph, n_devices: int) -> RunConfig:
    """Return what a file says: a plan of ours, or a framework's configuration."""
    if path.endswith(".json"):
        entry = files.read_json(path)
        if isinstance(entry, dict) and entry.get("format") == plan_json.FORMAT:
            return _of_plan(entry, graph, path)
    name = frameworks.writer(word)
    module = frameworks.load(name) if name in frameworks.names() else None
    if module is None or not hasattr(module, "read"):
        raise CellError("config", f"{path}: there is no reader of the configuration of {word}; name a plan file of ours")
    found: RunConfig = module.read(path, graph, n_devices)
    return found


def _of_plan(entry: dict[str, Any], graph: Graph, path: str) -> RunConfig:
    """Return what a plan file of ours says: the plan, and of the question all that a prediction takes."""
    plan_fields.check(entry, path)
    if not entry.get("feasible"):
        raise InputError(f"{path}: holds the answer that nothing fits, so there is no plan to predict")
    plan = plan_json.plan_from_json(entry, {op.name: i for i, op in enumerate(graph.ops)}, path)
    known = MixedPrecision.__dataclass_fields__
    training = MixedPrecision(**{key: value for key, value in entry.get("training", {}).items() if key in known})
    freeze, lora, objective = plan_json.trained_part(entry)
    documents = entry["model"].get("pairs_ratio", 1.0) != 1.0
    warnings = (f"{path}: its documents of unlike length are predicted as full samples",) if documents else ()
    return RunConfig(
        plan, training.precision, int(entry.get("batch", {}).get("sequence_length", 0)), warnings, lora=lora,
        training=training, objective=objective, freeze=freeze, framework=str(entry.get("for") or ""),
    )  # fmt: skip


def _check_cells(fields: Mapping[str, str], plan: Plan, graph: Graph, path: str) -> None:
    """Refuse a cell that says otherwise than the plan of a configuration or a log; what both leave to a default is not told."""
    one, n_ranks = plan.stages[0].strategy, len(plan.ranks())
    words = inner_words(plan, graph)
    said: dict[str, object] = {
        "global_batch": plan.global_batch, "micro_batch": plan.micro_batch, "pipeline": n_ranks,
        "virtual": len(plan.stages) // n_ranks, "context": one.context,
    }  # fmt: skip
    if len({stage.strategy for stage in plan.stages}) == 1:
        said |= {"data": one.data, "tensor": one.tensor, "expert": one.expert}
        said |= {"shard": one.shard} if one.data * one.context > 1 else {}
        said |= {"shard_degree": one.shard_degree or one.data} if one.shard else {}
        said |= {"sp": int(one.sequence_parallel)} if one.tensor > 1 else {}
    for name, value in said.items():
        least = 0 if name in ("shard", "shard_degree", "sp") else 1
        if fields.get(name, "").strip() and count(fields, name, least) not in (value, 0 if name == "shard_degree" else value):
            raise _contradicted(fields, name, value, path)
    if fields.get("layers", "").strip() and counts(fields, "layers") != [len(stage) for stage in words]:
        raise _contradicted(fields, "layers", "|".join(str(len(stage)) for stage in words), path)
    every = {word for stage in words for word in stage}
    recompute, schedule = fields.get("recompute", "").strip(), schedules.word(fields.get("schedule", "").strip())
    if recompute and "+".join(sorted(recompute.split("+"))) not in every:
        raise _contradicted(fields, "recompute", " and ".join(sorted(every)), path)
    if fields.get("recompute_layers", "").strip():
        some, told = counts(fields, "recompute_layers"), [sum(word != "none" for word in stage) for stage in words]
        if (some * len(told) if len(some) == 1 else some) != told:
            raise _contradicted(fields, "recompute_layers", "|".join(map(str, told)), path)
    if schedule and schedule != plan.schedule and (schedule, plan.schedule) != ("1f1b", "interleaved_1f1b"):
        raise _contradicted(fields, "schedule", plan.schedule, path)


def _contradicted(fields: Mapping[str, str], name: str, value: object, path: str) -> CellError:
    """Return the error of a cell that says otherwise than a file."""
    return CellError(name, f"{name} is {fields[name].strip()}, but {path} says {value}; correct one of them")


def check_log(log: MeasuredRun, graph: Graph, cluster: Cluster) -> None:
    """Refuse a log that tells other sizes or another number of weights than the model has, or names another kind of device than
    the cluster has; devices of unknown names may be any.

    Parameters
    ----------
    log : MeasuredRun
        The log.
    graph : Graph
        The model.
    cluster : Cluster
        Where it ran.

    Raises
    ------
    InputError
        When it does.
    """
    from meshwright.frameworks.megatron import sizes

    sizes.check(log.options, log.file, graph)
    if log.n_weights and not 1.0 / WEIGHTS_RATIO < log.n_weights / graph.n_parameters < WEIGHTS_RATIO:
        raise InputError(
            f"{log.file}: is of a model with {log.n_weights / 1e9:.4g} billion weights, but {graph.name} has "
            f"{graph.n_parameters / 1e9:.4g}: another model?"
        )
    row, kind = log.device
    own = [kind_word(one.name) for one in cluster.kinds]
    if kind and all(own) and kind not in own:
        raise InputError(
            f"{log.file}: line {row}: ran on {kind}, but {cluster.name} has {', '.join(one.name for one in cluster.kinds)}: "
            "another cluster?"
        )


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


def check_seconds(seconds: float, graph: Graph, run: tuple[int, int, str], cluster: Cluster, log: MeasuredRun | None) -> float:
    """Refuse a step shorter than the peak of its devices allows: their products alone take longer.

    Parameters
    ----------
    seconds : float
        Of the step.
    graph : Graph
        The model.
    run : tuple of (int, int, str)
        Samples of a step, devices, and the precision of products.
    cluster : Cluster
        Where it ran: the quickest of its kinds counts.
    log : MeasuredRun or None
        Where the seconds stand; None for the row's own.

    Returns
    -------
    float
        The seconds; infinite where by the log the run ended out of memory.

    Raises
    ------
    InputError
        When it is shorter.
    """
    (global_batch, n_devices, precision), place = run, log.file if log else "column step_seconds"
    peak = max(one.peak(precision) for one in cluster.kinds)
    least = model_flops(graph, halve_causal=True) * global_batch / (peak * n_devices)
    if seconds < least:
        raise InputError(
            f"{place}: a step of {seconds:.4g} s is shorter than the {least:.4g} s that the products of {global_batch} samples "
            f"of {graph.name} take at the {precision} peak of {n_devices} devices of {cluster.name}: another unit, model, "
            "batch or cluster?"
        )
    return math.inf if log and log.out_of_memory else seconds


def usual_variant(word: str, plain: Mapping[str, Any]) -> tuple[str, str]:
    """Return the variant that programs run by default whose plan cells tell, and what is to be said of it; empty for the plain
    one: the Trainer's FSDP2 over several micro-batches holds whole gradients.

    Parameters
    ----------
    word : str
        The framework, as after ``--for``.
    plain : mapping
        What cells tell of the plan, as fields of `Run`; empty where a configuration tells it.
    """
    if word not in ("transformers", "accelerate") or not plain:
        return "", ""
    one = plain["strategies"][0]
    if one.shard < 2 or plain["global_batch"] <= plain["micro_batch"] * one.data:
        return "", ""
    return "+no_sync", "no configuration says sync_each_batch: gradients stand whole between micro-batches, as by default"
