"""The reader of captured graphs: what it reads, what it refuses. Needs no PyTorch."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from meshwright import models
from meshwright.base.errors import InputError

SOURCE = pathlib.Path(models.__file__).parents[2]  # the package that is tested, wherever it lies


def _document() -> dict[str, Any]:
    """An embedding, two equal layers of one product, a head: 4 tokens, 3 wide, 5 words."""
    figures = {
        "forward_flops": 0.0, "backward_flops": 0.0, "parameter_bytes": 0, "output_bytes": 0, "saved_bytes": 0, "n_forward": 1,
        "n_backward": 1,
    }  # fmt: skip
    product = {"name": "product", "kind": "matmul", "dims": {"sequence": 4, "in": 3, "out": 3}, "n_parameters": 9}
    head = {
        "name": "head",
        "kind": "matmul",
        "dims": {"sequence": 4, "in": 3, "out": 5},
        "n_parameters": 15,
        "tensor_axis": "out",
    }
    words = {"name": "words", "kind": "embedding", "dims": {"sequence": 4, "vocabulary": 5, "hidden": 3}, "n_parameters": 15}
    names = (("embed", "embedding", 0), ("layers.0", "matmul", 1), ("layers.1", "matmul", 1), ("head", "head", 2))
    return {
        "format": "meshwright/graph/1", "name": "tiny", "source": "here:tiny", "level": "layers", "batch": 1,
        "element_bytes": 2,
        "sequence_length": 4, "tokens_name": "tokens", "n_parameters": 48, "n_shared_parameters": 0, "n_active_parameters": 0,
        "totals": figures, "notes": ["a note"], "bodies": [[words], [product], [head]],
        "ops": [{"name": name, "kind": kind, "body": body, **figures} for name, kind, body in names],
        "edges": [[0, 1, 12], [1, 2, 12], [2, 3, 12]],
    }  # fmt: skip


def _written(folder: pathlib.Path, document: dict[str, Any]) -> str:
    path = folder / "graph.json"
    path.write_text(json.dumps(document))
    return str(path)


def test_a_captured_graph_is_recognised_and_read(tmp_path: pathlib.Path) -> None:
    model_spec = models.read(_written(tmp_path, _document()))
    graph = model_spec.graph
    assert (model_spec.format, model_spec.costs, model_spec.search, model_spec.notes) == (
        "captured_json",
        "analytic",
        "best",
        ("a note",),
    )
    assert [op.name for op in graph.ops] == ["embed", "layers.0", "layers.1", "head"]
    assert [op.like for op in graph.ops] == [0, 1, 1, 3]
    assert graph.ops[2].body is graph.ops[1].body
    assert graph.ops[3].body[0].dims == (("sequence", 4), ("in", 3), ("out", 5))
    assert graph.n_parameters == 48


def test_a_captured_graph_can_be_planned(tmp_path: pathlib.Path) -> None:
    from meshwright import api
    from meshwright.core.problem import Batch

    path = _written(tmp_path, _document())
    result = api.plan(path, "dgx-h100:4", batch=Batch(global_batch=8))
    assert result.feasible and result.timeline is not None
    assert sorted(op for stage in result.answer.plan.stages for op in stage.ops) == [0, 1, 2, 3]  # type: ignore[union-attr]


def test_reading_imports_no_torch(tmp_path: pathlib.Path) -> None:
    path = _written(tmp_path, _document())
    code = f"import sys; from meshwright import models; models.read({path!r}); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(SOURCE)}).returncode == 0


def _change(document: dict[str, Any], path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        document = document[key]
    if value is None:
        del document[path[-1]]
    else:
        document[path[-1]] = value


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("sequence_length",), 0, "sequence_length is 0"),
        (("n_parameters",), 47, "the operators hold 48"),
        (("surprise",), 1, "surprise"),
        (("edges",), None, "'edges' is missing"),
        (("ops",), [], "nothing to train"),
        (("ops", 1, "body"), 9, "ops[1]: body is 9; there are 3 bodies"),
        (("ops", 1, "name"), "embed", "names must be unique"),
        (("bodies", 1, 0, "kind"), "matmull", "did you mean 'matmul'"),
        (("bodies", 1, 0, "dims"), [], "dims is []; it must be an object"),
        (("bodies", 1, 0, "dims", "in"), -3, "in is -3"),
        (("bodies", 1, 0, "tensor_axis"), "left", "tensor_axis"),
        (("bodies", 1, 0, "flops"), -1.0, "flops is -1.0"),
        (("bodies", 1, 0, "expert"), 1, "must be true or false"),
        (("edges", 0), [0, 9, 12], "there is no node 9"),
        (("edges", 2), [2, 1, 12], "cycle"),
        (("edges", 0), [0, 1], "must be [source, target, elements]"),
    ],
)
def test_a_wrong_field_is_named(path: tuple[Any, ...], value: Any, words: str, tmp_path: pathlib.Path) -> None:
    document = _document()
    _change(document, path, value)
    with pytest.raises(InputError) as caught:
        models.read(_written(tmp_path, document))
    assert words in str(caught.value) and "graph.json" in str(caught.value)


def test_another_sequence_length_needs_another_capture(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match="capture it again"):
        models.read(_written(tmp_path, _document()), sequence_length=8)
