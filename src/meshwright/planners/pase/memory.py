"""What each configuration of a PaSE operator holds in the memory of one device."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwright.planners.pase.layer_costs import tensor_splits
from meshwright.planners.pase.tables import PaseTables

__all__ = ["held_bytes"]

_PARAMETER_BYTES = 16.0  # single precision: weight, gradient and the two moments of Adam
_OUTPUT_BYTES = 4.0  # single precision: kept from forward to backward


def held_bytes(tables: PaseTables) -> NDArray[np.float64]:
    """Return the bytes that each label holds on a device.

    Returns shape (n_labels,), float64: parameters with gradients and optimizer state, and the output kept for the backward
    pass, both as split.

    Notes
    -----
    PaSE has no memory model; this one is ours, the plainest that says which plans cannot run: everything a step keeps in
    single precision, no workspace, no fragmentation.
    """
    parts = []
    for operator, splits in zip(tables.network.operators, tables.splits, strict=True):
        shards = np.prod(splits[:, list(operator.weight_axes)], axis=1).astype(np.float64)
        outputs = np.prod(tensor_splits(splits, operator.output_axes), axis=1).astype(np.float64)
        parts.append(_PARAMETER_BYTES * operator.weight_elements / shards + _OUTPUT_BYTES * operator.output_elements / outputs)
    return np.concatenate(parts)
