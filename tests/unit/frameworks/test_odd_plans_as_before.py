"""Which odd plans every framework refuses and why, what it is told of others and starts, what words and files are."""

from __future__ import annotations

import ast
import functools
import pathlib
import zlib
from collections.abc import Iterator
from dataclasses import replace

import pytest

from edited import answer, answers
from meshwright import api, frameworks
from meshwright.base.errors import ExportError, InputError, MeshwrightError, UnknownNameError
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch, MixedPrecision, ModelSpec, Problem
from meshwright.core.result import Answer, Result
from meshwright.core.strategy import ALTERNATE, Strategy
from meshwright.frameworks import _command_line, _exact, _one_config, _python_file
from meshwright.frameworks.megatron import families, shape
from meshwright.frameworks.torchtitan import flavors
from meshwright.models.readers import huggingface
from recorded import Recorded

SUFFIX = {
    "accelerate": "yaml", "deepspeed": "json", "fsdp2": "py", "maxtext": "yml", "megatron": "sh", "megatron_bridge": "py",
    "nanotron": "yaml", "torchtitan": "py", "transformers": "json",
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 128, "vocab_size": 1000, "max_position_embeddings": 128,
}  # fmt: skip
MIXTURE = {
    "model_type": "deepseek_v3", "hidden_size": 64, "num_hidden_layers": 5, "num_attention_heads": 4, "intermediate_size": 128,
    "vocab_size": 1000, "max_position_embeddings": 128, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8, "v_head_dim": 16, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "n_shared_experts": 1, "first_k_dense_replace": 1, "num_nextn_predict_layers": 1,
}  # fmt: skip


@functools.cache
def posed(name: str, mixture: bool = False) -> Problem:
    graph = huggingface.graph_of(MIXTURE if mixture else LLAMA, "small", sequence_length=128)
    spec = ModelSpec("small", "huggingface", "", graph, costs="analytic", search="best")
    cluster = api.make_problem("llama-3.2-1b", "flat:64").cluster
    return Problem(spec, cluster, framework=frameworks.plain(name))


def staged(strategy: Strategy, counts: list[int], ranks: list[int], schedule: str = "1f1b", **said: object) -> Plan:
    """Return stages of so many layers each, embedding and head counted, on the ranks that are given."""
    first, stages, size, word = 0, [], strategy.n_devices, str(said.get("word", "none"))
    n, micro = int(str(said.get("n", 4))), int(str(said.get("micro", 2)))
    for count, rank in zip(counts, ranks, strict=True):
        ops = tuple(range(first, first + count))
        words = tuple("none" if op in (0, 7) else word for op in ops)
        stages.append(Stage(ops, tuple(range(rank * size, (rank + 1) * size)), strategy, words))
        first += count
    return Plan(tuple(stages), n, micro, schedule, n * micro * strategy.data)


