"""``meshwright export``: plans for other programs, what their formats cannot say, and what is refused."""

from __future__ import annotations

import itertools
import json
import pathlib
import subprocess
from dataclasses import replace
from typing import Any

import pytest

import meshwright as mw
from meshwright import api
from meshwright.base.errors import ExportError, InputError, UnknownNameError
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch
from meshwright.core.result import Answer, Result
from meshwright.core.strategy import Strategy
from meshwright.costs import analytic
from meshwright.frameworks.megatron import model
from meshwright.frameworks.megatron.writers import megatron_args


def piper_file(folder: pathlib.Path, **limits: Any) -> str:
    """Write a diamond of four layers with two choices each at degrees 1 and 2."""
    pairs = [(0, 1), (0, 2), (1, 3), (2, 3)]
    nodes = []
    for v in range(4):
        menu = {}
        for degree in (1, 2):
            entries = []
            for name, seconds, held in (("vanilla", 3.0, 6.0), ("activation recomp", 4.0, 1.0)):
                entries.append({
                    "id": name, "timePerSample": (seconds + v) / degree, "parameterSize": 2.0, "memoryUsageA": held,
                    "memoryUsageB": 3.0, "syncTimeFw": {str(u): 0.5 for u, x in pairs if x == v},
                    "syncTimeBw": {str(x): 0.25 for u, x in pairs if u == v},
                })  # fmt: skip
            menu[str(degree)] = entries
        nodes.append({"id": v, "name": f"layer {v}", "TMPCs": menu})
    edges = [{"sourceId": u, "destId": v, "communicationCost": 1.0} for u, v in pairs]
    content = {"maxMemoryPerDevice": 40.0, "maxDevices": 4, "mbsInBatch": 8, "bandwidth": 8.0, "nodes": nodes, "edges": edges}
    path = folder / "diamond.json"
    path.write_text(json.dumps(content | limits))
    return str(path)


def test_a_piper_plan_exported_and_planned_again_has_the_same_objective(meshwright: Any, tmp_path: pathlib.Path) -> None:
    path = piper_file(tmp_path)
    first = meshwright("plan", path, "--set", "max_devices=3", "--set", "memory=30", "--out", "plan.json", "--json").json
    done = meshwright("export", "plan.json", "--to", "piper_json", "--out", "again.json")
    assert (done.code, done.out, done.err) == (0, "again.json: written\n", "")
    again = meshwright("plan", "again.json", "--json").json
    assert again["objective"] == first["objective"]
    assert again["choices"] == first["choices"]
    content = json.loads((tmp_path / "again.json").read_text())
    assert (content["maxDevices"], content["maxMemoryPerDevice"]) == (3, 30.0)
    assert [sorted(node["TMPCs"]) for node in content["nodes"]] == [["1", "2"]] * 4


def test_either_name_of_the_batch_is_read_and_the_one_that_the_original_reads_is_written(tmp_path: pathlib.Path) -> None:
    path = pathlib.Path(piper_file(tmp_path))
    content = json.loads(path.read_text())
    content["maxBatchSize"] = content.pop("mbsInBatch")
    other = tmp_path / "other.json"
    other.write_text(json.dumps(content))
    assert api.read(str(other)).instance == api.read(str(path)).instance
    mw.export(api.plan(str(other)), "piper_json", str(tmp_path / "written.json"))
    written = json.loads((tmp_path / "written.json").read_text())
    assert written["mbsInBatch"] == 8 and "maxBatchSize" not in written


def test_what_the_original_program_will_not_do_is_told(meshwright: Any, tmp_path: pathlib.Path) -> None:
    path = piper_file(tmp_path)
    meshwright("plan", path, "--set", "data_parallel=false", "--out", "plan.json", "--json")
    done = meshwright("export", "plan.json", "--to", "piper_json", "--out", "again.json")
    assert done.code == 0 and "data_parallel=false is no part of the file" in done.err
    meshwright("plan", path, "--set", "any_replicas=true", "--out", "plan.json", "--json")
    done = meshwright("export", "plan.json", "--to", "piper_json", "--out", "other.json")
    assert done.code == 2 and "no field for any_replicas" in done.err
    assert not (tmp_path / "other.json").exists()


