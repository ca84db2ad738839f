"""Operator times as FlexFlow's measurement file, from a search space: what was measured or estimated,
for the simulators that read it.
"""

from __future__ import annotations

import json

from meshwright.base import files
from meshwright.planners.topoopt.readers.flexflow_measures import Measurements

__all__ = ["content", "write"]


def content(measurements: Measurements) -> str:
    """Return measurements as the JSON text of a measurement file.

    Returns: reading it gives the same measurements.
    """
    rows = [
        {
            "name": row.key,
            "pc_str": "-".join(map(str, (len(row.split), *row.split))),
            "fw_time": row.milliseconds[0],
            "bw_time": row.milliseconds[1],
            "mem_req": row.memory_bytes,
        }
        for row in measurements.rows
    ]
    whole = {"batch_size": measurements.batch_size, "ngpus": measurements.n_devices, "measurements": rows}
    return json.dumps(whole, indent=1) + "\n"


def write(measurements: Measurements, path: str) -> None:
    """Write a measurement file."""
    files.write(path, content(measurements))
