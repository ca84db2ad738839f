"""Words of a shell script: where each begins and ends, and what stands in it once variables are put in."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import translate
from types import MappingProxyType
from typing import Any

from meshwright.base.errors import InputError

__all__ = ["Token", "Value", "arithmetic", "expanded", "is_open", "tokens"]

Value = tuple[tuple[str, int], ...]
"""What a variable holds: each word with its line; one word where it is no array."""

_OPERATORS = (";;&", ";;", ";&", "&&", "||", "|&", "|", ";", "&", "\n", "(", ")")
_BINARY: Mapping[type, Callable[[int, int], Any]] = MappingProxyType({
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.LShift: lambda one, other: one << min(other, 62), ast.RShift: operator.rshift,
})  # fmt: skip
_COMPARED: Mapping[type, Callable[[int, int], bool]] = MappingProxyType({
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
})  # fmt: skip
_OF_THE_JOB = ("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_NTASKS")
"""How many hosts or processes Slurm gives a job: not known from the script, whatever it takes without Slurm."""
_PLAIN = re.compile(r"[^\s;&|()<>'\"\\$`#]+")
_APART = re.compile(r"\$\([^()]*\)|`[^`]*`|\S+")
"""A word of a variable's text; what a command prints stays one."""
_PARAMETER = re.compile(r"(#?!?)(\w+|[@*#?$!-])(\[[^]]*\])?(.*)", re.S)


@dataclass(frozen=True, slots=True)
class Token:
    """A word as it is written, an operator, or the text of a here-document.

    Parameters
    ----------
    kind : str
        ``word``, ``operator`` or ``document``.
    text : str
        As written, quotes and all.
    line : int
        Where it begins, from 1 on.
    """

    kind: str
    text: str
    line: int


def tokens(text: str, place: str, first_line: int = 1) -> list[Token]:
    """Return the words and operators of a script, without comments, redirections and continued lines.

    Raises
    ------
    InputError
        When quotes or brackets are left open.
    """
    found: list[Token] = []
    documents: list[tuple[str, bool]] = []
    i, n, testing = 0, len(text), False

    def line(at: int) -> int:
        return first_line + text.count("\n", 0, at)

    while i < n:
        if text.startswith("\\\n", i):
            i += 2
        elif text[i] in " \t":
            i += 1
        elif text[i] == "#":
            end = text.find("\n", i)
            i = n if end < 0 else end
        elif text.startswith("((", i) and (
            not found or found[-1].kind == "operator" or found[-1].text in ("if", "while", "for")
        ):
            end = _closed(text, i, place, line(i))
            found.append(Token("word", text[i:end], line(i)))
            i = end
        elif testing and text[i] in "<>":
            found.append(Token("operator", text[i], line(i)))
            i += 1
        elif redirected := re.compile(r"\d*(<<<|<<-?|<>|>>|>\||[<>]&?)|&>>?").match(text, i):
            i = _redirected(text, redirected, documents, found, place, line(i))
        elif sign := next((one for one in _OPERATORS if text.startswith(one, i)), ""):
            found.append(Token("operator", sign, line(i)))
            i += len(sign)
            while sign == "\n" and documents:
                word, indented = documents.pop(0)
                i, body, began = *_document(text, i, word, indented), line(i)
                found.insert(len(found) - 1, Token("document", body, began))
        else:
            end = _word(text, i, place, line(i))
            found.append(Token("word", text[i:end], line(i)))
            testing = text[i:end] == "[[" or (testing and text[i:end] != "]]")
            i = end
    return found


def _redirected(
    text: str, operator: re.Match[str], documents: list[tuple[str, bool]], found: list[Token], place: str, line: int
) -> int:
    """Return where a redirection ends; a here-document that it begins is put to those whose text is to come."""
    i = operator.end()
    if text.startswith("(", i) and not operator[0].startswith("<<"):  # <(...): a process in place of a file
        end = _closed(text, i, place, line)
        found.append(Token("word", "$" + text[i:end], line))
        return end
    while i < len(text) and text[i] in " \t":
        i += 1
    end = _word(text, i, place, line) if i < len(text) and text[i] != "\n" else i
    if operator[1] in ("<<", "<<-"):
        documents.append((re.sub(r"[\"'\\]", "", text[i:end]), operator[1] == "<<-"))
    return end


def _document(text: str, i: int, word: str, indented: bool) -> tuple[int, str]:
    """Return where a here-document ends, and its text."""
    lines = []
    while i < len(text):
        end = text.find("\n", i)
        end = len(text) if end < 0 else end
        own = text[i:end].lstrip("\t") if indented else text[i:end]
        i = end + 1
        if own == word:
            break
        lines.append(own)
    return min(i, len(text)), "\n".join(lines)


def _word(text: str, i: int, place: str, line: int) -> int:
    """Return where a word ends that begins at `i`."""
    first = i
    while i < len(text):
        plain = _PLAIN.match(text, i)
        if plain:
            i = plain.end()
        elif text[i] in " \t\n;&|)" or (text[i] in "(<>" and i > first):
            break
        elif text[i] == "\\":
            i += 2
        elif text[i] == "'" or text[i] == '"':
            i = _quoted(text, i, place, line)
        elif text[i] == "`":
            end = text.find("`", i + 1)
            i = _end(end, "`", place, line)
        elif text[i] == "$" and text[i + 1 : i + 2] in ("(", "{"):
            i = _closed(text, i + 1, place, line)
        else:
            i += 1
    return max(min(i, len(text)), first + 1)


