"""Runs of one's own: any model and cluster that the command line can name, the plan in words or files, seconds and memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from meshwright import frameworks, models, schedules
from meshwright.base.errors import InputError
from meshwright.core.cluster import Cluster
from meshwright.core.framework import Framework
from meshwright.core.graph import Graph
from meshwright.core.plan_forms.exceeded import exceeded
from meshwright.core.problem import MixedPrecision
from meshwright.core.run_config import RunConfig
from meshwright.core.strategy import RECOMPUTE, Strategy, is_recompute
from meshwright.validation import _said
from meshwright.validation._domains import spread
from meshwright.validation._logs import against
from meshwright.validation._points import CellError, Point, Skipped, count, counts, ratio
from meshwright.validation._runs import Clusters, Predicted, Run, clusters, laid_out, layers_of_stages, point, predict

__all__ = ["COLUMNS", "OPTIONAL", "PATHS", "OwnRun", "named", "points", "predicted", "told"]

COLUMNS = ("model", "cluster", "global_batch", "micro_batch", "data", "tensor", "pipeline", "step_seconds")

MEMORY = (("reserved_gib", "reserved"), ("allocated_gib", "allocated"), ("nvidia_smi_gib", "peak"))
"""Columns of measured memory and what of a prediction they are compared with; the first that a row fills counts."""

OPTIONAL = (
    "sequence_length", "context", "expert", "virtual", "layers", "shard", "shard_degree", "sp", "recompute", "recompute_layers",
    "schedule", "precision", "gradient_bytes", "optimizer_bytes", "framework", "program", "config", "log",
    *(name for name, _ in MEMORY), "job",
)  # fmt: skip
"""Columns that may be there: degrees of 1 otherwise, layers dealt evenly, nothing sharded (over all where something is),
sequence parallelism with a tensor degree, nothing recomputed (in all layers where something is), 1F1B, bf16, gradients and
optimizer state as the precision has them (4 and 12 bytes in bf16), no memory measured; rows of one job did the same work. What
ran it is told in the column `framework` (or `program`) by what would stand after ``--for``. A configuration of the framework
or a plan file of ours in `config` tells the plan, and the log of the run in `log` its seconds and what else stands in it: cells
that these fill may be empty."""

EXPERTS = "megatron_mixture"
"""How names of programs once began that runs of mixtures under Megatron-Core had."""

SHARDED, ANY = ("fsdp2", "fsdp2:fsdp1_2023", "torchtitan", "maxtext"), "meshwright"
"""What is assumed where no framework is told: our own runtime, and for gradients or weights that are sharded on one stage the
slowest of these that runs the plan and leaves the room that `plan` keeps."""

PATHS = ("model", "cluster", "config", "log")
"""Columns that may name files: relative ones from where the CSV file lies."""

MOST_BYTES: Mapping[str, int] = MappingProxyType({"gradient_bytes": 8, "optimizer_bytes": 16})
"""Columns of bytes a weight, and the most that they may hold: bf16 gradients beside fp32 ones have 6, fp32 copy, momentum,
variance and one more average 16."""

PRECISIONS = ("bf16", "fp16", "fp8", "mxfp8", "fp4", "tf32", "fp32")
"""Precisions of products that a row may name."""


@dataclass(frozen=True, slots=True)
class OwnRun:
    """One row, read.

    Parameters
    ----------
    row : int
        Row of the file, from 1.
    run : Run
        What ran.
    measured_seconds : float
        Of a step; infinite where it failed for memory.
    held_bytes : float
        Measured memory of the fullest device; 0 for none.
    memory : str
        What was measured of it, as `meshwright.validation._runs.point` has it.
    group, note : str
        As in `Point`.
    framework : str
        What trained, as after ``--for``; empty where it is not told.
    maybe : tuple of (str, Framework)
        Which may have trained it where none is told, by words as after ``--for``; empty where there is nothing to choose.
    """

    row: int
    run: Run
    measured_seconds: float
    held_bytes: float
    memory: str
    group: str
    note: str
    framework: str = ""
    maybe: tuple[tuple[str, Framework], ...] = ()


def points(rows: Sequence[Mapping[str, str]]) -> list[Point | Skipped]:
    """Return measured and predicted seconds and memory of every row.

    Raises
    ------
    CellError
        When a cell is not what its column asks for.
    """
    return [own if isinstance(own, Skipped) else predicted(own) for own in told(rows)]


def told(rows: Sequence[Mapping[str, str]]) -> list[OwnRun | Skipped]:
    """Return what every row tells, not predicted yet; raises as `points`."""
    place, graphs = clusters(), dict[tuple[str, int], Graph]()
    found: list[OwnRun | Skipped] = []
    for i, fields in enumerate(rows, 1):
        try:
            found.append(_own_run(i, fields, place, graphs))
        except CellError as error:
            raise error.in_row(i) from None
    return found


def predicted(own: OwnRun) -> Point | Skipped:
    """Return a row beside its prediction, or why there is none."""
    note = own.note
    try:
        if own.maybe:
            word, found = _slowest(own)
            assumed = f"framework is not told: {word} assumed, the slowest that runs it; say --for NAME"
            note = "; ".join(filter(None, (assumed, note)))
        else:
            found = predict(own.run)
    except InputError as error:
        return Skipped(own.row, str(error))
    note = "; ".join(filter(None, (note, (found.planned or found).kind.no_interval)))
    return point(
        own.row, own.measured_seconds, found, held_bytes=own.held_bytes, memory=own.memory, group=own.group,
        ran=math.isfinite(own.measured_seconds), note=note,
    )  # fmt: skip


def _that_run(run: Run, maybe: Sequence[tuple[str, Framework]]) -> tuple[tuple[str, Framework], ...]:
    """Return those of some programs whose limits a run's plan keeps; none where its numbers contradict each other."""
    try:
        plan = laid_out(run)
    except InputError:
        return ()
    return tuple(one for one in maybe if not exceeded(one[1].limits, plan, run.graph, run.training.precision))


