"""Operators of layers with routed experts, and of latent attention (DeepSeek's low-rank queries, keys and values).

Routing weights are taken to be multiplied into the activation function (as recent training stacks do), so what the experts put
out is not kept. Experts' weights are split over the tensor axis like any feed-forward network, so every rank of it keeps the
tokens dispatched to it whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshwright.core.graph import Operator
from meshwright.models import dense_blocks
from meshwright.models.dense_blocks import Block, norm, product, residual

__all__ = ["Experts", "Latent", "expert_feed_forward", "latent_attention"]

_PROBABILITY_BYTES = 4  # routers compute in fp32


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of a layer.

    `n_experts`, `per_token`, `width`: how many there are, how many a token visits, width of each.
    `shared_width`: width of the experts that every token visits, together; 0 for none.
    `shared_gate`: whether their sum is weighted by a gate (Qwen 2).
    `router_bias`: whether the router has a weight per expert besides its product: a bias, or one that balances loads (DeepSeek
    V3).
    `bias`: whether the experts' products have biases (GPT-OSS).
    """

    n_experts: int
    per_token: int
    width: int
    shared_width: int = 0
    shared_gate: bool = False
    router_bias: bool = False
    bias: bool = False

    def n_biases(self, hidden: int) -> tuple[int, int]:
        """Return the biases of one expert's products in and out."""
        return (2 * self.width, hidden) if self.bias else (0, 0)

    def n_idle_parameters(self, hidden: int) -> int:
        """Return the weights of one layer that a token does not meet (gated experts of three products)."""
        return (self.n_experts - self.per_token) * (3 * hidden * self.width + sum(self.n_biases(hidden)))


@dataclass(frozen=True, slots=True)
class Latent:
    """Ranks and head sizes of latent attention.

    `query_rank`, `key_rank`: ranks of queries (0: full) and of keys and values together.
    `plain`, `rotated`, `value`: elements of a query and key head without and with rotation, and of a value head.
    `bias`: whether the products from and to the residual stream have biases.
    """

    query_rank: int
    key_rank: int
    plain: int
    rotated: int
    value: int
    bias: bool = False


def expert_feed_forward(block: Block, experts: Experts) -> tuple[Operator, ...]:
    """Return the feed-forward half of a layer with routed and, where there are, shared experts.

    References
    ----------
    .. [1] DeepSeek-AI, "DeepSeek-V2", arXiv 2405.04434, section 2.2 (shared and routed experts).
    """
    sequence, hidden, n, top_k, width = block.sequence, block.hidden, experts.n_experts, experts.per_token, experts.width
    bias_in, bias_out = experts.n_biases(hidden)
    routing = (("sequence", sequence), ("hidden", n))
    moved = (("sequence", sequence), ("top_k", top_k), ("hidden", hidden))
    visits = (("sequence", sequence), ("top_k", top_k), ("experts", n))
    router = product("mlp.router", sequence, hidden, n, axis="sequence")
    body = [
        norm("mlp.norm", block),
        replace(router, n_parameters=router.n_parameters + (n if experts.router_bias else 0)),
        Operator(
            "mlp.routing", "softmax", routing, "sequence", saved_extra_bytes=_PROBABILITY_BYTES * sequence * n,
            saved_axis="sequence"
        ),
        Operator("mlp.dispatch", "dispatch", moved, saved_elements=sequence * top_k * hidden, saved_axis=""),
        Operator(
            "mlp.experts.in", "grouped_matmul", (*visits, ("in", hidden), ("out", 2 * width)), "out",
            n_parameters=n * (hidden * 2 * width + bias_in), expert=True, saved_elements=sequence * top_k * 2 * width,
        ),
        dense_blocks.activation("mlp.experts.activation", sequence * top_k, width, 2, block),
        Operator(
            "mlp.experts.out", "grouped_matmul", (*visits, ("in", width), ("out", hidden)), "in",
            n_parameters=n * (hidden * width + bias_out), expert=True,
        ),
        Operator("mlp.combine", "combine", moved),
    ]  # fmt: skip
    if experts.shared_width:
        body += dense_blocks.feed_forward_branch("mlp.shared", replace(block, width=experts.shared_width))
    if experts.shared_gate:
        body.append(product("mlp.shared.gate", sequence, hidden, 1, axis="sequence", saved=1))
        body.append(_weighted(block))
    return (*body, residual("mlp.residual", block, inputs=3 if experts.shared_width else 2))


def latent_attention(block: Block, latent: Latent) -> tuple[Operator, ...]:
    """Return the attention half of a layer with low-rank queries, keys and values.

    The products down to the ranks are computed by every tensor rank on its part of the sequence, those up are split by heads.

    References
    ----------
    .. [1] DeepSeek-AI, "DeepSeek-V2", arXiv 2405.04434, section 2.1 and appendix C.
    """
    sequence, hidden, heads = block.sequence, block.hidden, block.heads
    head = latent.plain + latent.rotated
    body = [norm("attention.norm", block)]
    if latent.query_rank:
        rank = latent.query_rank
        body += [
            product("attention.query_down", sequence, hidden, rank, axis="sequence", bias=latent.bias, saved=rank),
            norm("attention.query_norm", replace(block, hidden=rank)),
            product("attention.query_up", sequence, rank, heads * head, axis="out", saved=heads * head),
        ]
    else:
        body.append(product("attention.query", sequence, hidden, heads * head, axis="out", saved=heads * head))
    down, up = latent.key_rank + latent.rotated, heads * (latent.plain + latent.value)
    rotated = (("sequence", sequence), ("hidden", heads * (2 * head + latent.value)), ("inputs", 1))
    return (
        *body,
        product("attention.key_value_down", sequence, hidden, down, axis="sequence", bias=latent.bias, saved=latent.key_rank),
        norm("attention.key_value_norm", replace(block, hidden=latent.key_rank)),
        product("attention.key_value_up", sequence, latent.key_rank, up, axis="out"),
        # writes keys (their rotated part is the same for all heads) and values, which the core needs
        Operator("attention.rotary", "elementwise", rotated, "hidden", saved_elements=sequence * heads * (head + latent.value)),
        *dense_blocks.core("attention", block, head, latent.value),
        product(
            "attention.output", sequence, heads * latent.value, hidden, axis="in", bias=latent.bias, saved=heads * latent.value
        ),
        residual("attention.residual", block),
    )


def _weighted(block: Block) -> Operator:
    """The shared experts' output times its gate, which keeps that output."""
    dims = (("sequence", block.sequence), ("hidden", block.hidden), ("inputs", 2))
    kept = block.sequence * block.hidden
    return Operator("mlp.shared.weighted", "elementwise", dims, "sequence", saved_elements=kept, saved_axis="sequence")
