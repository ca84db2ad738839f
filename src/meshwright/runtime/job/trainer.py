"""A model cut, wrapped and placed as a plan says, ready to train: the trainer of one process."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from meshwright.base.errors import InputError
from meshwright.runtime.job import preflight
from meshwright.runtime.job.crossings import crossings_of
from meshwright.runtime.job.holdings import HeldTensor, ModelNames, holdings_of, names_of, owners_of, strays
from meshwright.runtime.model.cut import cut
from meshwright.runtime.model.data import Sample, default_loss, example_of, repeated
from meshwright.runtime.parallel import optimizer_probe, tensor_parallel, vocabulary
from meshwright.runtime.parallel.axes import split_layers
from meshwright.runtime.parallel.materialising import Materials
from meshwright.runtime.parallel.sharding import StageWeights, Tie, optimizer_of, shard_fully
from meshwright.runtime.parallel.tied_weights import first_holder, ties_of
from meshwright.runtime.ranks import alike, message_order
from meshwright.runtime.ranks.layout import Layout, layout
from meshwright.runtime.ranks.meshes import StageGroups, stage_groups
from meshwright.runtime.ranks.plan_file import read_plan
from meshwright.runtime.ranks.random_numbers import own_number
from meshwright.runtime.step.autocast import autocast
from meshwright.runtime.step.effects import effects_of
from meshwright.runtime.step.executor import Executor, Span, StageRun
from meshwright.runtime.step.feed import Feed
from meshwright.runtime.step.loss_scale import LossScale
from meshwright.runtime.step.p2p import P2PCommunicator
from meshwright.runtime.step.router_loss import RouterLoss
from meshwright.runtime.step.split_backward import DeferredWeightGrad, delay_weight_gradients
from meshwright.runtime.step.stage import StageModule
from meshwright.schedules import BACKWARD_WEIGHT

__all__ = ["NonFiniteError", "Trainer", "adamw", "apply"]


def adamw(parameters: list[nn.Parameter], learning_rate: float = 1e-3) -> torch.optim.Optimizer:
    """Return the optimizer used where none is given: AdamW, fused on GPUs; one tensor at a time where some are DTensors, whose
    meshes may be unlike.
    """
    plain = not any(isinstance(parameter, DTensor) for parameter in parameters)
    fused = plain and all(parameter.is_cuda for parameter in parameters)
    return torch.optim.AdamW(
        parameters, lr=learning_rate, **({"fused": True} if fused else {"foreach": None if plain else False})
    )


class NonFiniteError(ArithmeticError):
    """A loss or a gradient is not finite: the step was not taken, and the weights are those of the step before."""


class Trainer:
    """One process of a run.

    Parameters
    ----------
    executor : Executor
        Plays the steps.
    weights : dict of int to StageWeights
        By stage.
    optimizer : torch.optim.Optimizer
        Updates what this rank holds.
    names : ModelNames
        Of the whole model's weights and buffers.
    holdings : tuple of HeldTensor
        Which parts of them this rank holds.

    Attributes
    ----------
    notes : tuple of str
        What runs otherwise than the plan says.
    loss_scale : LossScale or None
        Where products run in fp16.
    lr_schedule : torch.optim.lr_scheduler.LRScheduler or None
        Changes the learning rates after every update.
    clip_norm : float
        The largest norm of the whole gradient: a larger one is scaled down to it before the update; 0 for no limit.
    gradient_norm : float
        Norm of the whole gradient of the last step, before it was scaled down.
    skip_non_finite : bool
        Whether a step whose loss or gradients are not finite is left out; else it raises `NonFiniteError`.
    skipped : bool
        Whether the last step was left out for that.
    asked_to_stop : bool
        Set by whoever wants the run to end after this step; any process may.
    stopping : bool
        Whether any process was asked to stop before the last step ended; the same in every process.
    mark : tuple of (int, int) or None
        Part of the data of this step's samples, and their fingerprint; None where this process looks at none.
    n_parts : int
        Parts of the data: within one, all processes need the same samples.
    passed_over, claims : frozenset of str
        Checkpoints found damaged when it went on from an older one; folders of them that no other run may write to meanwhile.
    """

    def __init__(
        self,
        executor: Executor,
        weights: dict[int, StageWeights],
        optimizer: torch.optim.Optimizer,
        names: ModelNames,
        holdings: tuple[HeldTensor, ...],
    ) -> None:
        self.executor, self.weights, self.optimizer = executor, weights, optimizer
        self.names, self.holdings = names, holdings
        self.layout, self.rank, self.notes = executor.layout, executor.rank, executor.layout.notes()
        self.loss_scale = LossScale() if executor.precision == torch.float16 else None
        self.skip_non_finite = self.skipped = self.asked_to_stop = self.stopping = False
        self.clip_norm = self.gradient_norm = 0.0
        self.mark: tuple[int, int] | None = None
        self.n_parts, self.passed_over, self.claims = 1, frozenset[str](), frozenset[str]()
        self.lr_schedule: torch.optim.lr_scheduler.LRScheduler | None = None

    @property
    def spans(self) -> list[Span]:
        """What this rank did in the last step, and when."""
        return self.executor.spans

    def step(self, inputs: torch.Tensor | Sample, targets: torch.Tensor) -> float:
        """Train one step on a whole global batch, the same in every process, and return its mean loss.

        `inputs` (torch.Tensor, or a tuple of them for models of several inputs): all samples of the step; each rank takes its
        rows.
        `targets`: of the same samples.
        Raises `NonFiniteError`, in every process, when the loss or a gradient is not finite and such steps are not skipped.
        """
        loss = self.judge(self.gradients(inputs, targets))
        self.update()
        return loss

    def judge(self, share: torch.Tensor) -> float:
        """Find the loss, the norm of the whole gradient, and whether they are finite, once gradients are complete.

        `share`: what this rank adds to the loss, as `backward` returns it.
        Returns: the loss of the step, the same in every process; raises `NonFiniteError` as `step` does.
        """
        squared = self._squared_norm()
        # a loss scale looks after gradients that overflow, and skips the step
        finite = share.isfinite() & (squared.isfinite() if self.loss_scale is None else True)
        loss, n_broken, n_asking, squares, *told = self._everywhere(share, ~finite, self.asked_to_stop, squared)
        unlike = alike.unlike_share(told)
        if unlike >= 0:
            who = f"processes of data rank {unlike}" if self.n_parts > 1 else "processes"
            raise InputError(
                f"the {who} were given unlike samples for one step (no common seed, or other data?): all of them need the same"
            )
        self.stopping, self.skipped, self.gradient_norm = n_asking > 0, n_broken > 0, math.sqrt(squares)
        if self.skipped and not self.skip_non_finite:
            raise NonFiniteError(self._broken(bool(finite)))
        return loss

    def update(self) -> None:
        """Scale the gradient down where it is too large, and update the weights; nothing where the step is skipped."""
        if not self.skipped and (self.loss_scale is None or not self.loss_scale.skipped):
            self._clip()
            self._update()

    def _held(self) -> list[tuple[torch.Tensor, float]]:
        """Return this rank's part of each gradient, and one over the number of ranks that hold the same."""
        return [held for weights in self.weights.values() for held in weights.held() if held[0].numel()]

    def _squared_norm(self) -> torch.Tensor:
        """Return this rank's share of the square of the gradient's norm."""
        total = torch.zeros((), dtype=torch.float64, device=self.executor.device)
        by_kind: dict[tuple[torch.dtype, torch.device], list[tuple[torch.Tensor, float]]] = {}
        for gradient, ratio in self._held():
            by_kind.setdefault((gradient.dtype, gradient.device), []).append((gradient, ratio))
        for held in by_kind.values():
            norms = torch.stack(torch._foreach_norm([gradient for gradient, _ in held])).double()
            total += (norms.square() * norms.new_tensor([ratio for _, ratio in held])).sum().to(total.device)
        return total

    def _clip(self) -> None:
        """Scale the gradient down where its norm is larger than the limit; as `torch.nn.utils.clip_grad_norm_` does."""
        if self.clip_norm > 0.0 and self.gradient_norm > self.clip_norm:
            ratio = min(1.0, self.clip_norm / (self.gradient_norm + 1e-6))
            for gradient, _ in self._held():
                gradient.mul_(ratio)

    def _broken(self, finite: bool) -> str:
        """Return on which ranks the loss or a gradient is not finite; asked in every process at once."""
        everyone: list[Any] = [None] * self.layout.n_ranks
        dist.all_gather_object(everyone, finite)
        ranks = [rank for rank, fine in enumerate(everyone) if not fine]
        stages = sorted({stage for rank in ranks for stage in self.layout.stages_of(rank)})
        told = (
            f"{word}{'s' * (len(found) > 1)} {', '.join(map(str, found))}"
            for word, found in (("rank", ranks), ("stage", stages))
        )
        return "the loss or a gradient is not finite on {} ({})".format(*told)

    def _update(self) -> None:
        """Let the optimizer update what this rank holds, and hand on what other ranks need of it."""
        started = self.executor.clock.mark()
        try:
            self.optimizer.step()
        except (RuntimeError, NotImplementedError) as error:
            if isinstance(error, torch.OutOfMemoryError) or not self._are_split():
                raise
            raise InputError(
                f"the optimizer {type(self.optimizer).__name__} cannot update weights that are split over ranks as DTensor "
                f"(shard 3, tensor): {(str(error).splitlines() or [''])[0][:200]}; take another, or plan with --set shard=0"
            ) from error
        if self.lr_schedule is not None:
            self.lr_schedule.step()
        self.executor.note(next(iter(self.weights)), -1, "optimizer", started)
        for stage, weights in self.weights.items():
            if weights.parts():
                started = self.executor.clock.mark()
                weights.after_update()
                self.executor.note(stage, -1, "gather", started)

    def _are_split(self) -> bool:
        """Whether weights that this rank updates are parts by DTensor."""
        return any(isinstance(weight, DTensor) for group in self.optimizer.param_groups for weight in group["params"])

    def gradients(self, inputs: torch.Tensor | Sample, targets: torch.Tensor) -> torch.Tensor:
        """Run forward and backward passes of one step without an update; return this rank's share of the loss."""
        device = self.executor.device
        given = inputs if isinstance(inputs, tuple) else (inputs,)
        self.mark = (0, alike.fingerprint((*given, targets)))
        return self.backward(self.executor.whole_batch(tuple(value.to(device) for value in given), targets.to(device)))

    def backward(self, feed: Feed) -> torch.Tensor:
        """Run forward and backward passes of what is fed, without an update; return this rank's share of the loss."""
        for weights in self.weights.values():
            weights.zero()
        self.executor.numbers.n_steps += 1
        scale = self.loss_scale
        self.executor.loss_factor_ratio = 1.0 if scale is None else scale.value
        loss = self.executor.run(feed)
        if scale is not None:
            scale.unscale((p for group in self.optimizer.param_groups for p in group["params"]), self.executor.device)
        return loss

    def _everywhere(self, share: torch.Tensor, broken: torch.Tensor, asked: bool, squared: torch.Tensor) -> list[float]:
        """Return the loss of all replicas of the last stage, how many ranks broke and were asked to stop, the sum of squares,
        and the sums of fingerprints.

        Of ranks that hold the same rows one counts.
        """
        last = self.layout.n_stages - 1
        counts = last in self.layout.stages_of(self.rank) and self.layout.seat(self.rank, last).inner == 0
        own = share.double() if counts else torch.zeros_like(share, dtype=torch.float64)
        told = own.new_tensor(alike.votes(self.mark, self.n_parts))
        total = torch.cat([torch.stack([own, broken.double(), torch.full_like(own, float(asked)), squared]), told])
        dist.all_reduce(total)
        return total.tolist()


