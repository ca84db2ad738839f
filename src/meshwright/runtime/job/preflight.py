"""Everything that can be found wrong before a process starts: plan against model, machine and PyTorch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from meshwright.base.errors import InputError, MeshwrightError
from meshwright.core.graph import Graph
from meshwright.core.optimizers import OPTIMIZERS
from meshwright.core.plan import Plan, Stage
from meshwright.runtime.job.job import Job
from meshwright.runtime.model import meta, routers
from meshwright.runtime.model.as_given import evaluating
from meshwright.runtime.model.cut import cut
from meshwright.runtime.model.data import Sample, repeated
from meshwright.runtime.parallel import apart, shard_equivalence, tensor_parallel, vocabulary
from meshwright.runtime.parallel.context_parallel import spans_context
from meshwright.runtime.parallel.experts import experts_of
from meshwright.runtime.ranks.layout import Layout
from meshwright.runtime.step.autocast import check_weights

__all__ = [
    "backend_of",
    "check_machine",
    "check_model",
    "check_optimizer",
    "check_queues",
    "check_same_model",
    "free_queues",
    "most_processes",
    "priced_otherwise",
    "with_backend",
]

_FEWEST_PROCESSES = 8
_TOLERANCE_RATIO = 0.2


_QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"
"""How many queues of work a GPU has; what several streams put into one waits for what stands before it there (CUDA C++
Programming Guide, environment variables)."""


def backend_of(asked: str) -> str:
    """Return the backend of process groups: the one asked for, or NCCL where this process sees GPUs, else Gloo."""
    return asked or ("nccl" if torch.cuda.is_available() else "gloo")


def with_backend(job: Job) -> Job:
    """Return a job that names its backend."""
    return replace(job, backend=backend_of(job.backend))


def check_queues(places: Layout, backend: str, place: str) -> None:
    """Refuse a pipeline on GPUs with fewer queues than streams that wait for messages.

    A receive that was posted ahead would stand in a queue before the work that its sender waits for.

    `places`: the plan as ranks.
    Raises `InputError` when ``CUDA_DEVICE_MAX_CONNECTIONS`` is too small.
    """
    told = os.environ.get(_QUEUES, "")
    if backend != "nccl" or not told.isdecimal():
        return
    n_streams = max((sum(rank in channel.ranks for channel in places.channels()) for rank in range(places.n_ranks)), default=0)
    if n_streams and int(told) <= n_streams:
        raise InputError(
            f"{place}: {_QUEUES}={told}, but a rank computes beside {n_streams} streams of messages, which would wait for one "
            f"another for ever in so few queues; unset it (32 is taken), or set it above {n_streams}"
        )


def free_queues(backend: str) -> None:
    """Take as many queues as a GPU has, where nobody has said how many; before it is first used."""
    if backend == "nccl":
        os.environ.setdefault(_QUEUES, "32")


def most_processes(backend: str, processes: int) -> int:
    """Return how many processes this machine may start.

    `backend`, `processes`: see `check_machine`.
    """
    if backend == "nccl":
        return min(processes or torch.cuda.device_count(), torch.cuda.device_count())
    return processes or max(_FEWEST_PROCESSES, os.cpu_count() or 1)


def check_machine(places: Layout, backend: str, processes: int, place: str) -> None:
    """Refuse a plan for more processes than the machine has room for.

    `backend`: ``gloo``: one process per core, or up to eight; ``nccl``: one per GPU.
    `processes`: processes allowed by the user; 0 for the rule above.
    Raises `InputError` when there are too few cores or GPUs.
    """
    check_queues(places, backend, place)
    found, kind = (torch.cuda.device_count(), "GPUs") if backend == "nccl" else (os.cpu_count() or 1, "cores")
    allowed = most_processes(backend, processes)
    if places.n_ranks > allowed:
        raise InputError(
            f"{place}: the plan needs {places.n_ranks} processes, but this machine has {found} {kind} and at most {allowed} "
            "are "
            "started; plan for fewer devices, start it with torchrun on more machines, or allow more with --processes"
            + (" (one per GPU at most)" if backend == "nccl" else "")
        )


def check_model(model: nn.Module, names: Sequence[str], plan: Plan, sample: Sample, place: str) -> list[nn.Module]:
    """Return the layers of the model if the plan can be applied to it.

    `sample`: one sample of every input.
    Raises `InputError` when the model cannot be cut where the plan says, or a layer cannot be split over the tensor axis.
    """
    try:
        return _checked_model(model, names, plan, sample, place)
    except MeshwrightError:
        raise
    except Exception as error:
        line = (str(error).splitlines() or [""])[0]
        raise InputError(
            f"{place}: {type(model).__name__} cannot be tried under this plan ({type(error).__name__}: {line}); what is tried "
            "is one sample through its layers, whole and in parts: plan for another model, or without the degree that splits "
            "it"
        ) from error


def _checked_model(model: nn.Module, names: Sequence[str], plan: Plan, sample: Sample, place: str) -> list[nn.Module]:
    """Do what `check_model` does."""
    check_weights(model, place)
    meta.check(model, place)
    if hasattr(model, "_orig_mod"):
        raise InputError(
            f"{place}: the model is what torch.compile(model) gives, which cannot be cut between stages; compile its blocks, "
            "which run compiled: for block in model.layers: block.compile()"
        )
    units = cut(model, names, sample)
    if getattr(units[-1], "routing", None) is not None:
        routers.check(model, units, repeated(sample), place)
    entering = _check_boundaries(units, names, plan, sample, place)
    tp_plan = tensor_parallel.wishes_of(model)
    seen: set[tuple[int, str]] = set()
    for i, stage in enumerate(plan.stages):
        strategy, stage_place = stage.strategy, f"{place}: stage {i}"
        if strategy.context > 1 and strategy.context_exchange.startswith("all_to_all"):
            raise InputError(
                f"{stage_place}: context exchange {strategy.context_exchange}, but 'meshwright run' gathers keys and "
                "values; plan again with --set context_exchange=ring"
            )
        if strategy.offload != "none" or plan.n_offloaded:
            what = "activations" if plan.n_offloaded else f"{strategy.offload} state"
            raise InputError(
                f"{stage_place}: {what} on the host, but 'meshwright run' keeps all on devices; plan again with "
                "--set offload=none"
            )
        if strategy.sequence_parallel:
            split = [entering[op] for op in stage.ops if tensor_parallel.styles(units[op], tp_plan)]
            _check_lengths(split, strategy.context * strategy.tensor, f"{stage_place}: sequence")
        if strategy.expert > 1:
            _check_experts(units, names, entering, stage, stage_place)
        if strategy.tensor > 1:
            _check_tensor(units, names, entering, tp_plan, stage, stage_place)
        for op in stage.ops if strategy.context > 1 else ():
            alike = shard_equivalence.structure(units[op], entering[op]) + apart.settings(units[op], op)
            if spans_context(len(units), op) and (strategy.context, alike) not in seen:
                _check_lengths([entering[op]], strategy.context, f"{stage_place}: context")
                shard_equivalence.check_context(
                    units[op], entering[op], strategy.context, f"{stage_place}: layer '{names[op]}'"
                )
            seen.add((strategy.context, alike))
    head = vocabulary.vocabulary_split(units, plan, len(plan.stages) - 1, tp_plan).head
    if head:
        degree = plan.stages[-1].strategy.tensor
        with meta.filled(units[-1]):
            vocabulary.check_classes(units[-1], head, entering[-1], degree, f"{place}: layer '{names[-1]}'")
    return units


def _check_experts(
    units: Sequence[nn.Module], names: Sequence[str], entering: Sequence[Sequence[torch.Tensor]], stage: Stage, place: str
) -> None:
    """Refuse a stage with experts that cannot be divided, or a model without any that can."""
    degree = stage.strategy.expert
    if not any(experts_of(unit) for unit in units):
        raise InputError(
            f"{place}: expert degree {degree}, but no experts were recognised in the model: a module of stacked weights, one "
            "entry for "
            "each of its num_experts, called with tokens, the experts chosen and their weights; plan again with --set expert=1"
        )
    seen = set()
    for op in stage.ops:
        alike = shard_equivalence.structure(units[op], entering[op])
        if alike not in seen:
            shard_equivalence.check_experts(units[op], entering[op], degree, f"{place}: layer '{names[op]}'")
        seen.add(alike)


def _check_lengths(entering: Sequence[Sequence[torch.Tensor]], degree: int, kind: str) -> None:
    """Refuse sequences that do not divide."""
    for values in entering:
        length = next((value.shape[1] for value in values if value.dim() > 2 and value.is_floating_point()), 0)
        if length % degree:
            raise InputError(f"{kind} parallelism of degree {degree} does not divide the {length} tokens of a sample")


def _check_tensor(
    units: Sequence[nn.Module],
    names: Sequence[str],
    entering: Sequence[Sequence[torch.Tensor]],
    tp_plan: dict[str, str],
    stage: Stage,
    place: str,
) -> None:
    """Refuse a stage with layers that cannot be split over its tensor axis."""
    degree = stage.strategy.tensor
    able = [op for op in stage.ops if tensor_parallel.styles(units[op], tp_plan)]
    unable = [op for op in stage.ops if op not in able and spans_context(len(units), op)]
    if unable:
        raise InputError(
            f"{place}: tensor degree {degree}, but in layer '{names[unable[0]]}' no pair of linear layers to split "
            "was recognised; name them in the model: tensor_parallel = {'attention.wq': 'column', 'attention.wo': 'row', ...}"
        )
    seen = set()
    for op in able:
        tensor_parallel.check(units[op], names[op], degree, tp_plan)
        alike = shard_equivalence.structure(units[op], entering[op]) + apart.settings(units[op], op)
        if alike not in seen:
            shard_equivalence.check_sum(units[op], entering[op], degree, tp_plan, f"{place}: layer '{names[op]}'")
            if stage.strategy.sequence_parallel:
                shard_equivalence.check_sequence(units[op], entering[op], degree, tp_plan, f"{place}: layer '{names[op]}'")
        seen.add(alike)


def _check_boundaries(
    units: Sequence[nn.Module], names: Sequence[str], plan: Plan, sample: Sample, place: str
) -> list[tuple[torch.Tensor, ...]]:
    """Send one sample through the layers and look at what crosses the stages' ends; return what enters each layer."""
    first_of_stage = {stage.ops[0]: i for i, stage in enumerate(plan.stages)}
    carried: Any = repeated(sample)
    n_rows = len(carried[0])
    entering = []
    with evaluating(*units):
        for i, unit in enumerate(units):
            begins = first_of_stage.get(i, -1) if i else -1
            if begins >= 0:
                _check_crossing(carried, n_rows, f"{place}: stage {begins} cannot begin with '{names[i]}'")
            carried = tuple(_received(value, begins >= 0) for value in carried)
            entering.append(carried)
            try:
                with meta.filled(unit):
                    carried = unit(*carried)
            except Exception as error:
                raise InputError(
                    f"{place}: layer '{names[i]}' cannot run on {_shapes(carried)}: {type(error).__name__}: {error}"
                ) from error
    return entering