def odd_plans() -> Iterator[tuple[str, Plan]]:
    """Yield plans that differ from plain ones in one thing each."""
    for axes in (
        (1, 1, 1, 1), (4, 1, 1, 1), (2, 3, 1, 1), (2, 2, 1, 2), (1, 2, 2, 1), (2, 2, 2, 4), (2, 1, 4, 8), (3, 1, 1, 2),
        (2, 2, 1, 8), (6, 1, 2, 4),
    ):  # fmt: skip
        for level, degree in ((0, 0), (1, 0), (2, 0), (3, 0), (3, 2), (1, 2), (3, 1), (0, 2), (3, axes[0])):
            yield f"{axes} {level}/{degree}", staged(Strategy(*axes, False, level, degree), [8], [0])
    two = Strategy(2, 1, 1, 1, False, 1)
    for schedule in ("1f1b", "gpipe", "interleaved_1f1b", "looped_bfs", "zb_h1", "zb_v", "dualpipev"):
        for counts, ranks in (
            ([8], [0]), ([4, 4], [0, 0]), ([4, 4], [0, 1]), ([4, 4], [1, 0]), ([3, 5], [0, 1]), ([2, 2, 2, 2], [0, 1, 0, 1]),
            ([2, 2, 2, 2], [0, 1, 1, 0]), ([2, 2, 2, 2], [0, 0, 1, 1]), ([1, 2, 2, 3], [0, 1, 0, 1]), ([3, 3, 2], [0, 1, 2]),
        ):  # fmt: skip
            for n in (3, 4):
                yield f"{schedule} {counts} {ranks} {n}", staged(two, counts, ranks, schedule, n=n)
    for word in ("full", "selective", ALTERNATE, "core_attn", "core_attn+mlp", "moe"):
        plan = staged(Strategy(2, 2, 1, 1, True), [4, 4], [0, 1], word=word)
        yield word, plan
        first, last = plan.stages
        yield f"{word} of some", replace(plan, stages=(replace(first, recompute=("none", word, "none", "none")), last))
        yield (
            f"{word} of first",
            replace(
                plan,
                stages=(
                    replace(first, recompute=("none", word, "none", "none")),
                    replace(last, recompute=(word, *["none"] * 3)),
                ),
            ),
        )
        yield f"{word} of the end", replace(plan, stages=(replace(first, recompute=(word,) * 4), last))
    plan = staged(two, [4, 4], [0, 1])
    first, last = plan.stages
    yield "global batch", replace(plan, global_batch=plan.global_batch + 1)
    yield "no words", replace(plan, stages=(replace(first, recompute=()), replace(last, recompute=())))
    yield "turned", replace(plan, stages=(replace(first, ops=last.ops), replace(last, ops=first.ops)))
    yield "unsorted", replace(plan, stages=(replace(first, ops=(0, 2, 1, 3)), last))
    yield "unlike", replace(plan, stages=(first, replace(last, strategy=Strategy(1, 2))))
    yield "ring", replace(plan, stages=(replace(first, ring=(0, 1)), last))
    yield "data outermost", replace(plan, stages=(replace(first, devices=(0, 2)), replace(last, devices=(1, 3))))
    yield "devices", replace(plan, stages=(replace(first, devices=(1, 0)), last))


@pytest.mark.parametrize("name", sorted({*SUFFIX, "meshwright", "megatron_deepspeed"}))
def test_odd_plans_are_refused_as_before(name: str, recorded: Recorded) -> None:
    problem, found = posed(name), dict[str, str]()
    for key, plan in odd_plans():
        reasons = "; ".join(frameworks.refusals(problem.framework, plan, problem))
        found[key] = f"{reasons.count(';')}{zlib.crc32(reasons.encode()) & 0xFFFF:04x}" if reasons else ""
    mixture = posed(name, mixture=True)
    for key, plan in (("mixture", Strategy(4, 2, 1, 4)), ("folded", Strategy(2, 2, 1, 4, True, 1)), ("ahead", Strategy(8))):
        reasons = "; ".join(frameworks.refusals(mixture.framework, staged(plan, [4, 4], [0, 1]), mixture))
        found[key] = f"{reasons.count(';')}{zlib.crc32(reasons.encode()) & 0xFFFF:04x}" if reasons else ""
    recorded([" ".join(of or "-" for of in found.values()), len(found)])


@pytest.mark.parametrize("name", sorted({*SUFFIX, "meshwright", "megatron_deepspeed"}))
def test_bytes_that_a_framework_does_not_hold_are_refused_as_before(name: str, recorded: Recorded) -> None:
    problem, plan, found = posed(name), staged(Strategy(4, shard=1), [8], [0]), dict[str, tuple[str, ...]]()
    usual = MixedPrecision()
    for field in ("activation_bytes", "weight_bytes", "gradient_bytes", "optimizer_bytes"):
        for value in (1, 2, 8):
            other = replace(problem, training=replace(usual, **{field: value}))
            found[f"{field} {value}"] = frameworks.refusals(problem.framework, plan, other)
    for training in (usual.updated_by("sgd"), usual.updated_by("lion"), MixedPrecision.of("fp4")):
        other = replace(problem, training=training)
        found[f"{training.optimizer} {training.state_bytes} {training.precision}"] = frameworks.refusals(
            problem.framework, plan, other
        )
    reasons: dict[str, list[str]] = {}
    for key, said in found.items():
        reasons.setdefault("; ".join(said), []).append(key)
    recorded(reasons)


