"""Options of Megatron-LM that contradict each other: what ``validate_args`` and ``TransformerConfig`` stop at.

References
----------
.. [1] Megatron-LM, megatron/training/arguments.py: validate_args (main of autumn 2025).
.. [2] Megatron-Core 0.16.1, megatron/core/transformer/transformer_config.py and megatron/core/model_parallel_config.py:
   ``__post_init__``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

__all__ = ["found", "refused_aside"]

Options = Mapping[str, tuple[str, ...]]
Wrong = Iterator[tuple[str, str]]

_GONE: Mapping[str, str] = MappingProxyType({
    "--checkpoint-activations": "--recompute-activations", "--model-parallel-size": "--tensor-model-parallel-size",
    "--batch-size": "--micro-batch-size", "--warmup": "--lr-warmup-fraction",
})  # fmt: skip
"""Options that the parser still has and ``validate_args`` refuses, and what it asks for."""

_BESIDE: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("--overlap-param-gather", ("--use-distributed-optimizer", "--use-megatron-fsdp")),
    ("--overlap-param-gather", ("--overlap-grad-reduce",)),
    ("--overlap-param-gather-with-optimizer-step", ("--use-distributed-optimizer",)),
    ("--overlap-param-gather-with-optimizer-step", ("--overlap-param-gather",)),
    ("--fp8-param-gather", ("--fp8-format",)),
    ("--fp8-param-gather", ("--use-distributed-optimizer", "--use-megatron-fsdp")),
    ("--fp4-param-gather", ("--fp4-format",)),
    ("--fp16-lm-cross-entropy", ("--fp16",)),
    ("--fp32-residual-connection", ("--bf16", "--fp16")),
    ("--moe-grouped-gemm", ("--bf16",)),
    ("--moe-ffn-hidden-size", ("--num-experts",)),
    ("--moe-router-group-topk", ("--moe-router-num-groups",)),
    ("--moe-pad-expert-input-to-capacity", ("--moe-expert-capacity-factor",)),
    ("--delay-wgrad-compute", ("--overlap-moe-expert-parallel-comm",)),
    ("--save", ("--save-interval",)), ("--load-main-params-from-ckpt", ("--no-load-optim",)),
    ("--moe-use-upcycling", ("--save",)),
)  # fmt: skip
"""Options that need one of others beside them."""

_NEVER_BOTH = (
    ("--bf16", "--fp16"), ("--fp8-format", "--fp4-format"), ("--train-iters", "--train-samples"),
    ("--train-iters", "--lr-warmup-samples"), ("--train-samples", "--lr-warmup-iters"),
    ("--train-iters", "--lr-decay-samples"), ("--train-samples", "--lr-decay-iters"),
    ("--lr-warmup-fraction", "--lr-warmup-iters"), ("--lr-warmup-fraction", "--lr-warmup-samples"),
    ("--use-megatron-fsdp", "--use-torch-fsdp2"), ("--rampup-batch-size", "--step-batch-size-schedule"),
    ("--swiglu", "--squared-relu"), ("--swiglu", "--quick-geglu"), ("--enable-cuda-graph", "--external-cuda-graph"),
    ("--num-layers", "--encoder-num-layers"), ("--seq-length", "--encoder-seq-length"), ("--num-experts", "--spec"),
    ("--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank"),
    ("--num-layers-per-virtual-pipeline-stage", "--pipeline-model-parallel-layout"),
    ("--num-virtual-stages-per-pipeline-rank", "--pipeline-model-parallel-layout"),
    ("--mock-data", "--data-path"), ("--mock-data", "--train-data-path"), ("--data-path", "--train-data-path"),
    ("--data-path", "--data-args-path"), ("--train-data-path", "--per-split-data-args-path"),
    ("--deterministic-mode", "--use-flash-attn"), ("--deterministic-mode", "--cross-entropy-loss-fusion"),
)  # fmt: skip


_AS_IF_NOT_SAID = ("--lr-warmup-iters", "--lr-warmup-samples", "--num-experts", "--mtp-num-layers")
"""Options that a value of 0 leaves as they were."""


def found(options: Options) -> Wrong:
    """Yield what Megatron-LM refuses of options beside each other: an option, and what is wrong with it."""
    options = {name: words for name, words in options.items() if name not in _AS_IF_NOT_SAID or words != ("0",)}
    if "--yaml-cfg" in options:
        yield "--yaml-cfg", ": the file that it names stands in place of most options, and is not read; write options"
    for name, instead in _GONE.items():
        if name in options:
            yield name, f": Megatron-LM refuses it; say {instead}"
    for one, other in _NEVER_BOTH:
        if one in options and other in options:
            yield other, f" beside {one}: keep one of them"
    for name, needed in _BESIDE:
        if name in options and not any(one in options for one in needed):
            yield name, f": Megatron-LM asks for {' or '.join(needed)} beside it; add it"
    for part in (_recomputed, _sharded, _captured, _split, _of_experts, _of_the_model, _of_the_update):
        yield from part(options)
    expert, tensor = (_whole(options, f"--{axis}-model-parallel-size") for axis in ("expert", "tensor"))
    if expert <= 1:  # after what is wrong of experts by themselves
        yield from _unsplit(options, _whole(options, "--num-experts"), tensor)


def refused_aside(options: Options) -> Wrong:
    """Yield what ``validate_args`` refuses and neither the plan nor its price depends on."""
    if "--rampup-batch-size" in options and "--train-iters" in options:
        yield "--rampup-batch-size", "Megatron-LM refuses it beside --train-iters; say --train-samples"


def _recomputed(options: Options) -> Wrong:
    """Yield what is refused of recomputation."""
    kind = _word(options, "--recompute-granularity")
    if "--recompute-activations" in options and kind not in ("", "selective"):
        yield "--recompute-activations", f" is selective, and --recompute-granularity says {kind}: keep one"
    if "--moe-layer-recompute" in options and kind == "full":
        yield "--moe-layer-recompute", " beside --recompute-granularity full: keep one"
    if kind == "selective" or "--recompute-activations" in options:
        for name in ("--recompute-method", "--recompute-num-layers"):
            if name in options:
                yield name, " beside selective recomputation: it is of --recompute-granularity full; keep one"
        yield from _modules(options)
    if kind == "full":
        for name in ("--recompute-method", "--recompute-num-layers"):
            if name not in options:
                yield "--recompute-granularity", f" full: Megatron-LM asks for {name} beside it; add it"
    if "--distribute-saved-activations" in options:
        if kind != "full" or "--recompute-method" not in options or _whole(options, "--tensor-model-parallel-size") < 2:
            yield "--distribute-saved-activations", ": is of full recomputation with a method and a tensor axis; leave it out"
        elif "--sequence-parallel" in options:
            yield "--distribute-saved-activations", " beside --sequence-parallel: keep one"


def _modules(options: Options) -> Wrong:
    """Yield what is refused of recomputation by module."""
    modules = options.get("--recompute-modules", ())
    if "moe_act" in modules and "--moe-grouped-gemm" not in options:
        yield "--recompute-modules", " moe_act: Megatron-LM asks for --moe-grouped-gemm beside it; add it"
    if "mla_up_proj" in modules and "--multi-latent-attention" not in options:
        yield "--recompute-modules", " mla_up_proj: it is of --multi-latent-attention"
    if "shared_experts" in modules and "--moe-shared-expert-overlap" in options:
        yield "--recompute-modules", " shared_experts beside --moe-shared-expert-overlap: keep one"
    delayed = "--fp8-format" in options and options.get("--fp8-recipe", ("delayed",)) == ("delayed",)
    if delayed and {"moe_act", "layernorm"} & set(modules):
        yield "--recompute-modules", f" {' '.join(modules)}: --fp8-recipe delayed, the default, does not allow it"


def _sharded(options: Options) -> Wrong:
    """Yield what is refused of sharding over the data axis."""
    form = _word(options, "--ckpt-format")
    if "--use-megatron-fsdp" in options and form != "fsdp_dtensor":
        yield "--use-megatron-fsdp", ": Megatron-LM asks for --ckpt-format fsdp_dtensor beside it; add it"
    if form == "fsdp_dtensor" and "--use-megatron-fsdp" not in options:
        yield "--ckpt-format", " fsdp_dtensor: it is of --use-megatron-fsdp"
    if form == "torch_dcp" and "--use-torch-fsdp2" not in options:
        yield "--ckpt-format", " torch_dcp: it is of --use-torch-fsdp2"
    wide = "--accumulate-allreduce-grads-in-fp32" in options and "--bf16" in options
    if wide and options.get("--main-grads-dtype", ("fp32",)) != ("fp32",):
        yield "--main-grads-dtype", f" {_word(options, '--main-grads-dtype')} beside --accumulate-allreduce-grads-in-fp32"
    if "--overlap-param-gather-with-optimizer-step" in options and not _virtual(options):
        yield "--overlap-param-gather-with-optimizer-step", ": is of virtual stages only; leave it out"
    gathered = "--fp8-param-gather" in options and "--optimizer-cpu-offload" in options
    if gathered and options.get("--fp8-recipe", ("delayed",)) != ("delayed",):
        yield "--fp8-param-gather", " beside --optimizer-cpu-offload: Megatron-LM asks for --fp8-recipe delayed"


def _captured(options: Options) -> Wrong:
    """Yield what is refused of captured graphs."""
    kind = options.get("--cuda-graph-impl", ("none",))
    for name in ("--enable-cuda-graph", "--external-cuda-graph"):
        if name in options and kind != ("none",):
            yield name, f" beside --cuda-graph-impl {' '.join(kind)}: keep one"
    captures = kind != ("none",) or "--enable-cuda-graph" in options or "--external-cuda-graph" in options
    whole = "full_iteration" in (*kind, *options.get("--cuda-graph-scope", ()))
    if captures and not whole and _word(options, "--recompute-granularity") == "full":
        yield "--recompute-granularity", " full beside captured graphs: it needs them of the full iteration"
    if captures and whole and "--no-check-for-nan-in-loss-and-grad" not in options:
        name = "--cuda-graph-impl" if "full_iteration" in kind else "--cuda-graph-scope"
        yield name, " full_iteration: Megatron-LM asks for --no-check-for-nan-in-loss-and-grad beside it"


def _split(options: Options) -> Wrong:
    """Yield what is refused of tensor, context and pipeline axes."""
    tensor, context, ranks = (_whole(options, f"--{axis}-size") for axis in (
        "tensor-model-parallel", "context-parallel", "pipeline-model-parallel"))  # fmt: skip
    if "--tp-comm-overlap" in options and "--sequence-parallel" not in options:
        yield "--tp-comm-overlap", ": Megatron-LM asks for --sequence-parallel beside it; add it"
    elif "--tp-comm-overlap" in options and (tensor == 1 or "--tensor-model-parallel-size" not in options):
        yield "--tp-comm-overlap", ": there is no tensor axis, and Megatron-LM stops; leave it out"
    length, most = (_whole(options, name) for name in ("--seq-length", "--max-position-embeddings"))
    if length and context > 1 and length % (2 * context):
        yield "--seq-length", f" {length} is no multiple of twice --context-parallel-size {context}"
    if length and most and most < length:
        yield "--max-position-embeddings", f" {most} is less than --seq-length {length}"
    if _virtual(options) and ranks == 2 and "--no-overlap-p2p-communication" in options:
        yield "--no-overlap-p2p-communication", ": interleaving without overlapped transfers needs more than two pipeline ranks"
    kinds = options.get("--cp-comm-type", ("p2p",))
    n_layers = _whole(options, "--num-layers")
    if context > 1 and len(kinds) > 1 and n_layers and len(kinds) != n_layers:
        yield "--cp-comm-type", f" names {len(kinds)} exchanges; it must be one, or one for each of the {n_layers} layers"


def _of_experts(options: Options) -> Wrong:
    """Yield what is refused of mixtures of experts."""
    expert, tensor = (_whole(options, f"--{axis}-model-parallel-size") for axis in ("expert", "tensor"))
    experts = _whole(options, "--num-experts")
    if expert > 1:
        if "--num-experts" not in options and "--num-layers" in options:
            yield "--expert-model-parallel-size", ": there are no experts; say --num-experts too, or leave it out"
        if experts % expert:  # 0 where it is not known
            yield "--expert-model-parallel-size", f" {expert} does not divide --num-experts {experts}"
        if "--fp16" in options:
            yield "--expert-model-parallel-size", ": Megatron-LM spreads experts in bf16 or fp32 only, not with --fp16"
    if expert > 1:
        yield from _unsplit(options, experts, tensor)
    yield from _of_routing(options, experts)
    if "--overlap-moe-expert-parallel-comm" in options:
        yield from _overlapped(options, expert, options.get("--moe-token-dispatcher-type", ("allgather",)))


def _unsplit(options: Options, experts: int, tensor: int) -> Wrong:
    """Yield what is refused of a mixture beside a tensor axis that does not split norms along the sequence."""
    if experts and tensor > 1 and "--sequence-parallel" not in options:
        own = "--expert-model-parallel-size" if "--expert-model-parallel-size" in options else "--num-experts"
        yield own, " beside a tensor axis: Megatron-LM asks for --sequence-parallel; add it"


def _of_routing(options: Options, experts: int) -> Wrong:
    """Yield what is refused of routers and of how tokens are sent."""
    sent = options.get("--moe-token-dispatcher-type", ("allgather",))
    if {"--moe-shared-expert-overlap", "--moe-shared-expert-intermediate-size"} <= set(options) and sent != ("alltoall",):
        yield "--moe-shared-expert-overlap", ": Megatron-LM asks for --moe-token-dispatcher-type alltoall"
    if "--moe-enable-deepep" in options and sent != ("flex",):
        yield "--moe-enable-deepep", ": Megatron-LM asks for --moe-token-dispatcher-type flex"
    scored = options.get("--moe-router-score-function", ("softmax",))
    if "--moe-router-enable-expert-bias" in options and "softmax" in scored:
        yield "--moe-router-enable-expert-bias", ": Megatron-LM asks for --moe-router-score-function sigmoid"
    if experts and options.get("--moe-router-topk") == ("1",) and scored == ("softmax",):
        balanced = options.get("--moe-router-load-balancing-type", ("aux_loss",))
        if "--moe-router-pre-softmax" not in options and balanced != ("sinkhorn",):
            yield "--moe-router-topk", " 1: Megatron-LM asks for --moe-router-pre-softmax beside it; add it"


def _overlapped(options: Options, expert: int, sent: tuple[str, ...]) -> Wrong:
    """Yield what is refused of exchanges of tokens beside computing."""
    name = "--overlap-moe-expert-parallel-comm"
    if expert < 2:
        yield name, ": is of experts spread by --expert-model-parallel-size; leave it out"
    if sent == ("allgather",):
        yield name, ": Megatron-LM asks for --moe-token-dispatcher-type alltoall or flex"
    if _word(options, "--recompute-granularity") == "full":
        yield name, " beside --recompute-granularity full: keep one"
    if "--moe-shared-expert-overlap" in options:
        yield name, " beside --moe-shared-expert-overlap: keep one"
    cut = _virtual(options) or "--pipeline-model-parallel-layout" in options
    if _whole(options, "--pipeline-model-parallel-size") > 1 and not cut:
        yield name, ": in a pipeline Megatron-LM asks for virtual stages"


def _of_the_model(options: Options) -> Wrong:
    """Yield what is refused of the model."""
    if "--hidden-size" in options and not {"--max-position-embeddings", "--use-checkpoint-args"} & set(options):
        yield "--hidden-size", ": Megatron-LM asks for --max-position-embeddings beside it; add it"
    hidden, heads = _whole(options, "--hidden-size"), _whole(options, "--num-attention-heads")
    if hidden and heads and hidden % heads and "--kv-channels" not in options:
        yield "--hidden-size", f" {hidden} is no multiple of --num-attention-heads {heads}; say --kv-channels"
    rotary = options.get("--position-embedding-type", ("learned_absolute",))
    if "--use-rotary-position-embeddings" in options:
        rotary = ("rope",)
    if rotary == ("mrope",) and "--mrope-section" not in options:
        yield "--position-embedding-type", " mrope: Megatron-LM asks for --mrope-section beside it; add it"
    if "--no-position-embedding" in options and rotary != ("rope",):
        yield "--no-position-embedding", ": Megatron-LM refuses it without --position-embedding-type rope"
    if _whole(options, "--mtp-num-layers") and rotary not in (("rope",), ("none",)):
        yield "--mtp-num-layers", ": Megatron-LM asks for --position-embedding-type rope or none"
    latent = "--multi-latent-attention" in options
    if rotary == ("yarn",) and not latent:
        yield from _of_yarn(options)
    if not latent and options.get("--rope-type", ("rope",)) != ("rope",):
        yield "--rope-type", f" {_word(options, '--rope-type')}: it is of --multi-latent-attention"
    if latent and options.get("--rope-type") == ("rope",) and "--no-rope-fusion" not in options:
        yield "--rope-type", " rope of latent attention: Megatron-LM asks for --no-rope-fusion beside it; add it"
    if latent and "--rotary-interleaved" in options:
        yield "--rotary-interleaved", " beside --multi-latent-attention: leave it out"
    biased = "--num-experts" in options and "--disable-bias-linear" not in options
    split = options.get("--expert-tensor-parallel-size", options.get("--tensor-model-parallel-size", ("1",)))
    if biased and split != ("1",) and split[0].isdecimal():
        yield "--num-experts", ": biases of experts need --expert-tensor-parallel-size 1; add it, or --disable-bias-linear"


def _of_yarn(options: Options) -> Wrong:
    """Yield what YaRN is not built without, or stops at [1]_: options that the model asks for have no default.

    References
    ----------
    .. [1] Megatron-LM, gpt_builders.py; megatron/core/models/gpt/gpt_model.py; yarn_rotary_pos_embedding.py.
    """
    name = "--position-embedding-type"
    for needed in ("--yarn-original-max-position-embeddings", "--yarn-beta-fast", "--yarn-beta-slow"):
        if needed not in options:
            yield name, f" yarn: Megatron-LM asks for {needed} beside it; add it"
    rounds = "--yarn-correction-range-round-to-int"
    if not {rounds, rounds.replace("--", "--no-")} & set(options):
        yield name, f" yarn: Megatron-LM asks for {rounds} beside it, or that with --no-; add it"
    if "--rotary-interleaved" in options:
        yield "--rotary-interleaved", f" beside {name} yarn: leave it out"


def _of_the_update(options: Options) -> Wrong:
    """Yield what is refused of learning rates and weight decay."""
    rates = []
    for name in ("--min-lr", "--lr"):
        try:
            rates.append(float(_word(options, name)))
        except ValueError:
            break
    if len(rates) == 2 and rates[0] > rates[1]:
        yield "--min-lr", f" {_word(options, '--min-lr')} is more than --lr {_word(options, '--lr')}"
    constant = options.get("--weight-decay-incr-style", ("constant",)) == ("constant",)
    for name in ("--start-weight-decay", "--end-weight-decay"):
        if constant and name in options:
            yield name, ": is of --weight-decay-incr-style linear or cosine; keep one"
        elif not constant and name not in options:
            yield "--weight-decay-incr-style", f": Megatron-LM asks for {name} beside it; add it"


def _virtual(options: Options) -> bool:
    """Return whether options say virtual stages other than by a layout."""
    one = "--num-layers-per-virtual-pipeline-stage" in options
    return one or _whole(options, "--num-virtual-stages-per-pipeline-rank") > 1


def _word(options: Options, name: str) -> str:
    return " ".join(options.get(name, ()))


def _whole(options: Options, name: str) -> int:
    word = _word(options, name)
    return int(word) if word.isdecimal() else 0
