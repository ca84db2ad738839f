"""The script: constants at its top say the plan, and are what is read back; what follows is PyTorch as one would write it."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from meshwright.base import files
from meshwright.base.errors import ExportError, InputError
from meshwright.core.graph import Graph
from meshwright.core.problem import ModelSpec
from meshwright.core.result import Result
from meshwright.core.run_config import RunConfig
from meshwright.core.strategy import Strategy
from meshwright.frameworks import _adapters, _exact, _optimizers
from meshwright.models.readers import huggingface

__all__ = ["model_of", "read", "unsplit", "write"]

_DTYPES: Mapping[str, str] = MappingProxyType({"bf16": "bfloat16", "fp32": "float32"})

_SPLITS = ("llama", "mistral", "qwen2", "qwen3")
"""Families whose layers the script splits over a tensor axis: all have the same products, called alike."""

_NUMBERS = (
    "NODES",
    "GPUS_PER_NODE",
    "REPLICATE",
    "SHARD",
    "CONTEXT",
    "TENSOR",
    "MICRO_BATCH",
    "MICRO_BATCHES",
    "SEQUENCE_LENGTH",
)
_OTHERS = ("SEQUENCE_PARALLEL", "RESHARD_AFTER_FORWARD", "PRECISION", "LAYERS", "CHECKPOINTED", "MODEL")
_SOMETIMES = ("LORA",)

_ADAPTERS = """inject_adapter_in_model(LoraConfig(**LORA), model)  # all other weights are frozen and stay in PRECISION
for weight in filter(lambda one: one.requires_grad, model.parameters()):
    weight.data = weight.data.float()
"""
_ZEROS = """for name, weight in model.named_parameters():
    if "lora_B" in name:
        torch.nn.init.zeros_(weight)  # and load the weights of the model that is tuned here
"""

_RINGS = (
    "deepseek_v2", "deepseek_v3", "gemma", "llama", "mistral", "mixtral", "opt", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe",
)  # fmt: skip
"""Families whose attention is PyTorch's fused one, which context parallelism makes a ring of."""

_TENSOR = """def split_products(model, layers, axis):
    whole, apart = Replicate(), Shard(1) if SEQUENCE_PARALLEL else Replicate()
    into = {"input_kwarg_layouts": {"hidden_states": apart}, "desired_input_kwarg_layouts": {"hidden_states": whole}}
    plan = {f"self_attn.{name}_proj": tp.ColwiseParallel() for name in "qkv"} | {
        "self_attn": tp.PrepareModuleInput(**into), "self_attn.o_proj": tp.RowwiseParallel(output_layouts=apart),
        "mlp": tp.PrepareModuleInput(input_layouts=(apart,), desired_input_layouts=(whole,)),
        "mlp.down_proj": tp.RowwiseParallel(output_layouts=apart),
        "mlp.gate_proj": tp.ColwiseParallel(), "mlp.up_proj": tp.ColwiseParallel(),
    }
    ends = {
        "model.embed_tokens": tp.RowwiseParallel(input_layouts=whole, output_layouts=apart),
        "lm_head": tp.ColwiseParallel(input_layouts=apart, output_layouts=Shard(-1), use_local_output=False),
    }
    if SEQUENCE_PARALLEL:
        plan |= {"input_layernorm": tp.SequenceParallel(), "post_attention_layernorm": tp.SequenceParallel()}
        ends["model.norm"] = tp.SequenceParallel()
    for layer in layers:
        tp.parallelize_module(layer, axis, plan)
    tp.parallelize_module(model, axis, ends)


"""

_GATHERED = """        model.set_reshard_after_backward(i == MICRO_BATCHES - 1)  # weights stay gathered until then
"""


