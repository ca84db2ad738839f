"""Words of shell scripts: each with the line that it comes from, also where a variable holds several lines."""

from __future__ import annotations

import pytest

from meshwright.frameworks import _shell_tests
from meshwright.frameworks import _shell_words as shell


def _expanded(token: str, **held: shell.Value) -> list[tuple[str, int]]:
    return shell.expanded(token, 9, held.get, lambda name, value: None)


def test_words_of_a_variable_stand_where_they_were_written() -> None:
    args: shell.Value = (("--tp 2\n--pp 4\n  --dp", 3), ("8", 12))
    assert _expanded("$ARGS", ARGS=args) == [("--tp", 3), ("2", 3), ("--pp", 4), ("4", 4), ("--dp", 5)]  # the first of an array
    assert _expanded("${ARGS[@]}", ARGS=args) == [("--tp", 3), ("2", 3), ("--pp", 4), ("4", 4), ("--dp", 5), ("8", 12)]


@pytest.mark.parametrize(
    ("token", "found"),
    [
        ("--size=$N", [("--size=4", 2)]), ('"$N $N"', [("4 4", 2)]), ("'$N'", [("$N", 9)]), ("plain", [("plain", 9)]),
        ("$M", []), ('"$M"', [("", 9)]),
    ],
)  # fmt: skip
def test_what_is_quoted_stays_one_word_and_nothing_is_none(token: str, found: list[tuple[str, int]]) -> None:
    words = _expanded(token, N=(("4", 2),), M=(("", 5),))
    assert [text for text, _ in words] == [text for text, _ in found]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[ a = a -o a = b ]", True), ("[ a = b -o a = a ]", True), ("[ a = b -o a = c ]", False),
        ("[ a = a -a a = b ]", False),
        ("[ a = a -a b = b ]", True), ("[ a = a -o -f file ]", True), ("[ a = b -o -f file ]", None),
        ("[ a = b -a -f file ]", False),
        ("[ a = a -a -f file ]", None), ("[ ! a = b ]", True), ("[ 2 -lt 10 ]", True), ("[ 10 -le 2 ]", False),
    ],
)  # fmt: skip
def test_a_test_holds_does_not_hold_or_is_decided_elsewhere(text: str, found: bool | None) -> None:
    words = [(shell.Token("word", word, 1), word) for word in text.split()]
    assert _shell_tests.holds(words, {}) is found


def test_without_an_index_an_array_is_its_first_word() -> None:
    args: shell.Value = (("--tp", 1), ("2", 1))
    assert _expanded("${ARGS}", ARGS=args) == _expanded('"$ARGS"', ARGS=args) == [("--tp", 1)]
    assert _expanded("${ARGS:-x}", ARGS=args) == [("--tp", 1)] and _expanded("${ARGS}", ARGS=()) == []
    assert _expanded("$((1<<3)) $((12>>1))", ARGS=args) == [("8 6", 0)] or _expanded("$((1<<3))", ARGS=args)[0][0] == "8"
