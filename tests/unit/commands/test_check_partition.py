"""``meshwright check`` on plan files of the searches partition and stage_mapping: confirmed, refused when changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROFILE = """\
node1 -- Input0 -- forward_compute_time=0.000, backward_compute_time=0.000, activation_size=1000000.0, parameter_size=0.000
node2 -- Conv -- forward_compute_time=3.000, backward_compute_time=6.000, activation_size=40000000.0, parameter_size=4000.000
node3 -- ReLU -- forward_compute_time=1.000, backward_compute_time=1.500, activation_size=40000000.0, parameter_size=0.000
node4 -- Conv -- forward_compute_time=2.000, backward_compute_time=5.000, activation_size=20000000.0, parameter_size=800000.000
node5 -- Add -- forward_compute_time=0.500, backward_compute_time=0.500, activation_size=20000000.0, parameter_size=0.000
node6 -- Linear -- forward_compute_time=4.000, backward_compute_time=7.000, activation_size=4000.0, parameter_size=90000000.000
\tnode1 -- node2
\tnode2 -- node3
\tnode3 -- node4
\tnode2 -- node5
\tnode4 -- node5
\tnode5 -- node6
"""


@pytest.mark.parametrize(
    ("search", "extra"), [("partition", ["--set", "n_stages=3"]), ("stage_mapping", ["--cluster", "parmesan-uniform:4"])]
)
def test_plan_files_are_checked_by_the_command(meshwright: Any, tmp_path: Path, search: str, extra: list[str]) -> None:
    plan = tmp_path / "plan.json"
    (tmp_path / "net.txt").write_text(PROFILE)
    meshwright("plan", "net.txt", "--search", search, *extra, "--out", "plan.json", "--json")
    done = meshwright("check", "plan.json")
    assert done.code == 0 and done.out.startswith("valid"), done
    entry: dict[str, Any] = json.loads(plan.read_text())
    changes: tuple[Callable[[dict[str, Any]], object], ...] = (
        lambda e: e["objective"].update(value=e["objective"]["value"] * 0.99),
        lambda e: e["bound"].update(value=e["bound"]["value"] * 1.5),
        lambda e: e.update(step_seconds=e["step_seconds"] * 1.01),
        lambda e: e["stages"][-1].update(peak_bytes=e["stages"][-1]["peak_bytes"] + 1e6),
    )
    if search == "stage_mapping":
        assert "peak_bytes" in entry["stages"][0]
        changes += (
            lambda e: e["mappings"][-1].update(seconds=e["mappings"][-1]["seconds"] * 0.9),
            lambda e: e["mappings"][-1].update(bound_seconds=e["mappings"][-1]["seconds"] * 0.9, exact=True),
            lambda e: e["mappings"][-1].update(exact=3),
            lambda e: e["mappings"][0].update(n_stages=9),
            lambda e: e["mappings"][0].update(n_replicas=9),
        )
    for change in changes:
        tampered = json.loads(json.dumps(entry))
        change(tampered)
        plan.write_text(json.dumps(tampered))
        done = meshwright("check", "plan.json")
        assert done.code == 2 and done.out.startswith("refused"), done
    for field, value in (("shard", 3), ("expert", 2), ("shard_degree", 1), ("tensor", 2), ("context", 2)):
        tampered = json.loads(json.dumps(entry))
        tampered["stages"][0][field] = value
        plan.write_text(json.dumps(tampered))
        done = meshwright("check", "plan.json")
        assert done.code == 2 and "Traceback" not in done.err and (field in done.err or "devices" in done.err), done
