"""Small models to plan and run on a laptop: plain PyTorch, nothing of Meshwright in them."""

from __future__ import annotations

import itertools

import torch
from torch import nn

VOCABULARY, WIDTH, HEADS, LENGTH = 101, 64, 4, 32


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.head = width // n_heads
        self.wq = nn.Linear(width, width, bias=False)
        self.wk = nn.Linear(width, width, bias=False)
        self.wv = nn.Linear(width, width, bias=False)
        self.wo = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        query, key, value = (
            layer(x).view(batch, length, -1, self.head).transpose(1, 2) for layer in (self.wq, self.wk, self.wv)
        )
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.wo(mixed.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    """Two linear layers with a GELU between."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.gelu(self.up(x)))


class Block(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, width: int, n_heads: int, inner: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, n_heads)
        self.norm2 = nn.LayerNorm(width)
        self.feed_forward = FeedForward(width, inner)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


class Transformer(nn.Module):
    """A small language model; learned positions are added between two modules, as many models do."""

    def __init__(
        self, n_layers: int = 6, width: int = WIDTH, n_heads: int = HEADS, vocabulary: int = VOCABULARY, length: int = LENGTH
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(length, width) * 0.02)
        self.layers = nn.ModuleList(Block(width, n_heads, 4 * width) for _ in range(n_layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.positions[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def small() -> nn.Module:
    """Six layers of width 64: 0.3 million parameters."""
    return Transformer()


def wide() -> nn.Module:
    """Four layers of width 256: 3.2 million parameters; large enough that compute outweighs messages."""
    return Transformer(n_layers=4, width=256, n_heads=8, length=128)


def perceptron() -> nn.Module:
    """A chain of linear layers without tokens."""
    widths = [32, 64, 96, 48, 16]
    parts: list[nn.Module] = []
    for inner, outer in itertools.pairwise(widths):
        parts.append(nn.Sequential(nn.Linear(inner, outer), nn.ReLU()))
    return nn.Sequential(*parts)


def llama() -> nn.Module:
    """A Llama of four layers with grouped heads, as Hugging Face builds it."""
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, intermediate_size=128,
        vocab_size=101, max_position_embeddings=64, tie_word_embeddings=False, use_cache=False,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def gpt2() -> nn.Module:
    """A GPT-2 of four layers without dropout, its word table shared with its head, as Hugging Face builds it."""
    import transformers

    config = transformers.GPT2Config(
        n_embd=64, n_layer=4, n_head=4, n_positions=64, vocab_size=101, use_cache=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)
