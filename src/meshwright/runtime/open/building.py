"""From a model and a plan to the engine of this process: the plan is found and checked, the processes are joined."""

from __future__ import annotations

import atexit
import datetime
import math
import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from meshwright.base.errors import InputError
from meshwright.core.result import Result
from meshwright.runtime.job import lifeline, preflight, weight_files
from meshwright.runtime.job.trainer import assemble
from meshwright.runtime.model import causal_lm, meta, seq2seq, source
from meshwright.runtime.model.arguments import arguments_of
from meshwright.runtime.model.as_given import to_train
from meshwright.runtime.model.data import Sample, default_loss, example_of, rows_of_inputs
from meshwright.runtime.open.engine import Engine
from meshwright.runtime.open.names import Names, Tensors
from meshwright.runtime.open.own_batch import BatchReader
from meshwright.runtime.open.shares import share_of
from meshwright.runtime.parallel import tensor_parallel, vocabulary
from meshwright.runtime.ranks import meshes, message_order
from meshwright.runtime.ranks.layout import Layout, layout
from meshwright.runtime.ranks.plan_file import PlanFile, plan_file_of, read_plan
from meshwright.runtime.step.effects import effects_of

__all__ = ["Example", "Model", "PlanSource", "build"]

Model = nn.Module | Callable[[], nn.Module]
"""A model, or what builds it."""

PlanSource = str | os.PathLike[str] | Mapping[str, Any] | Result | None
"""A plan file, its content, an answer, or None for the plan that ``meshwright run SCRIPT.py --plan`` names."""

Example = torch.Tensor | Sample | Mapping[str, torch.Tensor] | None
"""Samples of what the model takes: a tensor, several, or some by name; None where it begins with a table or a linear layer."""

_PATIENCE = datetime.timedelta(minutes=10)


def build(
    model: Model,
    plan: PlanSource = None,
    *,
    example: Example = None,
    precision: torch.dtype | None = None,
    clip_norm: float = 0.0,
    skip_non_finite: bool = False,
    seed: int = 0,
    loss_parallel: bool = False,
    weights: str | os.PathLike[str] | None = None,
) -> Engine:
    """Return the engine of this process; see `meshwright.parallelize`."""
    lifeline.end_with_agent()
    _check(plan, precision, clip_norm, seed)
    read, place = _plan(plan)
    preflight.check_optimizer(read.entry, "the script's own", place)
    places = layout(read.plan)
    meshes.check(places)
    message_order.check(places, place)
    _join(places, place)
    if places.n_ranks != dist.get_world_size():
        raise InputError(f"{place}: needs {places.n_ranks} processes, but there are {dist.get_world_size()}")
    with meta.weights_on_meta() if weights is not None else nullcontext():
        module = _module(model, seed)
    came = not any(part.training for part in module.modules())
    module = to_train(module)
    empty = meta.on_meta(module)
    named = _in_order(module, example) if isinstance(example, Mapping) else {}
    given = tuple(named.values()) if named else () if example is None else _tuple(example)
    packed = _packed(module, named)
    sample = example_of(module, rows_of_inputs(given, 0, 1), read.sequence_length)
    reader = BatchReader(module, tuple(named), sample, places.n_stages)
    names = Names(module)
    units = preflight.check_model(module, read.names, read.plan, sample, place)
    of_stages = names.of_stages(units, places)
    notes = (*read.notes(), *packed, *effects_of(module, units, read.names, read.plan, sample, place))
    tp_plan = tensor_parallel.wishes_of(module)
    if read.entry.get("costs") == "analytic":
        notes += tuple(vocabulary.left_whole(units, read.plan, tp_plan))
    if not loss_parallel:
        notes += tuple(f"{told} (loss_parallel=True: a DTensor)" for told in vocabulary.of_own_loss(units, read.plan, tp_plan))
    trainer = assemble(
        module, read.names, places, sample, optimizer=partial(torch.optim.SGD, lr=0.0), loss=default_loss, precision=precision
    )
    if came:
        notes += ("the model came in evaluation mode; it trains in training mode, as after model.train()",)
    if names.left_out:
        notes += (f"state_dict leaves out what is no tensor: {', '.join(names.left_out)}",)
    if trainer.executor.device.type == "cpu" and torch.cuda.is_available():
        notes += ("the process group has no NCCL: training runs on the CPU, though there are GPUs",)
    trainer.notes += notes
    trainer.clip_norm, trainer.skip_non_finite = clip_norm, skip_non_finite
    if weights is not None:
        weight_files.read_weights(trainer, os.fspath(weights))
    tensors = Tensors(names, of_stages, places, trainer.rank, trainer.weights, trainer.executor.device)
    return Engine(trainer, share_of(places, trainer.rank), reader, tensors, loss_parallel, waits=weights is None and empty)


