"""Piper's cost model: steady-state time per micro-batch of a pipeline whose stages each have replicas and a tensor degree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.base.errors import InputError
from meshwright.core.plan import Plan
from meshwright.core.problem import Problem
from meshwright.core.stage_cost import StageCost
from meshwright.planners.piper.menu import RECOMPUTES, VANILLA, buffer_bytes
from meshwright.planners.piper.problem import PiperChoice, PiperInstance

__all__ = [
    "CHOICES",
    "ROUNDS",
    "Evaluation",
    "PiperStage",
    "PiperStageCost",
    "evaluate",
    "fastest_choice",
    "first_devices",
    "recompute_word",
    "stage_costs",
    "stages_of",
]

CHOICES = True
"""A plan may say which of several choices of a layer it takes."""

ROUNDS = True
"""The batch is shared out here; the samples of a micro-batch and replica in a plan are rounded."""


@dataclass(frozen=True, slots=True)
class PiperStage:
    """One stage of a plan in Piper's terms.

    `nodes`: positions of layers in the instance.
    `data`, `tensor`: replicas, and devices of each.
    `choices`: id of the choice of each layer.
    """

    nodes: tuple[int, ...]
    data: int
    tensor: int
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PiperStageCost:
    """What one stage takes per micro-batch of the batch, and holds per device.

    `compute_seconds`: forward and backward.
    `edge_seconds`: tensors over the stage's borders, both passes.
    `reduce_seconds`: gradient reduction, amortised over the batch.
    `static_bytes`, `activation_bytes`: memory held anyway, and by the micro-batches in flight together.
    `in_flight`: micro-batches in flight per replica.
    `weight_bytes`: weights per device.
    `memory_bytes`: memory of each device, added up layer by layer as the memory test does.
    """

    compute_seconds: float
    edge_seconds: float
    reduce_seconds: float
    static_bytes: float
    activation_bytes: float
    in_flight: int
    weight_bytes: float
    memory_bytes: float

    @property
    def seconds(self) -> float:
        """Time of the stage per micro-batch of the batch."""
        return (self.edge_seconds + self.reduce_seconds) + self.compute_seconds


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A plan's cost per micro-batch, that of each stage, and by how much the fullest device exceeds its memory (0: it fits)."""

    seconds: float
    stages: tuple[PiperStageCost, ...]
    missing_bytes: float