def apply(
    model: nn.Module,
    plan_file: str,
    *,
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer] = adamw,
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = default_loss,
    example: torch.Tensor | Sample | None = None,
    precision: torch.dtype | None = None,
    clip_norm: float = 0.0,
) -> Trainer:
    """Return a trainer for the module, cut and wrapped as a plan says; called in every process, after ``init_process_group``.

    `model`: the whole model, with the same weights in every process; it is taken apart.
    `plan_file`: a plan as ``meshwright plan --out`` writes it.
    `optimizer`: from the parameters that this rank updates to an optimizer that treats every element alike (SGD, Adam, ...).
    `loss`: from output and target rows to their mean loss; every sample counts the same.
    `example` (torch.Tensor, or a tuple of them, or None): one sample of the inputs (batches of one); None for tokens or
    vectors, as the model begins.
    `precision`: of products, by autocast, for example ``torch.bfloat16``; None for that of the weights. With ``torch.float16``
    the loss is scaled, and a step whose gradients overflow on any rank is skipped on all.
    `clip_norm`: the largest norm of the whole gradient; 0 for no limit.
    Returns: call its `step`.
    Raises `InputError` when plan, model and number of processes do not go together.
    """
    read = read_plan(plan_file)
    places = layout(read.plan)
    if places.n_ranks != dist.get_world_size():
        raise InputError(f"{plan_file}: needs {places.n_ranks} processes, but there are {dist.get_world_size()}")
    given = (example,) if isinstance(example, torch.Tensor) else tuple(example or ())
    sample = example_of(model, given, read.sequence_length)
    message_order.check(places, plan_file)
    optimizer_probe.check(optimizer, read.plan, "apply(optimizer=...)")
    units = preflight.check_model(model, read.names, read.plan, sample, plan_file)
    told = effects_of(model, units, read.names, read.plan, sample, plan_file)
    trainer = assemble(model, read.names, places, sample, optimizer=optimizer, loss=loss, precision=precision)
    trainer.notes, trainer.clip_norm = (*trainer.notes, *read.notes(), *told), clip_norm
    if trainer.executor.device.type == "cpu" and torch.cuda.is_available():
        trainer.notes += ("the process group has no NCCL: training runs on the CPU, though there are GPUs",)
    return trainer