def _check(plan: object, precision: object, clip_norm: object, seed: object) -> None:
    """Refuse arguments of the wrong kind or out of range."""
    if plan is not None and not isinstance(plan, (str, os.PathLike, Mapping, Result)):
        raise InputError(f"parallelize(plan={plan!r}): must be the path of a plan file, what it holds, or a result")
    if precision is not None and not isinstance(precision, torch.dtype):
        raise InputError(f"parallelize(precision={precision!r}): must be a dtype of PyTorch, like torch.bfloat16")
    if isinstance(clip_norm, bool) or not isinstance(clip_norm, (int, float)) or not 0.0 <= clip_norm < math.inf:
        raise InputError(f"parallelize(clip_norm={clip_norm!r}): must be a number of at least 0 (0: no limit)")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise InputError(f"parallelize(seed={seed!r}): must be a whole number of at least 0 and below 2^63")


def _plan(plan: PlanSource) -> tuple[PlanFile, str]:
    """Return the plan and its name for messages."""
    if plan is None:
        plan = os.environ.get("MESHWRIGHT_PLAN", "")
        if not plan:
            raise InputError("no plan: call parallelize(model, 'plan.json'), or start 'meshwright run SCRIPT.py --plan PLAN'")
        os.environ["MESHWRIGHT_PLAN_USED"] = "1"  # who started the script says so where its plan was for nothing
    if isinstance(plan, Result):
        from meshwright.writers import plan_json

        plan = plan_json.as_json(plan)
    if isinstance(plan, Mapping):
        return plan_file_of(dict(plan), "the plan given"), "the plan given"
    return read_plan(os.fspath(plan)), os.fspath(plan)


def _join(places: Layout, place: str) -> None:
    """Make the process group where the script has not: as torchrun, or ``meshwright run SCRIPT.py``, says by the environment.

    Raises `InputError` when neither has started this process.
    """
    if dist.is_initialized():
        return
    if any(name not in os.environ for name in ("RANK", "WORLD_SIZE")):
        raise InputError(
            f"{place}: this process is alone; start the script with 'meshwright run SCRIPT.py --plan PLAN', or with "
            f"torchrun --nproc-per-node {places.n_ranks}"
        )
    backend = preflight.backend_of(os.environ.get("MESHWRIGHT_BACKEND", ""))
    preflight.check_queues(places, backend, place)
    preflight.free_queues(backend)
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if backend == "nccl" else None
    if device is not None:
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend,
        init_method=os.environ.get("MESHWRIGHT_RENDEZVOUS", "env://"),
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=_PATIENCE,
        device_id=device,
    )
    atexit.register(_leave)


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _module(model: Model, seed: int) -> nn.Module:
    """Return the model, built with the same random numbers in every process where it is not built yet.

    Raises `InputError` when it is, or builds, no module.
    """
    if isinstance(model, nn.Module):
        return model
    if not callable(model):
        raise InputError(f"the model is a {type(model).__name__}; give a torch.nn.Module, or a function that builds one")
    with torch.random.fork_rng([]), source.seeded(seed):
        made = model()
    if not isinstance(made, nn.Module):
        raise InputError(f"the model's function gave a {type(made).__name__}; it must give a torch.nn.Module")
    return made


def _in_order(model: nn.Module, example: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return samples by name in the order of the model's arguments; a causal language model is told what they are.

    Raises `InputError` when one is none of its arguments.
    """
    known = arguments_of(model)
    strange = [name for name in example if name not in known]
    if strange:
        raise InputError(f"example: {type(model).__name__} takes no '{strange[0]}'; it takes {', '.join(known)}")
    named = {name: example[name] for name in known if name in example}
    if seq2seq.recognises(model):
        model.plan_inputs = tuple(named)  # type: ignore[assignment]
    elif causal_lm.recognises(model) and len(named) > 1:
        other = [name for name in named if name not in ("input_ids", *causal_lm.FURTHER_INPUTS)]
        if other or "input_ids" not in named:
            raise InputError(
                f"example: {type(model).__name__} is run on input_ids, {' and '.join(causal_lm.FURTHER_INPUTS)}, not on "
                f"{', '.join(other or named)}"
            )
        model.plan_inputs = tuple(named)  # type: ignore[assignment]
    return named


def _packed(model: nn.Module, named: Mapping[str, torch.Tensor]) -> tuple[str, ...]:
    """Return a note where packed sequences may be kept apart that are not in a loop that leaves the model's cache on."""
    on = causal_lm.recognises(model) and getattr(model.config, "use_cache", False)
    if not on or "position_ids" not in named or "attention_mask" in named:
        return ()
    return (
        "the model runs with use_cache=False: sequences of a sample whose position_ids begin anew do not see each other then "
        "in most models of transformers; in a loop that leaves use_cache on, they do",
    )


def _tuple(example: Any) -> Sample:
    return (example,) if isinstance(example, torch.Tensor) else tuple(example)
