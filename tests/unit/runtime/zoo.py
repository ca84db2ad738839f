"""Models as people write them, small: lists of unlike depth, shared layers, dictionaries, buffers, images,
several inputs, skips.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import torch
from torch import nn

WORDS, WIDTH = 50, 16


class Block(nn.Module):
    """One layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.linear(self.norm(x)))


class Plain(nn.Module):
    """Four layers between a word table and a head that share their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.layers = nn.ModuleList(Block() for _ in range(4))
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor | tuple:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Returns(Plain):
    """Returns more than the tensor of the loss."""

    def forward(self, tokens: torch.Tensor) -> tuple:
        logits = super().forward(tokens)
        return logits, {"mean": logits.mean()}


class Options(Plain):
    """Takes more than its input, all of it left out."""

    def forward(
        self, tokens: torch.Tensor, mask: torch.Tensor | None = None, scale: float = 0.5, flag: bool = True
    ) -> torch.Tensor:
        x = self.embed(tokens) * scale
        for layer in self.layers:
            x = layer(x) if mask is None else layer(x) * mask
        return self.head(x) if flag else x


class Wide(nn.Module):
    """A layer whose products stand beside its norm, not in a module of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Direct(Plain):
    """Four such layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Wide() for _ in range(4))


class Conv1D(nn.Module):
    """A product whose weight lies the other way round, as GPT-2's in transformers."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf, self.nx = nf, nx
        self.weight, self.bias = nn.Parameter(torch.randn(nx, nf) * 0.2), nn.Parameter(torch.randn(nf) * 0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], self.nf)


class Grouped(nn.Module):
    """Queries of four heads, keys and values of two, out of one product."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(num_attention_heads=4, num_key_value_heads=2)
        self.c_attn, self.c_proj = Conv1D(2 * WIDTH, WIDTH), Conv1D(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sizes = [4 * self.config.num_attention_heads, *[4 * self.config.num_key_value_heads] * 2]
        query, key, value = (part.unflatten(-1, (-1, 4)).transpose(1, 2) for part in self.c_attn(x).split(sizes, -1))
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.c_proj(mixed.transpose(1, 2).flatten(2))


class Making(nn.Module):
    """Attention of four heads that makes masks and more from what it is given, as many do."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        query, key, value = (
            part(x).view(rows, length, -1, 4).transpose(1, 2) for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        mask = x.new_full((length, length), float("-inf")).triu(1)
        mask = mask + 0.1 * torch.ones_like(x)[0] @ x.new_ones(x.shape[-1], length)
        there = x.detach().abs().sum(-1) > 0
        mixed = x.new_zeros(query.shape)
        mixed = mixed + nn.functional.scaled_dot_product_attention(query, key, value, mask)
        return self.o_proj((mixed * there[:, None, :, None]).transpose(1, 2).flatten(2))


class Gated(nn.Module):
    """Gate and up out of one product."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj, self.down_proj = nn.Linear(WIDTH, 48), nn.Linear(24, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        return self.down_proj(torch.sigmoid(gate) * up)


class InOne(nn.Module):
    """A layer of products whose outputs are several parts."""

    def __init__(self) -> None:
        super().__init__()
        self.attn, self.mlp, self.norm = Grouped(), Gated(), nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm(x))
        return x + self.mlp(x)


class Makes(Plain):
    """Two layers whose attention makes tensors from its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(InOne() for _ in range(2))
        for layer in self.layers:
            layer.attn = Making()


class Fused(Plain):
    """Two such layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(InOne() for _ in range(2))


class UnlikeDepths(Plain):
    """Layers of one, three and two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(*(Block() for _ in range(depth))) for depth in (1, 3, 2, 1))


class SharedLayers(Plain):
    """The same layer at two depths."""

    def __init__(self) -> None:
        super().__init__()
        first, second = Block(), Block()
        self.layers = nn.ModuleList([first, second, first, Block()])


class Dictionary(nn.Module):
    """Everything in one dictionary, as small GPTs often are."""

    def __init__(self) -> None:
        super().__init__()
        layers = nn.ModuleList(Block() for _ in range(4))
        self.transformer = nn.ModuleDict({"wte": nn.Embedding(WORDS, WIDTH), "wpe": nn.Embedding(32, WIDTH), "h": layers})
        self.register_buffer("scale", torch.tensor(0.5))
        self.register_buffer("positions", torch.arange(32), persistent=False)
        self.lm_head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.transformer["wte"](tokens) + self.transformer["wpe"](self.positions[: tokens.shape[1]])
        for layer in self.transformer["h"]:
            x = layer(x) * self.scale + x
        return self.lm_head(x)


