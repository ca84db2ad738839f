"""Piper: stages with their own replicas, tensor degree and recomputation, optimal for the slowest stage's time, with proof."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from meshwright.base import files, units
from meshwright.base.errors import InputError
from meshwright.core.problem import Problem, Stop
from meshwright.core.result import Alternative, Answer, Bound, Objective
from meshwright.planners.piper import solve
from meshwright.planners.piper.answer import check_plan, choices_json, instance_of, plan_of, problem_of
from meshwright.planners.piper.costs.piper import PiperStage, evaluate
from meshwright.planners.piper.menu import Options, allowed_by
from meshwright.planners.piper.problem import Counting, PiperInstance

__all__ = ["CHECKED", "GIVEN", "Params", "check_plan", "given", "search"]

CHECKED = ("choices",)

GIVEN = (
    "max_devices", "n_microbatches", "bandwidth", "memory", "any_replicas", "tensor_once", "shard_optimizer", "layer_buffers",
    "fill_drain", "node_size", "node_bytes_per_second",
)  # fmt: skip
"""Options that say something of a plan that is given."""

OBJECTIVE = "seconds_per_microbatch"
"""What is minimised: the slowest stage's time per micro-batch of the batch."""

THIRDS = "the file gives forward and backward together; the simulated step takes one third as forward, two thirds as backward"
"""What is said of every plan of a Piper file."""

NEARLY_RATIO = 0.01
"""How much slower a plan may be whose savings are worth telling."""


@dataclass(frozen=True, slots=True)
class Params:
    """Options of the search; those not given are the file's, or the published model's.

    Parameters
    ----------
    max_devices, n_microbatches : int or None
        In place of the file's.
    bandwidth, memory : float or None
        In place of the file's; bytes per second and bytes.
    knapsack : str
        Which choice each layer of a stage takes: ``exact``, or the published ``greedy``.
    all_or_none : bool
        Within ``greedy``: where the fastest choices do not fit, the smallest for the whole stage.
    data_parallel, tensor_parallel : bool
        Whether stages may have replicas, and layers be split.
    recompute : str
        ``choose``, ``never`` or ``always``.
    curve : str
        Also answer for every smaller number of ``devices``, or of ``replicas`` in all; ``none`` for no curve.
    knapsacks : str
        File to write a third of the inner choices' knapsacks to (JSON), as the paper's appendix C has them; empty for none.
    any_replicas, tensor_once, shard_optimizer, layer_buffers, fill_drain, node_size, node_bytes_per_second
        What is counted otherwise than published: `meshwright.planners.piper.problem.Counting`. Off by default for Piper files;
        `shard_optimizer` and `fill_drain` are on for other models, whose links and buffers our cost model counts by itself.
    """

    max_devices: int | None = field(default=None, metadata={"minimum": 1})
    n_microbatches: int | None = field(default=None, metadata={"minimum": 1})
    bandwidth: float | None = field(default=None, metadata={"unit": "bytes_per_second"})
    memory: float | None = field(default=None, metadata={"unit": "bytes"})
    knapsack: str = field(default="exact", metadata={"choices": ("greedy", "exact")})
    all_or_none: bool = False
    data_parallel: bool = True
    tensor_parallel: bool = True
    recompute: str = field(default="choose", metadata={"choices": ("choose", "never", "always")})
    curve: str = field(default="none", metadata={"choices": ("none", "devices", "replicas")})
    knapsacks: str = ""
    any_replicas: bool = False
    tensor_once: bool = False
    shard_optimizer: bool | None = None
    layer_buffers: bool = False
    fill_drain: bool | None = None
    node_size: int = field(default=0, metadata={"minimum": 0})
    node_bytes_per_second: float | None = field(default=None, metadata={"unit": "bytes_per_second"})