def write(result: Result, path: str) -> tuple[str, ...]:
    """Write the script of a plan that is not refused, whole or not at all.

    Raises
    ------
    ExportError
        When the script cannot build or split the model.
    """
    plan, problem = result.plan, result.problem
    fields = _exact.decoder("fsdp2", problem)
    strategy = plan.stages[0].strategy
    if problem.training.precision not in _DTYPES:
        raise ExportError("fsdp2: the script has no scaling of losses for fp16; plan with --precision bf16 or fp32")
    nodes, per_node, lora = *_exact.launch_sizes("fsdp2", result), _adapters.config(problem)
    body = (Path(__file__).parent / "body.txt").read_text(encoding="utf-8")
    said = {
        "@PLAN@": "\n".join([_constants(result, fields, nodes, per_node), *([f"LORA = {lora!r}"] if lora else [])]),
        "@AXES@": _TENSOR if strategy.tensor > 1 else "",
        "@PARALLEL@": _parallel(strategy),
        "@GATHERED@": _GATHERED if strategy.shard == 2 else "",
        "@STEP@": _step(strategy),
        "@OPTIMIZER@": _optimizers.in_torch(problem.training.optimizer),
        "@DTYPE@": "PRECISION" if lora else "torch.float32",
        "@ADAPTERS@": _ADAPTERS if lora else "",
        "@ZEROS@": _ZEROS if lora else "",
    }
    for mark, text in said.items():
        body = body.replace(mark, text)
    name = problem.model_spec.name
    head = [
        f'"""{name} on {plan.n_devices} devices{_exact.predicted(result)}; written by meshwright, yours to change."""',
        f"# torchrun --nnodes {nodes} --nproc-per-node {per_node} --node-rank RANK --master-addr HOST --master-port 29500 "
        f"{Path(path).name}",
        *_imports(strategy, adapters=bool(lora)),
        *(["from torchao.optim import AdamW8bit"] if problem.training.optimizer == "adam-8bit" else []),
    ]
    files.write(path, "\n".join(head) + f"\n\n{body}")
    return ()


def n_heads(spec: ModelSpec) -> int:
    """Return how many heads of keys and values a model has; 1 where its file does not say."""
    fields = huggingface.said_of(spec.spec) if spec.format == "huggingface" else {}
    return int(fields.get("num_key_value_heads") or fields.get("num_attention_heads") or 1)


def unsplit(spec: ModelSpec, strategy: Strategy) -> tuple[str, ...]:
    """Return why the script cannot split a model over a tensor or context axis; empty where it can, or none is asked for."""
    fields = huggingface.said_of(spec.spec) if spec.format == "huggingface" else {}
    family, found = _exact.family(spec), list[str]()
    if family not in _exact.DECODERS:
        return ()  # of which `_exact.decoder` says that it is not written out at all
    window = fields.get("sliding_window") if fields.get("use_sliding_window", True) else None
    windows = 0 < (window or 0) < spec.graph.sequence_length
    if strategy.context > 1 and (family not in _RINGS or windows):
        found.append(f"a context axis; PyTorch's ring attention does not run that of {family}{' with windows' * windows}")
    heads = n_heads(spec)
    if strategy.tensor > 1 and family not in _SPLITS:
        found.append(f"a tensor axis; the script splits layers of {', '.join(_SPLITS)}, and {spec.name} is of {family}")
    elif heads % strategy.tensor:
        found.append(f"{heads} key and value heads over a tensor degree of {strategy.tensor}; the script does not copy heads")
    return tuple(found)


def _constants(result: Result, fields: Mapping[str, Any], nodes: int, per_node: int) -> str:
    """Return the assignments that say the plan and the model."""
    plan, problem, strategy = result.plan, result.problem, result.plan.stages[0].strategy
    shard = strategy.shard_degree or strategy.data
    words = plan.stages[0].recompute[1:-1]
    full = [i for i, word in enumerate(words) if word == "full"]
    checkpointed = f"range({len(words)})" if full == list(range(len(words))) else repr(full)
    lines = [
        f"NODES, GPUS_PER_NODE = {nodes}, {per_node}",
        f"REPLICATE, SHARD, CONTEXT, TENSOR = {strategy.data // shard}, {shard}, {strategy.context}, {strategy.tensor}",
        f"SEQUENCE_PARALLEL, RESHARD_AFTER_FORWARD = {strategy.sequence_parallel}, {strategy.shard != 2}",
        f"MICRO_BATCH, MICRO_BATCHES = {plan.micro_batch}, {plan.n_microbatches}  # samples of one, and how many make a step",
        f"PRECISION, SEQUENCE_LENGTH = torch.{_DTYPES[problem.training.precision]}, {problem.graph.sequence_length}",
        f'LAYERS = "{_exact.DECODERS[str(fields["model_type"])][0]}"',
        *textwrap.wrap(f"CHECKPOINTED = {checkpointed}", 118, subsequent_indent="    "),
        *_wrapped("MODEL", {key: value for key, value in fields.items() if not key.startswith("_")}),
    ]
    return "\n".join(lines)