def _received(value: Any, begins: bool) -> Any:
    """Return a value cut off from what made it; where a stage begins, as that stage receives it,
    which no layer may overwrite.
    """
    if not isinstance(value, torch.Tensor):
        return value
    fresh = value.detach().requires_grad_(value.requires_grad)
    return fresh if begins else fresh.clone()


def _check_crossing(carried: Sequence[Any], n_rows: int, kind: str) -> None:
    """Refuse values that cannot be sent from stage to stage."""
    for value in carried:
        if not isinstance(value, torch.Tensor):
            raise InputError(
                f"{kind}: a {type(value).__name__} is handed on there, and only tensors can be sent; cut elsewhere, or compute "
                "it "
                "inside the layers"
            )
        if value.requires_grad and (value.dim() == 0 or len(value) != n_rows):
            raise InputError(
                f"{kind}: a tensor of shape {tuple(value.shape)} is handed on there that is trained and has no rows of the "
                "batch; cut "
                "elsewhere, or compute it inside the layers"
            )


def check_optimizer(entry: Mapping[str, Any], given: str, place: str) -> None:
    """Refuse a plan priced with another objective, or with another optimizer than AdamW with fp32 state where none is given to
    run it with.

    `entry`: the plan file; `given`: the optimizer of ``--optimizer``. Raises `InputError`.
    """
    objective = (entry.get("model") or {}).get("objective")
    if objective:
        raise InputError(
            f"{place}: is priced for pairs of sequences (--objective {objective}), and 'run' trains on single ones; plan "
            "without it, or export it: --to transformers"
        )
    if "base=" in str((entry.get("model") or {}).get("lora")):
        raise InputError(
            f"{place}: holds frozen weights in four bits, and 'run' holds weights as they are used; plan without --base"
        )
    training = entry.get("training") or {}
    name, n_bytes = training.get("optimizer", "adamw"), training.get("state_bytes", 4)
    if name in OPTIMIZERS and OPTIMIZERS[name].shaped:
        raise InputError(
            f"{place}: is priced with the optimizer {name}, which works on whole tensors; 'run' updates shards of flat ones: "
            "plan with adam, sgd, sgd-momentum or lion"
        )
    if not given and (name not in ("adam", "adamw") or n_bytes != 4):
        raise InputError(
            f"{place}: is priced with the optimizer {name} and numbers of {n_bytes} bytes; 'run' trains with AdamW where it is "
            "given none: give yours: --optimizer package.module:callable"
        )


