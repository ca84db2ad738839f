"""A step fed from the samples of one process, with the user's own loss: a mean over samples, or a sum and what it counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from meshwright.base.errors import InputError
from meshwright.runtime.model import causal_lm, seq2seq
from meshwright.runtime.model.arguments import arguments_of
from meshwright.runtime.model.classes import number, whole
from meshwright.runtime.model.data import IGNORED, Sample, default_loss, label_sum
from meshwright.runtime.open.shares import DataShare
from meshwright.runtime.step.router_loss import RouterLoss

__all__ = ["BatchReader", "Loss", "OwnBatch", "class_loss", "label_loss", "next_token_loss"]

Loss = Callable[[torch.Tensor, Any], Any]
"""From the model's output for some samples, and these samples, to their mean loss, or to (sum, number of what is counted)."""


def next_token_loss(output: torch.Tensor, batch: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the summed cross entropy of every token after the first, and how many count; labels of -100 do not.

    `output`: logits, of shape (samples, tokens, words).
    `batch`: holds ``labels``, of shape (samples, tokens): the tokens themselves, as Hugging Face has them.
    """
    labels = batch["labels"][:, 1:].contiguous()
    logits = output[:, :-1].float()
    value = nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORED, reduction="sum")
    return value, (labels != IGNORED).sum()


def class_loss(output: torch.Tensor, targets: torch.Tensor) -> Any:
    """Return the summed cross entropy of class numbers, and how many count; of other targets the mean loss of samples."""
    if targets.is_floating_point():
        return default_loss(whole(output), targets)
    return label_sum(output, targets), (targets != IGNORED).sum()


def label_loss(output: torch.Tensor, batch: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the summed cross entropy of every token, and how many count: labels stand where they are said, as T5 has them.

    `output`: logits, of shape (samples, tokens, words).
    `batch`: holds ``labels``, of shape (samples, tokens); those of -100 do not count.
    """
    labels = batch["labels"]
    value = nn.functional.cross_entropy(output.float().flatten(0, -2), labels.flatten(), ignore_index=IGNORED, reduction="sum")
    return value, (labels != IGNORED).sum()


_OF_CLASSES = (next_token_loss, class_loss, label_loss)
"""Losses of our own, which leave classes where they are."""


class BatchReader:
    """What of a batch the model takes, and what the loss.

    A batch is a pair of inputs (a tensor, or a tuple of them) and targets, or a mapping of names to tensors. Of a mapping the
    model takes the entries called as the arguments of its ``forward`` that `example` names, the loss the whole of it.

    `model`: the model.
    `example`: names of the inputs where batches are mappings; empty for the first argument of ``forward``.
    `sample`: one sample of every input.
    `n_stages`: of the plan: several exchange tensors whose sizes are those that the sample has led to.
    """

    def __init__(self, model: nn.Module, example: tuple[str, ...], sample: Sample, n_stages: int) -> None:
        n_inputs = len(sample)
        self.sizes = tuple(tuple(value.shape[1:]) for value in sample) if n_stages > 1 else ()
        known = arguments_of(model)
        self.names = example or tuple(known[:n_inputs])
        self.known, self.n_inputs, self.kind = tuple(known), n_inputs, type(model).__name__
        self.has_labels = causal_lm.recognises(model)
        self.label_loss: Loss = label_loss if seq2seq.recognises(model) else next_token_loss

    def check(self, batch: Any, n_samples: int) -> None:
        """Refuse a batch of another form, of other entries, or of another number of samples.

        Raises `InputError` when it is wrong.
        """
        named = self._named(batch)
        for name, value in named.items():
            if isinstance(value, torch.Tensor) and (value.dim() == 0 or len(value) != n_samples):
                raise InputError(
                    f"the batch's {name} has shape {tuple(value.shape)}, but this process gives {n_samples} samples to every "
                    "step of the plan (n_samples): its first dimension must be those"
                )
        for i, (value, sizes) in enumerate(zip(self.inputs(batch), self.sizes, strict=False)):
            if tuple(value.shape[1:]) != sizes:
                raise InputError(
                    f"input {i} has samples of shape {tuple(value.shape[1:])}, but the stages of this plan exchange what "
                    f"samples of shape {sizes} lead to; pad to that, or plan with another --sequence-length"
                )

    def _named(self, batch: Any) -> dict[str, Any]:
        """Return the tensors of a batch with what they are called in messages."""
        if isinstance(batch, Mapping):
            missing = [name for name in self.names if not isinstance(batch.get(name), torch.Tensor)]
            if missing:
                raise InputError(f"the batch has no tensor '{missing[0]}', which {self.kind} takes; it has {', '.join(batch)}")
            unused = [name for name in batch if name in self.known and name not in (*self.names, "labels")]
            if unused:
                raise InputError(
                    f"the batch has '{unused[0]}', which {self.kind} takes, but it was built for {', '.join(self.names)} "
                    "alone; name it in parallelize(model, plan, example={...}), or leave it out of the batch"
                )
            return {f"'{name}'": value for name, value in batch.items()}
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise InputError(f"a batch is a {type(batch).__name__}; give (inputs, targets), or a mapping of names to tensors")
        inputs = batch[0] if isinstance(batch[0], (tuple, list)) else (batch[0],)
        if len(inputs) != self.n_inputs or not all(isinstance(value, torch.Tensor) for value in inputs):
            raise InputError(f"the batch has {len(inputs)} inputs, but {self.n_inputs} tensors are known; say more by example=")
        named = {f"input {i}": value for i, value in enumerate(inputs)}
        targets = batch[1]
        return named | (dict(targets) if isinstance(targets, Mapping) else {"targets": targets})

    def inputs(self, batch: Any) -> Sample:
        """Return what the model takes of a batch."""
        if isinstance(batch, Mapping):
            return tuple(batch[name] for name in self.names)
        return tuple(batch[0]) if isinstance(batch[0], (tuple, list)) else (batch[0],)

    @staticmethod
    def for_loss(batch: Any) -> Any:
        """Return what the loss takes of a batch beside the output: all of a mapping, the targets of a pair."""
        return batch if isinstance(batch, Mapping) else batch[1]

    def loss_for(self, batch: Any) -> Loss:
        """Return the loss of batches for which none is given.

        Raises `InputError` when there is no such loss.
        """
        if not isinstance(batch, Mapping):
            return class_loss
        if self.has_labels and "labels" in batch:
            return self.label_loss
        raise InputError(
            "no loss is given, and that of a mapping is known for language models with 'labels' only; give one: "
            "step(batch, loss), with loss(output, batch) -> mean, or (sum, count)"
        )


class OwnBatch:
    """The samples of one process as what feeds a step; see `meshwright.runtime.step.feed.Feed`.

    `batch`: the samples; None on ranks that are of neither the first nor the last stage.
    `reader`: what of it goes where.
    `loss_function`: the user's, of which a plain mean counts as its sum over that many samples.
    `share`: which samples belong to which micro-batch.
    `device`: where the model runs.
    `factor_ratio`: what sums are multiplied by for their backward pass.
    `routers`: what routers add, where the model asks for that: as much for every token or sample that counts.
    `loss_parallel`: whether the user's loss takes logits of which each rank has some classes as they are, a DTensor.

    Attributes
    ----------
    total, count : torch.Tensor
        What the loss summed up here, and over how many; doubles.
    """

    def __init__(
        self,
        batch: Any,
        reader: BatchReader,
        loss_function: Loss,
        share: DataShare,
        device: torch.device,
        factor_ratio: float,
        routers: RouterLoss | None = None,
        loss_parallel: bool = False,
    ) -> None:
        self.routers, self.loss_parallel = routers, loss_parallel
        self.batch, self.reader, self.loss_function, self.share = batch, reader, loss_function, share
        self.device, self.factor_ratio = device, factor_ratio
        self.total, self.count = (torch.zeros((), dtype=torch.float64, device=device) for _ in range(2))

    def _rows(self, part: Any, piece: tuple[int, int]) -> Any:
        return tree_map_only(torch.Tensor, lambda value: value[slice(*piece)].to(self.device, non_blocking=True), part)

    def inputs(self, microbatch: int) -> Sample:
        """Return this rank's rows of every input."""
        rows: Sample = self._rows(self.reader.inputs(self.batch), self.share.first[microbatch])
        return rows

    def loss(self, microbatch: int, output: torch.Tensor, *sums: torch.Tensor) -> torch.Tensor:
        """Return what this rank's rows add to the loss, before it is divided by what is counted."""
        piece = self.share.last[microbatch]
        if self.loss_function not in _OF_CLASSES and not self.loss_parallel:
            output = whole(output)
        found = self.loss_function(output, self._rows(self.reader.for_loss(self.batch), piece))
        n_rows = piece[1] - piece[0]
        value, count = map(number, found if isinstance(found, (tuple, list)) and len(found) == 2 else (found, None))
        if not isinstance(value, torch.Tensor) or value.numel() != 1:
            what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
            raise InputError(f"the loss gave {what}; it must give one number, the mean of the samples, or (sum, count)")
        value = value.reshape(()) * (n_rows if count is None else 1)
        counted = n_rows if count is None else count
        if self.routers is not None:
            value = value + self.routers.share(sums[0], counted)
        self.total += value.detach().double()
        self.count += counted
        return value * self.factor_ratio