def written(name: str, problem: Problem, plan: Plan, path: pathlib.Path) -> str:
    """Return what is written, noted, started and asked for, as one line, or why nothing is."""
    module, result, said = frameworks.load(name), Result(problem, "best", 0, Answer(plan)), []
    try:
        notes = module.write(result, str(path))
        said.append(f"{zlib.crc32(path.read_text().replace(str(path.parent), '').encode()):08x} {notes}")
    except MeshwrightError as error:
        said.append(str(error)[:90])
    if hasattr(module, "program"):
        try:
            command = module.program(result, str(path))
            said.append(f"{command.command} {command.axes} {command.environment} {command.needs}")
        except MeshwrightError as error:
            said.append(str(error))
    text = " | ".join(said).replace(f"{path.parent}/", "")
    return f"{text[:44]} {zlib.crc32(text.encode()):08x}"


@pytest.mark.parametrize("name", sorted(SUFFIX))
def test_what_is_written_and_started_is_as_before(name: str, tmp_path: pathlib.Path, recorded: Recorded) -> None:
    found = {}
    for model in ("llama-3.2-1b", "gpt2", "qwen3-8b"):
        problem = api.make_problem(model, "dgx-a100:16", framework=name, batch=Batch(16, 1, 128))
        last = len(problem.graph.ops) - 1
        for strategy, suffix in (
            (Strategy(16, shard=3), "json"), (Strategy(8, 2, shard=3), "sh"), (Strategy(4, 2, 2, 1, False, 3, 2), "py"),
            (Strategy(4, 2, 1, 1, True, 1), "yaml"), (Strategy(8), ""), (Strategy(2, 2, 2, shard=2), ""),
        ):  # fmt: skip
            if name == "torchtitan" and strategy.expert > 1:
                continue
            words = ("none", *["full" if strategy.data > 4 else "none"] * (last - 1), "none")
            stage = Stage(tuple(range(last + 1)), tuple(range(strategy.n_devices)), strategy, words)
            plan = Plan((stage,), 2, 4, "1f1b", 8 * strategy.data)
            path = tmp_path / f"a plan.{suffix or SUFFIX[name]}"
            found[f"{model} {strategy.data} {strategy.tensor} {strategy.shard}"] = written(name, problem, plan, path)
    recorded(found)


MEGATRON = {
    "dense": """--num-layers 6 --hidden-size 64 --num-attention-heads 8 --vocab-size 1000 --swiglu --disable-bias-linear
        --group-query-attention --num-query-groups 2 --kv-channels 16 --seq-length 128 --window-size (31,0)
        --window-attn-skip-freq 3 --ffn-hidden-size 100 --max-position-embeddings 256 --add-qkv-bias""",
    "gpt": "--num-layers 6 --hidden-size 64 --num-attention-heads 4 --vocab-size 9 --position-embedding-type learned_absolute",
    "mixture": """--num-layers 4 --hidden-size 64 --num-attention-heads 4 --vocab-size 1000 --swiglu --num-experts 8
        --moe-ffn-hidden-size 32 --moe-router-topk 2 --qk-layernorm --moe-layer-freq ([0]*2+[1]*2)""",
    "latent": """--num-layers 4 --hidden-size 64 --num-attention-heads 4 --vocab-size 1000 --swiglu --num-experts 8
        --multi-latent-attention --q-lora-rank 16 --kv-lora-rank 24 --qk-head-dim 12 --qk-pos-emb-head-dim 4 --v-head-dim 20
        --moe-router-score-function sigmoid --moe-shared-expert-intermediate-size 64 --moe-ffn-hidden-size 32
        --moe-layer-freq [0,1,1,1] --mtp-num-layers 1""",
    "scored": """--num-layers 4 --hidden-size 64 --num-attention-heads 4 --vocab-size 1000 --swiglu --num-experts 8
        --moe-router-enable-expert-bias --moe-layer-freq 1 --moe-shared-expert-intermediate-size 128 --add-qkv-bias""",
    "shared": """--num-layers 4 --hidden-size 64 --num-attention-heads 4 --vocab-size 1000 --swiglu --num-experts 8
        --moe-layer-freq 2 --moe-shared-expert-intermediate-size 48""",
    "clamped": """--num-layers 4 --hidden-size 64 --num-attention-heads 4 --vocab-size 1000 --quick-geglu --num-experts 8
        --moe-ffn-hidden-size 32 --softmax-type learnable --window-size 63,0 --window-attn-skip-freq [1,0,1,0]""",
}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(MEGATRON))
def test_architectures_in_options_are_read_as_before(kind: str, recorded: Recorded) -> None:
    def read(text: str) -> str:
        return str(sorted(shape.fields_of(_command_line.options(text.replace("\n", " "), "mine"), "mine").items(), key=str))

    text = MEGATRON[kind].replace("(31,0)", '"(31,0)"').replace("([0]*2+[1]*2)", '"([0]*2+[1]*2)"')
    recorded(answers(read, text.replace(" --", "\n--")))