class Skips(nn.Module):
    """Every early layer also feeds a late one, across all stages between."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.layers = nn.ModuleList(Block() for _ in range(6))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x, kept = self.embed(tokens), []
        for i, layer in enumerate(self.layers):
            x = layer(x + kept.pop() if i >= 3 else x)
            if i < 3:
                kept.append(x)
        return self.head(x)


class Gate(nn.Module):
    """Takes and returns two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + torch.relu(self.linear(x)) * gate, gate * 0.9


class Pairs(nn.Module):
    """Layers hand pairs on."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.layers = nn.ModuleList(Gate() for _ in range(4))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        gate = torch.sigmoid(x)
        for layer in self.layers:
            x, gate = layer(x, gate)
        return self.head(x)


class Attends(nn.Module):
    """Attention under a mask that is handed to it."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        query, key, value = (part.unsqueeze(1) for part in self.mix(x).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return x + self.out(mixed.squeeze(1))


class Masked(nn.Module):
    """Computes a mask and hands it to every layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.layers = nn.ModuleList(Attends() for _ in range(4))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        mask = torch.triu(torch.full((length, length), float("-inf")), 1)
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x)


class Biased(Masked):
    """Trains what it hands to every layer."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(16, 16))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        bias = self.bias[: tokens.shape[1], : tokens.shape[1]] * 2.0
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, bias)
        return self.head(x)


class Overwrites(Plain):
    """A layer writes into what it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.layers[1] = nn.Sequential(nn.ReLU(inplace=True), Block())


class Experts(nn.Module):
    """Six experts, stacked."""

    def __init__(self) -> None:
        super().__init__()
        self.num_experts = 6
        self.up = nn.Parameter(torch.randn(6, WIDTH, 2 * WIDTH) * 0.2)
        self.down = nn.Parameter(torch.randn(6, 2 * WIDTH, WIDTH) * 0.2)

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        total = torch.zeros_like(x)
        for expert in range(self.num_experts):
            token, place = torch.where(chosen == expert)
            result = torch.relu(x[token] @ self.up[expert]) @ self.down[expert]
            total = total.index_add(0, token, (result * weights[token, place, None]).to(x.dtype))
        return total


class Routed(nn.Module):
    """Attention, then two experts of six for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.router, self.experts = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 6), Experts()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (part(x).unflatten(-1, (-1, 4)).transpose(1, 2) for part in (self.wq, self.wk, self.wv))
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.wo(mixed.transpose(1, 2).flatten(2))
        tokens = self.norm(x).flatten(0, 1)
        weights, chosen = self.router(tokens).softmax(-1).topk(2)
        return x + self.experts(tokens, chosen, weights).view_as(x)


class Mixture(Plain):
    """Four layers, the middle two with experts."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(), Routed(), Routed(), Block()])


class WithSinks(nn.Module):
    """Attention written out, of four heads in two groups, which may go to a number of each head instead of to a token."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = nn.Linear(WIDTH, 16), nn.Linear(WIDTH, 8), nn.Linear(WIDTH, 8)
        self.o_proj, self.sinks = nn.Linear(16, WIDTH), nn.Parameter(torch.randn(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        products = (self.q_proj, self.k_proj, self.v_proj)
        query, key, value = (part(x).unflatten(-1, (-1, 4)).transpose(1, 2) for part in products)
        key, value = (part.repeat_interleave(2, 1) for part in (key, value))
        scores = query @ key.transpose(2, 3)
        scores = scores + torch.triu(torch.full_like(scores[0, 0], float("-inf")), 1)
        sinks = self.sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        mixed = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1] @ value
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class BiasedExperts(Experts):
    """Experts that add biases."""

    def __init__(self) -> None:
        super().__init__()
        self.down_bias = nn.Parameter(torch.randn(6, WIDTH) * 0.2)

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        every = (nn.functional.one_hot(chosen, self.num_experts) * weights[..., None]).sum(1).to(x.dtype)
        return super().forward(x, chosen, weights) + every @ self.down_bias


class Sunk(nn.Module):
    """Attention with sinks, then two experts of six for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.router, self.experts = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 6), BiasedExperts()
        self.self_attn = WithSinks()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.norm(x))
        tokens = self.norm(x).flatten(0, 1)
        weights, chosen = self.router(tokens).softmax(-1).topk(2)
        return x + self.experts(tokens, chosen, weights).view_as(x)


class Sinks(Plain):
    """Two such layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Sunk() for _ in range(2))