def _end(at: int, what: str, place: str, line: int) -> int:
    if at < 0:
        raise InputError(f"{place}: line {line}: No closing {'quotation' if what in '`' + chr(34) + chr(39) else what}")
    return at + 1


def _quoted(text: str, i: int, place: str, line: int) -> int:
    """Return where a quotation ends."""
    if text[i] == "'":
        return _end(text.find("'", i + 1), "'", place, line)
    i += 1
    while i < len(text) and text[i] != '"':
        if text[i] == "\\":
            i += 2
        elif text[i] == "$" and text[i + 1 : i + 2] in ("(", "{"):
            i = _closed(text, i + 1, place, line)
        else:
            i += 1
    return _end(i if i < len(text) else -1, '"', place, line)


def _closed(text: str, i: int, place: str, line: int) -> int:
    """Return where a bracket ends that opens at `i`."""
    opened, closing = text[i], ")" if text[i] == "(" else "}"
    depth = 0
    while i < len(text):
        if text[i] == "\\":
            i += 1
        elif text[i] in "'\"" and not (text[i] == "'" and opened == "{"):
            i = _quoted(text, i, place, line) - 1
        elif text[i] in (opened, closing):
            depth += 1 if text[i] == opened else -1
            if depth == 0:
                return i + 1
        i += 1
    return _end(-1, closing, place, line)


def is_open(text: str) -> bool:
    """Return whether a word is not known: it holds a variable that is not set, or what a command prints."""
    return re.search(r"\$[\w({@*#?!$]|`", text) is not None


def arithmetic(text: str) -> str | None:
    """Return the value of an expression of whole numbers; None where it is something else."""
    if not re.fullmatch(r"[\d\s()+*/%<>=!&|-]{1,200}", text):
        return None
    words = text.replace("&&", " and ").replace("||", " or ").replace("/", "//")
    words = re.sub(r"\b0+(?=\d)", "", re.sub(r"!(?!=)", " not ", words))
    try:
        return str(int(_number(ast.parse(words.strip(), mode="eval").body)))
    except (SyntaxError, ArithmeticError, ValueError, RecursionError):
        return None


