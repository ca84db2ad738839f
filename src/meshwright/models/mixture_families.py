"""Families with routed experts: Mixtral, DBRX, Qwen 2 and 3 MoE, GPT-OSS, DeepSeek V2 and V3 (and Kimi K2, built like V3)."""

from __future__ import annotations

from dataclasses import replace

from meshwright.base.errors import InputError
from meshwright.core.graph import Edge, Graph, Operator
from meshwright.models import dense_blocks, dense_families, ends, mixture_blocks
from meshwright.models.config import ModelConfig
from meshwright.models.dense_blocks import Block
from meshwright.models.mixture_blocks import Experts, Latent

__all__ = ["assembled", "dbrx", "deepseek", "experts_of", "glm4_moe", "gpt_oss", "mixtral", "qwen_moe"]


def mixtral(config: ModelConfig, name: str, sequence: int, fused: bool) -> Graph:
    """Return the graph of a Mixtral model: a Llama layer whose feed-forward network is a choice of experts."""
    block = dense_families.llama_block(config, sequence, fused)
    block = replace(block, window=config.integer("sliding_window", "sliding window in tokens", 0, minimum=0, maximum=10**9))
    experts = experts_of(config, "num_local_experts|num_experts", block.width)
    body = dense_blocks.attention(block) + mixture_blocks.expert_feed_forward(block, experts)
    return assembled(config, name, [body] * dense_families.n_layers(config), block, experts)


def dbrx(config: ModelConfig, name: str, sequence: int, fused: bool) -> Graph:
    """Return the graph of a DBRX model: built like Mixtral, with names of fields of its own.

    Raises `InputError` when a field is missing or wrong.
    """
    attention, experts = config.part("attn_config"), config.part("ffn_config")
    return mixtral(
        config.changed(
            hidden_size=config.integer("d_model", "width of the residual stream"),
            num_hidden_layers=config.integer("n_layers", "layers"),
            num_attention_heads=config.integer("n_heads", "heads of a layer"),
            num_key_value_heads=attention.integer("kv_n_heads", "heads of keys and values", 1),
            intermediate_size=experts.integer("ffn_hidden_size", "width of an expert"),
            num_local_experts=experts.integer("moe_num_experts", "routed experts of a layer"),
            num_experts_per_tok=experts.integer("moe_top_k", "routed experts that a token visits"),
            sliding_window=None,
        ),
        name, sequence, fused,
    )  # fmt: skip


def qwen_moe(config: ModelConfig, name: str, sequence: int, fused: bool) -> Graph:
    """Return the graph of a Qwen 2 or 3 MoE model: experts in every ``decoder_sparse_step``-th layer, dense ones between.

    Raises `InputError` when a field is missing or wrong.
    """
    block = dense_families.llama_block(config, sequence, fused)
    shared = config.integer("shared_expert_intermediate_size", "width of the shared experts", 0, minimum=0)
    width = config.integer("moe_intermediate_size", "width of an expert")
    experts = replace(experts_of(config, "num_experts|num_local_experts", width), shared_width=shared, shared_gate=shared > 0)
    step = config.integer("decoder_sparse_step", "every how many layers one has experts", 1)
    dense = config.whole_numbers("mlp_only_layers", "layers without experts")
    windows = dense_families.layer_windows(config, dense_families.n_layers(config))
    kinds = [(window, i not in dense and (i + 1) % step == 0) for i, window in enumerate(windows)]
    bodies = {}
    for window, sparse in dict.fromkeys(kinds):
        seen = replace(block, window=window)
        half = mixture_blocks.expert_feed_forward(seen, experts) if sparse else dense_blocks.feed_forward(seen)
        bodies[window, sparse] = dense_blocks.attention(seen) + half
    return assembled(config, name, [bodies[kind] for kind in kinds], block, experts)


def deepseek(config: ModelConfig, name: str, sequence: int, fused: bool) -> Graph:
    """Return the graph of a DeepSeek V2 or V3 model: latent attention, first layers dense, then shared and routed experts.

    Raises `InputError` when a field is missing or wrong.
    """
    heads = config.integer("num_attention_heads", "heads of a layer")
    latent = Latent(
        config.integer("q_lora_rank", "rank of queries; null for full", 0, minimum=0),
        config.integer("kv_lora_rank", "rank of keys and values"),
        config.integer("qk_nope_head_dim", "elements of a query head without rotation", minimum=0),
        config.integer("qk_rope_head_dim", "elements of a query head with rotation"),
        config.integer("v_head_dim", "elements of a value head"),
        config.flag("attention_bias", "whether attention products have biases", False),
    )
    block = Block(
        sequence, config.integer("hidden_size", "width of the residual stream"), heads, heads, latent.plain + latent.rotated,
        config.integer("intermediate_size", "width of the dense feed-forward network"), fused=fused,
    )  # fmt: skip
    config.accounts_for("num_key_value_heads", "head_dim", "qk_head_dim")  # of keys as they were before they were latent
    newer = config.text("model_type", "family of the model", "") != "deepseek_v2"
    return _with_shared(config, name, block, mixture_blocks.latent_attention(block, latent), router_bias=newer)


def glm4_moe(config: ModelConfig, name: str, sequence: int, fused: bool) -> Graph:
    """Return the graph of a GLM-4.5 model: Llama's attention, then experts as in DeepSeek V3.

    Raises `InputError` when a field is missing or wrong.
    """
    sized = config if config.given("head_dim") else config.changed(head_dim=128)
    block = dense_families.llama_block(sized, sequence, fused)
    block = replace(block, output_bias=False, head_norms=config.flag("use_qk_norm", "whether heads are normalised", False))
    return _with_shared(config, name, block, dense_blocks.attention(block), router_bias=True)


