"""Texts with one thing changed each, and what a reader says of every one: a walk through the branches of a reader of files.

Hand-written wrong files ask for the mistakes that somebody thought of. `edits` changes every number, word and line of a good file
in turn; `answers` reads them all and sorts what was said, so that a test can keep it with the fixture `recorded`. What is read the same
with and without a change is recorded, too: a setting that is ignored shows.
"""  # noqa: E501

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator

from meshwright.base.errors import MeshwrightError

__all__ = ["answer", "answers", "edits"]

TOKENS = re.compile(
    r"(?P<flag>\b(?:True|False|true|false)\b)|(?P<none>\b(?:None|null)\b)|(?P<number>(?<![\w.])-?\d+(?:\.\d+)?(?:e-?\d+)?(?![\w.]))"
    r"|(?P<option>--[A-Za-z][\w-]*)|(?P<word>[A-Za-z_][\w./-]*)"
)
OTHERS = {"flag": ("1", "maybe"), "none": ("3",), "option": ("--unheard-of",), "word": ("other",)}
PARSERS = re.compile(
    r"(line \d+: )?(is no (?:YAML|JSON|Python|TOML)|is not valid (?:XML|CSV))\b.*", re.S
)  # in words of their own
LONGEST = 28  # of a message, in a record; its check sum holds the rest


def edits(text: str) -> Iterator[tuple[str, str]]:
    """Yield texts that differ from `text` in one place, each with a label: line and token; names of settings stay."""
    lines = text.splitlines(keepends=True)
    for i, line in enumerate(lines):
        before, after = "".join(lines[:i]), "".join(lines[i + 1 :])
        if line.strip():
            yield f"{i + 1} dropped", before + after
        for k, token in enumerate(TOKENS.finditer(line)):
            for other in _others(token) if not re.match(r"\s*[=:(.]|['\"]\s*:", line[token.end() :]) else ():
                yield f"{i + 1}.{k} {other}", before + line[: token.start()] + other + line[token.end() :] + after


def _others(token: re.Match[str]) -> tuple[str, ...]:
    word = token[0]
    if token["flag"]:
        opposite = {"True": "False", "False": "True", "true": "false", "false": "true"}
        return (opposite[word], *OTHERS["flag"])
    if token["number"]:
        whole = word.lstrip("-").isdigit()
        return tuple(dict.fromkeys(("0", "-1", str(int(word) + 1), str(int(word) * 2)) if whole else ("0", "-1", "2")))
    return OTHERS[str(token.lastgroup)]


def answer(read: Callable[[str], object], text: str, forget: str = "") -> str:
    """Return what reading a text says, as one line; of a refusal its message without the words `forget` (a folder)."""
    try:
        said = str(read(text))
    except MeshwrightError as error:
        said = f"refused: {error}"
    said = PARSERS.sub(r"\2", said)
    return said.replace(forget, "") if forget else said


def answers(read: Callable[[str], object], text: str, forget: str = "") -> dict[str, str]:
    """Return what a reader says of a text, and of every text that differs from it in one place.

    Returns
    -------
    dict of str to str
        ``as it is``: the answer to the text itself; ``the same``: which changes make no difference; for every other change the
        start of the answer with a check sum of all of it.
    """
    own = answer(read, text, forget)
    found, same = {"as it is": own}, []
    for label, changed in edits(text):
        said = answer(read, changed, forget)
        if said == own:
            same.append(label)
        else:
            start = said.removeprefix("refused: ")[:LONGEST]
            found[label] = f"{start} {zlib.crc32(said.encode()) & 0xFFFFF:05x}"
    return {**found, "the same": ", ".join(same)}