def _wrapped(name: str, value: Mapping[str, Any]) -> list[str]:
    """Return an assignment of a dictionary, entries together in lines of bearable length."""
    lines, indent = [f"{name} = {{"], "    "
    for key, one in value.items():
        entry = f"{key!r}: {one!r},"
        if len(lines) > 1 and len(lines[-1]) + len(entry) < 118:
            lines[-1] += f" {entry}"
        else:
            lines.append(indent + entry)
    return [*lines, "}"]


def _parallel(strategy: Strategy) -> str:
    lines = []
    if strategy.tensor > 1:
        lines.append('split_products(model, layers, mesh["tensor"])\n')
    if strategy.context > 1:
        lines += [
            'unmasked = {"attention_mask": None, "is_causal": True}  # ring attention has no masks\n',
            "for layer in layers:\n",
            "    layer.self_attn.register_forward_pre_hook(lambda _, x, named: (x, named | unmasked), with_kwargs=True)\n",
        ]
    return "".join(lines)


def _step(strategy: Strategy) -> str:
    """Return the lines of one micro-batch."""
    lines = ["places = torch.arange(SEQUENCE_LENGTH, device=device).repeat(MICRO_BATCH, 1)"]
    around = []
    if strategy.context > 1:
        lines.append('ring = {"buffers": [tokens, targets, places], "buffer_seq_dims": [1, 1, 1]}')
        around.append('context_parallel(mesh["context"], **ring)')
    if strategy.tensor > 1:
        around.append("tp.loss_parallel()")
    if around:
        lines.append(f"with {', '.join(around)}:")
    inner = "    " if around else ""
    lines += [
        f"{inner}logits = model(input_ids=tokens, position_ids=places, use_cache=False).logits.flatten(0, 1)",
        f"{inner}loss = torch.nn.functional.cross_entropy(logits.float(), targets.flatten()) / MICRO_BATCHES",
        f"{inner}loss.backward()",
    ]
    return "".join(f"{' ' * 8}{line}\n" for line in lines)


def _imports(strategy: Strategy, *, adapters: bool) -> list[str]:
    """Return what the script imports: of the axes only those that it has."""
    tensor, context = strategy.tensor > 1, strategy.context > 1
    return [
        "import os",
        "",
        "import torch",
        "import torch.distributed as dist",
        *(["from peft import LoraConfig, inject_adapter_in_model"] if adapters else []),
        "from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper",
        "from torch.distributed.device_mesh import init_device_mesh",
        "from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard",
        *(["from torch.distributed.tensor import Replicate, Shard"] if tensor else []),
        *(["from torch.distributed.tensor import parallel as tp"] if tensor else []),
        *(["from torch.distributed.tensor.experimental import context_parallel"] if context else []),
        "from transformers import AutoConfig, AutoModelForCausalLM",
    ]