def test_a_model_of_ours_reaches_the_original_with_the_times_and_bytes_of_our_cost_model(
    tiny: str, tmp_path: pathlib.Path
) -> None:
    """One replica: the sums over a stage's layers in the file are what our cost model says of the whole stage."""
    result = api.plan(tiny, "dgx-h100:8", search="piper", batch=Batch(global_batch=16, micro_batch=2), memory_risk=0.5)
    path = str(tmp_path / "tiny.json")
    assert mw.export(result, "piper_json", path) == ()
    instance = api.read(path).instance
    assert (instance.n_devices, instance.n_microbatches) == (8, 8)
    assert [node.name for node in instance.nodes] == [op.name for op in result.problem.graph.ops]
    assert instance.degrees == (1, 2, 4, 8)
    for degree in instance.degrees:
        strategy = Strategy(tensor=degree, sequence_parallel=degree > 1)
        ops = tuple(range(len(instance.nodes)))
        plan = Plan((Stage(ops, tuple(range(degree)), strategy, ("none",) * len(ops)),), 8, 2, "1f1b", 16)
        (load,) = analytic.stage_costs(result.problem, plan)
        chosen = [node.at(degree)[0] for node in instance.nodes]
        seconds = load.forward_total_seconds + load.backward_total_seconds
        assert sum(choice.seconds for choice in chosen) == pytest.approx(seconds, rel=1e-9)
        assert sum(choice.activation_bytes for choice in chosen) == pytest.approx(load.activation_bytes, rel=1e-9)
        device = result.problem.cluster.device(0)
        left = instance.memory_bytes - sum(choice.static_bytes for choice in chosen)
        room = device.memory_bytes - device.reserved_bytes - load.static_bytes - load.working_bytes
        assert 0.99 * room <= left <= room, "the original never fits more than we do"
    again = api.plan(path)
    assert again.feasible and again.answer.bound.method == "exact"


def test_a_captured_graph_reaches_the_original(meshwright: Any, tmp_path: pathlib.Path) -> None:
    figures = {
        "forward_flops": 0.0, "backward_flops": 0.0, "parameter_bytes": 0, "output_bytes": 0, "saved_bytes": 0, "n_forward": 1,
        "n_backward": 1,
    }  # fmt: skip
    product = {"name": "product", "kind": "matmul", "dims": {"sequence": 64, "in": 512, "out": 512}, "n_parameters": 262144}
    names = [f"layers.{i}" for i in range(4)]
    document = {
        "format": "meshwright/graph/1", "name": "stack", "source": "here:stack", "level": "layers", "batch": 1,
        "element_bytes": 2,
        "sequence_length": 64, "tokens_name": "tokens", "n_parameters": 4 * 262144, "n_shared_parameters": 0,
        "n_active_parameters": 0, "totals": figures, "notes": [], "bodies": [[product]],
        "ops": [{"name": name, "kind": "matmul", "body": 0, **figures} for name in names],
        "edges": [[i, i + 1, 64 * 512] for i in range(3)],
    }  # fmt: skip
    (tmp_path / "graph.json").write_text(json.dumps(document))
    made = meshwright("plan", "graph.json", "--cluster", "dgx-h100:4", "--global-batch", "8", "--out", "plan.json", "--json")
    assert made.code == 0
    assert meshwright("export", "plan.json", "--to", "piper_json", "--out", "stack.json").code == 0
    content = json.loads((tmp_path / "stack.json").read_text())
    assert [node["name"] for node in content["nodes"]] == names
    assert all(edge["communicationCost"] > 0 for edge in content["edges"])
    again = meshwright("plan", "stack.json", "--json")
    assert again.code == 0 and again.json["bound"]["method"] == "exact"


def test_other_programs_take_a_plan_too(meshwright: Any, tiny: str, tmp_path: pathlib.Path) -> None:
    meshwright("plan", tiny, "--cluster", "dgx-h100:4", "--global-batch", "8", "--out", "plan.json", "--json")
    for name in ("chrome_trace", "dot", "plan_json", "report_html"):
        assert meshwright("export", "plan.json", "--to", name, "--out", name).code == 0, name
    kept, written = (json.loads((tmp_path / name).read_text()) for name in ("plan.json", "plan_json"))
    for field in ("objective", "bound", "stages", "step_seconds", "schedule", "search", "settings"):
        assert written[field] == kept[field]