def assemble(
    model: nn.Module,
    names: Sequence[str],
    places: Layout,
    sample: Sample,
    *,
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    precision: torch.dtype | None = None,
) -> Trainer:
    """Return the trainer of this process; what `apply` does once the plan is read.

    Parameters
    ----------
    model : torch.nn.Module
        The whole model.
    names : sequence of str
        The plan's layers in order.
    places : Layout
        The plan as ranks.
    sample : tuple of torch.Tensor
        One sample of every input.
    optimizer, loss, precision
        See `apply`.
    """
    rank, device = dist.get_rank(), _device()
    told = alike.make_alike(model)
    in_model = names_of(model)
    every = owners_of(model, in_model)
    units = cut(model, names, sample)
    owners = [owners_of(unit, in_model) for unit in units]
    tp_plan = tensor_parallel.wishes_of(model)
    groups = stage_groups(places, rank, device.type)
    tied, ties = ties_of(places, rank, units)
    runs: dict[int, StageRun] = {}
    answers = [first_holder(places, rank, units, tie) for tie in ties]
    found = {stage: vocabulary.vocabulary_split(units, places.plan, stage, tp_plan) for stage in places.stages_of(rank)}
    materials = Materials(device)
    for stage in places.stages_of(rank):
        own = [units[op] for op in places.plan.stages[stage].ops]
        mine = [tie for tie, first in zip(ties, answers, strict=True) if first == stage]
        for unit in own:
            materials.move(unit)
        vocabulary.split(units[0], units[-1], found[stage], groups[stage].tensor_mesh)
        classes = groups[stage].tensor_mesh if found[stage].head else None
        runs[stage] = _stage_run(places, stage, own, groups[stage], tp_plan, (tied, mine), classes, materials)
    weights = {stage: run.weights for stage, run in runs.items()}
    holdings = (*holdings_of(places, rank, weights, owners, in_model), *strays(every, owners, in_model, rank))
    with autocast(device, precision):
        crossings = crossings_of(places, runs, tuple(value.to(device) for value in repeated(sample)))
    mail = P2PCommunicator(places, rank, crossings, device)
    executor = Executor(places, rank, runs, mail, loss, device, precision)
    routing, last = getattr(units[-1], "routing", None), places.n_stages - 1
    if routing is not None and last in groups:
        executor.routers = RouterLoss(routing.coefficient_ratio, groups[last].data.everyone)
    executor.numbers.agree()
    trainer = Trainer(executor, weights, optimizer_of(list(weights.values()), optimizer), in_model, holdings)
    trainer.notes += told
    return trainer


