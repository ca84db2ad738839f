"""Shell scripts as people write them: the options of the command in them that trains, without running anything."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from meshwright.base.errors import InputError
from meshwright.frameworks import _shell
from meshwright.frameworks._shell import Shell, ShellCommand

__all__ = ["TORCHRUN", "CommandLine", "options", "read"]

TORCHRUN = (
    "--nnodes", "--nproc-per-node", "--node-rank", "--master-addr", "--master-port", "--rdzv-backend", "--rdzv-endpoint",
    "--rdzv-id", "--rdzv-conf", "--standalone", "--max-restarts", "--no-python", "--tee", "--log-dir", "--module",
    "--use-env", "--redirects", "--monitor-interval", "--start-method", "--role", "--local-addr", "--local-ranks-filter",
)  # fmt: skip
"""Options of torchrun, with dashes; underscores mean the same there."""

_TRAINS = re.compile(
    r"(.*/)?pretrain_\w+\.py|--(num-layers|tensor-model-parallel-size|micro-batch-size|global-batch-size"
    r"|per[_-]device[_-]train[_-]batch[_-]size)(=.*)?"
)
_LAUNCHERS = re.compile(r"(.*/)?(torchrun|deepspeed|accelerate|torch\.distributed\.(run|launch))")
_AROUND = re.compile(
    r"(.*/)?(srun|mpirun|mpiexec|sbatch|docker|singularity|apptainer|numactl|env|nohup|exec|time|sudo|ssh|salloc)"
)
_INNER = re.compile(r"(.*/)?(torchrun|deepspeed|accelerate|python[\d.]*|bash|sh|[\w.-]+\.py)")
_SETS = re.compile(r"(--(?:export|env)=)?((?:\w+,)*[A-Za-z_]\w*=.*)", re.S)
"""A word that sets a variable of the environment, and which follows an option that does."""
_SAYS = ("echo", "printf", "cat", "log", "logger", "tee", "grep", "sed", "awk")


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What a script says.

    Parameters
    ----------
    options : mapping of str to tuple of str
        Each with its values; of one given twice the last counts, as in Python's parser.
    lines : mapping of str to int
        The line that each stands in.
    warnings : tuple of str
        What of the script was not decided, not read, or reaches no command.
    environment : mapping of str to (str, int)
        What it puts to the environment of the command that trains, each with its line; empty text for what it takes out.
    """

    options: Mapping[str, tuple[str, ...]]
    lines: Mapping[str, int]
    warnings: tuple[str, ...]
    environment: Mapping[str, tuple[str, int]] = field(default_factory=dict)


def options(text: str, place: str) -> dict[str, tuple[str, ...]]:
    """Return the options of a script with their values, as `read`."""
    return dict(read(text, place).options)


def read(text: str, place: str) -> CommandLine:
    """Return the options of the command that trains; where none does, of all that a script holds.

    Parameters
    ----------
    text : str
        The script: commands over several lines, arrays of options, options in variables, tests, loops, functions.
    place : str
        The file, for messages.

    Raises
    ------
    InputError
        When quotes are left open, or several trainings start.
    """
    script = _shell.followed(text, place)
    started = [(one, _apart(one, place)) for one in script.commands if not one.variable and one.words[0][0] not in _SAYS]
    trains = [one for one in started if any(_TRAINS.fullmatch(word) for word, _ in one[1]) and not _is_list(one[0])]
    trains = trains or [one for one in started if any(_LAUNCHERS.fullmatch(word) for word, _ in one[1])]
    if len(trains) > 1:
        first, second = trains[0][0].words[0][1], trains[1][0].words[0][1]
        raise InputError(f"{place}: line {second}: starts a training once more, beside that of line {first}; leave one of them")
    lists = [one for one in started if _is_list(one[0])]
    found: dict[str, tuple[str, ...]] = {}
    lines: dict[str, int] = {}
    warnings = list(script.warnings)
    for command, words in [*trains, *lists] if trains else [(one, _apart(one, place)) for one in script.commands]:
        warnings += _collect(found, lines, _inner(command, words), place)
    if trains:
        warnings += _unused(script, place)
        warnings += [
            f"{place}: line {one.words[0][1]}: {one.words[0][0]} begins a command of its own: a comment, an empty line or no "
            "backslash stands before it; its options are read, but no program gets them"
            for one, _ in lists
        ]
    environment = _environment(trains[0][0]) if trains else {}
    return CommandLine(found, lines, tuple(dict.fromkeys(warnings)), environment)


