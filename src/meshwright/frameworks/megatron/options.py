"""Megatron-LM's options of a plan: every field of the plan has its option, or the plan is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from meshwright.base.errors import ExportError
from meshwright.core.framework import Framework
from meshwright.core.plan import Plan
from meshwright.core.plan_forms import inner_words, layout_of, recomputed_in_block
from meshwright.core.plan_forms.exceeded import exceeded
from meshwright.core.problem import MixedPrecision, Problem
from meshwright.core.result import Result
from meshwright.core.strategy import OFFLOAD
from meshwright.frameworks.megatron.limits import FRAMEWORK

__all__ = [
    "END_KINDS", "EXCHANGES", "OVERLAP", "arguments", "dispatch", "framework_of", "grouped_products", "refusals", "refused",
]  # fmt: skip

END_KINDS = ("embedding", "head")
"""Layers that Megatron-LM puts on the first and the last stage by itself."""

EXCHANGES: Mapping[str, str] = MappingProxyType(
    {"ring": "p2p", "all_gather": "all_gather", "all_to_all": "a2a", "all_to_all+ring": "a2a+p2p"}
)
"""Megatron-LM's ``--cp-comm-type`` of each context exchange."""

OVERLAP = "--overlap-moe-expert-parallel-comm"
"""Schedule combined_1f1b."""

Options = list[tuple[str, ...]]

PRECISIONS: Mapping[str, Options] = MappingProxyType(
    {
        "bf16": [("--bf16",)],
        "fp16": [("--fp16",)],
        "fp8": [("--bf16",), ("--fp8-format", "hybrid", "--fp8-recipe", "tensorwise")],
        "mxfp8": [("--bf16",), ("--fp8-format", "e4m3", "--fp8-recipe", "mxfp8")],
        "fp4": [("--bf16",), ("--fp4-format", "e2m1", "--fp4-recipe", "nvfp4")],
        "fp32": [],
    }
)
"""Precision of products: one scale for each tensor (fp8), one for each block (mxfp8, fp4)."""


def refusals(plan: Plan, problem: Problem) -> tuple[str, ...]:
    """Return what of a plan Megatron-LM cannot run, a sentence without a full stop each."""
    found = list(exceeded(FRAMEWORK.limits, plan, problem.graph, problem.training.precision, problem.training.optimizer))
    found += _schedule(plan)
    found += _order(plan, problem)
    found += _numbers(problem.training)
    found += _experts(plan, problem)
    strategy = plan.stages[0].strategy
    if plan.global_batch != plan.n_microbatches * plan.micro_batch * strategy.data:
        found.append(f"a global batch of {plan.global_batch}, which its micro-batches do not make")
    form = problem.model_spec.format
    if form != "huggingface":
        found.append(f"a model read from {form}; the architecture is told from a Hugging Face configuration")
    return tuple(dict.fromkeys(found))


def _schedule(plan: Plan) -> list[str]:
    """Return what is wrong with a schedule beyond its name."""
    found = []
    n_ranks, n_stages = len(plan.ranks()), len(plan.stages)
    if n_ranks > 1 and plan.schedule == "1f1b" and n_stages > n_ranks:
        found.append("schedule 1f1b over virtual stages; interleaving is its only schedule for them")
    if n_ranks > 1 and plan.schedule in ("interleaved_1f1b", "combined_1f1b"):
        if n_stages == n_ranks and plan.schedule == "interleaved_1f1b":
            found.append("schedule interleaved_1f1b with one stage of each rank; that is 1f1b")
        if plan.n_microbatches % n_ranks:
            found.append(f"{plan.n_microbatches} micro-batches; interleaving needs a multiple of the {n_ranks} ranks")
    if n_stages > n_ranks and plan.rank_of_stage() != tuple(i % n_ranks for i in range(n_stages)):
        found.append("stages that are not dealt out to the ranks in turn; virtual stages are")
    return found


def _order(plan: Plan, problem: Problem) -> list[str]:
    """Return what is wrong with the order of layers, and whether an end of the model recomputes."""
    found = []
    for i, stage in enumerate(plan.stages):
        for op, word in zip(stage.ops, stage.recompute or ("none",) * len(stage.ops), strict=True):
            if problem.graph.ops[op].kind in END_KINDS and word != "none":
                found.append(f"stage {i} recomputes the {problem.graph.ops[op].kind}; it recomputes layers only")
    order = [op for stage in plan.stages for op in stage.ops]
    if order != sorted(order):
        found.append("layers or stages that do not follow each other through the model")
    return found


