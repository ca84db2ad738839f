"""What a run trains on: the user's own batches, or synthetic ones of the shape that the model takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from meshwright.base.errors import InputError
from meshwright.runtime.model import causal_lm
from meshwright.runtime.model.as_given import evaluating
from meshwright.runtime.model.classes import number, whole
from meshwright.runtime.model.meta import filled_in_turn
from meshwright.runtime.model.naming import first_tensor

__all__ = [
    "IGNORED",
    "Batches",
    "Sample",
    "batches_of",
    "default_loss",
    "example_of",
    "label_sum",
    "repeated",
    "rows_of_inputs",
    "share_of_loss",
]

Sample = tuple[torch.Tensor, ...]
"""One or more samples of every input that a model takes."""

IGNORED = -100
"""The class number that counts for nothing, as `torch.nn.functional.cross_entropy` has it."""

Batches = Callable[[int], tuple[Sample, torch.Tensor]]
"""From the number of a step to the inputs and targets of its whole global batch; the same in every process."""


def repeated(sample: Sample) -> Sample:
    """Return a sample so many times that no other dimension has as many: tensors with one row for each show by their first."""
    n_rows = next(n for n in (2, 3, 5, 7, 11, 13) if all(n not in value.shape[1:] for value in sample) or n == 13)
    return tuple(value.expand(n_rows, *value.shape[1:]).contiguous() for value in sample)


def rows_of_inputs(inputs: Sample, start: int, stop: int) -> Sample:
    """Return some rows of every input."""
    return tuple(value[start:stop] for value in inputs)


def label_sum(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy of class numbers summed up, where those of `IGNORED` count for nothing.

    `output`: whose last dimension are the classes.
    """
    return nn.functional.cross_entropy(output.flatten(0, -2), target.flatten(), ignore_index=IGNORED, reduction="sum")


def share_of_loss(
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    output: torch.Tensor,
    targets: torch.Tensor,
    rows: tuple[int, int],
) -> torch.Tensor:
    """Return what some samples add to the loss of all.

    Parameters
    ----------
    loss : callable
        From output and targets to their mean loss. Of the default one every labelled class counts the same; of any other
        every sample.
    output : torch.Tensor
        Of these samples. Where each rank has some classes, the default loss of class numbers leaves them there; any other is
        given all.
    targets : torch.Tensor
        Of all samples.
    rows : tuple of int
        First and last-but-one of these samples.

    Raises
    ------
    InputError
        When the loss is no number.
    """
    own = targets[slice(*rows)]
    if loss is default_loss and not targets.is_floating_point():
        total: torch.Tensor = number(label_sum(output, own))
        return total / (targets != IGNORED).sum()
    value = loss(whole(output), own)
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
        raise InputError(
            f"--loss gave {what}; it must give one number, the mean of its samples (a loop of your own may give a sum and how "
            "much it sums over: meshwright.parallelize)"
        )
    return value.reshape(()) * (len(own) / len(targets))