def _device() -> torch.device:
    """Return where this process trains: on its GPU where NCCL serves GPUs, whether named or taken by default; else the CPU."""
    serves = dist.get_backend_config()  # "cuda:nccl", or "cpu:gloo,cuda:nccl" where no backend was named
    if "cuda:nccl" in serves and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _stage_run(
    places: Layout,
    stage: int,
    units: list[nn.Module],
    groups: StageGroups,
    tp_plan: dict[str, str],
    ties: tuple[set[nn.Parameter], list[Tie]],
    classes: Any,
    materials: Materials,
) -> StageRun:
    """Return one stage, its layers split over its axes, recomputed and sharded as the plan says.

    `classes`: see `meshwright.runtime.step.executor.StageRun`.
    `materials`: makes weights that are on the meta device.
    """
    plan = places.plan
    strategy = plan.stages[stage].strategy
    ops, n_layers = plan.stages[stage].ops, places.n_layers
    split = split_layers(units, [(op, n_layers) for op in ops], strategy, groups, tp_plan)
    own = [own_number(op, n_layers, part) for op, part in zip(ops, split.parts, strict=True)]
    module = StageModule(split.layers, plan.stages[stage].recompute, split.before, own)
    later = DeferredWeightGrad()
    sharded = strategy.shard == 3 and groups.data.shard is not None
    if sharded:
        shard_fully(module, module.layers, groups, ties[0], alone=places.n_stages == 1)
    elif bool((places.slots.phase == BACKWARD_WEIGHT).any()):
        delay_weight_gradients(module, later)
    materials.make(module)
    shard = strategy.shard if groups.data.shard is not None else 0
    weights = StageWeights(module, shard, groups, split.partial, *materials.of_ties(*ties), split.orders)
    return StageRun(module, weights, later, not sharded, classes)
