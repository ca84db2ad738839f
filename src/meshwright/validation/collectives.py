"""Collectives inside one node: bytes against microseconds, measured by vTrain (powers of two) and by Aceso."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from meshwright.base.errors import InputError
from meshwright.network import Network
from meshwright.validation._points import Point, Skipped, count, ratio
from meshwright.validation._runs import Clusters, clusters

__all__ = ["COLUMNS", "points"]

COLUMNS = ("gpu", "collective", "group", "nodes", "bytes", "time_us", "busbw_GBs")

LONGEST_SECONDS = 1e3
"""Aceso writes a million seconds where a size did not run."""

ACESO_ORDER = (0, 3, 1, 2, 4, 5, 6, 7)
"""Devices of Aceso's node in our numbering of the hybrid cube mesh: its pairs all-reduce at 42 GB/s, which takes two links of
25 GB/s, so that its first two devices are joined by a double link (Azure's and NVIDIA's nodes number their devices
differently).
"""

COPIED = ("all_gather", "reduce_scatter", "all_to_all")
"""Collectives that Aceso called with lists of tensors: PyTorch copies the lists through one flat tensor,
read and written once.
"""


def points(rows: Sequence[Mapping[str, str]]) -> list[Point | Skipped]:
    """Return measured and predicted seconds of every row."""
    place = clusters()
    return [_point(i, fields, place) for i, fields in enumerate(rows, 1)]


def _point(row: int, fields: Mapping[str, str], place: Clusters) -> Point | Skipped:
    kinds = {"a100": "dgx-a100:8", "v100": "dgx-v100:8", "v100-32g": "dgx-v100:8"}
    try:
        measured = ratio(fields, "time_us") / 1e6
        gpu, size = fields["gpu"], count(fields, "group")
        if measured > LONGEST_SECONDS:
            return Skipped(row, "the collective did not run: a million seconds stand for its time")
        if gpu not in kinds or count(fields, "nodes") != 1:
            return Skipped(row, f"no cluster is known for {fields['nodes']} nodes of '{gpu}'")
        cluster, by_aceso = place(kinds[gpu]), gpu == "v100-32g"
        group = np.array(ACESO_ORDER) if by_aceso else np.arange(cluster.n_devices)
        if not 1 < size <= len(group):
            raise InputError(f"group is {size}; a node has {len(group)} devices")
        axis = Network.of(cluster).axis(group[:size].reshape(1, size))
        n_bytes = float(count(fields, "bytes"))
        if fields["collective"] == "all_gather":
            n_bytes *= size  # the set counts what one rank contributes, the network what is gathered
        predicted = axis.seconds(fields["collective"], n_bytes)
        if by_aceso and fields["collective"] in COPIED:
            device = cluster.device(0)
            predicted += 2.0 * n_bytes / (device.memory_bytes_per_second * device.memory_ratio)
    except InputError as error:
        return Skipped(row, str(error))
    return Point(row, measured, predicted)
