"""The measured sets of the package: all of them readable and described, runs told in full complete."""

from __future__ import annotations

import csv
import re

import pytest

from meshwright import clusters, models, validation
from meshwright.validation._sets import FOLDER

TOLD = sorted((FOLDER / "told").glob("*.csv"))
README = (FOLDER / "README.md").read_text()


@pytest.mark.parametrize("name", validation.set_names())
def test_a_set_says_where_it_is_from_and_stands_in_the_table_of_sources(name: str) -> None:
    known = validation.describe_set(name)
    assert known.n_rows > 0 and known.sources
    assert all(
        re.match(r"github:[\w-]+/[\w.-]+(@[\w.]+)?$|arXiv [\d.]+$|docs\.[\w./-]+ performance_summary$", source)
        for source in known.sources
    ), known.sources
    assert f"`{name}.csv`" in README or f"`told/{name}.csv`" in README


@pytest.mark.parametrize("path", TOLD, ids=lambda path: path.stem)
def test_runs_told_in_full_name_models_and_clusters_that_are_there(path) -> None:
    assert f"`told/{path.name}`" in README
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for model, length in sorted({(row["model"], row["sequence_length"]) for row in rows}):
        spec = str(FOLDER / "told" / model) if "/" in model else model
        assert models.read(spec, sequence_length=int(length)).graph.n_parameters > 1e8
    for name in sorted({row["cluster"] for row in rows}):
        cluster = clusters.cluster(str(FOLDER / "told" / name) if name.endswith(".yaml") else name)
        most = max(
            int(row["data"]) * int(row["tensor"]) * int(row["context"]) * int(row["pipeline"])
            for row in rows
            if row["cluster"] == name
        )
        assert cluster.n_devices >= most, name


@pytest.mark.parametrize("path", TOLD, ids=lambda path: path.stem)
def test_runs_told_in_full_are_built_in_sets(path) -> None:
    assert validation.set_file(path.stem) == path and path.stem in validation.set_names()
    assert validation.describe_set(path.stem).kind == "own_runs"


def test_every_row_of_a_set_told_in_full_is_predicted() -> None:
    report = validation.validate("fms_fsdp")
    assert len(report.points) == 6 and not report.skipped
    assert report.unused == ("note", "source", "seen")
    assert report.held_out == {2, 4, 6}  # as of every set of the package, odd rows are fitted
