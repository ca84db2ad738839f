"""What the PaSE searches are asked: a graph, a number of processors, a batch, and the balance of compute and network."""

from __future__ import annotations

from dataclasses import dataclass, field

from meshwright.base.errors import InputError
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Problem
from meshwright.core.strategy import Strategy
from meshwright.planners.pase.operators import PaseGraph
from meshwright.planners.pase.readers.pase_graph import PaseInstance
from meshwright.planners.pase.tables import flop_per_word

__all__ = ["PaseQuestion", "PaseSettings", "one_stage", "question_of"]


@dataclass(frozen=True, slots=True)
class PaseSettings:
    """Options that all PaSE searches share.

    `n_processors`: devices; 0 for the cluster's, or 8 where there is none.
    `batch`: samples per step; 0 for ``--global-batch``, or 128.
    `model`: scales every hidden width by ``model / 128`` (the published program ignores it).
    `flops`: FLOP/s of one device. A bare number below a million is in TFLOP/s, the unit of the published program.
    `bandwidth`: bytes per second of one device. A bare number below a million is in GB/s, the unit of the published program.
    """

    n_processors: int = field(default=0, metadata={"minimum": 1})
    batch: int = field(default=0, metadata={"minimum": 1})
    model: int = field(default=128, metadata={"minimum": 1})
    flops: float = field(default=10e12, metadata={"unit": "flops_per_second"})
    bandwidth: float = field(default=16e9, metadata={"unit": "bytes_per_second"})


@dataclass(frozen=True, slots=True)
class PaseQuestion:
    """A PaSE problem, complete.

    `network`: operators.
    `n_processors`, `batch`, `model`: as in `PaseSettings`, defaults filled in.
    `word_flop`: FLOP a device does while it moves a word of 8 bytes.
    `notes`: what the user should know about how the options were read.
    `written`: content of the graph's file; empty for one of PaSE's five.
    """

    network: PaseGraph
    n_processors: int
    batch: int
    model: int
    word_flop: float
    notes: tuple[str, ...]
    written: str = ""


def question_of(problem: Problem, settings: PaseSettings, search: str) -> PaseQuestion:
    """Return the PaSE problem that a reading and options ask for.

    Raises `InputError` when the model is not a PaSE graph, or options contradict each other.
    """
    instance = problem.model_spec.instance
    if not isinstance(instance, PaseInstance):
        raise InputError(
            f"search {search}: works on pase:GRAPH or a file of such a graph only, not on {problem.model_spec.spec}; try "
            "--search best"
        )
    if problem.costs != "pase":
        raise InputError(f"search {search}: {problem.model_spec.spec} is costed by --costs pase, not by {problem.costs}")
    notes = []
    asked = problem.batch.global_batch
    if asked and settings.batch and asked != settings.batch:
        raise InputError(f"--set batch {settings.batch}: contradicts --global-batch {asked}; give one of them")
    if problem.batch.micro_batch or problem.batch.sequence_length:
        raise InputError("--micro-batch, --sequence-length: the PaSE graphs have neither; use --global-batch or --set batch")
    n_processors = settings.n_processors
    if problem.cluster is not None:
        n_processors = n_processors or problem.cluster.n_devices
        notes.append("PaSE's cost model knows no topology: of the cluster only the number of devices is used")
    flops = _in_unit("flops", settings.flops, 1e12, "TFLOP/s", notes)
    bandwidth = _in_unit("bandwidth", settings.bandwidth, 1e9, "GB/s", notes)
    if settings.model != 128:
        notes.append(f"hidden widths are scaled by {settings.model}/128; the published program ignores its model size")
    batch = settings.batch or asked or 128
    network = instance.built(batch, settings.model)
    return PaseQuestion(
        network, n_processors or 8, batch, settings.model, flop_per_word(flops, bandwidth), tuple(notes), instance.written
    )  # fmt: skip


def _in_unit(name: str, value: float, unit: float, word: str, notes: list[str]) -> float:
    """Return a quantity in base units; a small bare number is in the published program's unit, which is noted."""
    if value <= 0:
        raise InputError(f"--set {name}: {value:g} is out of range; it must be > 0")
    if value >= 1e6:
        return value
    notes.append(f"{name}={value:g} is read as {value:g} {word}, the unit of the published program")
    return value * unit


def one_stage(question: PaseQuestion) -> Plan:
    """Return the plan of every PaSE answer: one stage, all operators, all processors;
    the splits stand in the answer's extra.
    """
    ops = tuple(range(len(question.network.operators)))
    p = question.n_processors
    stage = Stage(ops, tuple(range(p)), Strategy(data=p), ("none",) * len(ops))
    return Plan((stage,), n_microbatches=1, micro_batch=max(1, question.batch // p), global_batch=question.batch)
