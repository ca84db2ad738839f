"""The notebook shows what its cells answer."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import pathlib

NOTEBOOK = pathlib.Path(__file__).resolve().parents[2] / "docs" / "tutorials" / "notebook.ipynb"


def test_every_cell_answers_what_stands_under_it() -> None:
    """Where an answer is meant to change: `jupyter nbconvert --execute --inplace docs/tutorials/notebook.ipynb`."""
    names: dict[str, object] = {}
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    assert len(cells) >= 5 and all(cell["outputs"] for cell in cells)
    for cell in cells:
        *lines, last = ast.parse("".join(cell["source"])).body
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile(ast.Module(lines, []), "cell", "exec"), names)
            if isinstance(last, ast.Expr):
                print(repr(eval(compile(ast.Expression(last.value), "cell", "eval"), names)))
            else:
                exec(compile(ast.Module([last], []), "cell", "exec"), names)
        shown = "".join(
            line for output in cell["outputs"] for line in output.get("text", output.get("data", {}).get("text/plain", []))
        )
        assert "".join(said.getvalue().split()) == "".join(shown.split())
