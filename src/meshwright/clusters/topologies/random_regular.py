"""Random regular: every device has the same number of wires, to others drawn at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshwright.base.errors import InputError
from meshwright.clusters import shared_options
from meshwright.clusters.shared_options import DeviceOptions, generated
from meshwright.clusters.wires import Wires, check_count
from meshwright.core.cluster import Cluster

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["EXAMPLE", "Params", "build"]

EXAMPLE = "64,degree=4,seed=0"
MOST_ENDS = 4_000_000
MOST_TRIES = 200


@dataclass(frozen=True, slots=True)
class Params(DeviceOptions):
    """Parameters.

    Parameters
    ----------
    degree : int
        Wires of each device.
    seed : int
        Seed of the draw.
    """

    degree: int = shared_options.whole(4)
    seed: int = shared_options.whole(0, 0)


def build(params: Params, name: str) -> Cluster:
    """Return the cluster."""
    import numpy as np

    n = check_count(params.n_devices, f"cluster {name}")
    degree = params.degree
    if not 1 <= degree < n or n * degree % 2 or n * degree > MOST_ENDS:
        raise InputError(
            f"cluster {name}: degree is {degree} for {n} devices; must be at least 1, less than the number of devices, "
            f"their product even and at most {MOST_ENDS}"
        )
    rng = np.random.default_rng(params.seed)
    for _ in range(MOST_TRIES):
        pairs = _draw(n, degree, rng)
        if pairs is None:
            continue
        wires = Wires()
        wires.join(pairs[:, 0], pairs[:, 1], params.bytes_per_second, params.latency_seconds)
        try:
            return generated(name, wires, n, 0, params, forwards=True)
        except InputError:  # not connected
            continue
    raise InputError(f"cluster {name}: no connected graph found in {MOST_TRIES} draws; raise the degree")


def _draw(n: int, degree: int, rng: np.random.Generator) -> NDArray[np.int64] | None:
    """Return the wires of one draw, smaller end first, sorted; None where the last free ends cannot be joined.

    References
    ----------
    .. [1] Steger and Wormald, "Generating random regular graphs quickly", 1999.
    """
    import numpy as np

    taken: set[tuple[int, int]] = set()
    free = np.repeat(np.arange(n), degree)
    while len(free):
        rng.shuffle(free)
        left: list[int] = []
        for a, b in zip(free[::2].tolist(), free[1::2].tolist(), strict=True):
            pair = (min(a, b), max(a, b))
            if a == b or pair in taken:
                left += [a, b]
            else:
                taken.add(pair)
        if len(left) == len(free) and not _joinable(sorted(set(left)), taken):
            return None
        free = np.array(left, dtype=np.int64)
    return np.array(sorted(taken), dtype=np.int64)


def _joinable(ends: list[int], taken: set[tuple[int, int]]) -> bool:
    """Return whether two of the devices with free ends are not joined yet."""
    return any((a, b) not in taken for i, a in enumerate(ends) for b in ends[i + 1 :])
