"""Planners of others asked through their files: what they are told, what is read of their answers, what is refused."""

from __future__ import annotations

import json
import pathlib
import stat
import sys
from typing import Any

import pytest

from meshwright import api, clusters, published
from meshwright.base.errors import InputError
from meshwright.core.problem import Batch
from meshwright.suite import DECLINED, adapting, bench, judging, questions
from meshwright.suite.adapters import calculon, galvatron, pase

GPT = "models/gpt3-13b@dgx-h100:64"


def asked(word: str) -> dict[str, Any]:
    (one,) = questions.chosen(word)
    return questions.problem_json(one, 30.0)


def judged(word: str, entry: dict[str, Any], folder: pathlib.Path) -> judging.Judged:
    (one,) = questions.chosen(word)
    path = folder / "plan.json"
    path.write_text(json.dumps(entry))
    return judging.judge(one, str(path))


def program(path: pathlib.Path, body: str) -> pathlib.Path:
    path.write_text(f"#!{sys.executable} -S\nimport json, sys\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


EXECUTION = {
    "num_procs": 64, "tensor_par": 4, "pipeline_par": 2, "data_par": 8, "batch_size": 256, "microbatch_size": 2,
    "activation_recompute": "attn_only", "pipeline_interleaving": 2, "optimizer_sharding": True,
    "tensor_par_comm_type": "rs_ag", "weight_offload": False,
}  # fmt: skip


def writes(**changed: Any) -> str:
    """Return the lines of a program that writes an execution."""
    return f"json.dump({{0: { {'execution': EXECUTION | changed} }}}, open(sys.argv[7], 'w'))"


def test_calculon_is_told_model_and_machine_and_its_execution_is_judged(tmp_path: pathlib.Path) -> None:
    body = (
        "name, app, n, batch, kind, system, out, none = sys.argv[1:]\n"
        "assert (name, n, batch, kind, none) == ('llm-optimal-execution', '64', '256', 'float16', '--noneok')\n"
        "sizes = dict(hidden=5120, feedforward=20480, seq_size=2048, attn_heads=40, attn_size=128, num_blocks=40)\n"
        "assert json.load(open(app)) == sizes\n"
        "assert json.load(open(system))['matrix']['float16']['tflops'] == 989.4\n" + writes()
    )
    entry = calculon.answer(asked(GPT), str(program(tmp_path / "calculon", body)))
    stages = entry["stages"]
    assert [len(stage["ops"]) for stage in stages] == [11, 10, 10, 11]  # 40 blocks over 2 ranks of 2 stages, and both ends
    assert [stage["devices"][0] for stage in stages] == [0, 32, 0, 32]
    assert {(stage["data"], stage["tensor"], stage["shard"], stage["sequence_parallel"]) for stage in stages} == {
        (8, 4, 1, True)
    }
    assert stages[0]["recompute"][:2] == ["none", "selective"]
    schedule = {"name": "interleaved_1f1b", "n_microbatches": 16, "micro_batch": 2, "global_batch": 256}
    assert entry["schedule"] == schedule
    found = judged(GPT, entry, tmp_path)
    assert not found.refusal and found.value is not None and 0.5 < found.value < 3.0


def test_a_machine_as_calculon_has_it() -> None:
    two, one = (calculon.system(clusters.cluster(f"dgx-a100:{n}")) for n in (16, 8))
    device = clusters.cluster("dgx-a100:8").device(0)
    assert two["matrix"]["float16"] == {"tflops": 312.0, "gflops_efficiency": [[0, device.matmul_ratio]]}
    assert two["mem1"]["GiB"] * 2**30 == pytest.approx(device.memory_bytes - device.reserved_bytes)
    inner, outer = two["networks"]
    assert (inner["size"], outer["size"], inner["must_be_filled"], outer["must_be_filled"]) == (8, 65536, True, False)
    assert 200 < inner["bandwidth"] < 300 and 20 < outer["bandwidth"] < 25.0  # 300 GB/s of NVLink, 25 of a port
    assert len(one["networks"]) == 1 and one["networks"][0]["must_be_filled"] is False


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("sys.exit('no memory')", "ended with 1: no memory"),
        ("pass", "wrote no answer"),
        ("json.dump({0: {'execution': {'tensor_par': 1}}}, open(sys.argv[7], 'w'))", "lacks 'pipeline_par'"),
        (writes(data_par=4), "of 32 devices"),
        (writes(weight_offload=True), "offloads"),
    ],
    ids=["error", "nothing", "half", "devices", "offload"],
)  # fmt: skip
def test_what_calculon_may_not_answer(tmp_path: pathlib.Path, body: str, said: str) -> None:
    with pytest.raises(adapting.PlannerFailed, match=said):
        calculon.answer(asked(GPT), str(program(tmp_path / "calculon", body)))


def test_calculon_says_that_nothing_fits(tmp_path: pathlib.Path) -> None:
    entry = calculon.answer(asked(GPT), str(program(tmp_path / "calculon", "json.dump({}, open(sys.argv[7], 'w'))")))
    assert judged(GPT, entry, tmp_path).nothing


@pytest.mark.parametrize("name", ["llama-3.1-8b", "mixtral-8x7b"])
def test_models_that_calculon_cannot_describe_are_declined(name: str) -> None:
    problem = api.make_problem(name, "dgx-a100:8", batch=Batch(8, 0, 2048))
    with pytest.raises(InputError, match="GPT's kind"):
        calculon.application(problem)


