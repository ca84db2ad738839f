"""What a training loop of the user's own asks of one process of a plan: steps, evaluation, optimizer, weights by name."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only

from meshwright.base.errors import InputError
from meshwright.runtime.job import checkpoints, whole_state
from meshwright.runtime.job.trainer import NonFiniteError, Trainer
from meshwright.runtime.open.grouping import GroupOf, grouped_optimizer, groups_of
from meshwright.runtime.open.names import Tensors
from meshwright.runtime.open.own_batch import BatchReader, Loss, OwnBatch
from meshwright.runtime.open.shares import DataShare, StepSampler
from meshwright.runtime.parallel import optimizer_probe
from meshwright.runtime.ranks import alike

__all__ = ["Engine"]


class Engine:
    """One process of a training loop under a plan; made by `meshwright.parallelize`.

    Parameters
    ----------
    trainer : Trainer
        The process as ``meshwright run`` has it.
    share : DataShare
        The samples that it gives to every step.
    reader : BatchReader
        What of a batch the model takes.
    tensors : Tensors
        Its weights by name.
    loss_parallel : bool
        Whether losses of the user's own take logits of which each rank has some classes as they are.
    waits : bool
        Whether weights have no values yet.

    Attributes
    ----------
    trainer : Trainer
        See above.
    rank, n_ranks : int
        This process, of how many.
    data_rank, n_data_ranks : int
        Which part of the data it loads, of how many: processes of one replica load the same.
    rows : tuple of int
        Its samples among those of a step.
    n_samples, global_batch : int
        Samples that it gives to every step, and those of all together.
    needs_data : bool
        Whether it works for the first or the last stage; batches of others are not looked at and may be None.
    notes : tuple of str
        What runs otherwise than the plan says, or than in one process.
    gradient_norm : float
        Norm of the whole gradient of the last step, before it was scaled down.
    """

    def __init__(
        self,
        trainer: Trainer,
        share: DataShare,
        reader: BatchReader,
        tensors: Tensors,
        loss_parallel: bool = False,
        *,
        waits: bool = False,
    ) -> None:
        self.trainer, self._share, self._reader, self._tensors = trainer, share, reader, tensors
        self._loss_parallel, self._waits = loss_parallel, waits
        self.rank, self.n_ranks = trainer.rank, trainer.layout.n_ranks
        self.data_rank, self.n_data_ranks, self.rows = share.rank, share.n_ranks, share.rows
        self.n_samples, self.global_batch = len(share.rows), trainer.layout.plan.global_batch
        self.needs_data = bool(share.first or share.last)
        self.notes = trainer.notes + ((share.note,) if share.note else ())
        self._has_optimizer = self._has_gradients = False
        self._expected, self._n_steps = float(self.global_batch), 0
        trainer.n_parts = share.n_ranks

    @property
    def modules(self) -> tuple[nn.Module, ...]:
        """The stages of this rank, wrapped as the plan says."""
        return tuple(run.module for run in self.trainer.executor.stages.values())

    @property
    def device(self) -> torch.device:
        """Where this process trains."""
        return self.trainer.executor.device

    @property
    def clip_norm(self) -> float:
        """The largest norm of the whole gradient, to which a larger one is scaled down; 0 for no limit. May be set."""
        return self.trainer.clip_norm

    @clip_norm.setter
    def clip_norm(self, value: float) -> None:
        self.trainer.clip_norm = value

    @property
    def gradient_norm(self) -> float:
        """Norm of the whole gradient of the last step, before it was scaled down."""
        return self.trainer.gradient_norm

    @property
    def skipped(self) -> bool:
        """Whether the last step was left out: its loss or gradients were not finite, or overflowed in fp16."""
        scale = self.trainer.loss_scale
        return self.trainer.skipped or (scale is not None and scale.skipped)

    def optimizer(
        self, make: Callable[[list[dict[str, Any]]], torch.optim.Optimizer], *, groups: GroupOf | None = None
    ) -> torch.optim.Optimizer:
        """Make the optimizer of what this rank updates; called in every process at once, before the first step.

        Parameters
        ----------
        make : callable
            From groups of weights, as ``torch.optim`` takes them (``lambda groups: AdamW(groups, lr=3e-4)``), to an optimizer.
            Where a plan shards optimizer state (`shard` 1 and 2), the weights of a group are one flat vector each: the
            optimizer must treat every element alike, as SGD, Adam and Lion do, and Muon does not.
        groups : mapping or callable, optional
            Options by pattern of the names of weights in the whole model (``{"*norm*": {"weight_decay": 0.0}}``, the first
            that fits counts), or ``(name, whole shape) -> options``. Weights of like options form a group.

        Returns
        -------
        torch.optim.Optimizer
            What `make` made. The engine steps it; learning rates of its groups may be changed at any time.

        Raises
        ------
        InputError
            When a pattern fits no name, or `make` makes no optimizer.
        """
        weights, names = list(self.trainer.weights.values()), self._tensors
        found = groups_of(names.names.trained, groups)
        for options in found.options:
            optimizer_probe.check(partial(_of_group, make, options), self.trainer.layout.plan, "optimizer(make)")
        self.trainer.optimizer = grouped_optimizer(weights, names.name_of(), found, make, self.device)
        self.trainer.lr_schedule = None
        self._has_optimizer, self._has_gradients = True, False
        return self.trainer.optimizer

    def schedule(
        self, make: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]
    ) -> torch.optim.lr_scheduler.LRScheduler:
        """Change learning rates after every update that is not skipped.

        `make`: from the optimizer to a scheduler of ``torch.optim.lr_scheduler``, which the engine steps.
        Raises `InputError` when there is no optimizer yet, or what is made is no scheduler, or one that steps by a measure.
        """
        self._require_optimizer()
        self.trainer.lr_schedule = optimizer_probe.stepped_alone(make(self.trainer.optimizer), "schedule(make)")
        return self.trainer.lr_schedule

    def step(self, batch: Any, loss: Loss | None = None) -> float:
        """Train one step and return its loss, the same in every process; called in every process at once.

        Parameters
        ----------
        batch : tuple or mapping
            The `n_samples` samples that this process gives (`rows` of the step), as a pair of inputs and targets, or as a
            mapping of names to tensors of which the model takes those called as its arguments.
        loss : callable, optional
            ``loss(output, targets)``, of a mapping ``loss(output, batch)``, for some of the samples: their mean, where every
            sample counts the same; or a pair of the sum and how much it sums over (tokens with a label, say): then the loss is
            the sum over all replicas and micro-batches divided by all that is counted, as in one process. `output` is the
            model's first tensor (logits). By default as `meshwright run`: cross entropy of class numbers, squared error of
            values; of a mapping with ``labels`` that of a causal language model, -100 ignored.

        Raises
        ------
        InputError
            When the batch has another form or number of samples, there is no optimizer, or nothing of the step is counted.
        NonFiniteError
            In every process, when the loss or a gradient is not finite and such steps are not skipped.
        """
        self._require_optimizer()
        value = self.forward_backward(batch, loss)
        self.update()
        return value

    def forward_backward(self, batch: Any, loss: Loss | None = None) -> float:
        """Do what `step` does before the update: gradients are complete, their norm is `gradient_norm`; return the loss."""
        feed = self._feed(batch, loss)
        self.trainer.backward(feed)
        counted = self._counted(feed)
        ratio = 1.0 / (counted * feed.factor_ratio)
        if ratio != 1.0:
            for weights in self.trainer.weights.values():
                for gradient, _ in weights.held():
                    gradient.mul_(ratio)
        self._expected, self._has_gradients = counted, True
        try:
            return self.trainer.judge(feed.total / counted)
        except NonFiniteError as error:
            raise NonFiniteError(f"step {self._n_steps + 1}: {error}; the step was not taken") from None

    def update(self) -> None:
        """Let the optimizer update the weights with the gradients at hand, scaled down to `clip_norm` where that is set.

        Raises `InputError` when there is no optimizer, or no gradients of `forward_backward`.
        """
        self._require_optimizer()
        if not self._has_gradients:
            raise InputError("update: there are no gradients; call forward_backward(batch, loss) before")
        self._has_gradients = False
        self._n_steps += 1
        self.trainer.update()

    def evaluate(self, batch: Any, loss: Loss | None = None) -> float:
        """Return the loss of a batch as `step` does, without gradients and with layers as in evaluation (no dropout).

        Raises `InputError` as `step` does.
        """
        feed = self._feed(batch, loss)
        self.trainer.executor.evaluate(feed)
        counted = self._counted(feed)
        total = feed.total if self._counts() else torch.zeros_like(feed.total)
        dist.all_reduce(total)
        return float(total) / counted

    def heed_signals(self) -> None:
        """Take SIGTERM, by which schedulers and ``meshwright run`` end jobs, as the wish to end after a step: `stopping`."""
        signal.signal(signal.SIGTERM, lambda *_: setattr(self.trainer, "asked_to_stop", True))

    @property
    def stopping(self) -> bool:
        """Whether any process was asked to stop before its last step ended; the same in every process."""
        return self.trainer.stopping

    def own(self, batch: Any) -> Any:
        """Return the samples of this process out of a batch that holds all samples of a step, for data that comes whole.

        Raises `InputError` when the batch has another number of samples.
        """
        for value in tree_leaves(batch):
            if isinstance(value, torch.Tensor) and (value.dim() == 0 or len(value) != self.global_batch):
                raise InputError(
                    f"own: a tensor of the batch has shape {tuple(value.shape)}, but a step of the plan takes "
                    f"{self.global_batch} samples: its first dimension must be all of them"
                )
        index = torch.tensor(self.rows)
        return tree_map_only(torch.Tensor, lambda value: value[index.to(value.device)], batch)

    def batch_sampler(self, n_samples: int, *, shuffle: bool = True, seed: int = 0) -> StepSampler:
        """Return the indices that this process loads, step after step: ``DataLoader(data, batch_sampler=...)``.

        `n_samples`: of the whole data set. Every pass over it has another order where it is shuffled; its end is left out where
        it does not fill a step.
        Raises `InputError` when the data set does not fill one step.
        """
        return StepSampler(self._share, n_samples, self.global_batch, shuffle=shuffle, seed=seed)

    def state_dict(self, *, everywhere: bool = False) -> dict[str, torch.Tensor]:
        """Return the weights of the whole model under their own names, on the CPU; called in every process at once.

        `everywhere`: whether every process gets them; else process 0 does, and the others an empty one.
        """
        return self._tensors.whole(everywhere=everywhere)

    def load_state_dict(self, state: Mapping[str, Any] | None, *, strict: bool = True) -> None:
        """Take the weights of a whole model, as `state_dict` or plain PyTorch has them; called in every process at once.

        Parameters
        ----------
        state : mapping or None
            The same in every process; or in process 0 alone, with None in the others, which are sent what they hold.
        strict : bool
            Whether names must be the model's, no fewer and no more; else what both have is taken.

        Raises
        ------
        InputError
            In every process, when names or shapes are not the model's.
        """
        self._has_gradients, self._waits = False, self._waits and not strict
        whole_state.load_weights(self.trainer, state, strict=strict, place="load_state_dict")

    def optimizer_state_dict(self, *, everywhere: bool = False) -> dict[str, Any]:
        """Return what the optimizer remembers, whole and by the model's own names, on the CPU; called in every process at once.

        `everywhere`: whether every process gets it; else process 0 does, and the others an empty one.
        Returns: ``state`` by name and key, and ``param_groups``, as ``get_optimizer_state_dict`` of
        ``torch.distributed.checkpoint.state_dict`` returns them of a model in one process.
        Raises `InputError` when there is no optimizer yet, or it remembers what belongs to no part of a weight.
        """
        self._require_optimizer()
        return whole_state.optimizer_state(self.trainer, everywhere=everywhere)

    def load_optimizer_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Take what an optimizer remembered, and the options of its groups; called in every process at once.

        `state`: as `optimizer_state_dict` returns it, or an optimizer's ``state_dict()`` that was made with
        ``model.named_parameters()``; the same in every process, or in process 0 alone, with None in the others.
        Raises `InputError` when there is no optimizer yet, or, in every process, the state is not of this optimizer and model.
        """
        self._require_optimizer()
        whole_state.load_optimizer(self.trainer, state, place="load_optimizer_state_dict")

    def save(self, folder: str, step: int, *, keep: int = 2, keep_every: int = 0) -> None:
        """Write a checkpoint of weights, optimizer, schedule and random numbers; called in every process at once.

        Parameters
        ----------
        folder : str
            Of checkpoints; made if it does not exist.
        step : int
            Steps trained so far.
        keep, keep_every : int
            How many checkpoints stay, the newest ones; those of every so many steps stay, too (0: none).

        Raises
        ------
        InputError
            When there is no optimizer yet.
        """
        self._require_optimizer()
        checkpoints.save(self.trainer, folder, step, keep, keep_every)

    def resume(self, folder: str) -> int:
        """Go on from the newest checkpoint of a folder whose files are as they were written; called in every process at once.

        Returns: steps trained so far; 0 where there is no such checkpoint, which is told.
        Raises `InputError` when there is no optimizer yet, or the checkpoint does not fit.
        """
        self._require_optimizer()
        self._n_steps = checkpoints.load_newest_whole(self.trainer, folder)
        self._waits = self._waits and not self._n_steps
        return self._n_steps

    def _require_optimizer(self) -> None:
        if not self._has_optimizer:
            raise InputError("there is no optimizer yet; make it first: engine.optimizer(lambda groups: AdamW(groups, lr=...))")

    def _counts(self) -> bool:
        """Whether what this rank counted counts: of ranks that hold the same rows one does."""
        places, last = self.trainer.layout, self.trainer.layout.n_stages - 1
        return last in places.stages_of(self.rank) and places.seat(self.rank, last).inner == 0

    def _counted(self, feed: OwnBatch) -> float:
        """Return how much the loss counts over, in all processes.

        Raises `InputError`, in every process, when it is nothing.
        """
        counted = feed.count.clone() if self._counts() else torch.zeros_like(feed.count)
        dist.all_reduce(counted)
        if not float(counted) > 0:
            raise InputError(f"the loss of this step counts over {float(counted):g}: no sample of it has a label that counts")
        return float(counted)

    def _feed(self, batch: Any, loss: Loss | None) -> OwnBatch:
        """Return what feeds a step, the batch checked where it is looked at."""
        if self._waits:
            raise InputError(
                "the model was given on the meta device, and its weights have no values yet: parallelize(..., weights=FOLDER), "
                "resume or load_state_dict gives them some"
            )
        chosen = loss
        self.trainer.mark = None
        if self.needs_data:
            self._reader.check(batch, self.n_samples)
            self.trainer.mark = (self.data_rank, alike.fingerprint(tree_leaves(batch)))
            if chosen is None and self._share.last:
                chosen = self._reader.loss_for(batch)
        told = (self.trainer.executor.routers, self._loss_parallel)
        return OwnBatch(batch, self._reader, chosen or _none, self._share, self.device, 1.0 / self._expected, *told)


def _of_group(
    make: Callable[[list[dict[str, Any]]], torch.optim.Optimizer], options: Mapping[str, Any], own: list[nn.Parameter]
) -> torch.optim.Optimizer:
    """Return the optimizer of one group with these options."""
    return make([{"params": own, **options}])


def _none(output: torch.Tensor, batch: Any) -> Any:
    """Stand for the loss on ranks that have none."""
    raise AssertionError("a rank without the last stage was asked for a loss")
