"""A file of measured runs as rows of cells, its kind recognised by its columns, its numbers checked."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshwright.base import files, registry
from meshwright.base.errors import InputError

__all__ = ["Measured", "describe", "located", "read"]

NUMBERS = (
    "allocated_gib", "bytes", "context", "cp", "data", "dp_shard", "ep", "expert", "ffn", "gbs", "global_batch", "global_bs",
    "gpus", "gradient_bytes", "group", "heads", "hidden", "interleave", "iter_ms", "iter_s_measured", "layers", "local_bs",
    "max_mem_bytes", "mbs", "measured_ms", "measured_s", "median_step_s", "mem_gib", "micro_batch", "n_gpus", "nodes",
    "num_microbatches", "nvidia_smi_gib", "pipeline", "pp", "real_alloc_gib", "real_iter_s", "real_ms", "real_s",
    "reserved_gib", "seq", "sequence_length", "shard", "shard_degree", "sp", "step_seconds", "tensor", "tflops_per_gpu",
    "time_us", "tokens_per_sec_per_gpu", "tp", "tps_per_gpu", "value_pct_or_GiB", "virtual", "vp", "vpp",
)  # fmt: skip
"""Columns that are read as numbers, whatever the set."""

NUMBER = r"[-+]?(\d{1,3}(,\d{3})+(\.\d*)?|\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?"
"""What a number looks like; commas may stand between thousands."""

MISSING = ("", "-", "?", "auto", "fail", "failed", "inf", "infinity", "n/a", "na", "nan", "none", "null", "oom", "unknown")
"""Words that stand for a number that was not measured or not told, in any case; a set's own file says what they mean for a
row.
"""

FILES = (".json", ".yaml", ".yml", ".xml", ".txt", ".log", ".out", ".sh", ".py", ".toml")
"""Endings of cells that name a file, where they stand without a folder."""

ALIKE = 0.5
"""A file with at least this share of a set's columns is taken for one that lacks the others."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Rows of one file of a known kind, each as cells by column."""

    kind: str
    rows: tuple[Mapping[str, str], ...]


def read(path: str | Path) -> Measured:
    """Read a file of measured runs.

    Parameters
    ----------
    path : str or Path
        A CSV file with the columns of one of the known sets.

    Raises
    ------
    InputError
        When the file cannot be read, its columns are those of no known set, or a number is none.
    """
    header, *lines = _lines(path)
    header = _named(header)
    told = [name for name in _told_beside(header) if name not in header]
    for i, name in enumerate(header):
        if name in header[:i]:
            raise InputError(f"{path}: the column '{name}' is there twice; each needs a name of its own")
    rows = []
    for i, cells in enumerate(lines, 1):
        if len(cells) != len(header):
            raise InputError(f"{path}: row {i} has {len(cells)} cells; the header has {len(header)}")
        rows.append(dict(zip(header, cells, strict=True)) | dict.fromkeys(told, ""))
        for name in NUMBERS:
            _check(path, i, name, rows[-1].get(name, ""))
    return Measured(_kind(path, [*header, *told]), tuple(rows))


def _told_beside(header: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that files beside the rows of one's own runs may tell, where a column names such files."""
    beside = {"model", "cluster"} <= set(header) and {"log", "config"} & set(header)
    return tuple(registry.load("validation", "own_runs", "measured set").COLUMNS) if beside else ()


def located(path: str | Path, rows: Sequence[Mapping[str, str]], columns: Sequence[str]) -> list[Mapping[str, str]]:
    """Return the rows with the files that some columns name as seen from here.

    Parameters
    ----------
    path : str or Path
        The CSV file, relative to which they are named.
    rows : sequence of mapping
        Its rows.
    columns : sequence of str
        Columns that may name files.
    """
    return [{**row, **{name: _beside(path, row[name].strip()) for name in columns if name in row}} for row in rows]


def _beside(path: str | Path, word: str) -> str:
    """Return a cell that names a file as seen from the CSV file; other words (built-in names, parameters of a topology) as
    they are.
    """
    name = word.partition("#")[0]
    is_file = name.endswith(FILES) or "/" in name.partition(":")[0]
    return str(Path(path).parent / word) if is_file else word


def describe(row: Mapping[str, str], columns: Sequence[str]) -> str:
    """Return what a row says in the columns of its set, in short: ``tp 8, dp 4, ...``."""
    return ", ".join(f"{name} {row[name].strip()}" for name in columns if row.get(name, "").strip())


def _lines(path: str | Path) -> list[list[str]]:
    """Return the cells of every line."""
    try:
        text = files.read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: is a binary file; a CSV file of measured runs is needed") from None
    if "\0" in text:
        raise InputError(f"{path}: is a binary file; a CSV file of measured runs is needed")
    try:
        lines = [line for line in csv.reader(io.StringIO(text, newline=None), strict=True) if line]
    except csv.Error as error:
        raise InputError(f"{path}: is not valid CSV: {error}") from None
    if len(lines) < 2:
        raise InputError(f"{path}: holds no rows; a header and at least one measured run are needed")
    return lines


def _check(path: str | Path, row: int, name: str, cell: str) -> None:
    """Refuse a cell that ought to be a number and is none; a figure in parentheses beside it is the set's to read, and so is
    a list of one number for each stage.
    """
    text = re.sub(r"\(.*\)", "", cell).strip()
    if text.lower() not in MISSING and not all(re.fullmatch(NUMBER, part.strip()) for part in text.split("|")):
        raise InputError(
            f"{path}: row {row}, column {name}: '{cell.strip()}' is no number; write one, or leave the cell "
            "empty where it is not known"
        )


def _named(header: Sequence[str]) -> list[str]:
    """Return the names of the columns as the sets write them, whatever their case and whether blanks or dashes join their
    words.
    """
    plugins = [plugin for _, plugin in registry.each("validation", "measured set")]
    known = {name for plugin in plugins for name in (*plugin.COLUMNS, *getattr(plugin, "OPTIONAL", ()))}
    plain = {re.sub(r"[\s_-]+", "_", name.lower()): name for name in sorted(known)}
    return [
        name if name in known else plain.get(re.sub(r"[\s_-]+", "_", name.lower()), name)
        for name in (name.strip() for name in header)
    ]


def _kind(path: str | Path, header: Sequence[str]) -> str:
    """Recognise the set by its columns: the one of which the file has all, and most."""
    columns = {name: plugin.COLUMNS for name, plugin in registry.each("validation", "measured set")}
    matching = [name for name in columns if set(columns[name]) <= set(header)]
    if matching:
        return max(matching, key=lambda name: (len(columns[name]), name))
    if len(header) == 1 and re.search(r"[;\t|]", header[0]):
        raise InputError(f"{path}: its first line is a single cell, '{header[0][:60]}'; cells are to be separated by commas")
    share, closest = max((len(set(columns[name]) & set(header)) / len(columns[name]), name) for name in columns)
    if share >= ALIKE:
        lacking = ", ".join(f"'{name}'" for name in columns[closest] if name not in header)
        raise InputError(f"{path}: looks like a file of the kind {closest}, but lacks its column(s) {lacking}; add them")
    shown = ", ".join(header[:8]) + (", ..." if len(header) > 8 else "")
    raise InputError(f"{path}: its columns ({shown}) are those of no measured set that is known: {', '.join(columns)}")
