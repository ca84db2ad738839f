"""Private means private to its package: an underscore is imported by its own folder only,
and no module is called like what it holds.
"""

from __future__ import annotations

import ast
import pathlib

from statements import statements

SOURCE = pathlib.Path(__file__).resolve().parents[2] / "src" / "meshwright"
FILES = sorted(path for path in SOURCE.rglob("*.py"))


def _module(path: pathlib.Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {_module(path): path for path in FILES}


def _package(path: pathlib.Path) -> str:
    """Return the package that a file belongs to."""
    return ".".join(path.relative_to(SOURCE.parent).parent.parts)


def _imported(path: pathlib.Path) -> list[tuple[str, str]]:
    """Return pairs of a module of ours and a name taken from it; the name is empty where the module itself is imported."""
    found: list[tuple[str, str]] = []
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "meshwright":
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.append((whole, "") if whole in MODULES else (node.module, alias.name))
        elif isinstance(node, ast.Import):
            found.extend((alias.name, "") for alias in node.names if alias.name in MODULES)
    return found


def test_an_underscore_is_imported_by_its_own_package_only() -> None:
    wrong = []
    for path in FILES:
        for module, name in _imported(path):
            parts = module.split(".")
            for i, part in enumerate(parts):
                owner = ".".join(parts[:i])
                # everything inside a private package's parent may use it: `_kernels` is the package's own
                if part.startswith("_") and not f"{_package(path)}.".startswith(f"{owner}."):
                    wrong.append(f"{path.relative_to(SOURCE)} imports {module}")
            if name.startswith("_") and not name.startswith("__"):
                wrong.append(f"{path.relative_to(SOURCE)} imports {name} of {module}")
    assert not wrong, "\n".join(wrong)


def test_a_module_is_not_called_like_something_its_package_holds() -> None:
    wrong = []
    for path in FILES:
        if path.name != "__init__.py":
            continue
        defined = {
            node.name for node in ast.parse(path.read_text()).body if isinstance(node, (ast.FunctionDef, ast.ClassDef))
        } | {name for module, name in _imported(path) if name}
        here = {entry.stem for entry in path.parent.glob("*.py")} | {
            entry.parent.name for entry in path.parent.glob("*/__init__.py")
        }
        wrong += [f"{path.parent.relative_to(SOURCE)}: {name}" for name in sorted(defined & here)]
    assert not wrong, "\n".join(wrong)
