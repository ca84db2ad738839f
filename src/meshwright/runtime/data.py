"""What a run trains on: the user's own batches, or synthetic ones of the shape that the model takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from meshwright.errors import InputError

__all__ = ["Batches", "batches_of", "default_loss", "example_row"]

Batches = Callable[[int], tuple[torch.Tensor, torch.Tensor]]
"""From the number of a step to the inputs and targets of its whole global batch; the same in every process."""


def default_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of some samples: cross entropy of class numbers, mean squared error of anything else.

    Parameters
    ----------
    output : torch.Tensor
        What the model gives back; the last dimension are classes where the target holds class numbers.
    target : torch.Tensor
        Class numbers (integers), or values of the output's shape.
    """
    if target.is_floating_point():
        return nn.functional.mse_loss(output, target)
    return nn.functional.cross_entropy(output.flatten(0, -2), target.flatten())


def example_row(model: nn.Module, examples: Sequence[torch.Tensor], sequence_length: int) -> torch.Tensor:
    """Return one sample of what the model takes.

    Parameters
    ----------
    model : torch.nn.Module
        The model; where it begins with a table it takes tokens, where it begins with a linear layer, vectors.
    examples : sequence of torch.Tensor
        What its callable gave along; the first row of the first one is the sample. May be empty.
    sequence_length : int
        Tokens of a sample.

    Raises
    ------
    InputError
        When nothing tells what the model takes.
    """
    if examples:
        return examples[0][:1]
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            return torch.zeros(1, max(1, sequence_length), dtype=torch.long)
        if isinstance(module, nn.Linear):
            shape = (1, sequence_length, module.in_features) if sequence_length > 1 else (1, module.in_features)
            return torch.zeros(shape)
        if any(True for _ in module.parameters(recurse=False)) and not any(True for _ in module.children()):
            break
    raise InputError(
        f"{type(model).__name__}: cannot tell what it takes (it begins with neither a table nor a linear layer); "
        "let its callable return (model, example_inputs), or give --data"
    )


def batches_of(
    data: Callable[..., Any] | None, model: nn.Module, row: torch.Tensor, output: torch.Size | None, n_samples: int, seed: int
) -> Batches:
    """Return where batches come from.

    Parameters
    ----------
    data : callable or None
        The user's: ``data(step, n_samples)`` returns inputs and targets of one step, the same in every process; or ``data()`` an
        iterable of such pairs, for example a ``torch.utils.data.DataLoader``, begun again at its end. None for synthetic data.
    model : torch.nn.Module
        For the number of tokens there are.
    row : torch.Tensor
        One sample of the inputs.
    output : torch.Size or None
        Shape of one sample's output, for synthetic targets of models without tokens.
    n_samples : int
        Samples of a step.
    seed : int
        Seed of synthetic data.
    """
    if data is not None:
        given = data if _takes_arguments(data) else _from_loader(data(), seed)

        def users(step: int) -> tuple[torch.Tensor, torch.Tensor]:
            pair = given(step, n_samples)
            if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not all(isinstance(v, torch.Tensor) for v in pair):
                raise InputError(
                    f"--data: step {step} gave a {type(pair).__name__}; give a pair of tensors, inputs and targets"
                )
            inputs, targets = pair
            if inputs.shape[0] != n_samples or targets.shape[0] != n_samples:
                raise InputError(
                    f"--data: step {step} gave {inputs.shape[0]} inputs and {targets.shape[0]} targets; a step needs {n_samples}"
                )
            return inputs, targets

        return users
    table = next((module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding)), 0)

    def synthetic(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(1_000_003 * seed + step)
        if row.is_floating_point() or not table:
            inputs = torch.randn(n_samples, *row.shape[1:], generator=generator)
            return inputs, torch.randn(n_samples, *(output or row.shape)[1:], generator=generator)
        tokens = torch.randint(table, (n_samples, row.shape[1] + 1), generator=generator)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    return synthetic


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
