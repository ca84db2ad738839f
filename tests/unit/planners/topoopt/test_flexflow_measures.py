"""Measured operators: read, written and read again; wrong files and wrong batches are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshwright.api import codesign
from meshwright.base.errors import InputError
from meshwright.models import read
from meshwright.planners.topoopt.readers import flexflow_measures
from meshwright.planners.topoopt.writers import flexflow_measures as writer

ROW = {"name": "Dense_4_2", "pc_str": "2-1-4", "fw_time": 0.125, "bw_time": 0.3, "mem_req": 100}


def write(folder: Path, row: dict[str, Any] | None = None, **change: Any) -> str:
    path = folder / "m.json"
    path.write_text(json.dumps({"batch_size": 8, "ngpus": 4, "measurements": [ROW | (row or {})]} | change))
    return str(path)


def test_what_is_written_reads_as_the_same(tmp_path: Path) -> None:
    first = flexflow_measures.load(write(tmp_path))
    writer.write(first, str(tmp_path / "again.json"))
    assert flexflow_measures.load(str(tmp_path / "again.json")) == first
    assert read(write(tmp_path)).format == "flexflow_measures"
    assert first.rows[0].milliseconds == (0.125, 0.3)


def test_of_two_rows_with_one_key_the_first_counts(tmp_path: Path) -> None:
    path = write(tmp_path, measurements=[ROW, ROW | {"fw_time": 9.0}])
    assert flexflow_measures.load(path).table()["Dense_4_2", (1, 4)].milliseconds[0] == 0.125


@pytest.mark.parametrize(
    ("row", "change", "says"),
    [
        ({"pc_str": "3-1-4"}, {}, "pc_str"),
        ({"pc_str": "x"}, {}, "pc_str"),
        ({"fw_time": -1}, {}, "fw_time is -1"),
        ({"bw_time": "1"}, {}, "bw_time is '1'"),
        ({"mem_req": 1.5}, {}, "mem_req"),
        ({"extra": 1}, {}, "extra"),
        ({}, {"batch_size": 0}, "batch_size"),
        ({}, {"measurements": []}, "at least one"),
        ({}, {"measurements": [1]}, "must be an object"),
        ({}, {"other": 1}, "no field in"),
    ],
)
def test_a_wrong_file_is_refused_in_one_sentence(
    tmp_path: Path, row: dict[str, Any], change: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=says) as caught:
        flexflow_measures.load(write(tmp_path, row, **change))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_cut_off_or_missing_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path)
    Path(path).write_text(Path(path).read_text()[:40])
    with pytest.raises(InputError, match="cut off"):
        flexflow_measures.load(path)
    with pytest.raises(InputError, match="no such file"):
        flexflow_measures.load(str(tmp_path / "none.json"))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"batch_size": 64}, "measured with a batch of 64, but moe trains 1024"),
        ({"batch_size": 1024, "ngpus": 8}, "measured for 8 servers, but --servers is 4"),
        ({"batch_size": 1024}, "none of the operators of moe"),
    ],
)
def test_measurements_of_something_else_are_refused(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        codesign("topoopt:moe", servers=4, degree=2, link_bandwidth=1e9, measures=write(tmp_path, **change), budget=5)
