"""What files beside a row of one's own runs say of it: the log of the run, its framework's configuration, a plan of ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from meshwright import frameworks, schedules
from meshwright.base import files
from meshwright.base.errors import InputError
from meshwright.core import plan_fields
from meshwright.core.graph import Graph
from meshwright.core.plan import Plan
from meshwright.core.plan_forms import inner_words
from meshwright.core.problem import MixedPrecision
from meshwright.core.run_config import RunConfig
from meshwright.validation._logs import AGREEMENT, MeasuredRun, against, alike, measured_run
from meshwright.validation._points import CellError, count, counts, ratio
from meshwright.writers import plan_json

__all__ = ["FAILED", "Said", "configured", "of_log", "usual_variant"]

DEGREES = ("data", "tensor", "context", "expert", "pipeline")
"""What a log tells of a plan for certain; the rest of it may be assumed."""

FAILED = ("oom", "failed")
"""What a run that failed for memory has for seconds."""


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
    _check_writer(fields, log, path)
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


def _check_writer(fields: Mapping[str, str], log: MeasuredRun, path: str) -> None:
    """Refuse a row of a framework that does not print such a log; a file of one's own and unknown names may be any."""
    column = "framework" if fields.get("framework", "").strip() else "program"
    word = fields.get(column, "").strip()
    name, wrote = frameworks.writer(word), frameworks.writer(log.framework)
    if word and name in frameworks.names() and name != "meshwright" and not alike(wrote, name):
        raise CellError(column, f"{column} is {word}, but the log {path} has the lines of {wrote}; correct one of them")
    variants = {word.partition(":")[2], log.framework.partition(":")[2]}
    if name == wrote and variants == {"eager", "async_tensor"}:
        raise CellError(column, f"{column} is {word}, but the log {path} is of {log.framework}; correct one of them")


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
        from meshwright.frameworks.megatron import aside, told

        path = said.log.file
        own = said.log.framework == "megatron"
        found = told.config_of(said.log.options, path, graph, n_devices, says_overlaps=own)
        if own:
            found = replace(found, warnings=(*found.warnings, *aside.of_log(said.log.options, found.plan, path)))
    else:
        return None
    _check_cells(said.fields, found.plan, graph, path)
    against.check_variant(word, found, said.fields)
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
