"""Shell scripts as people write them, followed without running anything: which commands run, with which words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from meshwright.base import files
from meshwright.base.errors import InputError
from meshwright.frameworks import _shell_environment, _shell_structure, _shell_tests, _shell_words
from meshwright.frameworks._shell_environment import ShellEnvironment
from meshwright.frameworks._shell_words import Token, Value

__all__ = ["Shell", "ShellCommand", "followed"]

_DECLARES = ("export", "declare", "local", "readonly", "typeset")
_MOST_COMMANDS, _DEEPEST = 20_000, 12


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """A command that runs, or a list of words that is put to a variable.

    Parameters
    ----------
    words : tuple of (str, int)
        Each with its line, variables put in; a variable that is not set stays as written.
    variable : str
        Which variable takes them; empty for a command.
    place : str
        The file that it stands in.
    environment : mapping of str to (str, int)
        What the script has put to its environment until then, each with its line; empty text for what it took out.
    """

    words: Value
    variable: str = ""
    place: str = ""
    environment: Mapping[str, tuple[str, int]] = field(default_factory=dict)


class Shell:
    """What is known while a script is followed, and what was found.

    Parameters
    ----------
    place : str
        The file, for messages.
    """

    def __init__(self, place: str) -> None:
        self.place = place
        self.variables: dict[str, Value] = {}
        self.functions: dict[str, list[Token]] = {}
        self.commands: list[ShellCommand] = []
        self.warnings: list[str] = []
        self.used: set[str] = set()
        self.missing: set[str] = set()
        self.environment = ShellEnvironment()
        self.depth, self.ended = 0, False

    def look(self, name: str) -> Value | None:
        """Return what a variable holds, noting that it was asked for."""
        self.used.add(name)
        if name in ("@", "*"):
            return self.variables.get("@", ())
        if name not in self.variables:
            self.missing.add(name)
        return self.variables.get(name)

    def put(self, name: str, text: str) -> None:
        """Set a variable to one word."""
        self.variables[name] = ((text, 0),)

    def warn(self, line: int, what: str) -> None:
        """Keep a warning, once."""
        text = f"{self.place}: line {line}: {what}"
        if text not in self.warnings:
            self.warnings.append(text)

    def expand(self, token: Token, *, whole: bool = False) -> list[tuple[str, int]]:
        """Return the words that one becomes."""
        return _shell_words.expanded(token.text, token.line, self.look, self.put, whole=whole)


def followed(text: str, place: str) -> Shell:
    """Return the commands of a script that run, in order.

    Parameters
    ----------
    text : str
        The script.
    place : str
        The file, for messages; files that it sources are looked for beside it.

    Raises
    ------
    InputError
        When quotes or brackets are left open, or it never ends.
    """
    script = Shell(place)
    asked, exported = _shell_environment.asked_of_slurm(text)
    script.variables |= {name: (word,) for name, word in asked.items()}
    script.environment.exported |= exported
    _run(script, _shell_words.tokens(text, place))
    return script


def _run(script: Shell, found: list[Token]) -> bool | None:
    """Follow a list of commands; return whether the last one succeeds, None where that is not known."""
    status: bool | None = True
    i, joined = 0, ""
    while i < len(found) and not script.ended:
        token = found[i]
        if token.kind == "operator" and token.text != "(":
            joined = token.text if token.text in ("&&", "||") else "" if token.text != "\n" or not joined else joined
            i += 1
            continue
        skip = (joined == "&&" and status is False) or (joined == "||" and status is not False)
        end = _shell_structure.compound_end(found, i)
        own = found[i:end]
        joined = ""
        piped = end < len(found) and found[end].text in ("|", "|&")
        if not skip and _shell_structure.is_test(own) and end < len(found) and found[end].text in ("&&", "||"):
            status = _condition(script, own, _shell_structure.matters(found[end:]))
        elif not skip:
            status = _one(script, own)
            status = None if piped else status
        i = end
    return status


def _one(script: Shell, found: list[Token]) -> bool | None:
    """Follow one command; return whether it succeeds, None where that is not known."""
    if script.depth > _DEEPEST or len(script.commands) > _MOST_COMMANDS:
        raise InputError(f"{script.place}: line {found[0].line}: functions or files that call each other without an end")
    first = found[0].text if found[0].kind == "word" else "("
    if first == "!":
        inner = _one(script, found[1:]) if len(found) > 1 else None
        return None if inner is None else not inner
    if first in ("{", "("):
        return _run(script, found[1:-1])
    if first == "if":
        return _if(script, found)
    if first in ("while", "until", "for", "select"):
        return _loop(script, found)
    if first == "case":
        return _case(script, found)
    if first == "function" or (len(found) > 2 and found[1].text == "(" and found[2].text == ")"):
        name = found[1].text if first == "function" else first
        begin = next((k for k, token in enumerate(found) if token.text == "{"), len(found))
        script.functions[name.removesuffix("()")] = found[begin + 1 : -1]
        return True
    if first in ("[", "[[", "test") or first.startswith("(("):
        return _decided(script, found)
    return _simple(script, found)


def _if(script: Shell, found: list[Token]) -> bool | None:
    """Follow the branch of a condition that is taken."""
    parts = _shell_structure.parts(found, ("then", "elif", "else", "fi"))
    holds: bool | None = False
    matters = any(_shell_structure.matters(part) for word, part in parts if word in ("then", "else"))
    for k, (word, part) in enumerate(parts):
        if word in ("", "elif"):
            condition = part[1:] if k == 0 else part
            holds = _condition(script, condition, matters)
        elif (word == "then" and holds) or word == "else":
            return _run(script, part)
    return True


def _condition(script: Shell, found: list[Token], matters: bool) -> bool:
    """Return whether a condition is taken to hold, with a warning where the script does not decide it."""
    found = [token for token in found if token.text != "\n"]
    missing = set(script.missing)
    script.missing.clear()
    n_warnings = len(script.warnings)
    status = (
        _one(script, found)
        if found and _shell_structure.is_test(found) and _shell_structure.compound_end(found, 0) == len(found)
        else _run(script, found)
    )
    names = sorted(name for name in script.missing if not name.isdigit() or name == "0")
    open_names = sorted(script.missing - set(names))
    script.missing |= missing
    del script.warnings[n_warnings:]  # said once, below
    if matters and (status is None or names or open_names):
        written = " ".join(token.text for token in found if token.text != ";")[:100]
        why = (
            f"${(names or open_names)[0]} is not set in the script" if names or open_names else "the script does not decide it"
        )
        script.warn(found[0].line if found else 1, f"{written}: {why}; it is taken {'' if status else 'not '}to hold")
    return bool(status)


def _decided(script: Shell, found: list[Token]) -> bool | None:
    """Return whether a test holds; None where files or commands decide it."""
    return _shell_tests.holds([(token, script.expand(token, whole=True)[0][0]) for token in found], script.variables)


def _loop(script: Shell, found: list[Token]) -> bool | None:
    """Follow a loop: over words that are known, each of them; any other is taken not to run."""
    (_, head), *rest = _shell_structure.parts(found, ("do", "done"))
    body = next((part for word, part in rest if word == "do"), [])
    line, kind = found[0].line, found[0].text
    if kind == "for" and len(head) > 2 and head[2].text == "in":
        items = [word for token in head[3:] if token.kind == "word" for word in script.expand(token)]
        if not any(_shell_words.is_open(word) or set(word) & set("*?{[") for word, _ in items):
            for item in items:
                script.variables[head[1].text] = (item,)
                _run(script, body)
            return True
    if _shell_structure.matters(body):
        written = " ".join(token.text for token in head if token.kind == "word")[:100]
        script.warn(line, f"{written}: the script does not decide how often the loop runs; it is taken not to run")
    return True


def _case(script: Shell, found: list[Token]) -> bool | None:
    """Follow the branch of a ``case`` whose pattern fits first."""
    missing = set(script.missing)
    script.missing.clear()
    words = script.expand(found[1], whole=True) if len(found) > 1 else []
    names, script.missing = sorted(script.missing), script.missing | missing
    word = "" if not words or (names and words[0][0] in (f"${names[0]}", f"${{{names[0]}}}")) else words[0][0]
    if _shell_words.is_open(word) or names:
        what = f"${names[0]} is not set in the script" if names else "the script does not decide it"
        word = "" if _shell_words.is_open(word) else word
        taken = f"that of {word}" if word else "the branch of an empty word"
        script.warn(found[0].line, f"case {found[1].text}: {what}; {taken} is taken, if there is one")
    i = 3
    while i < len(found) - 1:
        patterns: list[str] = []
        while i < len(found) and found[i].text != ")":
            if found[i].kind == "word":
                patterns += [one for one, _ in script.expand(found[i], whole=True)]
            i += 1
        begin = i = i + 1
        depth = 0
        while i < len(found) - 1 and (depth or found[i].text not in (";;", ";&", ";;&")):
            depth += (found[i].text == "case") - (found[i].text == "esac")
            i += 1
        if any(fnmatchcase(word, pattern) for pattern in patterns):
            return _run(script, found[begin:i])
        while i < len(found) and (found[i].kind == "operator"):
            i += 1
    return True


def _simple(script: Shell, found: list[Token]) -> bool | None:
    """Follow a command of words: assignments, a function, a file that is sourced, or a program that starts."""
    i = 0
    declares = found[0].text in _DECLARES
    exports = declares and (found[0].text == "export" or any(re.fullmatch(r"-\w*x\w*", one.text) for one in found[1:]))
    while i < len(found):
        token = found[i]
        assigned = _shell_structure.ASSIGNED.match(token.text) if token.kind == "word" else None
        if assigned and assigned[4] == "" and i + 1 < len(found) and found[i + 1].text == "(":
            end = _shell_structure.behind(found, i + 1)
            _put_array(script, assigned, [one for one in found[i + 2 : end - 1] if one.kind == "word"])
            i = end
        elif assigned and (declares or all(_shell_structure.ASSIGNED.match(one.text) for one in found if one.kind == "word")):
            _put(script, assigned, token)
            if exports or script.environment.takes_all:
                script.environment.exported.add(assigned[1])
            i += 1
        elif declares or (assigned and i == 0):
            if exports and re.fullmatch(r"[A-Za-z_]\w*", token.text) and i:
                script.environment.exported.add(token.text)
            i += 1
        else:
            break
    if i == len(found):
        return True
    while i < len(found) and _shell_structure.ASSIGNED.match(found[i].text):
        i += 1
    assigned_alone = (
        [] if declares else [(own, token.line) for token in found[:i] if (own := _shell_structure.ASSIGNED.match(token.text))]
    )
    alone = {own[1]: (script.expand(Token("word", own[4], line), whole=True)[0][0], line) for own, line in assigned_alone}
    words = [word for token in found[i:] if token.kind == "word" for word in script.expand(token)]
    documents = [token for token in found[i:] if token.kind == "document"]
    return _started(script, words, documents, found[0].line, alone) if words else True


def _put_array(script: Shell, assigned: re.Match[str], items: list[Token]) -> None:
    own = tuple(word for token in items for word in script.expand(token))
    before = script.variables.get(assigned[1], ()) if assigned[3] == "+=" else ()
    script.variables[assigned[1]] = (*before, *own)
    script.commands.append(ShellCommand(own, assigned[1], script.place))


def _put(script: Shell, assigned: re.Match[str], token: Token) -> None:
    name, index, sign, text = assigned.groups()
    if name not in script.variables and re.search(rf"\$({name}\b|\{{{name}\}})", text):
        script.put(name, "")  # what it is made longer from is nothing yet
    ((word, _),) = script.expand(Token("word", text, token.line), whole=True)
    if index:
        return
    before = script.variables.get(name, ()) if sign == "+=" else ()
    if before:
        word = f"{before[0][0]}{word}"
    script.variables[name] = ((word, token.line), *before[1:])
    script.commands.append(ShellCommand(((word, token.line),), name, script.place))


def _started(
    script: Shell, words: list[tuple[str, int]], documents: list[Token], line: int, alone: Mapping[str, tuple[str, int]]
) -> bool | None:
    """Follow a program that starts; `alone`: what is put to its environment alone."""
    name = words[0][0]
    builtins: dict[str, Callable[[], bool | None]] = {
        "true": lambda: True, ":": lambda: True, "false": lambda: False,
        "exit": lambda: _exit(script), "return": lambda: _exit(script),
        "eval": lambda: _inner(script, " ".join(word for word, _ in words[1:]), line),
    }  # fmt: skip
    if name in builtins:
        return builtins[name]()
    if name in script.functions:
        before = {key: script.variables.get(key) for key in ("@", *"123456789")}
        _positional(script, words[1:])
        script.depth += 1
        status = _run(script, script.functions[name])
        script.depth -= 1
        script.ended = False
        for key, value in before.items():
            script.variables.pop(key, None)
            if value is not None:
                script.variables[key] = value
        return status
    if name in ("source", "."):
        return _source(script, words[1][0] if len(words) > 1 else "", line)
    if name == "unset":
        for word, at in words[1:]:
            script.variables.pop(word, None)
            script.environment.take_out(word, at)
        return True
    if name == "set":
        script.environment.takes_all |= any(word in ("-a", "allexport") for word, _ in words[1:])
        if len(words) > 1 and words[1][0] == "--":
            _positional(script, words[2:])
        return True
    script.commands.append(
        ShellCommand(tuple(words), "", script.place, {**script.environment.found(script.variables), **alone})
    )
    _read_documents(script, name, documents)
    return True if name in ("echo", "printf", "cd", "mkdir", "export", "torchrun", "python") else None


def _read_documents(script: Shell, name: str, documents: list[Token]) -> None:
    """Follow here-documents that a shell runs; say which are not read."""
    for document in documents:
        if name in ("bash", "sh", "sbatch", "srun", "ssh"):
            _inner(script, document.text, document.line)
        elif re.search(r"(^|\s)--\w", document.text):
            script.warn(document.line, "options in a here-document, which is not read")


def _exit(script: Shell) -> bool:
    script.ended = True
    return True


def _positional(script: Shell, words: list[tuple[str, int]]) -> None:
    for k in range(1, 10):
        script.variables.pop(str(k), None)
        if k <= len(words):
            script.variables[str(k)] = (words[k - 1],)
    script.variables["@"] = tuple(words)


def _inner(script: Shell, text: str, line: int) -> bool | None:
    """Follow a text that another shell runs, or this one once more."""
    script.depth += 1
    status = _run(script, _shell_words.tokens(text, script.place, line))
    script.depth -= 1
    return status


def _source(script: Shell, word: str, line: int) -> bool | None:
    """Follow a file that is sourced, from the folder of the script or from here."""
    place = next((one for one in (Path(script.place).parent / word, Path(word)) if word and one.is_file()), None)
    if place is None or _shell_words.is_open(word):
        script.warn(line, f"source {word}: there is no such file; what it sets is not read")
        return None
    outer, script.place = script.place, str(place)
    script.depth += 1
    if script.depth > _DEEPEST:
        raise InputError(f"{outer}: line {line}: files that source each other without an end")
    _run(script, _shell_words.tokens(files.read_text(place), script.place))
    script.depth -= 1
    script.place, script.ended = outer, False
    return True
