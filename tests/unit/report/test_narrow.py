"""Terminals with fewer columns than an answer has: lines go on between words, numbers stay whole."""

from __future__ import annotations

import os
import pty
import struct
import sys
import termios
from fcntl import ioctl

import pytest

from meshwright.api.sizes import sizing
from meshwright.core import words
from meshwright.report import screen, sizes, terminal

TEXT = "gpt2 on dgx-a100:8: 76 ms a step, 862.5 k tokens/s, 29.5% model FLOPs utilization; the fullest device is 13.4% full"


def test_what_is_too_long_goes_on_between_words_and_the_rest_is_as_it_was() -> None:
    rows = ["short", "", "  " + TEXT]
    found = screen.narrowed(rows, 60)
    assert found[:2] == ["short", ""] and all(len(row) <= 60 for row in found)
    assert " ".join(" ".join(found[2:]).split()) == TEXT and all(row.startswith("    ") for row in found[3:])
    assert screen.narrowed(rows, 200) == rows


def test_tables_of_sizes_keep_their_numbers_whole_in_eighty_columns() -> None:
    answer = sizing.size("gpt2", "1B", kinds="h100", devices=[8])
    lines = sizes.explain(answer, columns=80).splitlines()
    row = next(line for line in lines if line.lstrip().startswith("dgx-h100:8"))
    wide = next(line for line in sizes.explain(answer).splitlines() if line.lstrip().startswith("dgx-h100:8"))
    assert max(map(len, lines)) <= 80 and row.split()[:7] == wide.split()[:7]


@pytest.mark.parametrize(("wide", "said"), [(80, 80), (10, 40)])
def test_a_terminal_says_how_wide_it_is(wide: int, said: int, monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, wide, 0, 0))
    with os.fdopen(slave, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert terminal.columns() == said
        monkeypatch.undo()
    os.close(master)


def test_what_is_no_terminal_takes_lines_of_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert terminal.columns() == 0
    monkeypatch.undo()
    assert terminal.columns() == 0


def test_layers_are_counted_as_people_count_them() -> None:
    t5 = ["embedding", *["attention_mlp"] * 12, "norm", *["attention_mlp"] * 12, "head"]
    assert words.size_of(t5) == "24 layers" and words.size_of(["norm", "head"]) == "2 layers"
