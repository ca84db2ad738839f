"""MaxText's command line: a YAML file and what is set over it as ``name=value``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from meshwright.base import yaml_text
from meshwright.base.errors import InputError
from meshwright.frameworks import _exact, _shell

__all__ = ["entries", "is_script"]

_STARTS = re.compile(r"(.*/)?(maxtext/.*train\w*\.py|maxtext(\.[\w$\{\}]+)*\.(train|\$\{?executable\}?)(\.py)?)", re.I)
_SETTING = re.compile(r"([a-z]\w*)=(.*)", re.S)


def is_script(text: str) -> bool:
    """Return whether a text is a shell script that starts MaxText's training."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    return any(_STARTS.fullmatch(word.strip("\"'")) for line in lines for word in line.split()) and any(
        "python" in line for line in lines
    )


def entries(text: str, path: str) -> tuple[dict[str, Any], dict[str, int], tuple[str, ...]]:
    """Return what a script sets.

    Returns
    -------
    content : dict of str to object
        Entries of the YAML file that it names, where that is not ``base.yml``, and over them those of the command line.
    lines : dict of str to int
        The line of each that the script itself sets.
    warnings : tuple of str
        What of the script was not decided.

    Raises
    ------
    InputError
        When it starts MaxText not once, or a file or value is wrong.
    """
    script = _shell.followed(text, path)
    started = [one.words for one in script.commands if any(_STARTS.fullmatch(word) for word, _ in one.words)]
    if len(started) != 1:
        raise InputError(f"{path}: starts MaxText {len(started)} times; leave one command")
    at = next(i for i, (word, _) in enumerate(started[0]) if _STARTS.fullmatch(word))
    content: dict[str, Any] = {}
    lines: dict[str, int] = {}
    warnings = list(script.warnings)
    for word, line in started[0][at + 1 :]:
        setting = _SETTING.fullmatch(word)
        if setting:
            content[setting[1]], lines[setting[1]] = _value(setting[2], f"{path}: line {line}"), line
        elif re.search(r"\.ya?ml$", word) and not re.search(r"\bbase\.yml$", word):
            content = _of_file(word, path, line) | content
        elif "base.yml" not in word:
            warnings.append(f"{path}: line {line}: {word}: nothing is known of it; it is left out")
    return content, lines, tuple(warnings)


def _value(word: str, place: str) -> Any:
    """Return a value as YAML has it; what is not set in the script stays a word."""
    return word if "$" in word else yaml_text.load(word, place)


def _of_file(word: str, path: str, line: int) -> dict[str, Any]:
    """Return the entries of a file that a script names, as seen from its folder or from here."""
    for place in (Path(path).parent / word, Path(path).parent / Path(word).name, Path(word)):
        if place.is_file():
            return _exact.yaml_entries(_exact.read_text(str(place)), str(place), "MaxText")
    raise InputError(f"{path}: line {line}: {word} is not there; put it beside this script")