def default_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of some samples: cross entropy of class numbers (-100 counts for nothing), mean squared error of
    anything else.

    `output`: what the model gives back; the last dimension are classes where the target holds class numbers.
    `target`: class numbers (integers), or values of the output's shape.
    """
    if target.is_floating_point():
        return nn.functional.mse_loss(output, target)
    return nn.functional.cross_entropy(output.flatten(0, -2), target.flatten())


def example_of(model: nn.Module, examples: Sequence[torch.Tensor], sequence_length: int) -> Sample:
    """Return one sample of what the model takes.

    `model`: the model; where it begins with a table it takes tokens, where it begins with a linear layer, vectors.
    `examples`: what its callable gave along; their first rows are the sample. May be empty.
    Raises `InputError` when nothing tells what the model takes.
    """
    if examples:
        return rows_of_inputs(tuple(examples), 0, 1)
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            return (torch.zeros(1, max(1, sequence_length), dtype=torch.long),)
        if isinstance(module, nn.Linear):
            shape = (1, sequence_length, module.in_features) if sequence_length > 1 else (1, module.in_features)
            return (torch.zeros(shape),)
        if any(True for _ in module.parameters(recurse=False)) and not any(True for _ in module.children()):
            break
    raise InputError(
        f"{type(model).__name__}: cannot tell what it takes (it begins with neither a table nor a linear layer); "
        "let its callable return (model, example_inputs), or give --data"
    )


def batches_of(data: Callable[..., Any] | None, model: nn.Module, sample: Sample, n_samples: int, seed: int) -> Batches:
    """Return where batches come from.

    `data`: the user's: ``data(step, n_samples)`` returns inputs (a tensor, or a tuple of them) and targets of one step, the
    same in every process; or ``data()`` an iterable of such pairs, for example a ``torch.utils.data.DataLoader``, begun
    again at its end. None for synthetic data.
    `model`: for the number of tokens there are, and the shape of its output.
    """
    if data is not None:
        given = data if _takes_arguments(data) else _from_loader(data(), seed)

        return lambda step: _checked(given(step, n_samples), step, len(sample), n_samples)
    tables = [module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding)] or [2]
    follows = len(sample) == 1 and not sample[0].is_floating_point() and sample[0].dim() == 2
    output = () if follows and causal_lm.recognises(model) else _output_sizes(model, sample)
    if output:  # tokens follow tokens only where the model says something about each
        follows = follows and len(output) == 2 and output[0] == sample[0].shape[1]

    def synthetic(step: int) -> tuple[Sample, torch.Tensor]:
        generator = torch.Generator().manual_seed(1_000_003 * seed + step)
        if follows:
            tokens = torch.randint(tables[0], (n_samples, sample[0].shape[1] + 1), generator=generator)
            return (tokens[:, :-1].contiguous(),), tokens[:, 1:].contiguous()
        inputs = tuple(_random(value, n_samples, min(tables), generator) for value in sample)
        return inputs, torch.randn(n_samples, *output, generator=generator)

    return synthetic


def _random(like: torch.Tensor, n_rows: int, words: int, generator: torch.Generator) -> torch.Tensor:
    """Return random rows of the shape and kind of a sample."""
    if like.is_floating_point():
        return torch.randn(n_rows, *like.shape[1:], generator=generator).to(like.dtype)
    return torch.randint(words, (n_rows, *like.shape[1:]), generator=generator).to(like.dtype)


def _output_sizes(model: nn.Module, sample: Sample) -> tuple[int, ...]:
    """Return the sizes of one sample's output."""
    with torch.no_grad(), evaluating(model), filled_in_turn(model):
        sizes = tuple(first_tensor(model(*sample)).shape[1:])
    return sizes


def _checked(pair: Any, step: int, n_inputs: int, n_samples: int) -> tuple[Sample, torch.Tensor]:
    """Return inputs and targets that a user's data gave for a step.

    Raises `InputError` when they are something else, or too few.
    """
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise InputError(f"--data: step {step} gave a {type(pair).__name__}; give a pair of tensors, inputs and targets")
    inputs, targets = pair
    inputs = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    strange = [value for value in (*inputs, targets) if not isinstance(value, torch.Tensor)]
    if strange:
        raise InputError(f"--data: step {step} gave a {type(strange[0]).__name__}; give a pair of tensors, inputs and targets")
    if len(inputs) != n_inputs:
        raise InputError(
            f"--data: step {step} gave {len(inputs)} inputs, but {n_inputs} are known; where the model takes several, let its "
            "callable return (model, example_inputs)"
        )
    for value in (*inputs, targets):
        if value.dim() == 0 or value.shape[0] != n_samples:
            raise InputError(
                f"--data: step {step} gave a tensor of shape {tuple(value.shape)}; inputs and targets need {n_samples} rows"
            )
    return inputs, targets


def _takes_arguments(data: Callable[..., Any]) -> bool:
    """Whether a callable must be given a step and a number of samples, or may be called with nothing."""
    try:
        inspect.signature(data).bind()
    except TypeError:
        return True
    return False


def _from_loader(loader: Iterable[Any], seed: int) -> Callable[[int, int], Any]:
    """Return the batches of an iterable by step; steps before the first one asked for, of a run resumed, are passed over.

    Random numbers that it draws come from a generator of its own: every process, whatever else it draws, sees the same order.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        state = torch.get_rng_state()
    iterator, position = iter(()), 0

    def batch(step: int, _: int) -> Any:
        nonlocal iterator, position, state
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(state)
            while True:
                value = next(iterator, None)
                if value is None:
                    iterator = iter(loader)
                    value = next(iterator, None)
                if value is None:
                    raise InputError("--data: the loader gives no batches")
                position += 1
                if position > step:
                    break
            state = torch.get_rng_state()
        return value

    return batch
