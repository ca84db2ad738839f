"""``meshwright validate``: the page and the worst rows; wrong files and folders answered in one line."""

from __future__ import annotations

import pathlib
from typing import Any

RUNS = "params_b,gpus,gbs,mbs,hidden,heads,layers,seq,tp,dp,pp,iter_ms\n3.6,8,16,2,1024,16,12,1024,1,8,1,500\n"


def test_the_page_is_written_and_the_worst_rows_printed(meshwright: Any) -> None:
    pathlib.Path("runs.csv").write_text(RUNS)
    done = meshwright("validate", "runs.csv", "--report", "page.html", "--worst", "3")
    assert done.code == 0, done.err
    assert "vtrain: worst rows by time" in done.out and "compute" in done.out
    assert "tp 1, dp 8" in pathlib.Path("page.html").read_text()


def test_a_folder_that_does_not_exist_is_named_before_anything_is_read(meshwright: Any) -> None:
    done = meshwright("validate", "none.csv", "--report", "nowhere/page.html")
    assert done.code == 2 and done.err.count("\n") == 1
    assert "--report nowhere/page.html: the folder nowhere does not exist" in done.err


def test_a_wrong_cell_is_named_by_file_row_and_column_and_nothing_is_written(meshwright: Any) -> None:
    pathlib.Path("runs.csv").write_text(RUNS.replace(",500", ",fast"))
    done = meshwright("validate", "runs.csv", "--report", "page.html")
    assert done.code == 2 and done.err.count("\n") == 1
    assert "runs.csv: row 1, column iter_ms: 'fast' is no number" in done.err
    assert not pathlib.Path("page.html").exists()