def _slowest(own: OwnRun) -> tuple[str, Predicted]:
    """Return the slowest program that may have trained a run, by its word: of those under which room is left, else of those
    under which it fits, else the one that needs least memory.
    """
    found = [(word, predict(replace(own.run, framework=framework))) for word, framework in own.maybe]
    roomy = [entry for entry in found if entry[1].safe] or [entry for entry in found if entry[1].fits]
    if not roomy:
        return max(found, key=lambda entry: entry[1].room_ratio)
    return max(roomy, key=lambda entry: entry[1].seconds)


def _own_run(row: int, fields: Mapping[str, str], place: Clusters, graphs: dict[tuple[str, int], Graph]) -> OwnRun | Skipped:
    said = _said.of_log(fields)
    fields = said.fields
    failed = fields.get("step_seconds", "").strip().lower() in _said.FAILED
    timed = bool(fields.get("step_seconds", "").strip()) or said.log is None
    measured = math.inf if failed else ratio(fields, "step_seconds") if timed else 0.0
    whole = bool(fields.get("config", "").strip()) or bool(said.log and "--num-layers" in said.log.options)
    plain = {} if whole else _degrees(fields)
    training = _training(fields)
    column, memory = next((entry for entry in MEMORY if fields.get(entry[0], "").strip()), ("", "peak"))
    held = ratio(fields, column) * 2.0**30 if column else 0.0
    _check_columns(fields)
    word, note = _word_of_framework(fields, plain)
    notes = [note, *(said.log.notes if said.log else ())]
    model = (fields["model"].strip(), count(fields, "sequence_length", 0))
    try:
        if model not in graphs:
            graphs[model] = models.read(model[0], sequence_length=model[1]).graph
        graph, cluster = graphs[model], place(fields["cluster"].strip())
        if said.log:
            against.check_log(said.log, graph, cluster)
        found = _said.configured(said, word, graph, cluster.n_devices)
        which, usual = _said.usual_variant(word, plain)
        if found is not None:
            graph, training = _as_configured(fields, found, graph, training)
            notes += found.warnings
            which = found.variant
            if note and found.framework:
                word, note = found.framework, ""
                notes = notes[1:]
        notes.append(usual)
        words = SHARDED if word in SHARDED and note and found is None else (word,)
        some = [(word, _framework(word, graph, cluster, training.precision, which)) for word in words]
        framework = some[0][1]
        if plain and not framework.limits.sequence_parallel and not fields.get("sp", "").strip():
            plain["strategies"] = tuple(replace(one, sequence_parallel=False) for one in plain["strategies"])
        common: dict[str, Any] = {"training": training, "overlap": True, "framework": framework}
        if found is None:
            run = _dealt(fields, Run(graph, cluster, **plain, **common))
        else:
            run = Run(graph, cluster, (), global_batch=found.plan.global_batch, plan=found.plan, **common)
        n_devices = found.plan.n_devices if found else run.strategies[0].n_devices * run.pipeline
        run = _placed(run, n_devices, fields, column)
        notes += () if len(some) > 1 else _outside(word, run)
        against.check_trained(said.log, graph, n_devices)
        log = None if timed else said.log
        measured = against.check_work(log, graph, run.global_batch, n_devices) if log else measured
        measured = against.check_seconds(measured, graph, (run.global_batch, n_devices, training.precision), cluster, log)
    except CellError:
        raise
    except InputError as error:
        return Skipped(row, str(error))
    trained = [found.lora, found.objective, *found.freeze] if found else []
    work = f"{' '.join(filter(None, (str(model), *trained)))} {fields['cluster']} {run.global_batch} {training.precision}"
    group = fields.get("job", "").strip() or work
    maybe = tuple(some) if len(some) > 1 else ()
    if maybe:
        notes = notes[1:]
        maybe = _that_run(run, maybe) or maybe
    trained_by = "" if note else framework.word if which and framework.word.endswith(which.removeprefix("+")) else word
    return OwnRun(row, run, measured, held, memory, group, "; ".join(filter(None, notes)), trained_by, maybe)