def search(problem: Problem, params: Params, *, seed: int, stop: Stop) -> Answer:
    """Return the plan whose slowest stage is fastest; among those the one of fewest stages, then devices, then memory.

    `problem` is read from a Piper file; `seed` draws `knapsacks` only, and `stop` is not used: the search is exact and ends by
    itself. The objective
    is in Piper's cost model; the bound is exact where all downsets of the graph could be searched.
    Raises `InputError` when the problem is no Piper file, or options contradict each other.

    References
    ----------
    Tarnawski et al., "Piper: Multidimensional Planner for DNN Parallelization" (NeurIPS 2021).

    Notes
    -----
    Same optimum as the paper's dynamic program over downsets, devices and replicas, reached by a search on the threshold: see
    ``docs/explanation/piper.md``.
    """
    if params.knapsacks:
        files.check_target(params.knapsacks, "--set knapsacks")
        if problem.costs in ("analytic", "sharded"):
            raise InputError(f"--set knapsacks={params.knapsacks}: is for Piper's files, which have choices of their own")
    if problem.costs in ("analytic", "sharded"):
        return _on_model(problem, params)
    instance = instance_of(problem, "piper", params.max_devices, params.n_microbatches, params.bandwidth, params.memory)
    instance = replace(instance, counting=_counting(params, instance.counting))
    options = Options(
        params.knapsack == "exact", params.all_or_none, params.data_parallel, params.tensor_parallel, params.recompute
    )
    solution = solve.solve(instance, options, nearly_ratio=NEARLY_RATIO)
    changed = problem_of(problem, instance)
    extra: dict[str, object] = {}
    if params.knapsacks:
        from meshwright.planners.piper import knapsacks

        extra["n_knapsacks"] = knapsacks.write(instance, options, seed, params.knapsacks)
    if params.curve != "none":
        extra["curve"] = {"over": params.curve, "points": solve.curve(instance, options, params.curve)}
    if not solution.stages:
        nothing = _nothing(instance, options)
        proven = solve.UNPROVEN not in solution.notes
        notes = (*nothing.notes, *solution.notes)
        return replace(nothing, infeasible_proven=proven, notes=notes, extra=extra, problem=changed)
    evaluation = evaluate(instance, solution.stages)
    objective = Objective(OBJECTIVE, evaluation.seconds)
    alternatives = tuple(_alternative(instance, stages, solution.stages, objective) for stages in solution.nearly)
    extra |= {
        "choices": choices_json(instance, solution.stages),
        "stage_seconds": [cost.seconds for cost in evaluation.stages],
        "stage_bytes": [cost.memory_bytes for cost in evaluation.stages],
    }
    bound = Bound(min(solution.lower_seconds, evaluation.seconds), solution.method)
    return Answer(
        plan_of(instance, solution.stages),
        objective,
        bound,
        alternatives,
        notes=(*solution.notes, *_notes(solution.stages, alternatives)),
        extra=extra,
        certificate=_certificate(instance, solution, evaluation.seconds),
        problem=changed,
    )


def given(problem: Problem, params: Params, text: str) -> Answer:
    """Return a plan that was typed, ``4x2:4x2r@16:18``, with its time per micro-batch in Piper's cost model.

    Raises `InputError` as for `search`, and when the text is no plan of the file's layers.
    """
    from meshwright.planners.piper import typed

    instance = instance_of(problem, "piper", params.max_devices, params.n_microbatches, params.bandwidth, params.memory)
    instance = replace(instance, counting=_counting(params, instance.counting))
    stages, notes = typed.stages(instance, problem.graph.topological_order(), text)
    evaluation = evaluate(instance, stages)
    return Answer(
        plan_of(instance, stages),
        Objective(OBJECTIVE, evaluation.seconds),
        notes=(*notes, THIRDS),
        extra={
            "choices": choices_json(instance, stages),
            "stage_seconds": [cost.seconds for cost in evaluation.stages],
            "stage_bytes": [cost.memory_bytes for cost in evaluation.stages],
        },
        problem=problem_of(problem, instance),
    )


def _on_model(problem: Problem, params: Params) -> Answer:
    """Answer for a model that is priced by our own cost model, whose code is loaded only now:
    files with their own costs need none.
    """
    from meshwright.planners.piper.our_models import ModelOptions, answer

    given = {
        name: getattr(params, name)
        for name in ("max_devices", "n_microbatches", "bandwidth", "memory", "node_bytes_per_second")
    }
    flags = {
        name: getattr(params, name) for name in ("all_or_none", "any_replicas", "tensor_once", "layer_buffers", "node_size")
    }
    refused = [name for name, value in given.items() if value is not None] + [name for name, value in flags.items() if value]
    refused += ["curve"] if params.curve != "none" else []
    if refused:
        raise InputError(
            f"--set {refused[0]} (of search piper) is for piper_json files; {problem.model_spec.format} models take devices, "
            "memory and "
            "links from --cluster and the batch from --global-batch and --micro-batch"
        )
    options = ModelOptions(
        params.knapsack == "exact",
        params.data_parallel,
        params.tensor_parallel,
        params.recompute,
        params.shard_optimizer is not False,
        params.fill_drain is not False,
    )
    return answer(problem, options)


