"""Every small change of a file that could be a bug: an operator, a comparison, a constant, a term dropped, a condition negated, ...

What is no behaviour stays as it is: docstrings, messages of errors, annotations, decorators, imports, ``__all__``, calls of a logger, and
what only asserts: ``assert``, and the ``strict`` of ``zip``. What the compiler makes the same code of is no mutant either (`changes_code`).
"""  # noqa: E501

from __future__ import annotations

import ast
import pathlib
import types
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Mutant", "changes_code", "mutants", "one_line"]

SOURCE = pathlib.Path(__file__).resolve().parents[1] / "src" / "meshwright"

ARITHMETIC = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
COMPARISONS = {
    ast.Lt: (ast.LtE, ast.Gt), ast.LtE: (ast.Lt, ast.GtE), ast.Gt: (ast.GtE, ast.Lt), ast.GtE: (ast.Gt, ast.LtE), ast.Eq: (ast.NotEq,),  # noqa: E501
    ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
}  # fmt: skip
OPPOSITE = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "argmin": "argmax", "argmax": "argmin",
            "ceil": "floor", "floor": "ceil", "any": "all", "all": "any"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one file: the text from `start` to `end` (offsets in characters) becomes `after`."""

    room: str
    path: str  # below the package
    line: int
    start: int
    end: int
    before: str
    after: str

    @property
    def name(self) -> str:
        """Name that stays when lines move: what ``mutants.toml`` lists as equivalent."""
        return f"{self.path}: {one_line(self.before)} -> {one_line(self.after)}"


def one_line(text: str) -> str:
    """Return the text with every stretch of blanks as one."""
    return " ".join(text.split())


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


LOGGERS = {"log", "logger", "logging", "_log", "_logger"}


def _only_says(node: ast.AST) -> bool:
    """Return whether a node is a call of a logger, or the `strict` of a `zip`: an assertion that nothing is left over."""
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=word)))):
            return word in LOGGERS
        case ast.keyword(arg="strict", value=ast.Constant()):
            return True
    return False


def _left_alone(node: ast.AST) -> Iterator[ast.AST]:
    """Return the children of `node` that may hold mutants: no messages, annotations, decorators, checks for the type checker."""  # noqa: E501
    if isinstance(node, (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)):
        return
    if isinstance(node, ast.Assign) and any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets):
        return
    if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "__name__ == '__main__'"):
        return
    skipped = {"annotation", "returns", "decorator_list", "type_comment", "bases"}
    for field, value in ast.iter_fields(node):
        if field in skipped:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _only_says(child):
                yield child


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    for child in _left_alone(node):
        yield child
        yield from _nodes(child)


def _constants(value: object) -> tuple[object, ...]:
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int):
        return (1,) if value == 0 else (value + 1, value - 1)
    if isinstance(value, float):
        return (1.0,) if value == 0.0 else (value * 2.0, value + 1.0 if abs(value) >= 1.0 else value / 2.0)
    return ()


def _changes(node: ast.AST) -> Iterator[str]:
    """Return what could stand in place of `node`."""
    match node:
        case ast.BinOp(left=left, op=op, right=right) if not _is_text(left) and not _is_text(right):
            if type(op) in ARITHMETIC:
                yield f"({ast.unparse(ast.BinOp(left, ARITHMETIC[type(op)](), right))})"
            if isinstance(op, ast.Add):
                yield f"({ast.unparse(right)})"
            if isinstance(op, (ast.Add, ast.Sub)):
                yield f"({ast.unparse(left)})"
        case ast.Compare(left=left, ops=[op], comparators=comparators):
            for other in COMPARISONS[type(op)]:
                yield f"({ast.unparse(ast.Compare(left, [other()], comparators))})"
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            for i, op in enumerate(ops):
                yield f"({ast.unparse(ast.Compare(left, [*ops[:i], COMPARISONS[type(op)][0](), *ops[i + 1 :]], comparators))})"
        case ast.BoolOp(op=op, values=values):
            yield f"({ast.unparse(ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values))})"
            for i in range(len(values)):
                rest = [*values[:i], *values[i + 1 :]]
                yield f"({ast.unparse(rest[0] if len(rest) == 1 else ast.BoolOp(op, rest))})"
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield f"({ast.unparse(ast.IfExp(ast.UnaryOp(ast.Not(), test), body, orelse))})"
        case ast.If(test=test):
            yield f"(not ({ast.unparse(test)}))"
        case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=operand):
            yield f"({ast.unparse(operand)})"
        case ast.Call(func=ast.Name(id=word) | ast.Attribute(attr=word), args=args, keywords=keywords) if word in OPPOSITE:
            function = (
                ast.Name(OPPOSITE[word]) if isinstance(node.func, ast.Name) else ast.Attribute(node.func.value, OPPOSITE[word])
            )
            yield ast.unparse(ast.Call(function, args, keywords))
            if len(args) == 2 and not keywords and not any(isinstance(arg, ast.Starred) for arg in args):
                yield from (f"({ast.unparse(arg)})" for arg in args)
        case ast.Constant(value=value):
            yield from (repr(other) for other in _constants(value))
        case ast.AugAssign(target=target, op=op, value=value):
            yield "pass"
            if type(op) in ARITHMETIC:
                yield ast.unparse(ast.AugAssign(target, ARITHMETIC[type(op)](), value))
        case ast.Expr(value=ast.Call()) | ast.Break() | ast.Continue():
            yield "pass"
        case ast.Assign(targets=[ast.Subscript() | ast.Attribute()]):
            yield "pass"


def mutants(room: str, path: pathlib.Path, package: pathlib.Path = SOURCE) -> list[Mutant]:
    """Return every mutant of a file, in the order of its lines."""
    text = path.read_text()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    lines = text.splitlines()

    def offset(line: int, column: int) -> int:
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    found = []
    for node in _nodes(ast.parse(text)):
        place = node.test if isinstance(node, ast.If) else node
        if not hasattr(place, "lineno"):
            continue
        start, end = offset(place.lineno, place.col_offset), offset(place.end_lineno, place.end_col_offset)
        for after in _changes(node):
            found.append(Mutant(room, str(path.relative_to(package)), place.lineno, start, end, text[start:end], after))
    return sorted(found, key=lambda mutant: (mutant.start, mutant.end, mutant.after))


def changes_code(mutant: Mutant, package: pathlib.Path = SOURCE) -> bool:
    """Return whether a mutant's file compiles to other code than before, without docstrings, assertions and numbers of lines.

    One that does not can be noticed by no test (trivial compiler equivalence, Papadakis et al., ICSE 2015).
    """
    text = (package / mutant.path).read_text()
    planted = text[: mutant.start] + mutant.after + text[mutant.end :]
    with warnings.catch_warnings(action="ignore"):
        before, after = (compile(one, mutant.path, "exec", optimize=2, dont_inherit=True) for one in (text, planted))
    return _bare(before) != _bare(after)


def _bare(code: types.CodeType) -> tuple[object, ...]:
    """Return what a piece of code does, without where it stands."""
    constants = tuple(_bare(one) if isinstance(one, types.CodeType) else (type(one), repr(one)) for one in code.co_consts)
    return code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_exceptiontable
