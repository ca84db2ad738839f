"""No module imports itself through others: the import graph of the package, late and type-only imports included,
has no circle.
"""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Mapping

import pytest

from statements import statements

SOURCE = pathlib.Path(__file__).resolve().parents[2] / "src" / "meshwright"


def import_graph(folder: pathlib.Path) -> dict[str, set[str]]:
    """Which modules of a package each of its modules names in any import, wherever in the file that stands."""
    path_of = {}
    for path in folder.rglob("*.py"):
        parts = (folder.name, *path.relative_to(folder).with_suffix("").parts)
        path_of[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    graph: dict[str, set[str]] = {}
    for module, path in path_of.items():
        graph[module] = set()
        for node in statements(ast.parse(path.read_text())):
            named: list[str] = []
            if isinstance(node, ast.Import):
                named = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{module}: imports are written out in full"
                inner = [f"{node.module}.{alias.name}" for alias in node.names]
                named = [name if name in path_of else str(node.module) for name in inner]
            graph[module].update(name for name in named if name in path_of)
        graph[module].discard(module)
    return graph


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The strongly connected components of more than one module, each sorted."""
    reached = {start: _reached(graph, start) for start in graph}
    found = {tuple(sorted({start, *(other for other in reached[start] if start in reached[other])})) for start in graph}
    return sorted(list(circle) for circle in found if len(circle) > 1)


def _reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    left = [start]
    while left:
        new = graph[left.pop()] - seen
        seen |= new
        left += new
    return seen


def test_no_module_imports_itself_through_others() -> None:
    found = circles(import_graph(SOURCE))
    assert not found, "import circles: " + "; ".join(" <-> ".join(circle) for circle in found)


@pytest.mark.parametrize(
    "back",
    [
        "from pack import a",
        "def f():\n    from pack.a import x",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pack.a",
    ],
    ids=["plain", "late", "type-only"],
)
def test_a_circle_is_found_however_the_import_is_written(back: str, tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "pack"
    (folder / "inner").mkdir(parents=True)
    (folder / "a.py").write_text("from pack import inner\nx = 1\n")
    (folder / "inner" / "__init__.py").write_text("from pack.inner import b\n")
    (folder / "inner" / "b.py").write_text(back + "\n")
    (folder / "apart.py").write_text("from pack import a\n")
    assert circles(import_graph(folder)) == [["pack.a", "pack.inner", "pack.inner.b"]]