def test_what_families_of_megatron_have_is_told_as_before(recorded: Recorded) -> None:
    found = {}
    several = (
        {}, {"attention_bias": True}, {"mlp_bias": True}, {"use_bias": True}, {"attention_bias": True, "mlp_bias": True},
        {"hidden_act": "gelu"}, {"hidden_act": "swish", "rms_norm_eps": 1e-5, "norm_eps": 1e-3}, {"swiglu_limit": 3.0},
        {"use_qk_norm": True}, {"head_dim": 24}, {"partial_rotary_factor": 0.25}, {"no_rope_layer_interval": 3},
        {"rope_parameters": {"partial_rotary_factor": 0.75}}, {"no_rope_layers": [1, 1, 0, 1]}, {"norm_topk_prob": True},
        {"norm_topk_prob": False},
    )  # fmt: skip
    for family in families.FAMILIES:
        for i, own in enumerate(several):
            fields = {"hidden_size": 64, "num_attention_heads": 4, **own}
            for function in (families.layer, families.head_size, families.weighing, families.rotary):
                said = answer(lambda _, function=function, said=(fields, family): function(*said), "")
                found[f"{family} {i} {function.__name__}"] = said
            found[f"{family} {i} no"] = answer(lambda _, said=(fields, family, 4): families.no_positions(*said), "")
    recorded({family: zlib.crc32(str([of for key, of in found.items() if key.split()[0] == family]).encode())
              for family in families.FAMILIES})  # fmt: skip
    windows = ((0, 0), (32, 32), (32, 0), (32, 64), (128, 32), (127, 127))
    recorded([answer(lambda _, of=of: families.windows(of, 128), "") for of in windows], "windows")


def test_constants_of_a_module_are_what_python_makes_of_them() -> None:
    text = """A = 3
B = [A, 2 * A, A + 1]
C = {"a": A, "b": (1, "x")}
D = dict(a=A, b=B)
E = B + [1]
F = [0] * 2 + 2 * [1]
G = open("x")
H = {**C}
I = f(1, a=2)
J, K = 1, 2
L = -1
M = [1] * 99999
N = A * True
O = B * B
P = 10 ** 3
a.b = 4
"""
    named = _python_file.constants(ast.parse(text))
    assert named == {
        "A": 3, "B": [3, 6, 4], "C": {"a": 3, "b": [1, "x"]}, "D": {"a": 3, "b": [3, 6, 4]}, "E": [3, 6, 4, 1],
        "F": [0, 0, 1, 1], "L": -1,
    }  # fmt: skip
    assert [(parts, line) for parts, _, line in _python_file.assigned(ast.parse(text + "x.y.z = a.b = 2\n"))] == [
        (["a", "b"], 16), (["x", "y", "z"], 17), (["a", "b"], 17),
    ]  # fmt: skip
    for ten_thousand, fits in (("[1] * 10000", True), ("[1] * 10001", False), ("10000 * [1]", True), ("1000000000 + 1", False),
                               ("999999999 + 1", True), ("-1 + 1", False), ("2 + [1]", False), ("'a' * 2", False)):  # fmt: skip
        node = ast.parse(ten_thousand, mode="eval").body
        if fits:
            assert _python_file.value(node, {}) == eval(ten_thousand)
        else:
            with pytest.raises(ValueError, match=r"no constant|malformed"):
                _python_file.value(node, {})