class Collapsed(Mixture):
    """All tokens choose the same two experts, so that ranks with the others get none."""

    def __init__(self) -> None:
        super().__init__()
        for layer in self.layers[1:3]:
            layer.router.bias.data[:2] += 8.0


class Images(nn.Module):
    """Convolutions with batch norms; begins with its first layer."""

    def __init__(self) -> None:
        super().__init__()
        channels = itertools.pairwise([3, 8, 8, 16, 16])
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()) for a, b in channels
        )
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(self.pool(x).flatten(1))


class TwoInputs(nn.Module):
    """Words and numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.dense, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(4, WIDTH), nn.Linear(WIDTH, 1)
        self.layers = nn.ModuleList(Block() for _ in range(4))

    def forward(self, words: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        x = self.table(words).mean(1) + self.dense(numbers)
        for layer in self.layers:
            x = layer(x)
        return self.head(x + numbers.mean(1, keepdim=True))


def shallow() -> nn.Module:
    """Return a transformer of three layers."""
    import models

    return models.Transformer(n_layers=3)


def double() -> nn.Module:
    """Return a transformer of two layers, whose words divide by four."""
    import models

    return models.Transformer(n_layers=2, vocabulary=104)


def compiled() -> nn.Module:
    """Return the same, whose layers are compiled each for itself, without machine code."""
    model = double()
    model.layers[0].compile(backend="eager", fullgraph=True)
    model.layers[1].compile(backend="eager")
    return model


OF_EXPERTS = {
    "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48,
    "vocab_size": WORDS, "max_position_embeddings": 64, "num_experts_per_tok": 2,
}  # fmt: skip


def mixtral() -> nn.Module:
    """Return a Mixtral of four experts, as Hugging Face builds it."""
    import transformers

    return transformers.MixtralForCausalLM(transformers.MixtralConfig(num_local_experts=4, **OF_EXPERTS))


def qwen_of_experts() -> nn.Module:
    """Return a Qwen 2 of four experts and a shared one, as Hugging Face builds it."""
    import transformers

    sizes = {"num_experts": 4, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40}
    return transformers.Qwen2MoeForCausalLM(transformers.Qwen2MoeConfig(**sizes, **OF_EXPERTS))


def latent() -> nn.Module:
    """Return a DeepSeek-V3, whose heads share a part of their keys, as Hugging Face builds it."""
    import transformers

    sizes = OF_EXPERTS | {"num_hidden_layers": 3, "num_key_value_heads": 4}
    heads = {"kv_lora_rank": 16, "q_lora_rank": 12, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8}
    routed = {"n_routed_experts": 4, "moe_intermediate_size": 16, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
    return transformers.DeepseekV3ForCausalLM(transformers.DeepseekV3Config(**sizes, **heads, **routed))


def gpt_oss() -> nn.Module:
    """Return a GPT-OSS of four experts, whose biases and sinks say something, as Hugging Face builds it."""
    import transformers

    sizes = OF_EXPERTS | {"head_dim": 8, "num_local_experts": 4, "sliding_window": 5, "pad_token_id": 0, "eos_token_id": 2}
    model = transformers.GptOssForCausalLM(transformers.GptOssConfig(**sizes))
    for name, weight in model.named_parameters():
        if name.endswith(("bias", "sinks")):
            weight.data.add_(0.3 * torch.randn(weight.shape))
    return model


def bert() -> nn.Module:
    """Return a BERT that says words that were masked, as Hugging Face builds it."""
    import transformers

    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": WORDS}
    dry = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return transformers.BertForMaskedLM(transformers.BertConfig(**sizes, **dry))


def phi3() -> nn.Module:
    """Return a Phi-3, whose queries, keys and values are one product, as are gate and up, as Hugging Face builds it."""
    import transformers

    sizes = OF_EXPERTS | {"num_hidden_layers": 2, "initializer_range": 0.1, "resid_pdrop": 0.0}
    sizes.pop("num_experts_per_tok")
    return transformers.Phi3ForCausalLM(transformers.Phi3Config(**sizes, pad_token_id=0, bos_token_id=1, eos_token_id=2))


def images() -> tuple[nn.Module, torch.Tensor]:
    """Return the model and an image."""
    return Images(), torch.zeros(1, 3, 8, 8)


def two_inputs() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    """Return the model and one sample of both inputs."""
    return TwoInputs(), (torch.zeros(1, 6, dtype=torch.long), torch.zeros(1, 4))