def _numbers(training: MixedPrecision) -> list[str]:
    """Return which bytes of numbers differ from those of Megatron-LM's mixed-precision Adam; gradients may have two bytes."""
    usual = MixedPrecision.of(training.precision)
    return [
        f"{name.replace('_', ' ')} {getattr(training, name)}; it has {getattr(usual, name)}"
        for name in ("activation_bytes", "weight_bytes", "gradient_bytes", "optimizer_bytes", "state_bytes")
        if getattr(training, name) != getattr(usual, name) and (name, getattr(training, name)) != ("gradient_bytes", 2)
    ]


def _experts(plan: Plan, problem: Problem) -> list[str]:
    """Return what is wrong with experts beside a tensor axis [1]_.

    References
    ----------
    .. [1] megatron/core/model_parallel_config.py, ``__post_init__``.
    """
    alone = [one for one in (stage.strategy for stage in plan.stages) if one.expert > 1 and one.tensor > 1]
    if all(one.sequence_parallel for one in alone) or not _has_experts(problem):
        return []
    return ["experts spread beside a tensor axis without sequence parallelism"]


def _has_experts(problem: Problem) -> bool:
    return any(operator.expert for op in problem.graph.ops for operator in op.body)


def grouped_products(problem: Problem) -> str:
    """Return that ``pretrain_gpt.py`` has no grouped products of a precision, without a full stop; empty where it has [1]_.

    References
    ----------
    .. [1] megatron/training/arguments.py: validate_args, ``moe_grouped_gemm``.
    """
    precision = problem.training.precision
    if precision not in ("fp16", "fp32") or not _has_experts(problem):
        return ""
    return f"experts in {precision}; its grouped products are in bf16 or less"


def refused(reasons: Sequence[str]) -> ExportError:
    """Return the error of a plan that Megatron-LM cannot run."""
    return ExportError(
        f"megatron: cannot run this plan: {'; '.join(reasons)}. 'meshwright plan ... --for megatron' finds the best plan that "
        "it can run, 'meshwright run' runs this one"
    )


