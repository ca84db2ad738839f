"""Where commands of a shell script begin and end, and the parts of those made of others (``if``, ``for``, ``{ }``)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from meshwright.frameworks._shell_words import Token

__all__ = ["ASSIGNED", "behind", "compound_end", "is_test", "matters", "parts"]

ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\[[^]]*\])?(\+?=)(.*)", re.S)
"""A word that sets a variable."""

_CLOSING: Mapping[str, str] = MappingProxyType({
    "if": "fi", "while": "done", "until": "done", "for": "done", "select": "done", "case": "esac", "{": "}", "(": ")",
})  # fmt: skip


def compound_end(found: list[Token], i: int) -> int:
    """Return where the command ends that begins at `i`: at an operator, or behind the word that closes it."""
    first = found[i].text if found[i].kind == "word" else "("
    if first in ("if", "while", "until", "for", "select", "case", "{", "("):
        return behind(found, i)
    if first == "function" or (
        i + 2 < len(found) and found[i + 1].text == "(" and found[i + 2].text == ")" and re.fullmatch(r"[\w:.-]+", first)
    ):
        k = i + 1 if first == "function" else i
        while k < len(found) and found[k].text not in ("{",):
            k += 1
        return behind(found, k) if k < len(found) else k
    if first == "[[":
        while i < len(found) and found[i].text != "]]":
            i += 1
        return min(i + 1, len(found))
    while i < len(found) and found[i].kind != "operator":
        bracket = found[i].text.endswith("=") and i + 1 < len(found) and found[i + 1].text == "("
        i = behind(found, i + 1) if bracket else i + 1
    return i


def behind(found: list[Token], i: int) -> int:
    """Return the place behind the word that closes the compound that opens at `i`."""
    closing = [_CLOSING[found[i].text]]
    k = i + 1
    while k < len(found) and closing:
        token = found[k]
        begins = found[k - 1].kind == "operator" or found[k - 1].text in ("then", "else", "elif", "do", "{", "!", "if", "while")
        if token.kind == "operator":
            if token.text == "(" and closing[-1] != "esac":
                closing.append(")")
            elif token.text == ")" and closing[-1] == ")":
                closing.pop()
        elif begins and token.text == closing[-1]:
            closing.pop()
        elif begins and token.text in _CLOSING and token.kind == "word":
            closing.append(_CLOSING[token.text])
        k += 1
    return k


def is_test(found: list[Token]) -> bool:
    """Return whether a command is a test."""
    return found[0].text in ("[", "[[", "test") or found[0].text.startswith("((")


def parts(found: list[Token], words: tuple[str, ...]) -> list[tuple[str, list[Token]]]:
    """Return the parts of a compound: each word of `words` at its own level, and what follows it."""
    parts: list[tuple[str, list[Token]]] = [("", [])]
    i = 0
    while i < len(found):
        token = found[i]
        begins = i == 0 or found[i - 1].kind == "operator" or found[i - 1].text in words
        if token.kind == "word" and begins and token.text in words and i:
            parts.append((token.text, []))
            i += 1
        elif i and begins and token.kind == "word" and token.text in _CLOSING:
            end = behind(found, i)
            parts[-1][1].extend(found[i:end])
            i = end
        else:
            parts[-1][1].append(token)
            i += 1
    return parts


def matters(part: list[Token]) -> bool:
    """Return whether commands set variables or options, so that it matters whether they run."""
    return any(
        ASSIGNED.match(token.text) or re.search(r"(^|\s|[\"'])--\w", token.text) or token.text in (".", "source", "exit")
        or re.search(r"\$\w|\$\{", token.text)
        for token in part if token.kind == "word"
    )  # fmt: skip
