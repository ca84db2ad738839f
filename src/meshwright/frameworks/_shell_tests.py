"""Tests of shell scripts (``[ ... ]``, ``[[ ... ]]``, ``(( ... ))``): what holds with the variables that are known."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from types import MappingProxyType

from meshwright.frameworks import _shell_words
from meshwright.frameworks._shell_words import Token, Value

__all__ = ["holds"]

_NUMBERS: Mapping[str, str] = MappingProxyType({"-eq": "==", "-ne": "!=", "-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">="})
_JOINED: Mapping[str, str] = MappingProxyType({"-a": "&&", "-o": "||", "&&": "&&", "||": "||"})


def holds(words: list[tuple[Token, str]], variables: Mapping[str, Value]) -> bool | None:
    """Return whether a test holds; None where files, commands or patterns decide it. A variable that is not set is empty.

    `words`: each as written and with variables put in. `variables`: that are set.
    """
    first = words[0][0].text
    if first.startswith("(("):
        inner = _shell_words.expanded(f"${first}", 0, variables.get, _nothing, whole=True)
        return None if _shell_words.is_open(inner[0][0]) else inner[0][0] != "0"
    inner_words = words[1:-1] if first in ("[", "[[") else words[1:]
    return _any([(token, _known(token, text)) for token, text in inner_words], variables, first == "[[")


def _nothing(name: str, text: str) -> None:
    """Set nothing: a test changes no variable."""


def _known(token: Token, text: str) -> str:
    """Return a word whose variables that are not set are empty; what a command prints stays open."""
    return "" if text.startswith("$") and not text.startswith("$(") and _shell_words.is_open(text) else text


def _any(words: list[tuple[Token, str]], variables: Mapping[str, Value], patterns: bool) -> bool | None:
    for joined, combine in (("||", _or), ("&&", _and)):
        for k, (token, _) in enumerate(words):
            if _JOINED.get(token.text) == joined and 0 < k < len(words) - 1:
                return combine(_any(words[:k], variables, patterns), _any(words[k + 1 :], variables, patterns))
    if words and words[0][0].text == "!":
        inner = _any(words[1:], variables, patterns)
        return None if inner is None else not inner
    if len(words) > 2 and words[0][0].text == "(" and words[-1][0].text == ")":
        return _any(words[1:-1], variables, patterns)
    return _single(words, variables, patterns)


def _or(one: bool | None, other: bool | None) -> bool | None:
    return True if one or other else None if None in (one, other) else False


def _and(one: bool | None, other: bool | None) -> bool | None:
    return False if False in (one, other) else None if None in (one, other) else True


def _single(words: list[tuple[Token, str]], variables: Mapping[str, Value], patterns: bool) -> bool | None:
    """Return whether one comparison holds."""
    texts = [text for _, text in words]
    if any(_shell_words.is_open(text) for text in texts):
        return None
    if len(texts) == 1:
        return texts[0] != ""
    if len(texts) == 2 and texts[0] in ("-z", "-n", "-v"):
        if texts[0] == "-v":
            return texts[1] in variables
        return (texts[1] == "") == (texts[0] == "-z")
    if len(texts) != 3:
        return None
    left, operator, right = texts
    if operator in ("=", "==", "!="):
        same = fnmatchcase(left, right) if patterns and not words[2][0].text.startswith(('"', "'")) else left == right
        return same == (operator != "!=")
    if operator in _NUMBERS:
        found = _shell_words.arithmetic(f"({left or 0}) {_NUMBERS[operator]} ({right or 0})")
        return None if found is None else found == "1"
    return None