@pytest.mark.parametrize(
    ("text", "n"),
    [
        ("torchrun --nnodes 2 --nproc-per-node 8 a.py", 16), ("torchrun --nproc_per_node=4 a.py", 4), ("--num_processes 6", 6),
        ("--num-processes=6", 6), ("--nnodes 2", 0), ("--nnodes=3 --nproc-per_node 2 --num_processes 9", 6), ("", 0),
        ("--nproc-per-node gpu", 0),
    ],
)  # fmt: skip
def test_processes_are_those_of_the_command(text: str, n: int) -> None:
    assert _python_file.started(text) == n


def test_a_command_in_comments_is_read_over_its_lines() -> None:
    text = "#!/bin/bash\n# accelerate launch --a 1 x.py \\\n#   --b=2 --c 3 4 \\\n# --d\n# --e 5\nexec deepspeed --f 'g h' --i"
    assert _one_config.options(text) == {"--a": "1", "--b": "2", "--c": "3", "--d": "", "--f": "g h", "--i": ""}
    assert _one_config.options("accelerated --a 1\n") == {}
    found = {"--a": "12", "--b": "x", "--c": "0", "--d": "1234567890"}
    assert _one_config.arguments(found, "--a", "here") == 12 and _one_config.arguments(found, "--z", "here", 5) == 5
    for name, said in (
        ("--b", "is 'x'; it must be"),
        ("--c", "is '0'"),
        ("--d", "is '1234567890'"),
        ("--z", "is missing from"),
    ):
        with pytest.raises(InputError, match=f"here: {name} {said}"):
            _one_config.arguments(found, name, "here")


def test_options_of_scripts_are_read_as_a_shell_has_them(recorded: Recorded) -> None:
    text = """#!/bin/bash
export TP=2  # not so
A=4
B="a/b-c"
ARGS=(
    --one $A --two ${B} --three ${C:-7} --four=$D
    # --none 3
    --five
)
OTHER="--six 1 --seven x"
torchrun --nproc_per_node 8 --nnodes=1 train.py ${ARGS[@]} --one 5 6 --eight 'a b' more.py 9 \\
    --nine -1
echo done
--ten 3 ) --eleven
"""
    recorded({key: list(of) for key, of in _command_line.options(text, "here").items()})
    with pytest.raises(InputError, match="here: line 3: No closing quotation"):
        _command_line.options("a \\\nb\n--c 'd\n", "here")


def test_files_are_recognised_and_named_as_before(tmp_path: pathlib.Path, recorded: Recorded) -> None:
    texts = {
        "parallelism": "parallelism:\n  dp: 1\n", "tokens": "tokens:\n", "nanotron": "x: 1\nparallelism :\ntokens:\n",
        "titan": "ParallelismConfig(", "titan 2": "config.parallelism.tensor_parallel_degree = 3", "torchtitan": "torchtitan",
        "bridge": "import megatron.bridge", "bridge 2": "ConfigContainer() tensor_model_parallel_size",
        "half a bridge": "ConfigContainer()", "args": "TrainingArguments(", "args in JSON": '{"fsdp_config" : 1}',
        "both": '{"train_batch_size": 1, "per_device_train_batch_size": 2}', "deepspeed": '{"train_batch_size": 1}',
        "zero": '{"zero_optimization":{}}', "shell": "torchrun x.py --per_device_train_batch_size 2",
        "shell in comments": "# torchrun x.py --per_device_train_batch_size 2",
        "here": "torchrun --per-device-train-batch-size 1 << E",
        "accelerate": "a: 1\ndistributed_type: FSDP", "script": "NODES, GPUS_PER_NODE = 1, 2",
        "megatron": "--tensor-model-parallel-size 2",
        "maxtext": "ici_fsdp_parallelism: 2", "maxtext 2": "base_config: base.yml", "nothing": "nothing",
    }  # fmt: skip
    modules = {name: frameworks.load(name) for name in frameworks.names()}
    recorded({
        key: [name for name, module in modules.items() if hasattr(module, "recognises") and module.recognises(text)]
        for key, text in texts.items()
    })  # fmt: skip
    assert frameworks.find("megatron:experts_x86").word == "megatron:experts_x86"
    with pytest.raises(UnknownNameError, match="variant of megatron"):
        frameworks.find("megatron:none_such")
    own = tmp_path / "own.toml"
    own.write_text(f'base = "{own}"\n')
    with pytest.raises(InputError, match=r"base: is the file .*own.toml; name one of"):
        frameworks.find(str(own))
    plain = tmp_path / "plain"
    plain.write_text('base = "megatron"\n[framework]\n')
    own.write_text(f'base = "{plain}"\n')
    with pytest.raises(InputError, match=r"base: is the file .*plain; name one of"):
        frameworks.find(str(own))