def arguments(result: Result) -> Options:
    """Return the options that say how a plan is parallelised, each with its values.

    Raises
    ------
    ExportError
        When Megatron-LM cannot run the plan exactly.
    """
    plan, problem = result.plan, result.problem
    reasons = refusals(plan, problem)
    if reasons:
        raise refused(reasons)
    strategy, n_ranks = plan.stages[0].strategy, len(plan.ranks())
    options: Options = [
        ("--tensor-model-parallel-size", str(strategy.tensor)),
        ("--pipeline-model-parallel-size", str(n_ranks)),
    ]
    if strategy.context > 1:
        options.append(("--context-parallel-size", str(strategy.context)))
        if strategy.context_exchange != "ring":  # its default
            options.append(("--cp-comm-type", EXCHANGES[strategy.context_exchange]))
        if strategy.context_exchange == "all_to_all+ring":
            n_heads = strategy.head_ranks(problem.graph)
            options.append(("--hierarchical-context-parallel-sizes", str(n_heads), str(strategy.context // n_heads)))
    if strategy.expert > 1:
        options.append(("--expert-model-parallel-size", str(strategy.expert)))
    if strategy.tensor > 1 and strategy.folded:
        options.append(("--expert-tensor-parallel-size", "1"))  # experts whole on their devices; else split like other products
    if strategy.sequence_parallel and strategy.tensor > 1:
        options.append(("--sequence-parallel",))
        if framework_of(problem).tensor_overlap_ratio > 0.0:
            options.append(("--tp-comm-overlap",))  # as it is priced; off unless told
    if layout_of(plan) == "data" and n_ranks > 1:
        options.append(("--use-tp-pp-dp-mapping",))
    options += _pipeline(result)
    options += _sharding(plan, overlaps=framework_of(problem).overlaps_reduce)
    if strategy.offload == "optimizer":
        options += _offload(strategy.data * strategy.context)
    options += _recompute(result)
    options += [("--micro-batch-size", str(plan.micro_batch)), ("--global-batch-size", str(plan.global_batch))]
    options += PRECISIONS[problem.training.precision]
    fp16, half = problem.training.precision == "fp16", problem.training.gradient_bytes == 2
    if half != fp16:  # gradients are summed in four bytes unless told in bf16, and in two unless told in fp16
        options.append(("--accumulate-allreduce-grads-in-fp32" if fp16 else "--grad-reduce-in-bf16",))
    return options


def framework_of(problem: Problem) -> Framework:
    """Return the variant that a problem is posed for; the plain one where it is posed for a framework of another kind."""
    return problem.framework if problem.framework.name in (FRAMEWORK.name, "megatron_bridge") else FRAMEWORK


def dispatch(problem: Problem, plan: Plan) -> Options:
    """Return how tokens are sent to experts, as the exchange is priced: by DeepEP or HybridEP, or all to all."""
    own = framework_of(problem)
    if not own.dispatches_once or plan.stages[0].strategy.expert == 1:
        return [("--moe-token-dispatcher-type", "alltoall")]
    backend = "deepep" if "experts_x86" in own.variants else "hybridep"
    return [("--moe-token-dispatcher-type", "flex"), ("--moe-flex-dispatcher-backend", backend)]


def _layers(result: Result, ops: Sequence[int]) -> list[int]:
    """Return the layers that Megatron-LM counts: all but embedding, head and those that predict further tokens."""
    graph = result.problem.graph
    return [op for op in ops if graph.ops[op].kind not in END_KINDS and not graph.ops[op].name.startswith("mtp.")]


def _pipeline(result: Result) -> Options:
    """Return what says how layers are cut into stages and virtual stages."""
    plan, graph = result.plan, result.problem.graph
    n_ranks, n_stages = len(plan.ranks()), len(plan.stages)
    beside: Options = [(OVERLAP,)] if plan.schedule == "combined_1f1b" else []
    if n_stages == 1:
        return beside
    counts = [len(_layers(result, stage.ops)) for stage in plan.stages]
    ahead = [sum(graph.ops[op].name.startswith("mtp.") for op in stage.ops) for stage in plan.stages]
    if len(set(counts)) == 1 and not any(ahead[:-1]):
        virtual = [("--num-virtual-stages-per-pipeline-rank", str(n_stages // n_ranks))] if n_stages > n_ranks else []
        return virtual + beside
    parts = [(f"t*{count}" if count else "") + "m" * more for count, more in zip(counts, ahead, strict=True)]
    return [("--pipeline-model-parallel-layout", "E" + "|".join(parts) + "L"), *beside]


def _sharding(plan: Plan, *, overlaps: bool) -> Options:
    """Return what says what the data axis shards; `overlaps`: whether gradients are reduced beside the backward pass.

    Weights are priced as gathered after the update, whether ``--overlap-param-gather`` is there or not; it needs the other.
    """
    strategy = plan.stages[0].strategy
    if strategy.data * strategy.context == 1:
        return []
    if strategy.shard == 0:
        return [("--overlap-grad-reduce",)] * overlaps
    options: Options = [("--use-distributed-optimizer",)]
    if strategy.shard == 1:
        options += [("--overlap-grad-reduce",), ("--overlap-param-gather",)] * overlaps
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


def _offload(n_ranks: int) -> Options:
    """Return what keeps the optimizer's state on the host, as it is priced: of the distributed optimizer, even of one rank."""
    options: Options = [
        ("--optimizer-cpu-offload",), ("--optimizer-offload-fraction", "1.0"), ("--overlap-cpu-optimizer-d2h-h2d",),
        ("--use-precision-aware-optimizer",),
    ]  # fmt: skip
    return options if n_ranks > 1 else [("--use-distributed-optimizer",), *options]


def _recompute(result: Result) -> Options:
    """Return what says which layers recompute what, or have their activations on the host."""
    words = inner_words(result.plan, result.problem.graph)
    every = {word for stage in words for word in stage}
    if OFFLOAD in every:
        return [("--cpu-offloading-num-layers", str(recomputed_in_block(words, OFFLOAD)))]
    if every <= {"none"}:
        return []
    if every == {"full"}:
        return [("--recompute-granularity", "full"), ("--recompute-method", "uniform"), ("--recompute-num-layers", "1")]
    if "full" in every:
        count = str(recomputed_in_block(words))
        return [("--recompute-granularity", "full"), ("--recompute-method", "block"), ("--recompute-num-layers", count)]
    return [("--recompute-granularity", "selective"), ("--recompute-modules", *every.pop().split("+"))]
