"""What a user gets is what was validated: planning a measured run with all of its parts given takes the same seconds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright import api
from meshwright.core.problem import MixedPrecision
from meshwright.validation import Point, _sets, _table, own_runs

ROWS = (("dgxc_benchmarking", 3), ("dgxc_benchmarking", 13), ("llm_foundry_mpt", 5), ("llm_foundry_mpt", 40), ("fms_fsdp", 3))
"""Megatron with context, with tensor and interleaved pipeline stages; FSDP of 2023, compiled FSDP."""


@pytest.mark.parametrize(("name", "row"), ROWS)
def test_a_run_that_is_planned_takes_what_validate_says(name: str, row: int) -> None:
    file = _sets.set_file(name)
    (fields,) = _table.located(file, _table.read(file).rows[row - 1 : row], own_runs.PATHS)
    (point,) = own_runs.points([fields])
    assert isinstance(point, Point)
    training = replace(MixedPrecision.of(fields["precision"]), gradient_bytes=int(fields["gradient_bytes"]))
    degrees = ("tensor", "context", "expert", "pipeline", "data", "shard", "recompute")
    schedule = {"schedules": "interleaved_1f1b" if fields["virtual"] != "1" else "1f1b"} if fields["pipeline"] != "1" else {}
    result = api.plan(
        fields["model"],
        fields["cluster"],
        global_batch=int(fields["global_batch"]),
        micro_batch=int(fields["micro_batch"]),
        sequence_length=int(fields["sequence_length"]),
        training=training,
        framework=fields["program"],
        settings={**{word: fields[word] for word in degrees}, **schedule, "uniform": "true"},
        memory_risk=0.5,
    )
    assert len(result.plan.stages) == int(fields["pipeline"]) * int(fields["virtual"])
    assert result.timeline.step_seconds == pytest.approx(point.planned_seconds, rel=1e-6)
    assert result.problem.framework.word == fields["program"]
