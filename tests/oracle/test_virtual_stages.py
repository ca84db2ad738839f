"""The kernel of virtual stages against its plain twin, on random stages that fit, fit when they recompute, and never fit."""

from __future__ import annotations

import math
import pathlib
import sys

import numpy as np
import pytest

from meshwright._kernels.best import virtual_stages as kernel

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import virtual_stages as twin


def _random(seed: int) -> tuple[kernel.StackedLayers, kernel.RankStages, float]:
    """Layers of one to three classes and stages of any length, empty ones too."""
    dice = np.random.default_rng(seed)
    n_ranks, n_chunks, n_classes, n_layers = (int(dice.integers(1, most)) for most in (5, 4, 4, 14))
    n_stages = n_ranks * n_chunks
    inner = np.sort(dice.integers(0, n_layers + 1, n_stages - 1))
    ends = np.concatenate(([0], inner, [n_layers]))
    own = np.arange(n_stages).reshape(n_chunks, n_ranks).T.copy()
    if dice.random() < 0.5:  # there and back, as in ZB-V
        own[:, 1::2] = own[::-1, 1::2]
    values = dice.random((n_classes, 8, n_layers))
    values[:, 3] = values[:, 2] * dice.random((n_classes, n_layers))  # gradients of inputs are part of the backward pass
    sums = np.concatenate((np.zeros((n_classes, 8, 1)), np.cumsum(values, axis=2)), axis=2)
    pinned = dice.random((n_classes, 2, 8))
    pinned[:, :, 3] = pinned[:, :, 2] * dice.random((n_classes, 2))
    worth = np.concatenate((np.zeros((n_classes, 2, 1)), np.cumsum(dice.random((n_classes, 2, n_layers)), axis=2)), axis=2)
    layers = kernel.StackedLayers(
        sums, pinned, dice.random((n_classes, n_layers)), dice.random((n_classes, 3)), np.sort(dice.random((n_classes, 2))),
        np.sort(dice.random((n_classes, 2))), dice.integers(0, 3, n_classes), 5.0 * dice.random((n_classes, 2)), worth,
    )  # fmt: skip
    n_moments = int(dice.integers(1, 4))
    stages = kernel.RankStages(
        ends, own, dice.integers(0, n_classes, n_ranks), dice.integers(0, 5, (n_ranks, n_moments, n_chunks)).astype(float),
        dice.integers(0, n_chunks, (n_ranks, n_moments)), dice.uniform(3.0, 30.0, n_ranks),
        dice.random(n_ranks) * (dice.random(n_ranks) < 0.3),
    )  # fmt: skip
    return layers, stages, float(dice.integers(1, 9))


def other_ends(ends: np.ndarray) -> np.ndarray:
    """Return another spread of the layers: the last stage gives one to the one before where it has any."""
    moved = ends.copy()
    moved[-2] += int(len(ends) > 2 and ends[-1] > ends[-2])
    return moved


@pytest.mark.parametrize(("split_backward", "mixed_backward"), [(False, False), (True, False), (True, True)])
def test_the_kernel_says_what_its_plain_twin_says(split_backward: bool, mixed_backward: bool) -> None:
    n_infinite = n_recomputing = 0
    for seed in range(250):
        layers, stages, m = _random(seed)
        expected = twin.least_step(layers, stages, m, split_backward, mixed_backward)
        ends = np.stack((stages.ends, other_ends(stages.ends)))
        others = twin.least_step(layers, stages._replace(ends=ends[1]), m, split_backward, mixed_backward)
        found = kernel.least_steps(layers, stages, ends, m, split_backward, mixed_backward, False)
        assert found == pytest.approx([expected, others], rel=1e-12), seed
        least = kernel.least_steps(layers, stages, ends, m, split_backward, mixed_backward, True)
        assert min(least) == pytest.approx(min(expected, others), rel=1e-12) and (least <= found * (1 + 1e-12)).all(), seed
        n_infinite += math.isinf(expected)
        roomy = twin.least_step(
            layers, stages._replace(memory_bytes=stages.memory_bytes + 1e6), m, split_backward, mixed_backward
        )
        n_recomputing += roomy < expected < math.inf
    assert n_infinite > 10 and n_recomputing > 10
