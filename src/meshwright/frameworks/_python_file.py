"""Configurations that are Python: constants of a module without running it, and the launch command in its comments."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from meshwright.base.errors import InputError
from meshwright.frameworks import _exact

__all__ = ["assigned", "by_chance", "constants", "environment", "parsed", "started", "value"]


def parsed(path: str) -> tuple[ast.Module, str]:
    """Return a module's tree and text; raises `InputError` when it cannot be read or is no Python."""
    text = _exact.read_text(path)
    try:
        return ast.parse(text), text
    except (SyntaxError, ValueError, RecursionError) as error:
        line = f"line {error.lineno}: " if isinstance(error, SyntaxError) else ""
        raise InputError(f"{path}: {line}is no Python: {getattr(error, 'msg', error)}") from None


def constants(tree: ast.Module) -> dict[str, Any]:
    """Return the constants that a module's own lines give names."""
    found: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            try:
                found[node.targets[0].id] = value(node.value, found)
            except ValueError:
                continue
    return found


def value(node: ast.expr, named: Mapping[str, Any]) -> Any:
    """Return what an expression is: a constant, a name of one, a collection of them, or a call with keywords as a dict.

    Raises `ValueError` when it is something else.
    """
    if isinstance(node, ast.Name) and node.id in named:
        return named[node.id]
    if isinstance(node, ast.Dict):
        keys = [value(key, named) for key in node.keys if key is not None]
        if len(keys) < len(node.keys):
            raise ValueError("a dict put together from others")
        return dict(zip(keys, (value(one, named) for one in node.values), strict=True))
    if isinstance(node, ast.List | ast.Tuple):
        return [value(one, named) for one in node.elts]
    if isinstance(node, ast.Call) and node.keywords and not node.args and all(keyword.arg for keyword in node.keywords):
        return {str(keyword.arg): value(keyword.value, named) for keyword in node.keywords}
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mult):
        return _combined(value(node.left, named), value(node.right, named), isinstance(node.op, ast.Mult))
    return ast.literal_eval(node)


def _combined(left: Any, right: Any, times: bool) -> Any:
    """Return a sum or product of whole numbers, lists put together, or a list several times (layouts of stages).

    Raises `ValueError` when it is something else, or too long to mean a configuration.
    """
    whole = [isinstance(one, int) and not isinstance(one, bool) and 0 <= one < 10**9 for one in (left, right)]
    if all(whole):
        return left * right if times else left + right
    if not times and isinstance(left, list) and isinstance(right, list):
        return left + right
    if times and any(whole) and (isinstance(left, list) or isinstance(right, list)):
        items, count = (left, right) if isinstance(left, list) else (right, left)
        if len(items) * count <= 10**4:
            return items * count
    raise ValueError("is no constant")


def assigned(tree: ast.Module) -> list[tuple[list[str], ast.expr, int]]:
    """Return what a module assigns to attributes, in order: the dotted name in parts, the expression, the line."""
    found = [
        (ast.unparse(target).split("."), node.value, node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute)
    ]
    return sorted(found, key=lambda one: one[2])


def environment(tree: ast.Module) -> dict[str, tuple[str, int]]:
    """Return what a module puts to its environment, each with its line; the last counts."""
    found: dict[str, tuple[str, int]] = {}
    for node in ast.walk(tree):
        pairs: list[tuple[ast.expr, ast.expr]] = []
        if not isinstance(node, ast.Assign | ast.Call):
            continue
        if isinstance(node, ast.Assign):
            pairs = [
                (one.slice, node.value) for one in node.targets
                if isinstance(one, ast.Subscript) and ast.unparse(one.value).rpartition(".")[2] == "environ"
            ]  # fmt: skip
        elif re.fullmatch(r"(os\.)?(environ\.setdefault|putenv)", ast.unparse(node.func)):
            pairs = [(node.args[0], node.args[1])] if len(node.args) == 2 else []
        for name, value in pairs:
            if isinstance(name, ast.Constant) and isinstance(value, ast.Constant):
                found[str(name.value)] = (str(value.value), node.lineno)
    return found


def by_chance(tree: ast.Module) -> set[int]:
    """Return the lines of assignments under a condition, that of being started as a script aside."""
    return {
        inner.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Match) or (isinstance(node, ast.If) and "__name__" not in ast.unparse(node.test))
        for inner in ast.walk(node)
        if isinstance(inner, ast.Assign)
    }


def started(text: str) -> int:
    """Return how many processes the launch command in a file's comments starts; 0 where there is none."""

    def said(*names: str) -> int:
        found = re.search(rf"--(?:{'|'.join(names)})[ =](\d{{1,8}})\b", text)
        return int(found[1]) if found else 0

    per_node = said("nproc[-_]per[-_]node")
    return per_node * (said("nnodes") or 1) if per_node else said("num[-_]processes")
