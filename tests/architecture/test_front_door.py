"""What a user's type checker sees of the package: real signatures, the public names, errors where there are errors."""

from __future__ import annotations

import ast
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

PROGRAM = """
import meshwright
from meshwright import plan

result = plan("gpt2", "dgx-h100:8")
reveal_type(plan)
reveal_type(meshwright.plan("gpt2", "dgx-h100:8"))
reveal_type(meshwright.read("gpt2"))
reveal_type(result.plan)
seconds: float = meshwright.simulate(result.problem, result.plan).step_seconds if result.plan else 0.0
meshwright.plan("gpt2", "dgx-h100:8", serch="best")
meshwright.plna
"""

REVEALED = ("core.result.Result", "core.problem.ModelSpec", "core.plan.Plan")


def _mypy(*paths: pathlib.Path) -> str:
    """What mypy says of files, under the settings of the package's own check: what it found out there is not found out anew."""
    pytest.importorskip("mypy")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", *map(str, paths)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={"MYPYPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"},
    )
    return done.stdout + done.stderr


def test_a_users_program_is_checked_against_the_real_signatures(tmp_path: pathlib.Path) -> None:
    program, readme = tmp_path / "program.py", tmp_path / "from_readme.py"
    program.write_text(PROGRAM)
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert examples and all("import meshwright" in example for example in examples)
    readme.write_text("\n".join(examples))
    said = _mypy(program, readme)
    assert "from_readme.py" not in said, said
    for name in REVEALED:
        assert re.search(rf'Revealed type is ".*meshwright\.{re.escape(name)}', said), said
    assert re.search(r'Revealed type is "def \(model: ', said), said
    errors = re.findall(r"program\.py:(\d+): error: (.*)", said)
    lines = PROGRAM.splitlines()
    assert [lines[int(line) - 1] for line, _ in errors] == [lines[-2], lines[-1]], said
    assert 'Unexpected keyword argument "serch"' in said and "plna" in said


def test_the_package_is_no_trick() -> None:
    import types

    import meshwright

    assert type(meshwright) is types.ModuleType
    for path in (ROOT / "src").rglob("*.py"):
        classes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
        assert not any(ast.unparse(base).endswith("ModuleType") for node in classes for base in node.bases), path
    text = (ROOT / "src" / "meshwright" / "__init__.py").read_text()
    typed = set(re.findall(r"\b\w+\b", " ".join(re.findall(r"^    from meshwright\S* import (.*)$", text, re.M))))
    assert typed == set(meshwright.__all__), "what a type checker sees is what there is"