def _counting(params: Params, known: Counting) -> Counting:
    """Return what is counted otherwise than published: by the options, or already by what was read."""
    if bool(params.node_size) != (params.node_bytes_per_second is not None):
        raise InputError("--set node_size and node_bytes_per_second (of search piper) go together: give both or neither")
    if params.knapsack == "exact" and params.all_or_none:
        raise InputError("--set all_or_none (of search piper) changes the greedy choice: add --set knapsack=greedy")
    return Counting(
        params.any_replicas or known.any_replicas,
        params.tensor_once or known.tensor_once,
        known.shard_optimizer if params.shard_optimizer is None else params.shard_optimizer,
        params.layer_buffers or known.layer_buffers,
        known.fill_drain if params.fill_drain is None else params.fill_drain,
        params.node_size or known.node_size,
        params.node_bytes_per_second or known.node_bytes_per_second,
    )


def _alternative(
    instance: PiperInstance, stages: Sequence[PiperStage], best: Sequence[PiperStage], objective: Objective
) -> Alternative:
    """Return a plan that is nearly as fast, and what it saves."""
    value = evaluate(instance, stages).seconds
    saved = []
    for kind, count, before in (
        ("stages", len(stages), len(best)),
        ("devices", _devices(stages), _devices(best)),
    ):
        if count < before:
            saved.append(f"{count} {kind} instead of {before}")
    slower = value / objective.value - 1.0
    return Alternative(plan_of(instance, stages), Objective(OBJECTIVE, value), f"{slower:.2%} slower, but {', '.join(saved)}")


def _devices(stages: Sequence[PiperStage]) -> int:
    return sum(stage.data * stage.tensor for stage in stages)


def _notes(stages: Sequence[PiperStage], alternatives: Sequence[Alternative]) -> tuple[str, ...]:
    """Say what a plan within 1 % would save, and how the step is played."""
    notes = []
    if alternatives:
        notes += [f"a plan within 1 % would save: {other.why}" for other in alternatives]
    else:
        notes.append(f"no plan within 1 % has fewer than {len(stages)} stages or {_devices(stages)} devices")
    notes.append(THIRDS)
    return tuple(notes)


def _nothing(instance: PiperInstance, options: Options) -> Answer:
    """Return the answer that nothing fits, with what is missing."""
    needed, devices = solve.least_memory(instance, options)
    lacking = [str(node.id) for node in instance.nodes if not _usable(instance, options, node.id)]
    if lacking:
        text = f"no memory would be enough: nodes without a usable choice: {', '.join(lacking[:5])}"
        return Answer(None, infeasible_proven=True, notes=(text,))
    notes: tuple[str, ...] = ()
    ways, missing = [], 0.0
    if math.isfinite(needed):
        missing = max(needed - instance.memory_bytes, 0.0)
        ways.append(f"devices of {units.format_bytes(needed)} ({units.format_bytes(missing)} more)")
    else:
        notes = ("no memory would be enough: the layers need different tensor degrees, and more devices than there are",)
    if devices:
        ways.append(f"{devices} devices of the same memory")
    return Answer(None, missing_bytes=missing, nearest=", or ".join(ways), notes=notes)


def _usable(instance: PiperInstance, options: Options, node_id: int) -> bool:
    """Return whether a node has a choice at a degree that the devices and the options allow."""
    node = next(node for node in instance.nodes if node.id == node_id)
    allowed = allowed_by(options)
    largest = instance.n_devices if options.tensor_parallel else 1
    return any(allowed(choice) for degree, choices in node.choices if degree <= largest for choice in choices)


def _certificate(instance: PiperInstance, solution: solve.Solution, seconds: float) -> dict[str, object]:
    """Return what an independent checker needs: the plan, its value, and the threshold below which nothing exists."""
    return {
        "claim": "no plan has every stage below infeasible_below; the plan below reaches value",
        "value": seconds,
        "infeasible_below": solution.lower_seconds,
        "method": solution.method,
        "n_downsets": solution.n_downsets,
        "stages": choices_json(instance, solution.stages),
    }
