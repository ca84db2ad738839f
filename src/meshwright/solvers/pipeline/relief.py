"""What recomputation of unlike layers costs at least: prices of a byte."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Relief", "relief"]


@dataclass(frozen=True, slots=True, eq=False)
class Relief:
    """What recomputation of unlike layers costs at least, for any excess of memory: the dual of a linear program.

    Parameters
    ----------
    seconds_per_byte : ndarray, shape (n_prices,), float64
        Prices of a byte of one micro-batch.
    worth_seconds : ndarray, shape (n_prices, n_layers + 1), float64
        What recomputing the layers before each place earns at most at these prices, its own seconds taken off.
    dearest_seconds : float
        What recomputing all layers takes at most.
    """

    seconds_per_byte: NDArray[np.float64]
    worth_seconds: NDArray[np.float64]
    dearest_seconds: float

    @classmethod
    def none(cls, n_layers: int) -> Relief:
        """Return no prices, for layers that are all alike."""
        return cls(np.zeros(0), np.zeros((0, n_layers + 1)), 0.0)


_MOST_PRICES = 8


def relief(saved_bytes: NDArray[np.float64], extra_seconds: NDArray[np.float64]) -> Relief:
    """Return what recomputation costs at least, where layers differ.

    Parameters
    ----------
    saved_bytes, extra_seconds : ndarray, shape (n_layers, n_ways), float64
        Of every layer and way to recompute it: what it gives up of one micro-batch's activations at most, and what this takes
        at least.

    Returns
    -------
    Relief
        For any price, layers that free what is asked take at least the price of it less what they are worth at that price.

    Notes
    -----
    The best price is where some layer would go over from one way to another: those are tried, or eight of them, evenly.
    """
    saved = np.concatenate((np.zeros((len(saved_bytes), 1)), saved_bytes), axis=1)
    extra = np.concatenate((np.zeros((len(saved_bytes), 1)), extra_seconds), axis=1)
    more = saved[:, :, None] - saved[:, None, :]
    dearer = extra[:, :, None] - extra[:, None, :]
    going_over = (more > 0.0) & (dearer > 0.0)
    prices = np.unique(dearer[going_over] / more[going_over])
    if len(prices) > _MOST_PRICES:
        prices = prices[np.linspace(0, len(prices) - 1, _MOST_PRICES).round().astype(np.int64)]
    worth = (prices[:, None, None] * saved - extra).max(axis=2)  # not recomputing is one of the ways, so never below 0
    running = np.zeros((len(prices), len(saved) + 1))
    running[:, 1:] = np.cumsum(worth, axis=1)
    return Relief(prices, running, float(extra.max(axis=1).sum()))