def _environment(command: ShellCommand) -> dict[str, tuple[str, int]]:
    """Return what a command that trains finds in its environment by the script: what was exported, what a scheduler or a
    container in front of it sets, and what a text that another shell runs exports."""
    found = dict(command.environment)
    begin = next((k for k, (word, _) in enumerate(command.words) if k and _INNER.fullmatch(word)), len(command.words))
    around = _AROUND.fullmatch(command.words[0][0]) is not None
    for k, (word, line) in enumerate(command.words):
        sets = _SETS.fullmatch(word) if around and k < begin else None
        flagged = k > 0 and command.words[k - 1][0] in ("-x", "-e", "--env", "--export")
        if sets and (sets[1] or flagged or command.words[0][0].endswith("env")):
            found |= {name: (value, line) for name, value in re.findall(r"(?:^|,)([A-Za-z_]\w*)=([^,]*)", sets[2])}
        found |= {name: (value, line) for name, value in re.findall(r"\bexport\s+([A-Za-z_]\w*)=([^\s;&|]*)", word)}
    return found


def _is_list(command: ShellCommand) -> bool:
    """Return whether a command is a line of options without a program."""
    return command.words[0][0].startswith("--")


def _apart(command: ShellCommand, place: str) -> list[tuple[str, int]]:
    """Return a command's words, those of a string that holds options or a whole command apart."""
    found = []
    for word, line in command.words:
        if re.search(r"(^|\s)--\w", word) and re.search(r"\s", word.strip()):
            try:
                inner = shlex.split(word)
            except ValueError as error:
                raise InputError(f"{place}: line {line}: {error}") from None
            found += [(one, line) for one in _training(inner)]
        else:
            found.append((word, line))
    return found


def _training(words: list[str]) -> list[str]:
    """Return, of the words of several commands, those of the one that trains."""
    parts: list[list[str]] = [[]]
    for word in words:
        if word in ("&&", "||", "|", ";"):
            parts.append([])
        else:
            parts[-1].append(word.removesuffix(";"))
            parts += [[]] if word.endswith(";") else []
    return next((part for part in parts if any(_TRAINS.fullmatch(word) for word in part)), words)


def _inner(command: ShellCommand, words: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return the words behind a scheduler's or a container's own options."""
    if command.variable or not words or not _AROUND.fullmatch(words[0][0]):
        return words
    return next((words[k:] for k, (word, _) in enumerate(words) if k and _INNER.fullmatch(word)), words)


def _collect(found: dict[str, tuple[str, ...]], lines: dict[str, int], words: list[tuple[str, int]], place: str) -> list[str]:
    """Put the options among words to those found; return warnings of words that are not known."""
    name, begun, warnings = "", False, []
    for word, line in words:
        if re.match(r"--\w", word):
            name, equals, value = word.partition("=")
            name = name.replace("_", "-") if name.replace("_", "-") in TORCHRUN else name
            begun = True
            found[name], lines[name] = (value,) if equals else (), line
        elif word.endswith(".py") or word == "-m":
            name, begun = "", True  # what follows is no value of an option
        elif re.fullmatch(r"\$\(.*\)|`.*`", word, re.S) and (_holds_options(word) or (begun and (not name or found[name]))):
            warnings.append(
                f"{place}: line {line}: what {' '.join(word.split())[:40]} prints is not known; its options are not read"
            )
        elif re.fullmatch(r"\$\{?\w+(\[[@*]\])?\}?", word) and (_holds_options(word) or (begun and (not name or found[name]))):
            warnings.append(f"{place}: line {line}: {word} is not set in the script; options that it may hold are not read")
        elif name:
            found[name] = (*found[name], word)
    return warnings


def _holds_options(word: str) -> bool:
    return re.search(r"ARGS|ARGUMENTS|OPTS|OPTIONS|FLAGS|EXTRA|PARAMS|\[", word, re.I) is not None


def _unused(script: Shell, place: str) -> list[str]:
    """Return a warning for every variable whose options reach no command."""
    return [
        f"{place}: line {one.words[0][1]}: {one.variable} holds options, and no command takes it; they are left out"
        for one in script.commands
        if one.variable and one.variable not in script.used and any(re.match(r"\s*--\w", word) for word, _ in one.words)
    ]
