"""The statements of a module, those inside others too: what looks for imports need not look at every expression."""

from __future__ import annotations

import ast
from collections.abc import Iterator

__all__ = ["statements"]


def statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield every statement of a module, whatever it stands in."""
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        if isinstance(node, ast.stmt):
            yield node
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, field, None)
            left += inner if isinstance(inner, list) else []