def _check_columns(fields: Mapping[str, str]) -> None:
    """Refuse two frameworks in one row, and tensors that take more than what the allocator holds of the device."""
    word, program = (fields.get(name, "").strip() for name in ("framework", "program"))
    if word and program and _known(program) and not word.startswith(program):
        raise CellError("program", f"program is {program}, but framework says {word}; correct one of them")
    if all(fields.get(name, "").strip() for name in ("allocated_gib", "reserved_gib")):
        allocated, reserved = ratio(fields, "allocated_gib"), ratio(fields, "reserved_gib")
        if allocated > 1.001 * reserved:
            raise CellError(
                "allocated_gib", f"allocated_gib is {allocated:g}, more than reserved_gib, {reserved:g}, which holds it"
            )


def _placed(run: Run, n_devices: int, fields: Mapping[str, str], column: str) -> Run:
    """Return a run on its nodes, where they are enough and hold what was measured; `column`: of memory, empty for none."""
    cluster = run.cluster
    if n_devices > cluster.n_devices:
        raise InputError(f"the plan needs {n_devices} devices; {cluster.name} has {cluster.n_devices}")
    most = max(kind.memory_bytes for kind in cluster.kinds) / 2.0**30
    if column and ratio(fields, column) > 1.02 * most:  # what is sold as 80 GB is told in either unit
        raise CellError(column, f"{column} is {fields[column].strip()}; a device of {cluster.name} has {most:.4g} GiB")
    return replace(run, used_of_domain=spread(cluster, n_devices))


def _outside(word: str, run: Run) -> list[str]:
    """Return what of a run its framework does not run, in sentences; which devices its ranks take is our own guess."""
    limits = replace(run.framework.limits, any_order=True, layouts=("pipeline", "data"))
    try:
        plan = laid_out(run)
    except InputError:
        return []
    reasons = exceeded(limits, plan, run.graph, run.training.precision, run.training.optimizer)
    if len(plan.stages) > 1 == len(plan.ranks()):
        reasons += ("virtual stages on one pipeline rank, which follow each other",)
    idle = run.cluster.n_devices - plan.n_devices
    found = [f"{idle} of the {run.cluster.n_devices} devices of {run.cluster.name} idle"] if idle >= plan.n_devices else []
    return [*found, *(f"outside what {word} runs: {reason}; predicted as if it did" for reason in reasons)]


def _degrees(fields: Mapping[str, str]) -> dict[str, Any]:
    """Return what the cells tell of the plan, as fields of `Run`."""
    recompute = "+".join(sorted(fields.get("recompute", "").strip().split("+"))) or "none"
    if not is_recompute(recompute):
        raise CellError(
            "recompute", f"recompute is '{recompute}'; it must be one of {', '.join(RECOMPUTE)}, or a framework's setting"
        )
    named = {**fields, "schedule": schedules.word(fields.get("schedule", ""))}
    schedule = _word(named, "schedule", ("", *schedules.words()), "")
    tensor = count(fields, "tensor")
    split = _word(fields, "sp", ("0", "1"), "1") == "1"
    strategy = Strategy(
        count(fields, "data"), tensor, count(fields, "context", 1), count(fields, "expert", 1), split and tensor > 1,
        _shard(fields), count(fields, "shard_degree", 0),
    )  # fmt: skip
    if strategy.data * strategy.context == 1:  # over one rank nothing is sharded, as plans have it
        strategy = replace(strategy, shard=0, shard_degree=0)
    return {
        "strategies": (strategy,), "pipeline": count(fields, "pipeline"), "virtual": count(fields, "virtual", 1),
        "micro_batch": count(fields, "micro_batch"), "global_batch": count(fields, "global_batch"), "recompute": recompute,
        "schedule": schedule,
    }  # fmt: skip