def _number(node: ast.expr) -> int:
    """Return the value of an expression. Raises `ValueError` when it is none of whole numbers."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and abs(node.value) < 10**15:
        return node.value
    if isinstance(node, ast.UnaryOp):
        own = _number(node.operand)
        return -own if isinstance(node.op, ast.USub) else int(not own) if isinstance(node.op, ast.Not) else own
    if isinstance(node, ast.BoolOp):
        values = [bool(_number(one)) for one in node.values]
        return int(all(values) if isinstance(node.op, ast.And) else any(values))
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        left, right = _number(node.left), _number(node.right)
        if max(abs(left), abs(right)) < 10**15:
            return int(_BINARY[type(node.op)](left, right))
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARED:
        return int(_COMPARED[type(node.ops[0])](_number(node.left), _number(node.comparators[0])))
    raise ValueError("no whole numbers")


def expanded(
    token: str, line: int, look: Callable[[str], Value | None], put: Callable[[str, str], None], *, whole: bool = False
) -> list[tuple[str, int]]:
    """Return the words that a word becomes, each with its line; what is not known stays as written.

    Parameters
    ----------
    token : str
        As written.
    line : int
        Where it stands.
    look : callable
        What a variable holds; None where it is not set.
    put : callable
        Sets a variable (``${X:=4}``).
    whole : bool
        Whether it stays one word whatever it holds: the value of an assignment.
    """
    done: list[tuple[str, int]] = []
    now, at, any_quoted, vanished = "", line, False, False
    for text, quoted, held in _pieces(token, look, put):
        any_quoted |= quoted
        parts = None if held is None else [(word, own or line) for word, own in held]
        if parts is None:
            now += text
        elif not quoted and not whole:
            split = [
                (word[0], own + text.count("\n", 0, word.start())) for text, own in parts for word in _APART.finditer(text)
            ]
            for k, (word, own) in enumerate(split):
                if k or (now and parts[0][0][:1].isspace()):
                    done.append((now, at))
                    now = ""
                now, at = now + word, own
        elif whole:
            now += " ".join(text for text, _ in parts)
        else:
            for k, (text, own) in enumerate(parts):
                if k:
                    done.append((now, at))
                    now = ""
                now, at = now + text, own
            vanished |= not parts  # "$@" of nothing is no word
    return [*done, (now, at)] if now or (any_quoted and not vanished) or whole else done


def _pieces(
    token: str, look: Callable[[str], Value | None], put: Callable[[str, str], None]
) -> list[tuple[str, bool, Value | None]]:
    """Return the pieces of a word: its text, whether it is quoted, and what a variable in it holds."""
    found: list[tuple[str, bool, Value | None]] = []
    i, inside = 0, False
    while i < len(token):
        one = token[i]
        if one == '"':
            inside = not inside
            found.append(("", True, None))
            i += 1
        elif one == "'" and not inside:
            end = token.find("'", i + 1)
            end = len(token) if end < 0 else end
            found.append((token[i + 1 : end], True, None))
            i = end + 1
        elif one == "\\":
            literal = token[i + 1 : i + 2]
            keep = inside and literal not in '$`"\\\n'
            found.append((token[i : i + 2] if keep else "" if literal == "\n" and not inside else literal, inside, None))
            i += 2
        elif one == "$" and token[i + 1 : i + 2] in ("{", "("):
            end = _closed(token, i + 1, "", 0)
            held = _substituted(token[i:end], look, put)
            known = held != ((token[i:end], 0),)  # what is not known stays one word
            found.append(("", inside, held) if known else (token[i:end], inside, None))
            i = end
        elif variable := re.compile(r"\$(\w+|[@*#?!$-])").match(token, i):
            name = variable[1] if not variable[1][0].isdigit() else variable[1][0]
            found.append(("", inside, _held(name, f"${name}", look)))
            i += 1 + len(name)
        else:
            found.append((one, inside, None))
            i += 1
    return found


def _held(name: str, written: str, look: Callable[[str], Value | None]) -> Value:
    value = look(name)
    return ((written, 0),) if value is None else value if name in "@*" else value[:1]


def _substituted(written: str, look: Callable[[str], Value | None], put: Callable[[str, str], None]) -> Value:
    """Return what ``${...}`` or ``$(...)`` holds; itself where that is not known."""
    itself: Value = ((written, 0),)

    def text_of(part: str) -> str:
        return " ".join(word for word, _ in expanded(part, 0, look, put, whole=True))

    if written.startswith("$(("):
        inner = re.sub(r"(?<![\w$])[A-Za-z_]\w*", lambda name: text_of("$" + name[0]), text_of(written[3:-2]))
        number = arithmetic(inner)
        return itself if number is None else ((number, 0),)
    if written.startswith("$("):
        echoed = re.fullmatch(r"\s*echo\s+([^;|&]*)", written[2:-1])
        text = text_of(echoed[1].strip()) if echoed else "$"
        return itself if is_open(text) or not echoed else ((text, 0),)
    parts = _PARAMETER.fullmatch(written[2:-1])
    if not parts:
        return itself
    mark, name, index, rest = parts.groups()
    value = look(name)
    if mark == "#" and value is not None:
        return ((str(len(value) if index else sum(len(word) for word, _ in value)), 0),)
    if mark:
        return itself
    if index and index[1:-1] not in ("@", "*") and value is not None:
        at = arithmetic(text_of(index[1:-1]))
        value = (value[int(at)],) if at is not None and -len(value) <= int(at) < len(value) else None
    elif not index and name not in "@*" and value is not None:
        value = value[:1]  # of an array that is the first word
    if value is None and name in _OF_THE_JOB:
        return itself  # its default is for runs outside of a job
    return _changed(itself, name, value, rest, text_of, put)


def _changed(
    itself: Value, name: str, value: Value | None, rest: str, text_of: Callable[[str], str], put: Callable[[str, str], None]
) -> Value:
    """Return what ``${NAME...}`` holds with all that stands behind the name: a default, a part cut off, other letters."""
    operation = re.match(r":?[-=+?]|%%?|##?|//?|,,?|\^\^?", rest)
    if not rest:
        return itself if value is None else value
    if not operation:
        return itself
    kind, more = operation[0], rest[operation.end() :]
    missing = value is None or (kind[0] == ":" and not any(word for word, _ in value))
    if kind[-1] in "-=":
        if not missing and value is not None:
            return value
        if kind[-1] == "=":
            put(name, text_of(more))
        return ((text_of(more), 0),)
    if kind[-1] == "+":
        return () if missing else ((text_of(more), 0),)
    if value is None:
        return itself
    if kind[-1] == "?":
        return value
    change: Mapping[str, Callable[[str], str]] = {",,": str.lower, "^^": str.upper}
    if kind in change:
        return tuple((change[kind](word), line) for word, line in value)
    if kind in ("%", "%%", "#", "##"):
        return tuple((_cut(word, text_of(more), kind), line) for word, line in value)
    if kind in ("/", "//"):
        old, _, new = more.partition("/")
        count = -1 if kind == "//" else 1
        return tuple((word.replace(text_of(old), text_of(new), count), line) for word, line in value)
    return itself


def _cut(word: str, pattern: str, kind: str) -> str:
    """Return a word without the beginning (``#``) or end (``%``) that a pattern fits, the shortest or the longest."""
    fits = re.compile(translate(pattern))
    ends = range(len(word) + 1)
    if kind[0] == "#":
        cuts = [end for end in ends if fits.match(word[:end])]
        return word[(min if kind == "#" else max)(cuts) :] if cuts else word
    cuts = [end for end in ends if fits.match(word[end:])]
    return word[: (max if kind == "%" else min)(cuts)] if cuts else word
