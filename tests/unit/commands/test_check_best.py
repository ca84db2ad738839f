"""``meshwright check`` on answers of `best` that nothing fits: confirmed under every optimizer, refused when edited."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest


def nothing_fits(meshwright: Any, *options: str) -> dict[str, Any]:
    """Return an answer that nothing fits, written to ``answer.json``."""
    done = meshwright(
        "plan",
        "llama-2-70b",
        "--cluster",
        "dgx-a100:8",
        "--global-batch",
        "8",
        "--no-what-if",
        "--out",
        "answer.json",
        *options,
    )
    assert done.code == 3, done
    answer: dict[str, Any] = json.loads(pathlib.Path("answer.json").read_text())
    return answer


@pytest.mark.parametrize("optimizer", ["adafactor", "lion", "adamw"])
def test_it_is_confirmed_where_the_optimizer_narrows_what_a_framework_runs(optimizer: str, meshwright: Any) -> None:
    nothing_fits(meshwright, "--for", "transformers", "--optimizer", optimizer)
    done = meshwright("check", "answer.json")
    assert done.code == 0 and done.out.startswith("valid: no plan of the space fits"), done


@pytest.mark.parametrize(("reason", "path", "value"), [
    ("batch.sequence_length is 128", ("batch", "sequence_length"), 128),
    ("batch.asked_global_batch is 16", ("batch", "asked_global_batch"), 16),
    ("training.optimizer_bytes is 4", ("training", "optimizer_bytes"), 4),
    ("training is 3; it must be an object", ("training",), 3),
    ("of the wrong kind", ("cluster",), "x"),
    ("framework is 3", ("certificate", "question", "framework"), 3),
    ("of the wrong kind", ("certificate", "question", "framework", "limits"), []),
    ("limits.shards is None", ("certificate", "question", "framework", "limits", "shards"), None),
    ("limits.schedules is 3", ("certificate", "question", "framework", "limits", "schedules"), 3),
    ("infinity", ("certificate", "question", "micro_batch"), float("-inf")),
])  # fmt: skip
def test_what_was_edited_is_refused_in_a_line(reason: str, path: tuple[str, ...], value: Any, meshwright: Any) -> None:
    answer = nothing_fits(meshwright)
    inside = answer
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    pathlib.Path("answer.json").write_text(json.dumps(answer))
    done = meshwright("check", "answer.json")
    assert done.code == 2 and reason in done.out + done.err and "Traceback" not in done.err, done