def evaluate(instance: PiperInstance, stages: Sequence[PiperStage]) -> Evaluation:
    """Return what a plan costs.

    `stages`: from the model's input on.
    Returns: times and memory; a plan that does not fit is evaluated all the same.
    Raises `InputError` when a layer is in no stage or in two, an edge points back, degrees do not fit the batch or the devices,
    or a layer has no such choice.

    References
    ----------
    Tarnawski et al., "Piper" (NeurIPS 2021), section 3 and the authors' evaluator.
    """
    stage_of = _check(instance, stages)
    nodes = _nodes(instance, stages)
    costs = []
    suffix = sum(stage.data for stage in stages)
    for i, stage in enumerate(stages):
        costs.append(_stage(instance, stage, i, stage_of, nodes, -(-suffix // stage.data)))
        suffix -= stage.data
    missing = max(max(cost.memory_bytes for cost in costs) - instance.memory_bytes, 0.0)
    slowest = max(cost.seconds for cost in costs)
    if instance.counting.fill_drain:
        ways = [cost.seconds * stage.data for cost, stage in zip(costs, stages, strict=True)]
        slowest += (sum(ways) - max(ways)) / instance.n_microbatches
    return Evaluation(slowest, tuple(costs), missing)


def _check(instance: PiperInstance, stages: Sequence[PiperStage]) -> dict[int, int]:
    """Return the stage of each node of a well-formed plan."""
    stage_of: dict[int, int] = {}
    for i, stage in enumerate(stages):
        for v in stage.nodes:
            if v in stage_of:
                raise InputError(f"plan: node {instance.nodes[v].id} is in stages {stage_of[v]} and {i}; put it in one")
            stage_of[v] = i
        if stage.data < 1 or (instance.n_microbatches % stage.data and not instance.counting.any_replicas):
            raise InputError(
                f"plan: stage {i} has {stage.data} replicas, which do not divide the {instance.n_microbatches} micro-batches"
            )
    for v, node in enumerate(instance.nodes):
        if v not in stage_of:
            raise InputError(f"plan: node {node.id} is in no stage")
    for edge in instance.edges:
        if stage_of[edge.source] > stage_of[edge.target]:
            raise InputError(
                f"plan: the edge {instance.nodes[edge.source].id} -> {instance.nodes[edge.target].id} points back, "
                f"from stage {stage_of[edge.source]} to stage {stage_of[edge.target]}"
            )
    n_replicas = sum(stage.data for stage in stages)
    n_devices = sum(stage.data * stage.tensor for stage in stages)
    if n_replicas > instance.n_microbatches:
        raise InputError(f"plan: {n_replicas} replicas in all, more than the {instance.n_microbatches} micro-batches")
    if n_devices > instance.n_devices:
        raise InputError(f"plan: uses {n_devices} devices, but there are {instance.n_devices}")
    return stage_of


def first_devices(instance: PiperInstance, stages: Sequence[PiperStage]) -> tuple[int, ...]:
    """Return the first device of each stage: one stage after the other, from the model's input on.

    With nodes, a stage that fits into one node begins a new node rather than lie across two, as long as there are devices to
    spare.
    """
    size = instance.counting.node_size
    spare = instance.n_devices - sum(stage.data * stage.tensor for stage in stages)
    result = []
    device = 0
    for stage in stages:
        n = stage.data * stage.tensor
        rest = -device % size if size else 0
        if rest < n <= size and 0 < rest <= spare:
            device, spare = device + rest, spare - rest
        result.append(device)
        device += n
    return tuple(result)


def _nodes(instance: PiperInstance, stages: Sequence[PiperStage]) -> tuple[int, ...]:
    """Return the node in which each stage lies; -1 for a stage across several, or where there are no nodes."""
    size = instance.counting.node_size
    if not size:
        return (-1,) * len(stages)
    result = []
    for stage, first in zip(stages, first_devices(instance, stages), strict=True):
        last = first + stage.data * stage.tensor - 1
        result.append(first // size if first // size == last // size else -1)
    return tuple(result)


def _stage(
    instance: PiperInstance, stage: PiperStage, i: int, stage_of: dict[int, int], nodes: Sequence[int], in_flight: int
) -> PiperStageCost:
    """Return what one stage costs."""
    options = instance.counting
    node_ratio = instance.bandwidth / options.node_bytes_per_second if options.node_size else 1.0
    chosen = {v: _choice(instance, v, stage.tensor, name) for v, name in zip(stage.nodes, stage.choices, strict=True)}
    entering: dict[int, list[float]] = defaultdict(list)
    leaving: dict[int, list[float]] = defaultdict(list)
    for edge in instance.edges:
        u, v = edge.source, edge.target
        if stage_of[u] == stage_of[v]:
            continue
        ratio = node_ratio if nodes[stage_of[u]] == nodes[stage_of[v]] >= 0 else 1.0
        if stage_of[v] == i:
            entering[u].append((edge.bytes + dict(chosen[v].sync_forward)[u]) * ratio)
        if stage_of[u] == i:
            leaving[u].append((edge.bytes + dict(chosen[u].sync_backward)[v]) * ratio)
    gather = max if options.tensor_once else sum
    crossing = 2.0 * sum(gather(entries) for entries in (*entering.values(), *leaving.values()))
    n, d = instance.n_microbatches, stage.data
    share = -(-n // d) / n if options.any_replicas else 1.0 / d
    weight = sum(choice.weight_bytes for choice in chosen.values())
    spared = weight * (1.0 - 1.0 / d) if options.shard_optimizer else 0.0
    if options.layer_buffers:
        buffers = [buffer_bytes(instance.nodes[v], stage.tensor, choice) for v, choice in chosen.items()]
        spared += sum(buffers) - max(buffers)
    return PiperStageCost(
        sum(choice.seconds for choice in chosen.values()) * share,
        crossing * share / instance.bandwidth,
        4.0 * (d - 1) * weight / d / n / (options.node_bytes_per_second if nodes[i] >= 0 else instance.bandwidth),
        sum(choice.static_bytes for choice in chosen.values()) - spared,
        sum(choice.activation_bytes * in_flight for choice in chosen.values()),
        in_flight,
        weight,
        sum(choice.activation_bytes * in_flight + choice.static_bytes for choice in chosen.values()) - spared,
    )


def _choice(instance: PiperInstance, v: int, degree: int, name: str) -> PiperChoice:
    """Return a choice of a node by id."""
    for choice in instance.nodes[v].at(degree):
        if choice.id == name:
            return choice
    known = ", ".join(f"'{choice.id}'" for choice in instance.nodes[v].at(degree)) or "none"
    raise InputError(f"plan: node {instance.nodes[v].id} has no choice '{name}' at tensor degree {degree} (there are: {known})")


def recompute_word(choice_id: str) -> str:
    """Return what a choice recomputes, read from its id: ``none``, ``selective`` or ``full``."""
    if choice_id in (VANILLA, RECOMPUTES):
        return "full" if choice_id == RECOMPUTES else "none"
    text = choice_id.lower()
    if "selective" in text:
        return "selective"
    return "full" if "recomp" in text or "checkpoint" in text else "none"


def stages_of(instance: PiperInstance, plan: Plan) -> tuple[PiperStage, ...]:
    """Return a plan in Piper's terms: each layer takes the choice that the plan names, else the fastest that recomputes what
    the plan says.

    Raises `InputError` when a layer has no such choice, or the one named recomputes something else.
    """
    stages = []
    for i, stage in enumerate(plan.stages):
        tensor, words = stage.strategy.tensor, stage.recompute or ("none",) * len(stage.ops)
        for v, name, word in zip(stage.ops, stage.choices, words, strict=False):
            _choice(instance, v, tensor, name)
            if recompute_word(name) != word:
                raise InputError(
                    f"plan: stage {i}: the choice '{name}' of node {instance.nodes[v].id} recomputes '{recompute_word(name)}', "
                    f"but its recompute says '{word}'; make the two agree"
                )
        own = tuple(fastest_choice(instance, v, tensor, word) for v, word in zip(stage.ops, words, strict=True))
        stages.append(PiperStage(stage.ops, stage.strategy.data, tensor, stage.choices or own))
    return tuple(stages)


def fastest_choice(instance: PiperInstance, v: int, degree: int, word: str) -> str:
    """Return the id of a node's fastest choice that recomputes what a word says.

    Raises `InputError` when there is none.
    """
    fitting = [choice for choice in instance.nodes[v].at(degree) if recompute_word(choice.id) == word]
    if not fitting:
        raise InputError(f"plan: node {instance.nodes[v].id} has no choice that recomputes '{word}' at tensor degree {degree}")
    return min(fitting, key=lambda choice: choice.seconds).id


def stage_costs(problem: Problem, plan: Plan) -> tuple[StageCost, ...]:
    """Return what each stage does and holds per micro-batch of the batch, its replicas taken together.

    Empty where the problem does not come from a Piper file.

    Notes
    -----
    The file gives forward and backward together: a third is taken for forward, a third each for the two halves of backward.
    Replicas take turns, so a stage passes a micro-batch on after a share of its time. Piper's tensors over borders block both
    ends; they are the cause ``boundary`` and no separate transfer. Piper keeps more micro-batches in flight than one per later
    stage where replicas differ; the bytes of each are scaled so that the peak is Piper's.
    """
    instance = problem.model_spec.instance
    if not isinstance(instance, PiperInstance):
        return ()
    evaluation = evaluate(instance, stages_of(instance, plan))
    result = []
    for i, cost in enumerate(evaluation.stages):
        played = min(len(plan.stages) - i, plan.n_microbatches)
        result.append(
            StageCost(
                forward_seconds=cost.compute_seconds / 3.0,
                backward_input_seconds=cost.compute_seconds / 3.0,
                backward_weight_seconds=cost.compute_seconds / 3.0,
                forward_communication=(("boundary", cost.edge_seconds / 2.0),),
                backward_communication=(("boundary", cost.edge_seconds / 2.0),),
                reduce_seconds=cost.reduce_seconds * instance.n_microbatches,
                weight_bytes=min(cost.weight_bytes, cost.static_bytes),
                optimizer_bytes=max(cost.static_bytes - cost.weight_bytes, 0.0),
                activation_bytes=cost.activation_bytes / played,
            )
        )
    return tuple(result)
