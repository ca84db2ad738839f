"""Megatron-LM's arguments of a plan, as a shell script that starts ``pretrain_gpt.py`` with torchrun on every node."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from meshwright.base import files
from meshwright.base.errors import ExportError
from meshwright.core.plan import Plan
from meshwright.core.result import Result
from meshwright.frameworks.megatron import model as _megatron_model

__all__ = ["arguments", "write"]

END_KINDS = ("embedding", "head")
"""Layers that Megatron-LM puts on the first and the last stage by itself."""

Options = list[tuple[str, ...]]


def write(result: Result, path: str) -> tuple[str, ...]:
    """Write the script, whole or not at all.

    `result`: a plan of a language model. Returns what Megatron-LM cannot do as the plan says, and what the script does instead.
    Raises `ExportError` when Megatron-LM has no arguments for what the plan says.
    """
    model_spec = result.problem.model_spec
    if model_spec.format != "huggingface":
        raise _refused(
            f"the architecture has to be a Hugging Face configuration, and {model_spec.name} is read from {model_spec.format}"
        )
    options, notes = arguments(result)
    model, left_out = _megatron_model.arguments(model_spec.spec, model_spec.graph)
    notes += left_out
    if not model:
        n_layers = len(_layers(result, range(len(model_spec.graph.ops))))
        model = (("--num-layers", str(n_layers)), ("--seq-length", str(model_spec.graph.sequence_length)))
        notes = (
            *notes,
            f"the options of the architecture are written for {', '.join(_megatron_model.FAMILIES)} only: add this model's own "
            "(hidden size, heads, ...) after the name of the script",
        )
    files.write(path, _script(result, model, options, notes))
    return notes


def arguments(result: Result) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]:
    """Return the options that say how a plan is parallelised, and what they cannot say.

    Returns
    -------
    options : tuple of tuple of str
        Each an option with its values.
    notes : tuple of str
        Sentences.

    Raises
    ------
    ExportError
        When stages differ in their degrees, the schedule is none of Megatron-LM's, or devices are not in one of its orders.
    """
    plan = result.plan
    strategies = {stage.strategy for stage in plan.stages}
    if len(strategies) > 1:
        raise _refused(f"one set of degrees serves all stages there, and the plan has {len(strategies)}")
    strategy, n_ranks = plan.stages[0].strategy, len(plan.ranks())
    options: Options = [
        ("--tensor-model-parallel-size", str(strategy.tensor)),
        ("--pipeline-model-parallel-size", str(n_ranks)),
    ]
    if strategy.context > 1:
        options.append(("--context-parallel-size", str(strategy.context)))
    if strategy.expert > 1:
        options.append(("--expert-model-parallel-size", str(strategy.expert)))
    if strategy.tensor > 1 and any(op.kind == "moe" for op in result.problem.graph.ops):
        options.append(("--expert-tensor-parallel-size", "1"))
    if strategy.sequence_parallel and strategy.tensor > 1:
        options.append(("--sequence-parallel",))
    options += _order(plan)
    options += _pipeline(result)
    options += _sharding(plan)
    recompute, notes = _recompute(result)
    options += recompute
    options += [("--micro-batch-size", str(plan.micro_batch)), ("--global-batch-size", str(plan.global_batch))]
    precision = result.problem.training.precision
    if precision != "fp32":
        options.append(("--fp16",) if precision == "fp16" else ("--bf16",))
    if precision == "fp8":
        options.append(("--fp8-format", "hybrid"))
    return tuple(options), notes


def _refused(reason: str) -> ExportError:
    return ExportError(
        f"megatron_args: {reason}; Megatron-LM cannot run this plan. 'meshwright plan --search megatron_grid' finds the best "
        "one "
        "that it can, 'meshwright run' runs this one"
    )


def _layers(result: Result, ops: Sequence[int]) -> list[int]:
    """Return the layers that Megatron-LM counts: all but embedding and head."""
    return [op for op in ops if result.problem.graph.ops[op].kind not in END_KINDS]


def _order(plan: Plan) -> Options:
    """Return what says the order of devices: tensor, context, data, then pipeline, or data outermost."""
    ranks = plan.ranks()
    size, tensor = len(ranks[0]), plan.stages[0].strategy.tensor * plan.stages[0].strategy.context
    if all(list(devices) == list(range(r * size, (r + 1) * size)) for r, devices in enumerate(ranks)):
        return []
    row = tensor * len(ranks)
    if all(
        list(devices) == [d * row + r * tensor + k for d in range(size // tensor) for k in range(tensor)]
        for r, devices in enumerate(ranks)
    ):
        return [("--use-tp-pp-dp-mapping",)]
    raise _refused("its ranks run over the devices in order, tensor innermost, and the plan's stages take others")


def _pipeline(result: Result) -> Options:
    """Return what says how layers are cut into stages and virtual stages."""
    plan = result.plan
    n_ranks, n_stages = len(plan.ranks()), len(plan.stages)
    if n_ranks == 1 and n_stages == 1:
        return []
    known = {"1f1b": n_stages == n_ranks, "interleaved_1f1b": n_stages % n_ranks == 0}
    if not known.get(plan.schedule, False):
        raise _refused(f"it has the schedules 1f1b and interleaved_1f1b, and the plan {plan.schedule}")
    if n_stages > n_ranks and plan.n_microbatches % n_ranks:
        raise _refused(
            f"interleaving needs a multiple of the {n_ranks} ranks as micro-batches, and the plan has {plan.n_microbatches}"
        )
    if plan.rank_of_stage() != tuple(i % n_ranks for i in range(n_stages)):
        raise _refused("it deals virtual stages out to the ranks in turn, and the plan does not")
    graph = result.problem.graph
    counts = [len(_layers(result, stage.ops)) for stage in plan.stages]
    for i, stage in enumerate(plan.stages):
        kinds = {graph.ops[op].kind for op in stage.ops}
        if ("embedding" in kinds and i > 0) or ("head" in kinds and i < n_stages - 1):
            raise _refused("it keeps the embedding on the first stage and the head on the last, and the plan does not")
    if len(set(counts)) == 1:
        return [("--num-virtual-stages-per-pipeline-rank", str(n_stages // n_ranks))] if n_stages > n_ranks else []
    parts = [f"t*{count}" if count else "" for count in counts]
    return [("--pipeline-model-parallel-layout", "E" + "|".join(parts) + "L")]


def _sharding(plan: Plan) -> Options:
    """Return what says what the data axis shards."""
    strategy = plan.stages[0].strategy
    if strategy.data * strategy.context == 1 or strategy.shard == 0:
        return []
    options: Options = [("--use-distributed-optimizer",)]
    if strategy.shard == 1:
        options += [("--overlap-grad-reduce",), ("--overlap-param-gather",)]
    else:
        word = "optim_grads" if strategy.shard == 2 else "optim_grads_params"
        options += [
            ("--use-megatron-fsdp",),
            ("--data-parallel-sharding-strategy", word),
            ("--no-gradient-accumulation-fusion",),
            ("--ckpt-format", "fsdp_dtensor"),
        ]
    if 0 < strategy.shard_degree < strategy.data:
        options.append(("--num-distributed-optimizer-instances", str(strategy.data // strategy.shard_degree)))
    return options


def _recompute(result: Result) -> tuple[Options, tuple[str, ...]]:
    """Return what says which layers recompute; where Megatron-LM is coarser, what holds no more than the plan."""
    words = []
    for stage in result.plan.stages:
        recompute = stage.recompute or ("none",) * len(stage.ops)
        layers = set(_layers(result, stage.ops))
        words.append([word for op, word in zip(stage.ops, recompute, strict=True) if op in layers])
    every = [word for stage in words for word in stage]
    if set(every) <= {"none"}:
        return [], ()
    if "full" not in every:
        modules = _modules(result)
        options: Options = [("--recompute-granularity", "selective"), ("--recompute-modules", *modules)]
        notes = [
            f"selective recomputation is by module there ({', '.join(modules)}), which comes closest to what our cost model "
            "drops"
        ]
        if "none" in every:
            notes.append(
                f"{every.count('selective')} of {len(every)} layers recompute in the plan, and all or none there: all do, "
                "which "
                "holds less and takes longer than planned"
            )
        return options, tuple(notes)
    full: Options = [("--recompute-granularity", "full")]
    if set(every) == {"full"}:
        return [*full, ("--recompute-method", "uniform"), ("--recompute-num-layers", "1")], ()
    counts = [sum(word != "none" for word in stage) for stage in words]
    exact = len(set(counts)) == 1 and "selective" not in every
    note = (
        f"the plan recomputes in {', '.join(str(count) for count in counts)} layers of its stages, one number serves all "
        "stages "
        f"there: {max(counts)}, which holds no more and may take longer than planned"
    )
    return [*full, ("--recompute-method", "block"), ("--recompute-num-layers", str(max(counts)))], () if exact else (note,)


def _modules(result: Result) -> tuple[str, ...]:
    """Return the modules whose recomputation drops at least what the plan's selective layers drop."""
    found = set()
    for op in result.problem.graph.ops:
        for operator in op.body:
            if not operator.selective or op.kind in END_KINDS:
                continue
            if operator.kind == "norm":
                found.add("layernorm")
            elif operator.kind == "elementwise":
                found.add("moe_act" if op.kind == "moe" else "mlp")
            else:
                found.add("core_attn")
    return tuple(sorted(found)) or ("core_attn",)


