"""Inputs and answers of the five systems travel with the package, each with its source; tests read the same files."""

from __future__ import annotations

import pathlib

import pytest

import reference
from meshwright import published
from meshwright.base.errors import InputError

DATA = pathlib.Path(published.__file__).parent / "data"
FILES = sorted(path.relative_to(DATA).as_posix() for path in DATA.rglob("*") if path.is_file() and path.name != "README.md")


def test_a_file_is_found_and_a_table_read_by_columns() -> None:
    assert pathlib.Path(published.path("piper/gnmt.json")).read_text().startswith("{")
    rows = published.rows("pase/pase_paper_planning_seconds.csv")
    assert len(rows) == 5 and rows[4]["p"] == "64" and float(rows[4]["transformer_PaSE"]) == 1883.187


def test_a_file_that_is_not_there_is_said_to_be_missing_from_the_package() -> None:
    with pytest.raises(InputError, match=r"holds no piper/none\.json.*install it again"):
        published.path("piper/none.json")


def test_every_file_stands_in_the_list_of_sources() -> None:
    listed = (DATA / "README.md").read_text()
    for name in FILES:
        folder = name.partition("/")[0]
        words = (name, pathlib.Path(name).parent.as_posix(), pathlib.Path(name).name, f"{folder}/*{pathlib.Path(name).suffix}")
        assert any(f"`{word}`" in listed for word in words), name


def test_tests_read_the_files_of_the_package() -> None:
    for name in FILES:
        if name != "pase/pase_paper_speedups.csv":  # which no test compares with
            assert reference.path(name).samefile(DATA / name), name