def priced_otherwise(entry: Mapping[str, Any], plan: Plan, units: Sequence[nn.Module], tp_plan: Mapping[str, str]) -> list[str]:
    """Return sentences about what analytic costs price otherwise than it runs here.

    `entry`: the plan file. `plan`: its plan. `units`: the layers of the model, whole.
    `tp_plan`: see `meshwright.runtime.parallel.tensor_parallel.styles`.
    """
    if entry.get("costs") != "analytic":
        return []
    found = []
    strategies = [stage.strategy for stage in plan.stages]
    late = (
        ("of a context axis", any(one.context > 1 and one.shard < 2 for one in strategies)),
        ("over groups of shards", any(one.shard == 1 and 0 < one.shard_degree < one.data for one in strategies)),
    )
    found += [
        f"sums of gradients {where} begin after a stage's last backward pass; the plan is priced with most of them beside it"
        for where, there in late
        if there
    ]
    return [*found, *vocabulary.left_whole(units, plan, tp_plan)]


def _shapes(values: Sequence[Any]) -> str:
    return ", ".join(str(tuple(value.shape)) if isinstance(value, torch.Tensor) else type(value).__name__ for value in values)


def check_same_model(units: Sequence[nn.Module], names: Sequence[str], graph: Graph, place: str) -> list[str]:
    """Compare the weights of every layer with those of the model that was planned.

    Returns: sentences about small differences.
    Raises `InputError` when a layer has a fifth more or fewer weights than planned.
    """
    planned = {op.name: op.n_parameters for op in graph.ops}
    differs = []
    for unit, name in zip(units, names, strict=True):
        found, wanted = sum(parameter.numel() for parameter in unit.parameters()), planned.get(name, 0)
        if not wanted:
            continue
        if abs(found - wanted) > _TOLERANCE_RATIO * wanted:
            raise InputError(
                f"{place}: layer '{name}' of the model given has {found} weights, but {wanted} were planned for; "
                "is this the plan of another model?"
            )
        if found != wanted:
            differs.append(f"{name} ({found} instead of {wanted} weights)")
    return [f"layers that differ a little from the model planned: {', '.join(differs[:5])}"] if differs else []