def _script(
    result: Result, model: tuple[tuple[str, ...], ...], options: tuple[tuple[str, ...], ...], notes: tuple[str, ...]
) -> str:
    """Return the script."""
    plan, cluster = result.plan, result.problem.cluster
    n_devices = plan.n_devices
    per_node = n_devices
    if cluster is not None:
        used = sorted({device for stage in plan.stages for device in stage.devices})
        nodes = [int(cluster.node_of_device[device]) for device in used]
        sizes = {nodes.count(node) for node in nodes}
        if len(sizes) > 1:
            raise _refused(
                "torchrun starts the same number of processes on every node, and the plan uses nodes of different sizes"
            )
        per_node = sizes.pop()
    step = "" if result.timeline is None else f", {result.timeline.step_seconds:.4g} s a step predicted"

    def block(name: str, entries: tuple[tuple[str, ...], ...]) -> list[str]:
        return [f"{name}=(", *(f"  {shlex.join(entry)}" for entry in entries), ")"]

    lines = [
        "#!/bin/bash",
        f"# {result.problem.model_spec.name} on {n_devices} devices, search {result.search}{step}; run in Megatron-LM's folder "
        "on every",
        "# node, with NODE_RANK and MASTER_ADDR set; data, tokenizer and learning rate come as arguments of this script.",
        *(f"# {note}" for note in notes),
        "set -eu",
        *block("LAUNCH", (
            ("--nnodes", str(n_devices // per_node)),
            ("--nproc-per-node", str(per_node)),
        )),
        *block("MODEL", (*model, ("--transformer-impl", "transformer_engine"))),
        *block("PARALLEL", options),
        'export CUDA_DEVICE_MAX_CONNECTIONS="${CUDA_DEVICE_MAX_CONNECTIONS:-1}"'
        if ("--use-megatron-fsdp",) not in options
        else "unset CUDA_DEVICE_MAX_CONNECTIONS",
        'exec torchrun "${LAUNCH[@]}" --node-rank "${NODE_RANK:-0}" --master-addr "${MASTER_ADDR:-localhost}" \\',
        '  --master-port "${MASTER_PORT:-29500}" pretrain_gpt.py "${MODEL[@]}" "${PARALLEL[@]}" "$@"',
    ]  # fmt: skip
    return "\n".join(lines) + "\n"