def test_a_model_of_ours_becomes_a_profile_that_dapple_plans(meshwright: Any, tiny: str, tmp_path: pathlib.Path) -> None:
    meshwright(
        "plan", tiny, "--cluster", "dgx-h100:4", "--global-batch", "8", "--micro-batch", "2", "--out", "plan.json", "--json"
    )
    done = meshwright("export", "plan.json", "--to", "pipedream_txt", "--out", "tiny.txt")
    assert done.code == 0
    assert "not measured" in done.err and "--set profile_batch=2" in done.err
    model_spec = mw.read(str(tmp_path / "tiny.txt"))
    question = mw.read(tiny).graph
    assert len(model_spec.instance.nodes) == len(question.ops)
    assert sum(node.parameter_bytes for node in model_spec.instance.nodes) >= 4 * question.n_parameters
    problem = api.make_problem(tiny, "dgx-h100:4", batch=Batch(8, 2))
    whole = analytic.stage_costs(problem, Plan((Stage(tuple(range(len(question.ops))), (0,)),), 4, 2, "1f1b", 8))[0]
    seconds = sum(node.forward_milli_seconds for node in model_spec.instance.nodes) / 1e3
    assert seconds == pytest.approx(whole.forward_total_seconds, rel=1e-9)
    planned = meshwright("plan", "tiny.txt", "--search", "dapple", "--cluster", "dgx-h100:4", "--global-batch", "8", "--set",
                         "profile_batch=2", "--json")  # fmt: skip
    assert planned.code == 0 and planned.json["step_seconds"] > 0


def test_what_cannot_be_exported_is_refused_in_one_message(tiny: str, tmp_path: pathlib.Path) -> None:
    result = api.plan(tiny, "dgx-h100:4", batch=Batch(global_batch=8))
    with pytest.raises(UnknownNameError, match="did you mean 'piper_json'"):
        mw.export(result, "piper_jsn", str(tmp_path / "x"))
    with pytest.raises(ExportError, match="codesign"):
        mw.export(result, "wiring_csv", str(tmp_path / "x"))
    with pytest.raises(InputError, match="does not exist"):
        mw.export(result, "dot", str(tmp_path / "no" / "x"))
    with pytest.raises(InputError, match="plan files"):
        mw.export(result, "dot", str(tmp_path / "x"), cluster="dgx-h100:4")
    with pytest.raises(InputError, match="cannot be read"):
        mw.export(str(tmp_path / "none.json"), "dot", str(tmp_path / "x"))
    nothing = replace(result, answer=Answer(None))
    with pytest.raises(InputError, match="nothing fits"):
        mw.export(nothing, "dot", str(tmp_path / "x"))


