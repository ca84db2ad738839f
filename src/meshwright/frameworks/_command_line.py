"""Shell scripts as people write them: the options of the commands in them, without running anything."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from meshwright.base.errors import InputError

__all__ = ["TORCHRUN", "options"]

TORCHRUN = (
    "--nnodes", "--nproc-per-node", "--node-rank", "--master-addr", "--master-port", "--rdzv-backend", "--rdzv-endpoint",
    "--rdzv-id", "--rdzv-conf", "--standalone", "--max-restarts", "--no-python", "--tee", "--log-dir", "--module",
)  # fmt: skip
"""Options of torchrun, with dashes; underscores mean the same there."""


def options(text: str, place: str) -> dict[str, tuple[str, ...]]:
    """Return the options of a script with their values; of one given twice the last counts, as in Python's parser.

    Parameters
    ----------
    text : str
        The script: commands over several lines, arrays of options, options in variables.
    place : str
        The file, for messages.

    Raises
    ------
    InputError
        When quotes are left open.
    """
    found: dict[str, tuple[str, ...]] = {}
    name, n_line, in_array = "", 1, False
    variables = {
        key: value for key, _, value in re.findall(r"""^\s*(?:export )?(\w+)=(["']?)([\w./-]+)\2[ \t]*$""", text, re.M)
    }
    for logical in re.split(r"(?<!\\)\n", text):
        try:
            words = _words(logical.replace("\\\n", " "), variables)
        except ValueError as error:
            raise InputError(f"{place}: line {n_line}: {error}") from None
        n_line += logical.count("\n") + 1
        name = name if in_array else ""
        for word in words:
            if re.match(r"--\w", word):
                name, equals, value = word.partition("=")
                name = name.replace("_", "-") if name.replace("_", "-") in TORCHRUN else name
                found[name] = (value,) if equals else ()
            elif word == ")" or word.endswith("=("):
                name, in_array = "", word != ")"
            elif word.endswith(".py") or "[@]" in word:
                name = ""  # what follows is no value of an option
            elif name:
                found[name] = (*found[name], word)
    return found


def _words(line: str, variables: Mapping[str, str]) -> list[str]:
    """Return the words of a line: variables that the script sets put in, options that one string holds apart."""

    def value(match: re.Match[str]) -> str:
        return variables.get(match[1] or match[3], match[2] or match[0])

    line = re.sub(r"\$(?:\{(\w+)(?::-([^}]*))?\}|(\w+))", value, line)
    found = []
    for word in shlex.split(line, comments=True):
        inside = re.sub(r"^\w+=\(?\s*(?=--)", "", word)
        found += shlex.split(inside) if " " in inside and inside.lstrip().startswith("--") else [inside]
    return found
