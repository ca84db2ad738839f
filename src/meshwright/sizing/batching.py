"""Steps drawn from lengths: which share of a full micro-batch's tokens and pairs each micro-batch of each replica has."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.sizing.lengths import Lengths, drawn_pieces, packed_pairs

__all__ = ["SAME_RATIO", "WAYS", "DrawnSteps", "StepShape", "bucketed", "dealt", "packed"]

WAYS = ("pad", "bucket", "pack", "mask")
"""How documents become samples, as typed after ``--batching``."""

SAME_RATIO = 0.005
"""Rates so close are the same: the simpler way is recommended."""


@dataclass(frozen=True, slots=True)
class StepShape:
    """Of one step: replicas, micro-batches of each, samples of a micro-batch, tokens of a sample."""

    n_replicas: int
    n_microbatches: int
    micro_batch: int
    sequence_length: int

    @property
    def global_batch(self) -> int:
        """Samples of a step."""
        return self.n_replicas * self.n_microbatches * self.micro_batch


@dataclass(frozen=True, slots=True, eq=False)
class DrawnSteps:
    """Steps that were drawn.

    Parameters
    ----------
    tokens, pairs : ndarray, shape (n_steps, n_replicas, n_microbatches), float64
        Tokens and pairs of tokens that a micro-batch computes, as shares of those of full samples.
    real_ratio : float
        Tokens that are no padding, as a share of the full samples of these steps.
    """

    tokens: NDArray[np.float64]
    pairs: NDArray[np.float64]
    real_ratio: float


def packed(told: Lengths, shape: StepShape, n_steps: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return the pairs inside documents of packed samples, in the order in which they come.

    Parameters
    ----------
    told : Lengths
        What documents are drawn from.
    shape : StepShape
        Of a step.
    n_steps : int
        Steps.
    rng : numpy.random.Generator
        Where chance comes from.

    Returns
    -------
    ndarray, shape (n_steps, global_batch), float64
        As of `meshwright.sizing.lengths.packed_pairs`.
    """
    wanted = n_steps * shape.global_batch * shape.sequence_length
    drawn = [told.drawn(1024, rng)]
    n_tokens = int(drawn[0].sum())
    while n_tokens < wanted:
        mean = n_tokens / sum(map(len, drawn))
        drawn.append(told.drawn(int(1.02 * (wanted - n_tokens) / mean) + 64, rng))
        n_tokens += int(drawn[-1].sum())
    n_samples = n_steps * shape.global_batch
    documents = np.concatenate(drawn)
    documents = documents[: int(np.searchsorted(np.cumsum(documents), wanted)) + 1]
    documents[-1] -= documents.sum() - wanted  # fills the samples, and no more
    return packed_pairs(documents, shape.sequence_length)[:n_samples].reshape(n_steps, shape.global_batch)


def dealt(pairs: NDArray[np.float64], shape: StepShape, *, sort: bool) -> DrawnSteps:
    """Return packed samples dealt to micro-batches and replicas.

    Sorted, the samples of a step go by falling sum of squares to its micro-batches in turn, there and back (a snake), and then
    the micro-batches to the replicas in the same way: each gets about as many pairs, and like ones come at the same time.

    Parameters
    ----------
    pairs : ndarray, shape (n_steps, global_batch), float64
        As `packed` returns them.
    shape : StepShape
        Of a step.
    sort : bool
        Whether they are sorted first, or dealt as they come.

    Returns
    -------
    DrawnSteps
        Full of tokens.
    """
    n_steps, n_groups = len(pairs), shape.n_replicas * shape.n_microbatches
    if sort:
        held = _snake(-np.sort(-pairs, axis=1), n_groups).mean(axis=2)
        shares = _snake(-np.sort(-held, axis=1), shape.n_replicas)
    else:
        shares = pairs.reshape(n_steps, shape.n_replicas, shape.n_microbatches, shape.micro_batch).mean(axis=3)
    return DrawnSteps(np.ones_like(shares), shares, 1.0)


def _snake(values: NDArray[np.float64], n_hands: int) -> NDArray[np.float64]:
    """Deal the columns of sorted rows there and back; shape (n_rows, n_hands, n_columns / n_hands)."""
    rounds = values.reshape(len(values), -1, n_hands).copy()
    rounds[:, 1::2] = rounds[:, 1::2, ::-1]
    return np.ascontiguousarray(rounds.transpose(0, 2, 1))


def bucketed(documents: NDArray[np.int64], shape: StepShape, n_steps: int, rng: np.random.Generator) -> DrawnSteps:
    """Return samples of one piece of a document each, sorted by length within their step.

    Neighbours make a micro-batch, padded to the longest in it; each turn the replicas get neighbouring micro-batches.

    Parameters
    ----------
    documents : ndarray, shape (n_documents,), int64
        Tokens of those that pieces are drawn from, each as likely.
    shape, n_steps, rng
        As of `packed`.

    Returns
    -------
    DrawnSteps
        The steps.
    """
    n_samples, length = n_steps * shape.global_batch, shape.sequence_length
    held = drawn_pieces(documents, length, n_samples, rng).reshape(n_steps, shape.global_batch)
    groups = (-np.sort(-held, axis=1)).reshape(n_steps, shape.n_microbatches, shape.n_replicas, shape.micro_batch)
    tokens = np.ascontiguousarray((groups.max(axis=3) / length).transpose(0, 2, 1))
    return DrawnSteps(tokens, tokens * tokens, float(held.sum()) / (n_samples * length))