def read(path: str, graph: Graph) -> RunConfig:
    """Return what a script's constants say.

    Raises
    ------
    InputError
        When it is no Python, a constant is missing or wrong, or they contradict each other or the model.
    """
    told, warnings = _assigned(path)
    optimizer = str(told.get("optimizer", ""))
    entry = {name: _exact.whole(told, name, path) for name in _NUMBERS}
    missing = [name for name in _OTHERS if name not in told]
    if missing:
        raise InputError(f"{path}: {missing[0]} is missing; the constants at the top of an exported script say the plan")
    data, n_devices = entry["REPLICATE"] * entry["SHARD"], entry["NODES"] * entry["GPUS_PER_NODE"]
    strategy = Strategy(
        data, entry["TENSOR"], entry["CONTEXT"], 1, _flag(told, "SEQUENCE_PARALLEL", path),
        0 if data * entry["CONTEXT"] == 1 else 3 if _flag(told, "RESHARD_AFTER_FORWARD", path) else 2,
        entry["SHARD"] if entry["REPLICATE"] > 1 else 0,
    )  # fmt: skip
    if strategy.n_devices != n_devices:
        raise InputError(
            f"{path}: REPLICATE x SHARD x CONTEXT x TENSOR is {strategy.n_devices}, NODES x GPUS_PER_NODE {n_devices}"
        )
    inner = [op for op in graph.ops if op.kind not in _exact.ENDS]
    chosen = told["CHECKPOINTED"]
    named = chosen if isinstance(chosen, list | range) else [chosen]
    wrong = [i for i in named if not isinstance(i, int) or not 0 <= i < len(inner)]
    if wrong:
        raise InputError(f"{path}: CHECKPOINTED names {wrong[0]!r}; {graph.name} has layers 0 to {len(inner) - 1}")
    full = set(named)
    words = ("none", *("full" if i in full else "none" for i in range(len(inner))), "none")
    precision = {dtype: word for word, dtype in _DTYPES.items()}.get(str(told["PRECISION"]).rpartition(".")[2])
    if precision is None:
        raise InputError(f"{path}: PRECISION is {told['PRECISION']}; it must be torch.bfloat16 or torch.float32")
    plan = _exact.one_mesh(path, graph, strategy, words, (entry["MICRO_BATCHES"], entry["MICRO_BATCH"]))
    said: tuple[str, ...] = ()
    lora = ""
    if "LORA" in told:
        if not isinstance(told["LORA"], dict):
            raise InputError(f"{path}: LORA is {told['LORA']!r}; it must be the arguments of peft's LoraConfig")
        lora, said = _adapters.text_of(told["LORA"], graph, f"{path}: LORA")
    return RunConfig(
        plan, precision, entry["SEQUENCE_LENGTH"], (*warnings, *said), "", lora, _optimizers.held(precision, optimizer)
    )


def model_of(path: str, sequence_length: int) -> ModelSpec:
    """Return the model of a script, with samples of so many tokens; 0 for the script's own.

    Raises
    ------
    InputError
        When the constant MODEL is missing or wrong.
    """
    from meshwright.models.readers import huggingface

    told, _ = _assigned(path)
    fields = told.get("MODEL")
    if not isinstance(fields, dict):
        raise InputError(
            f"{path}: MODEL is {'missing' if fields is None else repr(fields)}; it must be the model's configuration"
        )
    length = sequence_length or _exact.whole(told, "SEQUENCE_LENGTH", path)
    name = f"the model of {path}"
    graph = huggingface.graph_of(fields, name, sequence_length=length)
    return ModelSpec(name, "huggingface", "", graph, costs="analytic", search="best")


def _flag(told: Mapping[str, Any], name: str, place: str) -> bool:
    if not isinstance(told[name], bool):
        raise InputError(f"{place}: {name} is {told[name]!r}; it must be True or False")
    return bool(told[name])


def _assigned(path: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the constants that a script assigns, and a warning for each that nothing is known of."""
    try:
        tree = ast.parse(_exact.read_text(path))
    except SyntaxError as error:
        raise InputError(f"{path}: line {error.lineno}: is no Python: {error.msg}") from None
    found: dict[str, Any] = {}
    warnings: list[str] = []
    for node in tree.body:
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target, value = node.targets[0], node.value
        several = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts)
        pairs = list(zip(target.elts, value.elts, strict=True)) if several else [(target, value)]  # type: ignore[attr-defined]
        for name, own in pairs:
            word = ast.unparse(name)
            if word == "optimizer":
                found[word], notes = _optimizers.of_torch(own, f"{path}: line {node.lineno}")
                warnings += notes
                continue
            if word not in (*_NUMBERS, *_OTHERS, *_SOMETIMES):
                if not word.isupper():
                    continue  # what the script computes
                warnings.append(f"{path}: line {node.lineno}: nothing is known of {word}; it is left out")
                continue
            found[word] = _value(own, word, f"{path}: line {node.lineno}")
    return found, tuple(warnings)


def _value(node: ast.expr, name: str, place: str) -> Any:
    """Return what a constant is: a literal, a ``range`` or the name of a type."""
    if isinstance(node, ast.Attribute):
        return ast.unparse(node)
    ranged = isinstance(node, ast.Call) and ast.unparse(node.func) == "range"
    try:
        if ranged:
            return range(*(ast.literal_eval(argument) for argument in node.args))  # type: ignore[attr-defined]
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        raise InputError(f"{place}: {name}: is no constant but {ast.unparse(node)}") from None
