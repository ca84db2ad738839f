"""``meshwright codesign``: one JSON object with the fields others rely on; files beside it; exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BASE = ["codesign", "topoopt:dlrm,tables=3,rows=1000,width=8,bottom=16-16,top=16-16-1,batch=64", "--servers", "4", "--degree",
        "2",
        "--link-bandwidth", "10 Gbit/s", "--budget", "20"]  # fmt: skip


def run(*more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "meshwright", *BASE, *more], capture_output=True, text=True)


def test_the_answer_is_one_object_and_every_file_is_written(tmp_path: Path) -> None:
    files = {
        "--out": "plan.json",
        "--taskgraph": "step.fbuf",
        "--dot": "net.dot",
        "--trace": "step.json",
        "--astra-network": "net.yml",
        "--chakra": "step",
        "--wiring": "cables.csv",
        "--report": "page.html",
        "--measures-out": "times.json",
    }
    options = [word for option, name in files.items() for word in (option, str(tmp_path / name))]
    done = run("--topology", "full-mesh,switch", "--set", "equal_cost=true", "--json", *options)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["format"] == "meshwright/codesign/1"
    assert answer["iteration_seconds"] == min(one["iteration_seconds"] for one in answer["topologies"].values())
    assert answer["bound"]["value"] <= answer["iteration_seconds"]
    assert set(answer["topologies"]) == {"full-mesh", "switch", "switch-equal-cost"}
    mesh = answer["topologies"]["full-mesh"]
    assert mesh["links"] == [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]
    assert answer["topologies"]["switch-equal-cost"]["cost"] == pytest.approx(mesh["cost"])
    assert [len(op["servers"]) for op in answer["plan"]["operators"]] == [
        op["samples"] * op["columns"] * op["rows"] for op in answer["plan"]["operators"]
    ]
    assert json.loads((tmp_path / "plan.json").read_text())["plan"] == answer["plan"]
    assert (tmp_path / "net.dot").read_text().startswith("graph")
    assert json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    assert "npus_count" in (tmp_path / "net.yml").read_text()
    assert len(list(tmp_path.glob("step.*.et"))) == 4
    assert len((tmp_path / "cables.csv").read_text().splitlines()) == 1 + len(answer["topologies"][answer["topology"]]["links"])
    assert "<svg" in (tmp_path / "page.html").read_text()
    assert json.loads((tmp_path / "times.json").read_text())["batch_size"] == 64


def test_ctrl_c_while_the_files_are_written_lets_all_be_written(meshwright: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from meshwright.planners.topoopt.writers import codesign_json

    write = codesign_json.write

    def pressed(*design: Any) -> None:
        write(*design)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(codesign_json, "write", pressed)
    done = meshwright(*BASE, "--topology", "full-mesh", "--out", "plan.json", "--wiring", "cables.csv")
    assert done.code == 0 and "being written" in done.err and done.out
    assert Path("plan.json").exists() and Path("cables.csv").exists()


def test_an_infeasible_answer_has_exit_code_3_and_a_wrong_option_2(tmp_path: Path) -> None:
    big = run(
        "--set",
        "gpus_per_server=1",
        "--set",
        "shard_weights=no",
        "--set",
        "gpu=t4",
        "--set",
        "global_batch=2000000000",
        "--json",
    )
    assert big.returncode == 3, big.stderr
    assert json.loads(big.stdout)["feasible"] is False
    wrong = run("--out", str(tmp_path / "no" / "plan.json"))
    assert wrong.returncode == 2
    assert len(wrong.stderr.strip().splitlines()) == 1
    assert not wrong.stdout


def test_a_network_that_one_format_cannot_say_costs_neither_the_answer_nor_the_other_files(tmp_path: Path) -> None:
    files = {"--astra-network": "net.yml", "--wiring": "cables.csv", "--trace": "step.json"}
    done = run(
        "--topology", "random", "--json", *(word for option, name in files.items() for word in (option, str(tmp_path / name)))
    )
    assert done.returncode == 2 and "ASTRA-sim" in done.stderr
    assert json.loads(done.stdout)["feasible"] is True
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cables.csv", "step.json"]


def test_files_of_times_and_task_graphs_are_no_models_to_plan(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    row = {"name": "Dense_4_2", "pc_str": "2-1-4", "fw_time": 0.1, "bw_time": 0.3, "mem_req": 100}
    path.write_text(json.dumps({"batch_size": 8, "ngpus": 4, "measurements": [row]}))
    done = subprocess.run(
        [sys.executable, "-m", "meshwright", "plan", str(path), "--cluster", "dgx-a100:8"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "nothing to plan" in done.stderr