def strategy(**changed: Any) -> dict[str, Any]:
    half = ",".join(["4"] * 20 + ["8"] * 20)
    return {
        "pp_deg": 2, "tp_sizes_enc": half, "tp_consecutive_flags": ",".join(["1"] * 40),
        "dp_types_enc": ",".join(["0"] * 20 + ["1"] * 20),
        "use_sp": ",".join(["0"] * 40), "checkpoint": ",".join(["1"] * 3 + ["0"] * 37), "global_bsz": 256, "chunks": 16,
        "pp_division": "20,20", "pipeline_type": "pipedream_flush", "default_dp_type": "zero2", "vtp": 4, "vsp": 0,
    } | changed  # fmt: skip


def test_a_strategy_of_galvatron_is_read_by_layer(tmp_path: pathlib.Path) -> None:
    (tmp_path / "gpt3-13b@dgx-h100_64.json").write_text(json.dumps(strategy()))
    entry = galvatron.answer(asked(GPT), str(tmp_path))
    first, last = entry["stages"]
    assert (first["tensor"], first["data"], first["shard"], last["tensor"], last["data"], last["shard"]) == (4, 8, 2, 8, 4, 3)
    assert first["recompute"][:5] == ["none", "full", "full", "full", "none"] and set(last["recompute"]) == {"none"}
    assert len(first["ops"]) == len(last["ops"]) == 21 and last["devices"] == list(range(32, 64))
    schedule = {"name": "1f1b", "n_microbatches": 16, "micro_batch": 2, "global_batch": 256}
    assert entry["schedule"] == schedule
    found = judged(GPT, entry, tmp_path)
    assert not found.refusal and found.value is not None and found.value > 0.0


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"pp_division": "20,19"}, "divides 39 layers"),
        ({"pp_division": "10,10,20"}, "over 3 of 2 stages"),
        ({"tp_sizes_enc": ",".join(["4", "8"] * 20)}, "stage 0 splits its layers in 2 ways"),
        ({"use_sp": ",".join(["1"] * 40)}, "use_sp"),
        ({"tp_sizes_enc": "4,4"}, "must have 40 numbers"),
        ({"default_dp_type": "zero9"}, "default_dp_type"),
        ({"checkpoint": "a" + ",0" * 39}, "no whole numbers"),
    ],
)
def test_strategies_of_galvatron_that_no_plan_file_can_say(tmp_path: pathlib.Path, changed: dict[str, Any], said: str) -> None:
    path = tmp_path / "told.json"
    path.write_text(json.dumps(strategy(**changed)))
    with pytest.raises(adapting.PlannerFailed, match=said):
        galvatron.answer(asked(GPT), str(path))


def test_the_released_program_of_pase_is_run_and_its_strategy_priced(tmp_path: pathlib.Path) -> None:
    problem = asked("pase/alexnet-8")
    axes = api.plan("pase:alexnet", search="pase", settings={"n_processors": "8", "batch": "128"}).answer.extra["axes"]
    assert isinstance(axes, dict)
    lines = [
        f"{i}    ({', '.join(['8'] + ['1'] * (len(axes[layer['name']]) - 1))})" for i, layer in enumerate(problem["layers"])
    ]
    said = ["Node: 0; Type: Conv; Configs: 4", "Strategy with minimum cost:", "=====", *lines, "=====", "Total cost: 1.00"]
    body = f"assert sys.argv[1:] == ['-g', 'alexnet', '-p', '8', '-b', '128']\nprint({chr(10).join(said)!r})"
    program(tmp_path / "scheduler.py", body)
    found = judged("pase/alexnet-8", pase.answer(problem, str(tmp_path)), tmp_path)
    (row,) = (row for row in published.rows("pase/pase.csv") if (row["graph"], row["p"], row["algo"]) == ("alexnet", "8", "0"))
    assert found.value == float(row["data_parallel_cost"])  # what the released program prices those splits at
    program(tmp_path / "scheduler.py", f"print({chr(10).join(said[:-3])!r})")
    with pytest.raises(adapting.PlannerFailed, match="no strategy"):
        pase.answer(problem, str(tmp_path))


def test_what_an_adapter_does_not_take_is_declined_and_what_fails_fails(tmp_path: pathlib.Path) -> None:
    problem, plan = tmp_path / "problem.json", tmp_path / "plan.json"
    problem.write_text(json.dumps(asked("pase/alexnet-8")))
    for name in ("calculon", "galvatron"):
        assert adapting.main([name, "nowhere", str(problem), str(plan)]) == DECLINED
    assert adapting.main(["pase", str(tmp_path), str(problem), str(plan)]) == DECLINED  # no scheduler.py
    program(tmp_path / "scheduler.py", "sys.exit(3)")
    assert adapting.main(["pase", str(tmp_path), str(problem), str(plan)]) == 1 and not plan.exists()


def test_adapters_are_named_before_a_colon() -> None:
    found = bench.adapter("pase:/some/where")
    assert found is not None and (found.name, found.adapted, found.ours) == ("pase:where", True, False)
    assert found.words[-2:] == ("pase", "/some/where")
    assert bench.adapter("python3 mine.py") is None and bench.adapter("other:thing") is None
    with pytest.raises(InputError, match="pase:PATH"):
        bench.adapter("pase:")