def test_shared_parts_of_configurations_are_as_before(tmp_path: pathlib.Path, recorded: Recorded) -> None:
    graph = posed("fsdp2").graph
    assert _exact.layer_words(graph, "full") == ("none", *["full"] * 6, "none")
    plan = _exact.one_mesh("here", graph, Strategy(2, 2), _exact.layer_words(graph, "full"), (3, 5))
    assert (plan.n_microbatches, plan.micro_batch, plan.global_batch, plan.stages[0].devices) == (3, 5, 30, (0, 1, 2, 3))
    with pytest.raises(InputError, match=r"here: speaks of 5 layers, but small has 6: another model\?"):
        _exact.one_mesh("here", graph, Strategy(), ("none",) * 7, (1, 1))
    assert _exact.whole({"a": 3}, "a", "here") == 3 and _exact.whole({}, "a", "here", 4) == 4
    assert _exact.whole({"a": 0}, "a", "here", least=0) == 0 and _exact.whole({"a": 10**9}, "a", "here") == 10**9
    for entry, said in (({}, "here: a is missing"), ({"a": 0}, "here: a is 0"), ({"a": 10**9 + 1}, "here: a is"),
                        ({"a": True}, "here: a is true")):  # fmt: skip
        with pytest.raises(InputError, match=said):
            _exact.whole(entry, "a", "here")
    assert _exact.table({"a": None}, "a", "here") == {} and _exact.table({"a": {"b": 1}}, "a", "here") == {"b": 1}
    with pytest.raises(InputError, match="here: a"):
        _exact.table({"a": 3}, "a", "here")
    with pytest.raises(InputError, match="here: is no configuration of P: it holds no entries"):
        _exact.yaml_entries("- 1\n", "here", "P")
    for own in ("llama", "gpt2"):
        problem = api.make_problem("llama-3.2-1b" if own == "llama" else "bert-large", "flat:8")
        if own == "llama":
            assert _exact.decoder("x", problem)["model_type"] == "llama"
        else:
            with pytest.raises(ExportError, match="x: bert-large is of the family bert, which is not written out; "):
                _exact.decoder("x", problem)
    with pytest.raises(ExportError, match="x: transformers leaves out the layers of deepseek-v3-mtp"):
        _exact.decoder("x", api.make_problem("deepseek-v3-mtp", "flat:8"))
    recorded([str(_exact.refused("megatron", ["a", "b"])), _exact.environment(frameworks.plain("megatron")),
              _exact.environment(replace(frameworks.plain("megatron"), expandable_segments=True))])  # fmt: skip


def test_flavors_of_torchtitan_are_those_of_the_built_in_models(recorded: Recorded) -> None:
    found = {}
    for name in huggingface.names():
        family, flavor = flavors.flavor(huggingface.configuration(name))
        if flavor:
            assert flavors.n_layers(family, flavor) == huggingface.configuration(name)["num_hidden_layers"]
            assert flavors.model_name(family, flavor)
            found[name] = f"{family} {flavor}"
    assert flavors.n_layers("llama3", "none") == 0 and flavors.model_name("llama3", "none") == ""
    recorded([found, {word: [one["family"], one["flavor"]] for word, one in flavors.recipes().items()}])
    assert {(one["family"], one["flavor"]) for one in flavors.recipes().values()} <= set(flavors._FLAVORS.values())
    recorded([[*sizes, *names] for sizes, names in flavors._FLAVORS.items()], "registry")
    fields = huggingface.configuration("llama-3.1-8b")
    assert flavors.flavor({**fields, "rope_scaling": None, "rope_parameters": {"type": "llama3"}}) == ("llama3", "8B")
    assert flavors.flavor({**fields, "rope_scaling": None}) == ("", "")
    assert flavors.flavor({**fields, "vocab_size": 5}) == ("", "")
