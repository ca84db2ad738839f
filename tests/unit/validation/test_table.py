"""Files of measured runs that are wrong: one message naming file, row and column."""

from __future__ import annotations

import pathlib

import pytest

from meshwright.base import registry
from meshwright.base.errors import InputError
from meshwright.validation import _points, _table

HEADER = "params_b,gpus,gbs,mbs,hidden,heads,layers,seq,tp,dp,pp,iter_ms"
ROW = "3.6,8,16,2,1024,16,12,1024,1,8,1,500"


def _read(folder: pathlib.Path, text: str | bytes) -> _table.Measured:
    path = folder / "runs.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return _table.read(path)


def test_a_good_file_is_read_with_blanks_around_names_and_empty_lines(tmp_path: pathlib.Path) -> None:
    read = _read(tmp_path, "\ufeff" + HEADER.replace(",tp", ", tp ") + f"\n{ROW}\n\n{ROW}\n")
    assert read.kind == "vtrain" and len(read.rows) == 2 and read.rows[1]["tp"] == "1"


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_lines_may_end_as_on_any_system_and_cells_may_be_quoted(end: str, tmp_path: pathlib.Path) -> None:
    read = _read(tmp_path, f'{HEADER},note{end}{ROW},"a, ""b"""{end}')
    assert read.kind == "vtrain" and read.rows[0]["iter_ms"] == "500" and read.rows[0]["note"] == 'a, "b"'


def test_names_of_columns_are_known_in_any_case_and_with_blanks(tmp_path: pathlib.Path) -> None:
    read = _read(tmp_path, f"{HEADER.upper().replace('PARAMS_B', 'Params B')}\n{ROW}\n")
    assert read.kind == "vtrain" and list(read.rows[0]) == HEADER.split(",")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{HEADER}\n{ROW}\n{ROW.replace('500', 'fast')}\n", "runs.csv: row 2, column iter_ms: 'fast' is no number"),
        (f"{HEADER}\n{ROW.replace('1024,16', 'wide,16')}\n", "runs.csv: row 1, column hidden: 'wide' is no number"),
        (f"{HEADER}\n{ROW.replace('500', '12abc')}\n", "row 1, column iter_ms: '12abc'"),
        (f"{HEADER.replace(',iter_ms', '')}\n{ROW}\n", "row 1 has 12 cells; the header has 11"),
        (f"{HEADER.replace(',iter_ms', ',note')}\n{ROW}\n", r"kind vtrain, but lacks its column\(s\) 'iter_ms'"),
        (f"{HEADER.replace('params_b', 'tp')}\n{ROW}\n", "the column 'tp' is there twice"),
        ("a,b\n1,2\n", "no measured set"),
        (f"{HEADER}\n", "holds no rows"),
        ("", "holds no rows"),
        (b"\xff\xfe\x00\x80", "binary"),
        (b"PK\x03\x04\x00\x00", "binary"),
        (f'{HEADER}\n"{ROW}\n', "not valid CSV"),
        (f"{HEADER}\n{ROW}\n".replace(",", ";"), "a single cell, 'params_b;gpus.*separated by commas"),
    ],
)
def test_what_is_wrong_is_named(text: str | bytes, message: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match=message) as caught:
        _read(tmp_path, text)
    assert "runs.csv" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("cell", ["", "n/a", "inf", "OOM", "6288 (7100)", "4|4|4", "1.5e-3", "1,024", "-5"])
def test_numbers_lists_and_words_for_missing_ones_are_left_to_the_set(cell: str, tmp_path: pathlib.Path) -> None:
    quoted = f'"{cell}"'
    assert _read(tmp_path, f"{HEADER}\n{ROW.replace('500', quoted)}\n").rows[0]["iter_ms"] == cell


def test_every_column_that_must_be_a_number_belongs_to_some_set() -> None:
    plugins = [registry.load("validation", name, "measured set") for name in registry.names("validation")]
    known = {column for plugin in plugins for column in (*plugin.COLUMNS, *getattr(plugin, "OPTIONAL", ()))}
    assert set(_table.NUMBERS) <= known
    assert list(_table.NUMBERS) == sorted(set(_table.NUMBERS), key=str.lower)


@pytest.mark.parametrize("cell", ["", "4|", "inf", "1e5", "-3", "x|y", "٣"])
def test_lists_of_whole_numbers_are_read_strictly(cell: str) -> None:
    with pytest.raises(InputError, match="dp is '"):
        _points.counts({"dp": cell}, "dp")
    assert _points.counts({"dp": " 4| 8"}, "dp") == [4, 8]


@pytest.mark.parametrize("cell", ["0", "-1", "1.5", "1e16"])
def test_degrees_are_at_least_one(cell: str) -> None:
    for default in (None, 1):
        with pytest.raises(InputError, match=f"tp is {cell}; it must be a whole number of at least 1"):
            _points.count({"tp": cell}, "tp", default)
    assert _points.count({"shard": "0"}, "shard", 0) == 0
