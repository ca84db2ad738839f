"""What a user's type checker sees of the package: real signatures, the public names, errors where there are errors."""

from __future__ import annotations

import ast
import pathlib
import re
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]

TYPED = ROOT / "tests" / "typed"


def test_a_users_program_is_checked_against_the_real_signatures() -> None:
    """By the one run of mypy that there is; `typed/users_program.py` says what it must find, and what it must not miss."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    assert set(settings["modules"]) == {path.stem for path in TYPED.glob("*.py")} and settings["strict"]
    assert "tests/typed" in settings["mypy_path"].split(":") and settings["packages"] == ["meshwright"]
    assert ".venv/bin/mypy\n" in (ROOT / ".ci" / "run").read_text() and "$(BIN)/mypy\n" in (ROOT / "Makefile").read_text()
    assert (TYPED / "users_program.py").read_text().count("  # type: ignore[") == 3, "what must be an error"


def test_the_python_of_the_front_page_is_checked_too() -> None:
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert examples and all("import meshwright" in example for example in examples)
    assert (TYPED / "from_readme.py").read_text().partition("\n\n")[2] == "\n".join(examples)


def test_the_package_is_no_trick() -> None:
    import types

    import meshwright

    assert type(meshwright) is types.ModuleType
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text()
        classes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)] if "ModuleType" in text else []
        assert not any(ast.unparse(base).endswith("ModuleType") for node in classes for base in node.bases), path
    text = (ROOT / "src" / "meshwright" / "__init__.py").read_text()
    typed = set(re.findall(r"\b\w+\b", " ".join(re.findall(r"^    from meshwright\S* import (.*)$", text, re.M))))
    assert typed == set(meshwright.__all__), "what a type checker sees is what there is"
