"""What --fix is read as, and why it is refused, as when this was written: nothing is planned."""

from __future__ import annotations

import itertools
import pathlib
from dataclasses import replace
from typing import Any

from meshwright import api
from meshwright.api import fixing
from meshwright.api.sizes import sizing
from meshwright.base.errors import InputError
from meshwright.core.problem import Batch
from recorded import Recorded

TINY = str(pathlib.Path(__file__).resolve().parents[2] / "data" / "tiny_llama.json")
GIVEN = (
    "tensor=2", "tensor=4", "tensor=8", "tensor=3", "tensor=0", "tensor=x", "tensor=-1", "tensor=10000001", "tensor=1.5",
    "tensor=2,tensor=2", "expert=1", "expert=2", "context=2", "context=16", "pipeline=2", "pipeline=4", "pipeline=5", "data=8",
    "data=9", "data=4,tensor=4", "data=2,tensor=2,pipeline=2", "micro_batch=16", "micro_batch=3", "micro_batch=4,data=8",
    "virtual=1", "virtual=2", "virtual=2,pipeline=1", "virtual=2,pipeline=2", "virtual=3,pipeline=2", "virtual=4",
    "virtual=5", "split=1,1,1,1", "split=2,2", "split=4", "split=3,2", "split=0,4", "split=0,2,2,0", "split=2,0,2", "split=a",
    "split=2,2,pipeline=1", "split=2,2,pipeline=2", "split=1,1,1,1,pipeline=2", "split=1,1,1,1,pipeline=3",
    "split=1,1,1,1,virtual=2", "split=1,1,1,1,virtual=2,pipeline=2", "split=1,1,1,1,virtual=4,pipeline=2",
    "split=2,1,1,virtual=2",
    "schedule=1f1b", "schedule=gpipe", "schedule=zb-h1", "schedule=zb_v", "schedule=zb_v,virtual=2", "schedule=interleaved",
    "schedule=interleaved,virtual=2", "schedule=interleaved,virtual=1", "schedule=1f1b,virtual=2", "schedule=1f1b,virtual=1",
    "schedule=none", "virtual=3", "virtual=1,pipeline=2", "shard=0", "shard=1", "shard=3", "shard=4", "shard=x",
    "optimizer=sharded", "optimizer=whole", "gradients=sharded", "gradients=whole", "weights=sharded", "weights=whole",
    "weights=half", "optimizer=whole,weights=sharded", "shard=1,gradients=sharded", "shard=2,weights=whole",
    "optimizer=sharded,gradients=whole", "recompute=none", "recompute=none,full", "recompute=half", "recompute=full,x", "", " ",
    "tensor", "=2", "tensor=2,,", ",tensor=2", "colour=red", "tensro=2", "tensor= 2 , data = 2",
)  # fmt: skip


def told(fix: Any, problem: Any) -> Any:
    try:
        return fixing.parse(fix, problem)
    except InputError as error:
        return str(error)


def test_parts_are_read_and_refused_as_before(recorded: Recorded) -> None:
    problem = replace(api.make_problem(TINY, "flat:8"), batch=Batch(16, 0, 0))
    recorded({fix: told(fix, problem) for fix in GIVEN})
    mappings: tuple[Any, ...] = (
        {},
        {"split": [2, 2]},
        {"split": (3, 1)},
        {"tensor": 2, "recompute": ["none", "full"]},
        5,
        ["tensor"],
    )
    recorded([told(fix, problem) for fix in mappings], "mappings")
    recorded([told(fix, replace(problem, batch=Batch())) for fix in ("micro_batch=3", "data=8,micro_batch=7")], "open batch")


def test_numbers_of_devices_are_read_as_before(recorded: Recorded) -> None:
    def counted(*values: Any) -> Any:
        try:
            counts = sizing._counts(*values)
        except InputError as error:
            return str(error)
        return [len(counts), sum(counts), *counts[:4]]

    words = (
        "", "8", "16,8,8", "1k", "64:256:64", "8:8:1", "8:7:1", "8:9", "8:16:0", "1:2000:1", "1:2001:1", "0", "1000001", "x",
        "1:1999:1,5000", "1:4:2, 3",
    )  # fmt: skip
    values = (8, 0, (4, 2, 4), (True,), (2.0,), (10**6,), (10**6 + 1,))
    recorded({f"{value!r} {n}": counted(value, n) for value, n in itertools.product((*words, *values), (1, 2))})
    batches = []
    for batch, length in ((0, 8192), (0, 4096), (0, 3000), (0, 2**23), (7, 5), (10**9, 1), (10**9 + 1, 1), (-1, 1)):
        try:
            batches.append(sizing._global_batch(batch, length))
        except InputError as error:
            batches.append(str(error))
    recorded(batches, "batches")
