"""Whether an optimizer can update what ranks hold, tried on a small weight, whole and in parts, before anything is trained; and
whether a schedule of its learning rates is stepped without a measure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from meshwright.base.errors import InputError
from meshwright.core.plan import Plan

__all__ = ["check", "needs_elements_alike", "stepped_alone"]

_N_STEPS = 3
_TOLERANCE_RATIO = 1e-4
"""Far above the rounding of fp32, far below what the norm of a part instead of the whole does."""


def needs_elements_alike(plan: Plan) -> str:
    """Return what of a plan lets ranks update parts of weights as if they were whole; empty where nothing does."""
    for i, stage in enumerate(plan.stages):
        if stage.strategy.shard in (1, 2) and stage.strategy.data > 1:
            return f"stage {i} shards optimizer state (shard {stage.strategy.shard}): ranks update parts of a flat vector"
        if stage.strategy.expert > 1:
            return f"stage {i} divides experts (expert {stage.strategy.expert}): ranks update some of a stack"
    return ""


def check(make: Callable[[list[nn.Parameter]], Any], plan: Plan, place: str) -> None:
    """Refuse an optimizer that cannot be stepped, or that updates parts of a weight otherwise than the whole where ranks do so.

    Parameters
    ----------
    make : callable
        From weights to an optimizer.
    plan : Plan
        What runs.
    place : str
        Where the optimizer was given, for messages.

    Raises
    ------
    InputError
        When it cannot be made or stepped, or where parts are updated and do not become parts of the whole.
    """
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(6, 4, generator=generator)
    gradients = [torch.randn(6, 4, generator=generator) for _ in range(_N_STEPS)]
    why = needs_elements_alike(plan)
    try:
        make([nn.Parameter(weight)])
    except Exception:
        if not why:  # it may count on the model's own weights, which it gets where none is updated in parts
            return
    whole = _trained(make, [weight], [[gradient] for gradient in gradients], place)[0]
    if not why:
        return
    help_ = "; plan with --set shard=0,3 and without experts, or take SGD, Adam or Lion"
    halves = [[value.flatten()[:10], value.flatten()[10:]] for value in (weight, *gradients)]
    try:
        parts = _trained(make, halves[0], halves[1:], place)
    except InputError as error:
        raise InputError(f"{error}; {why}{help_}") from None
    furthest = float((torch.cat(parts) - whole.flatten()).abs().max())
    if furthest > _TOLERANCE_RATIO * float((whole - weight).abs().max()):
        raise InputError(f"{place}: updates a part of a weight otherwise than the same part of the whole, but {why}{help_}")


def _trained(
    make: Callable[[list[nn.Parameter]], Any],
    weights: Sequence[torch.Tensor],
    gradients: Sequence[Sequence[torch.Tensor]],
    place: str,
) -> list[torch.Tensor]:
    """Return weights after some steps with given gradients, on the CPU, or on a GPU where the optimizer works there only."""
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    for device in devices:
        parameters = [nn.Parameter(weight.to(device, copy=True)) for weight in weights]
        try:
            with torch.random.fork_rng([]):
                torch.manual_seed(0)
                optimizer = make(parameters)
                if not isinstance(optimizer, torch.optim.Optimizer):
                    gave = type(optimizer).__name__
                    raise InputError(f"{place}: the optimizer's function gave a {gave}; it must give a torch.optim.Optimizer")
                for given in gradients:
                    for parameter, gradient in zip(parameters, given, strict=True):
                        parameter.grad = gradient.to(device, copy=True)
                    optimizer.step()
            return [parameter.detach().cpu() for parameter in parameters]
        except InputError:
            raise
        except Exception as error:
            if device != devices[-1]:
                continue
            shapes = ", ".join(str(tuple(weight.shape)) for weight in weights)
            told = (str(error).splitlines() or [""])[0][:200]
            raise InputError(f"{place}: cannot update weights of shape {shapes}: {type(error).__name__}: {told}") from None
    raise AssertionError("there is no device")


def stepped_alone(made: Any, place: str) -> torch.optim.lr_scheduler.LRScheduler:
    """Return a scheduler of learning rates that is stepped after every update.

    `place`: who made it, to begin a message.
    Raises `InputError` when it is none, or wants to know how good the model is, as `ReduceLROnPlateau` does.
    """
    kind = type(made).__name__
    if isinstance(made, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise InputError(
            f"{place}: {kind} steps by a measure, and this schedule is stepped after every update without one; step it in a "
            "loop of your own, on the optimizer"
        )
    if not isinstance(made, torch.optim.lr_scheduler.LRScheduler):
        raise InputError(f"{place}: gave a {kind}; it must give a scheduler of torch.optim.lr_scheduler")
    return made