def _with_shared(config: ModelConfig, name: str, block: Block, front: tuple[Operator, ...], *, router_bias: bool) -> Graph:
    """Return layers with shared and routed experts behind an attention `front`, the first of them dense, and those that predict
    further tokens.
    """
    width = config.integer("moe_intermediate_size", "width of an expert")
    shared = config.integer("n_shared_experts", "experts that every token visits", 0, minimum=0)
    experts = replace(
        experts_of(config, "n_routed_experts|num_local_experts", width), shared_width=shared * width, router_bias=router_bias
    )
    n_dense = config.integer("first_k_dense_replace", "first layers without experts", 0, minimum=0)
    step = config.integer("moe_layer_freq", "every how many layers one has experts", 1)
    dense, sparse = front + dense_blocks.feed_forward(block), front + mixture_blocks.expert_feed_forward(block, experts)
    bodies = [sparse if i >= n_dense and i % step == 0 else dense for i in range(dense_families.n_layers(config))]
    n_ahead = config.integer("num_nextn_predict_layers", "layers that predict further tokens", 0, minimum=0, maximum=100)
    return assembled(config, name, bodies, block, experts, ahead=[sparse] * n_ahead)


def gpt_oss(config: ModelConfig, name: str, sequence: int, fused: bool) -> Graph:
    """Return the graph of a GPT-OSS model: biases everywhere, attention sinks, windows in every second layer, experts in all.

    Raises `InputError` when a field is missing or wrong.
    """
    biased = config.flag("attention_bias", "whether attention products have biases", True)
    config.accounts_for("experts_per_token")  # the same as num_experts_per_tok, in published files
    block = replace(dense_families.llama_block(config, sequence, fused), query_bias=biased, output_bias=biased, sinks=True)
    experts = replace(experts_of(config, "num_local_experts|num_experts", block.width), router_bias=True, bias=True)
    windows = dense_families.layer_windows(config, dense_families.n_layers(config))
    bodies = {}
    for window in dict.fromkeys(windows):
        seen = replace(block, window=window)
        bodies[window] = dense_blocks.attention(seen) + mixture_blocks.expert_feed_forward(seen, experts)
    return assembled(config, name, [bodies[window] for window in windows], block, experts)


def experts_of(config: ModelConfig, field: str, width: int) -> Experts:
    """Return the experts of a layer: how many, and how many a token visits.

    `field`: spellings of the field that says how many there are.
    `width`: of each.
    Raises `InputError` when a token visits more than there are.
    """
    n_experts = config.integer(field, "routed experts of a layer")
    per_token = config.integer("num_experts_per_tok", "routed experts that a token visits")
    if per_token > n_experts:
        raise InputError(
            f"{config.place}: num_experts_per_tok is {per_token}, but {field.split('|')[0]} is {n_experts}; a token cannot "
            "visit more experts "
            "than there are"
        )
    return Experts(n_experts, per_token, width)


def assembled(
    config: ModelConfig,
    name: str,
    bodies: list[tuple[Operator, ...]],
    block: Block,
    experts: Experts,
    *,
    ahead: list[tuple[Operator, ...]] | None = None,
) -> Graph:
    """Return a graph: embedding, head and layers that predict further tokens around layers; weights a token meets counted.

    `bodies`: operators of every layer.
    `ahead`: those of layers that predict further tokens.
    """
    words = dense_families.vocabulary(config)
    tied = config.flag("tie_word_embeddings", "whether head and word table share weights", False)
    kinds = ["moe" if any(operator.expert for operator in body) else "attention_mlp" for body in bodies]
    layers = [(f"layers.{i}", kind, body) for i, (kind, body) in enumerate(zip(kinds, bodies, strict=True))]
    n_idle = (kinds.count("moe") + len(ahead or ())) * experts.n_idle_parameters(block.hidden)
    mtp = [(f"mtp.{i}", "moe", _prediction(block, body, words)) for i, body in enumerate(ahead or ())]
    everything = [
        ("embed", "embedding", ends.embedding(block, words)),
        *layers,
        *mtp,
        ("head", "head", ends.head(block, words)),
    ]
    shared = words * block.hidden * (len(mtp) + (1 if tied else 0))
    n_weights = sum(operator.n_parameters for _, _, body in everything for operator in body)
    places = (*((i, "words") for i in (0, *range(len(layers) + 1, len(layers) + 1 + len(mtp)))),)
    places += ((len(everything) - 1, "unembedding"),) if tied else ()
    graph = ends.chain(name, everything, block, shared=shared, active=n_weights - shared - n_idle, places=places)
    if not mtp:
        return graph
    # the head reads the last layer, not the layers that predict further tokens
    last, end = len(layers), len(everything) - 1
    edges = (*graph.edges[: end - 1], Edge(last, end, block.sequence * block.hidden))
    return replace(graph, edges=edges)


def _prediction(block: Block, body: tuple[Operator, ...], words: int) -> tuple[Operator, ...]:
    """A layer that predicts one token further from the stream and the next token's embedding.

    Its word table is a copy of the embedding's (it runs at the other end of the pipeline), its unembedding is the head's own.

    References
    ----------
    .. [1] DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv 2412.19437, section 2.2.
    """
    first = (
        ends.lookup("words", words, block.sequence, block.hidden, split=True),
        dense_blocks.norm("embedding_norm", block, saved=2),
        dense_blocks.norm("stream_norm", block, saved=2),
        dense_blocks.product("join", block.sequence, 2 * block.hidden, block.hidden, axis="sequence"),
    )
    tail = ends.head(block, words, name="prediction.")
    return (*first, *body, *(replace(part, n_parameters=0) if part.kind == "matmul" else part for part in tail))
