"""A bounded memo forgets what was asked for longest ago, and nothing else."""

from __future__ import annotations

from meshwright.network.remembered import Remembered


def test_what_was_asked_for_longest_ago_is_forgotten_first() -> None:
    made: list[str] = []

    def make(word: str, size: int) -> tuple[str, int]:
        made.append(word)
        return word.upper(), size

    memo = Remembered[str](10)
    for word, size in (("a", 4), ("b", 4), ("a", 4), ("c", 4), ("a", 4), ("b", 4)):
        assert memo.get(word, lambda word=word, size=size: make(word, size)) == word.upper()  # type: ignore[misc]
    assert made == ["a", "b", "c", "b"]


def test_one_value_that_is_too_large_stays_until_the_next() -> None:
    memo = Remembered[int](10)
    assert memo.get("large", lambda: (1, 99)) == 1
    assert memo.get("large", lambda: (2, 99)) == 1
    assert memo.get("small", lambda: (3, 1)) == 3
    assert memo.get("large", lambda: (4, 99)) == 4