def _dealt(fields: Mapping[str, str], run: Run) -> Run:
    """Return a run with the layers of each stage, and how many of them recompute, where the cells tell them."""
    if fields.get("layers", "").strip():
        run = replace(run, layers_per_stage=tuple(counts(fields, "layers")))
        n_stages = run.pipeline * run.virtual
        if len(run.layers_per_stage) != n_stages:
            raise CellError("layers", f"layers has {len(run.layers_per_stage)} numbers; there are {n_stages} stages")
    if fields.get("recompute_layers", "").strip():
        if run.recompute == "none" and any(counts(fields, "recompute_layers")):
            raise CellError("recompute_layers", f"recompute_layers is {fields['recompute_layers']}, but recompute says none")
        sizes, some = layers_of_stages(run), counts(fields, "recompute_layers")
        some = some * len(sizes) if len(some) == 1 else some
        if len(some) != len(sizes) or any(n > size for n, size in zip(some, sizes, strict=False)):
            told = "|".join(map(str, sizes))
            raise CellError(
                "recompute_layers", f"recompute_layers is {fields['recompute_layers']}; the stages have {told} layers"
            )
        ways = [(run.recompute,) * n + ("none",) * (size - n) for n, size in zip(some, sizes, strict=True)]
        run = replace(run, recompute_of_stage=tuple(ways))
    return run


def _training(fields: Mapping[str, str]) -> MixedPrecision:
    """Return precision, bytes of gradients and of optimizer state."""
    return _held(fields, MixedPrecision.of(_word(fields, "precision", PRECISIONS, "bf16")))


def _held(fields: Mapping[str, str], training: MixedPrecision) -> MixedPrecision:
    """Return a training with the bytes of gradients and of optimizer state that the cells tell."""
    gradient = count(fields, "gradient_bytes", training.gradient_bytes)
    state = count(fields, "optimizer_bytes", training.optimizer_bytes)
    for name, n_bytes in (("gradient_bytes", gradient), ("optimizer_bytes", state)):
        if n_bytes > MOST_BYTES[name]:
            raise CellError(name, f"{name} is {n_bytes}; it counts bytes a weight, {MOST_BYTES[name]} at most")
    return replace(training, gradient_bytes=gradient, optimizer_bytes=state)


def _as_configured(
    fields: Mapping[str, str], found: RunConfig, graph: Graph, training: MixedPrecision
) -> tuple[Graph, MixedPrecision]:
    """Return the model at the length, and the training in the precision, that a configuration says."""
    told = fields.get("precision", "").strip()
    if told and found.precision and told != found.precision:
        raise CellError("precision", f"precision is {told}, but the configuration says {found.precision}; correct one of them")
    if found.training:
        training = _held(fields, found.training)
    elif found.precision:
        training = _training({**fields, "precision": found.precision})
    length = count(fields, "sequence_length", 0)
    if found.sequence_length and length not in (0, found.sequence_length):
        raise CellError(
            "sequence_length",
            f"sequence_length is {length}, but the configuration says {found.sequence_length}; correct one of them",
        )
    length = found.sequence_length or length
    if found.attention or found.lora or found.objective or found.freeze or (length and length != graph.sequence_length):
        graph = models.read(
            fields["model"].strip(), sequence_length=length, attention=found.attention, freeze=found.freeze, lora=found.lora,
            objective=found.objective,
        ).graph  # fmt: skip
    return graph, training


def _word_of_framework(fields: Mapping[str, str], plain: Mapping[str, Any]) -> tuple[str, str]:
    """Return the framework that a row names, or one that is assumed and a note that says so."""
    if word := named(fields):
        return word, ""
    sharded = bool(plain) and plain["strategies"][0].shard >= 2 and plain["pipeline"] == 1
    word = SHARDED[0] if sharded else ANY
    return word, f"framework is not told: {word} assumed; say --for NAME"


def named(fields: Mapping[str, str]) -> str:
    """Return the framework that a row names in its columns; empty for none."""
    word, program = (fields.get(name, "").strip() for name in ("framework", "program"))
    return word or (program if _known(program) else "")


def _known(program: str) -> bool:
    """Tell whether a program is one of the frameworks: the column may hold any word."""
    return program.partition(":")[0] in frameworks.names() or program.startswith(EXPERTS)


def _framework(word: str, graph: Graph, cluster: Cluster, precision: str, which: str) -> Framework:
    """Return the framework that a row names, in the variant that its configuration starts (`which`) or that suits what it
    trained where.
    """
    name = "megatron" if word.startswith(EXPERTS) else word
    try:
        return frameworks.for_problem(name, graph, cluster, precision, which)
    except InputError as error:
        raise CellError("framework", str(error)) from None


def _shard(fields: Mapping[str, str]) -> int:
    """Return what the data axis shards."""
    shard = count(fields, "shard", 0)
    if shard > 3:
        raise CellError(
            "shard", f"shard is {shard}; it must be 0 (nothing), 1 (optimizer), 2 (and gradients) or 3 (and weights)"
        )
    return shard


def _word(fields: Mapping[str, str], name: str, known: Sequence[str], default: str) -> str:
    """Return a cell that is one of some words; `default` where it is empty."""
    word = fields.get(name, "").strip() or default
    if word not in known:
        raise CellError(name, f"{name} is '{word}'; it must be one of {', '.join(filter(None, known))}")
    return word