def megatron(tiny: str, counts: tuple[int, ...], strategy: Strategy, **changes: Any) -> Result:
    """A plan of the tiny model (embedding, four layers, head) with stages of these many layers on consecutive devices."""
    problem = api.make_problem(tiny, "dgx-h100:16", batch=Batch(32, 1))
    edges = [0, *itertools.accumulate(counts)]
    size = strategy.n_devices
    n_ranks = changes.pop("n_ranks", len(counts))
    recompute = changes.pop("recompute", ("none",) * 6)
    stages = tuple(
        Stage(tuple(range(a, b)), tuple(range(i % n_ranks * size, (i % n_ranks + 1) * size)), strategy, recompute[a:b])
        for i, (a, b) in enumerate(itertools.pairwise(edges))
    )
    plan = replace(Plan(stages, 32 // strategy.data, 1, "1f1b", 32), **changes)
    stage_costs, timeline = api.evaluate(problem, plan)
    return Result(problem, "best", 0, Answer(plan), stage_costs, timeline)


def flags(result: Result) -> list[str]:
    return [" ".join(words) for words in megatron_args.arguments(result)]


def test_megatron_is_told_degrees_batch_and_sharding(tiny: str) -> None:
    result = megatron(tiny, (3, 3), Strategy(data=4, tensor=2, sequence_parallel=True, shard=1))
    assert flags(result) == [
        "--tensor-model-parallel-size 2", "--pipeline-model-parallel-size 2", "--sequence-parallel", "--tp-comm-overlap",
        "--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather", "--micro-batch-size 1",
        "--global-batch-size 32", "--bf16",
    ]  # fmt: skip


def test_megatron_is_told_uneven_and_virtual_stages(tiny: str) -> None:
    assert "--pipeline-model-parallel-layout Et*3|t*1L" in flags(megatron(tiny, (4, 2), Strategy(tensor=2)))
    virtual = megatron(tiny, (2, 1, 1, 2), Strategy(tensor=2), n_ranks=2, schedule="interleaved_1f1b")
    assert "--num-virtual-stages-per-pipeline-rank 2" in flags(virtual)


def test_megatron_recomputes_exactly_as_planned_or_the_plan_is_refused_with_the_nearest(
    tiny: str, tmp_path: pathlib.Path
) -> None:
    full = megatron(tiny, (3, 3), Strategy(tensor=2), recompute=("none", "full", "full", "full", "full", "none"))
    assert {"--recompute-granularity full", "--recompute-method uniform", "--recompute-num-layers 1"} <= set(flags(full))
    block = megatron(tiny, (3, 3), Strategy(tensor=2), recompute=("none", "full", "none", "full", "none", "none"))
    assert {"--recompute-method block", "--recompute-num-layers 1"} <= set(flags(block))
    some = megatron(tiny, (3, 3), Strategy(tensor=2), recompute=("none", "full", "full", "full", "none", "none"))
    light = megatron(tiny, (3, 3), Strategy(tensor=2), recompute=("none", "selective", "none", "none", "none", "none"))
    for outside, why in ((some, "recompute differently"), (light, "recomputation 'selective'")):
        with pytest.raises(
            ExportError, match=rf"{why}.*--for megatron.*Nearest with the same stages: .*'none', [0-9.e-]+ s a step"
        ):
            mw.export(outside, "megatron", str(tmp_path / "x.sh"))
        assert not (tmp_path / "x.sh").exists()


def test_a_plan_that_megatron_cannot_run_is_refused_with_the_reason(tiny: str, tmp_path: pathlib.Path) -> None:
    good = megatron(tiny, (3, 3), Strategy(tensor=2))

    def refused(message: str, **changes: Any) -> None:
        result = replace(good, answer=Answer(replace(good.plan, **changes)))
        with pytest.raises(ExportError, match=message):
            mw.export(result, "megatron_args", str(tmp_path / "x.sh"))
        assert not (tmp_path / "x.sh").exists()

    first, second = good.plan.stages
    refused("2 different sets of degrees", stages=(first, replace(second, strategy=Strategy(tensor=4), devices=(2, 3, 4, 5))))
    refused("schedule zb_h1; it has 1f1b, interleaved_1f1b", schedule="zb_h1")
    refused("devices out of order", stages=(first, replace(second, devices=(4, 5))))
    refused(
        "embedding is not on the first stage",
        stages=(replace(first, ops=(1, 2, 3)), replace(second, ops=(0, 4, 5))),
    )
    with pytest.raises(ExportError, match="trains decoders"):
        mw.export(
            api.plan("bert-base", "dgx-h100:2", batch=Batch(8), settings={"pipeline": "1"}),
            "megatron_args",
            str(tmp_path / "x.sh"),
        )
    with pytest.raises(ExportError, match="a model read from piper_json"):
        mw.export(api.plan(piper_file(tmp_path)), "megatron_args", str(tmp_path / "x.sh"))


def test_the_megatron_script_is_valid_shell(tiny: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "train.sh"
    notes = mw.export(megatron(tiny, (3, 3), Strategy(data=4, tensor=2)), "megatron_args", str(path))
    assert any("rope_theta" in note for note in notes)
    text = path.read_text()
    assert "--nnodes 2" in text and "--nproc-per-node 8" in text and "--num-layers 4" in text
    subprocess.run(["bash", "-n", str(path)], check=True)


def test_megatron_is_told_where_experts_are_and_what_of_the_configuration_is_left_out(tmp_path: pathlib.Path) -> None:
    fields: dict[str, Any] = {
        "model_type": "qwen3_moe", "hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 32,
        "num_hidden_layers": 4,
        "num_attention_heads": 4, "vocab_size": 100, "num_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 64,
    }  # fmt: skip
    path = tmp_path / "config.json"

    def told(**more: Any) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
        path.write_text(json.dumps(fields | more))
        options, notes = model.arguments(str(path), mw.read(str(path)).graph)
        return {words[0]: words[1:] for words in options}, notes

    options, notes = told(rope_theta=5e5, decoder_sparse_step=2)
    assert options["--moe-layer-freq"] == ("[0,1,0,1]",)
    assert options["--rotary-base"] == ("500000",)
    assert notes == ()
    options, notes = told(rope_parameters={"rope_type": "llama3", "rope_theta": 1e6, "factor": 4.0})
    assert "--moe-layer-freq" not in options
    assert options["--rotary-base"] == ("1000000",)
    assert options["--use-rope-scaling"] == ("--rope-scaling-factor", "4")
    options, notes = told(rope_scaling={"type": "dynamic", "factor": 2.0})
    assert [next(word for word in ("rope_theta", "dynamic") if word in note) for note in notes] == ["rope_theta", "dynamic"]
    assert options["--position-embedding-type"] == ("rope",)
    with pytest.raises(ExportError, match="biases of queries, keys and values and attention's output only"):
        told(attention_bias=True)
    options, _ = told(use_sliding_window=True, sliding_window=8, max_window_layers=2)
    assert (options["--window-size"], options["--window-attn-skip-freq"]) == (("7,0",), ("[0,0,1,1]",))


def test_an_answer_that_nothing_fits_is_named_as_such_wherever_a_plan_is_asked_for(meshwright: Any) -> None:
    assert meshwright("plan", "llama-3.1-405b", "--cluster", "dgx-h100:8", "--out", "nothing.json").code == 3
    for words in (("export", "nothing.json", "--to", "megatron", "--out", "x"), ("simulate", "nothing.json")):
        found = meshwright(*words)
        said = "meshwright: nothing.json: holds the answer that nothing fits, so there is no plan to work with\n"
        assert (found.code, found.err) == (2, said)


@pytest.mark.parametrize(("to", "last"), [("chakra", "a.3.et"), ("kineto_trace", "a.0.json")])
def test_where_several_files_are_written_these_are_named(
    meshwright: Any, tiny: str, to: str, last: str, tmp_path: pathlib.Path
) -> None:
    meshwright(
        "plan", tiny, "--cluster", "flat:4", "--global-batch", "8", "--set", "pipeline=1", "--set", "data=4", "--out", "p.json"
    )
    done = meshwright("export", "p.json", "--to", to, "--out", "a")
    assert done.code == 0 and "a: written" not in done.out and done.out.endswith(": written\n")
    named = [word.strip(",:") for word in done.out.split() if word.startswith("a.")]
    assert last in named and all((tmp_path / name).exists() for name in named)


def test_a_plan_made_for_a_framework_is_refused_without_the_advice_to_make_it(tiny: str, tmp_path: pathlib.Path) -> None:
    """Of a file of old, say: today's search has no plan on hosts that take part with unlike numbers of devices."""
    problem = api.make_problem(tiny, "dgx-h100:12", batch=Batch(12), framework="megatron")
    stage = Stage(
        tuple(range(len(problem.graph.ops))), tuple(range(12)), Strategy(12, shard=1), ("none",) * len(problem.graph.ops)
    )
    plan = Plan((stage,), 1, 1, "1f1b", 12)
    told = []
    for asked in ("megatron", ""):
        with pytest.raises(ExportError, match="hosts take part with 4 and 8 devices") as error:
            mw.export(
                Result(replace(problem, framework_asked=asked), "best", 0, Answer(plan)), "megatron", str(tmp_path / "a.sh")
            )
        told.append(str(error.value))
    assert "finds the best plan" not in told[0] and told[0].endswith("'meshwright run' runs this one")
    assert "'meshwright plan ... --for megatron' finds the best plan that it can run" in told[1]
