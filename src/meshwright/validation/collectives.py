"""Collectives inside one node: bytes against microseconds, measured by vTrain (powers of two) and by Aceso."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from meshwright import network
from meshwright.errors import InputError
from meshwright.validation._points import Point, Skipped, count, ratio
from meshwright.validation._runs import Clusters, clusters

__all__ = ["COLUMNS", "points"]

COLUMNS = ("gpu", "collective", "group", "nodes", "bytes", "time_us", "busbw_GBs")

LONGEST_SECONDS = 1e3
"""Aceso writes a million seconds where a size did not run."""


def points(rows: Sequence[Mapping[str, str]]) -> list[Point | Skipped]:
    """Return measured and predicted seconds of every row."""
    where = clusters()
    return [_point(i, fields, where) for i, fields in enumerate(rows, 1)]


def _point(row: int, fields: Mapping[str, str], where: Clusters) -> Point | Skipped:
    kinds = {"a100": "dgx-a100:8", "v100": "dgx-v100:8", "v100-32g": "dgx-v100:8"}
    try:
        measured = ratio(fields, "time_us") / 1e6
        gpu, size = fields["gpu"], count(fields, "group")
        if measured > LONGEST_SECONDS:
            return Skipped(row, "the collective did not run: a million seconds stand for its time")
        if gpu not in kinds or count(fields, "nodes") != 1:
            return Skipped(row, f"no cluster is known for {fields['nodes']} nodes of '{gpu}'")
        axis = network.axis(where(kinds[gpu]), np.arange(size).reshape(1, size))
        n_bytes = float(count(fields, "bytes"))
        if fields["collective"] == "all_gather":
            n_bytes *= size  # the set counts what one rank contributes, the network what is gathered
        predicted = axis.seconds(fields["collective"], n_bytes)
    except InputError as error:
        return Skipped(row, str(error))
    return Point(row, measured, predicted)
