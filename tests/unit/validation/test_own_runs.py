"""Runs of one's own: read with or without the optional columns, compared with what was measured, wrong ones listed."""

from __future__ import annotations

import math

from meshwright.validation import Point, Skipped, own_runs

RUN = {"model": "gpt2", "cluster": "dgx-a100:8", "global_batch": "16", "micro_batch": "1", "data": "8", "tensor": "1",
       "pipeline": "1",
       "step_seconds": "0.5"}  # fmt: skip


def _point(**cells: str) -> Point | Skipped:
    (found,) = own_runs.points([RUN | cells])
    return found


def test_memory_is_compared_with_the_column_that_is_there() -> None:
    plain, allocated, reserved = _point(), _point(allocated_gib="10"), _point(allocated_gib="10", reserved_gib="11")
    assert isinstance(plain, Point) and isinstance(allocated, Point) and isinstance(reserved, Point)
    assert plain.measured_bytes == 0.0 and allocated.measured_bytes == 10 * 2**30 and reserved.measured_bytes == 11 * 2**30
    assert allocated.predicted_bytes < reserved.predicted_bytes
    assert sum(value for _, value in reserved.memory_causes) > reserved.predicted_bytes  # the context is in no column


def test_sharding_and_recomputation_hold_less() -> None:
    plain, sharded, full = (
        _point(allocated_gib="1"),
        _point(allocated_gib="1", shard="3"),
        _point(allocated_gib="1", recompute="full"),
    )
    assert isinstance(plain, Point) and isinstance(sharded, Point) and isinstance(full, Point)
    assert sharded.predicted_bytes < plain.predicted_bytes and full.predicted_bytes < plain.predicted_bytes


def test_a_run_that_failed_for_memory_is_judged_by_its_verdict() -> None:
    failed = _point(model="llama-3.1-70b", step_seconds="OOM")
    assert isinstance(failed, Point) and not failed.ran and not failed.fits and failed.measured_seconds == math.inf


def test_what_cannot_be_predicted_says_why() -> None:
    for cells, word in (
        ({"model": "gpt9"}, "gpt9"), ({"cluster": "dgx-z9:8"}, "dgx-z9"), ({"recompute": "some"}, "none, selective, full"),
        ({"data": "16"}, "needs 16 devices"), ({"pipeline": ""}, "pipeline is not given"), ({"precision": "bf17"}, "bf17"),
    ):  # fmt: skip
        found = _point(**cells)
        assert isinstance(found, Skipped) and word in found.reason, (cells, found)
